//! Between two jobs of an instance: removes what jobs have left with its engine.

use std::time::Duration;

use greenroom_core::container::engine::{ContainerEngine, EnginePlace};
use greenroom_core::container::name::ContainerName;
use greenroom_core::ids::{AttemptName, InstanceId};
use greenroom_core::instance::Instance;
use greenroom_core::policy::Timing;
use greenroom_ports::connector::RemoteCommand;
use greenroom_ports::setup::PoolSetup;

use super::ContainerError;
use crate::acquire::Acquired;
use crate::effect::CommandResult;
use crate::{Engine, EngineError};

const SCRIPT: &str = include_str!("leftovers.sh");

/// A script for the engine of an instance, and what reads it.
#[derive(Debug)]
pub(crate) struct EngineScript {
    reader: String,
    input: String,
}

impl Engine {
    /// Records what the engine of a new instance has. Without that record, the instance serves one job.
    pub(crate) async fn record_brought(&self, id: &InstanceId, setup: &PoolSetup) -> Result<(), EngineError> {
        let Some(pulls) = &setup.pulls else { return Ok(()) };
        let state = self.store.load().await?;
        let Some(instance) = state.instance(id) else { return Ok(()) };
        let (Some(script), Some(endpoint)) = (record(instance, pulls.engine()), &instance.endpoint) else {
            return Ok(());
        };
        match self.command_at(id, endpoint, script.command(&setup.policy.timing)).await {
            Ok(CommandResult::Passed) => {}
            Ok(CommandResult::Failed(why) | CommandResult::Cut(why)) => {
                tracing::warn!(pool = %self.pool, "{id} will serve one job: what its engine has is not known: {why}");
            }
            Err(problem) => {
                tracing::warn!(pool = %self.pool, "{id} will serve one job: what its engine has is not known: {problem}");
            }
        }
        Ok(())
    }
}

impl EngineScript {
    pub(crate) fn command(&self, timing: &Timing) -> RemoteCommand<'_> {
        let within = timing.ready_timeout;
        let start_within = timing.connect_timeout;
        RemoteCommand { text: &self.reader, input: &self.input, within, start_within, shared: true }
    }
}

/// Records what the engine has before the first job of an instance; `None`: it serves one job, or is cleaned as a whole.
fn record(instance: &Instance, engine: ContainerEngine) -> Option<EngineScript> {
    let is_reused = instance.uses_left != Some(1);
    let is_new = is_reused && instance.uses == 0 && !instance.is_static();
    is_new.then(|| written(instance, engine, "record"))
}

/// Removes what jobs have left that are no longer there; `None`: the instance is cleaned as a whole.
pub(crate) fn remove(instance: &Instance, engine: ContainerEngine) -> Option<EngineScript> {
    let is_cleaned = instance.is_static() && instance.holders.is_empty();
    (!is_cleaned).then(|| written(instance, engine, "remove_all"))
}

/// True if all that is new in the engine is of jobs that have left.
fn is_left_alone(instance: &Instance) -> bool {
    !instance.is_static() && instance.holders.is_empty()
}

fn written(instance: &Instance, engine: ContainerEngine, call: &str) -> EngineScript {
    let of = if instance.is_static() { ContainerName::rootless } else { ContainerName::of };
    let kept: Vec<String> = instance.holders.keys().map(|attempt| of(attempt).to_string()).collect();
    let place = EnginePlace::on(instance.is_static());
    let input = format!(
        "engine={} shared=\"{}\" kept='{}' alone={}\n{ENDING}{SCRIPT}{call} </dev/null\n",
        engine.program(),
        place.dir(),
        kept.join(" "),
        if is_left_alone(instance) { "yes" } else { "" },
    );
    EngineScript { reader: place.reader(), input }
}

// `prepare` of a job on the machine itself: ends the keeper's pulls there.

/// Functions of a shell that end scripts of Greenroom's own.
pub(super) const ENDING: &str = include_str!("ending.sh");

/// Limit for the script that ends pulls. A pull ends within two seconds.
const WITHIN: Duration = Duration::from_secs(30);

impl Engine {
    /// Ends the keeper's pulls on the instance of a job that runs on the machine itself, where it could read their
    /// passwords in memory. A job in a container ends them in its own script. After an error, the attempt has no grant.
    ///
    /// The caller holds the attempt's lease.
    pub async fn end_pulls(&self, attempt: &AttemptName, acquired: &Acquired) -> Result<(), ContainerError> {
        let ended = self.try_to_end_pulls(acquired).await;
        if let Err(error) = &ended {
            self.part_with(attempt, error).await;
        }
        ended
    }

    async fn try_to_end_pulls(&self, acquired: &Acquired) -> Result<(), ContainerError> {
        let assignment = &acquired.assignment;
        let place = EnginePlace::on(assignment.is_static);
        // Without root, nobody can have pulled there.
        let reader = match place {
            EnginePlace::Root => {
                format!("[ \"$(id -u)\" = 0 ] || sudo -n true 2>&1 || exit 0; {}", place.reader())
            }
            EnginePlace::Account => place.reader(),
        };
        let command = RemoteCommand {
            text: &reader,
            input: &format!("{ENDING}end_pulls </dev/null\n"),
            within: WITHIN,
            start_within: assignment.timeouts.start_within,
            shared: true,
        };
        let lost = |why: String| {
            let instance = &assignment.instance;
            ContainerError::Lost(format!("instance {instance} did not end the pulls of images there: {why}"))
        };
        match self.command_at(&assignment.instance, &assignment.endpoint, command).await {
            Ok(CommandResult::Passed) => Ok(()),
            Ok(CommandResult::Failed(why) | CommandResult::Cut(why)) => Err(lost(why)),
            Err(problem) => Err(lost(problem.to_string())),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::process::{Command, Stdio};

    use greenroom_core::notation::world;

    use super::*;

    fn instance(line: &str) -> Instance {
        let state = world(line).state;
        Instance::clone(state.instances.values().next().unwrap())
    }

    fn podman(line: &str) -> String {
        remove(&instance(line), ContainerEngine::Podman).map(|script| script.input).unwrap_or_default()
    }

    #[test]
    fn what_present_jobs_have_is_named_and_without_them_all_that_is_new_is_of_a_job() {
        let head = |line: &str| podman(line).lines().next().unwrap_or_default().to_owned();
        let root = "engine=podman shared=\"/run/greenroom\"";
        assert_eq!(head("idle 5m of a"), format!("{root} kept='' alone=yes"));
        assert_eq!(head("cap 3 | idle 5m of a"), format!("{root} kept='' alone=yes"));
        assert_eq!(head("cap 3 | held 5m by 7,8"), format!("{root} kept='greenroom-a7 greenroom-a8' alone="));
        assert_eq!(
            head("cap 2 | static held 5m by 7"),
            "engine=podman shared=\"$HOME/.greenroom/run\" kept='rootless-greenroom-a7' alone="
        );
        assert_eq!(podman("static idle 5m of a"), "", "it is cleaned as a whole");
    }

    #[test]
    fn only_an_instance_for_several_jobs_needs_to_know_what_it_had() {
        let is_recorded = |line: &str| record(&instance(line), ContainerEngine::Docker).is_some();
        assert!(is_recorded("checking 5s"));
        assert!(is_recorded("uses 5 | checking 5s uses 5"));
        assert!(is_recorded("cap 2 | checking 5s"));
        for line in ["uses 1 | checking 5s uses 1", "static checking 5s"] {
            assert!(!is_recorded(line), "{line}");
        }
    }

    /// An engine whose containers are lines of a file, each with an identifier and a name. `stays` is removed never.
    const ENGINE: &str = "#!/bin/sh\n\
        case \"$1 $2\" in\n\
        'ps --all') cat \"$DIR/containers\" ;;\n\
        'rm --force') shift 2; for id in \"$@\"; do :; done\n\
          [ \"$id\" != stays ] || { echo 'Error: device or resource busy' >&2; exit 1; }\n\
          sed -i \"/^$id /d\" \"$DIR/containers\" ;;\n\
        'network ls' | 'volume ls') cat \"$DIR/$1s\" ;;\n\
        'network rm') sed -i \"/^$3 /d\" \"$DIR/networks\" ;;\n\
        'volume rm') sed -i \"/^$4 /d\" \"$DIR/volumes\" ;;\n\
        esac\n";

    /// Runs a script with that engine; its exit status and its output.
    fn play(dir: &Path, script: &EngineScript) -> (Option<i32>, String) {
        let engine = dir.join("docker");
        std::fs::write(&engine, ENGINE).unwrap();
        std::fs::set_permissions(&engine, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
        // The engine of this machine, and its directories, stay out of it.
        let shared = dir.join("shared");
        std::fs::create_dir_all(&shared).unwrap();
        let input = script.input.replace("/run/greenroom\"", &format!("{}\"", shared.display()));
        let input = input.replace("PATH=$PATH:", &format!("PATH={}:$PATH:", dir.display()));
        let input = input.replace(" /dev/shm/", " /nowhere/").replace(" /tmp/", " /nowhere/");
        let input = input.replace(" /run/", " /nowhere/").replace(" /var/tmp/", " /nowhere/");
        let mut shell = Command::new("sh");
        shell.args(["-c", &input]).env("DIR", dir).stdin(Stdio::null());
        let ended = shell.output().unwrap();
        assert!(ended.stderr.is_empty(), "{}", String::from_utf8_lossy(&ended.stderr));
        (ended.status.code(), String::from_utf8(ended.stdout).unwrap())
    }

    fn things(dir: &Path) -> String {
        let of = |file| std::fs::read_to_string(dir.join(file)).unwrap();
        ["containers", "networks", "volumes"].map(of).concat().replace('\n', ", ")
    }

    fn have(dir: &Path, [containers, networks, volumes]: [&str; 3]) {
        for (file, text) in [("containers", containers), ("networks", networks), ("volumes", volumes)] {
            let lines: Vec<String> = text.split_whitespace().map(|name| format!("{name} {name}\n")).collect();
            std::fs::write(dir.join(file), lines.concat()).unwrap();
        }
    }

    #[test]
    fn what_came_after_the_record_goes_and_what_cannot_go_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path();
        have(dir, ["agent", "bridge host none", "kept"]);
        let fresh = instance("checking 5s");
        let clean = remove(&instance("idle 5m of a"), ContainerEngine::Docker).unwrap();
        let (code, said) = play(dir, &clean);
        assert!(code == Some(1) && said.contains("brought is missing"), "{said}");
        assert_eq!(play(dir, &record(&fresh, ContainerEngine::Docker).unwrap()), (Some(0), String::new()));
        have(
            dir,
            ["agent greenroom-a7 greenroom-a7-1 web", "bridge host none greenroom-a7 mine", "kept data"],
        );
        assert_eq!(play(dir, &clean), (Some(0), String::new()));
        assert_eq!(things(dir), "agent agent, bridge bridge, host host, none none, kept kept, ");
        have(dir, ["agent stays", "bridge", "kept"]);
        let (code, said) = play(dir, &clean);
        assert_eq!(code, Some(1));
        assert!(
            said.contains(
                "docker cannot remove what a job has left: container stays: Error: device or resource"
            ),
            "{said}"
        );
    }

    #[test]
    fn beside_other_jobs_only_what_is_named_after_one_that_has_left_goes() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path();
        have(
            dir,
            [
                "greenroom-a7 greenroom-a7-1 greenroom-a71 greenroom-a8 web",
                "greenroom-a8",
                "greenroom-a8-volume-0",
            ],
        );
        let clean = remove(&instance("cap 3 | held 5m by 7"), ContainerEngine::Docker).unwrap();
        assert_eq!(play(dir, &clean), (Some(0), String::new()));
        assert_eq!(things(dir), "greenroom-a7 greenroom-a7, greenroom-a7-1 greenroom-a7-1, web web, ");
    }
}
