//! The keeper's check of an instance's engine: a container of Greenroom's own starts there.

use std::time::Duration;

use greenroom_core::container::engine::{ContainerEngine, EnginePlace, Soundness};
use greenroom_core::container::name::ContainerName;
use greenroom_core::endpoint::Endpoint;
use greenroom_core::ids::InstanceId;
use greenroom_core::text::clean_line;
use greenroom_core::time::Pretty;
use greenroom_core::unbegun::CheckKind;
use greenroom_ports::connector::{ConnectError, RemoteCommand, StageEnd};
use greenroom_ports::tail::Tail;

use crate::Engine;

/// Tries the engine; `prepare.sh` does so, too.
pub(super) const SOUND: &str = include_str!("sound.sh");

/// Limit for the check of an engine, each of its commands a minute at most.
pub(crate) const WITHIN: Duration = Duration::from_mins(3);

/// The longest text of what kept the check from its result, in characters.
const LINE: usize = 300;

/// The part of the script that prints the result.
const CHECK: &str = include_str!("check.sh");

/// The script of the check, for who runs the engine.
///
/// `started`: first looks whether this container has run since its last start, which says enough.
fn script(
    name: &ContainerName,
    engine: ContainerEngine,
    (kind, limit): (CheckKind, Duration),
    started: Option<&ContainerName>,
) -> String {
    let rootless = if name.is_rootless() { "yes" } else { "" };
    let network = if kind == CheckKind::Network { "network" } else { "host" };
    let container = started.map(ToString::to_string).unwrap_or_default();
    format!(
        "name={name} engine={} rootless={rootless} limit={} network={network} started={container} shared=\"{}\"\n\
         {SOUND}{CHECK}",
        engine.program(),
        limit.as_secs().max(1),
        EnginePlace::of(started.unwrap_or(name)).dir(),
    )
}

/// The keeper's check of an engine, and how it runs.
pub(crate) struct EngineCheck {
    pub(crate) engine: ContainerEngine,
    /// True if the account of jobs runs the engine.
    pub(crate) rootless: bool,
    pub(crate) kind: CheckKind,
    /// Limit for the connection.
    pub(crate) start_within: Duration,
    /// Limit for each command of the engine: how long a container may take to start.
    pub(crate) limit: Duration,
}

impl Engine {
    /// Checks that the engine of an instance starts containers, with a container of Greenroom's own; if `started` has run,
    /// that is all. An error of the connection says nothing about the engine.
    pub(crate) async fn engine_sound(
        &self,
        id: &InstanceId,
        endpoint: &Endpoint,
        check: EngineCheck,
        started: Option<&ContainerName>,
    ) -> Result<Soundness, ConnectError> {
        let EngineCheck { engine, rootless, kind, start_within, limit } = check;
        let name = ContainerName::of_check(self.now(), rootless);
        let input = script(&name, engine, (kind, limit), started);
        let text = &EnginePlace::of(&name).reader();
        let command = RemoteCommand { text, input: &input, within: WITHIN, start_within, shared: true };
        let mut output = Tail::default();
        let end = self.connector.command(id, endpoint, command, &mut output).await?;
        let output = output.text();
        Ok(Soundness::parse(&output).unwrap_or_else(|| Soundness::Unsound(no_result(&end, &output))))
    }
}

/// The check was run and did not come to a result: the instance does not even run its script.
fn no_result(end: &StageEnd, output: &str) -> String {
    let limit = Pretty(WITHIN);
    match (end, clean_line(output.as_bytes(), LINE)) {
        (StageEnd::Stopped, _) => format!("the container engine came to no result within {limit}"),
        (end, output) if output.is_empty() => format!("the container engine cannot be tried: {end}"),
        (end, output) => format!("the container engine cannot be tried: {end} ({output})"),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt as _;
    use std::path::Path;
    use std::process::{Command, Stdio};

    use greenroom_core::notation::NOW;
    use greenroom_testkit::shells::shells;

    use super::*;

    /// An engine that works, and notes how it is called.
    const WORKS: &str =
        "echo \"$*\" >>$dir/calls; case $1 in info) echo $dir;; import) cat >/dev/null; echo sha256:1;; esac";

    /// The result of the script where the engine is this program. `space`: what `df` prints.
    fn found(engine: &str, kind: CheckKind, rootless: bool, space: &str) -> (Option<Soundness>, String) {
        let mut results = Vec::new();
        // BusyBox runs programs of its own.
        for sh in shells().filter(|sh| !sh[0].ends_with("busybox")) {
            let dir = tempfile::tempdir().unwrap();
            let at = dir.path();
            program(at, "podman", engine);
            program(at, "df", space);
            let name = ContainerName::of_check(NOW, rootless);
            let mut check = Command::new(sh[0])
                .args(&sh[1..])
                .env("PATH", format!("{}:{}", at.display(), std::env::var("PATH").unwrap()))
                .env("HOME", at)
                .env("TMPDIR", at)
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .spawn()
                .unwrap();
            let limit = Duration::from_mins(1);
            let script = script(&name, ContainerEngine::Podman, (kind, limit), None);
            std::io::Write::write_all(&mut check.stdin.take().unwrap(), script.as_bytes()).unwrap();
            let output = check.wait_with_output().unwrap();
            let calls = fs::read_to_string(at.join("calls")).unwrap_or_default();
            assert!(fs::read_dir(at).unwrap().count() <= 3, "{sh:?} leaves nothing");
            let calls = calls.replace(&at.display().to_string(), "DIR");
            let said = String::from_utf8_lossy(&output.stdout).replace(&at.display().to_string(), "DIR");
            results.push((Soundness::parse(&said), calls));
        }
        assert!(results.windows(2).all(|two| two[0] == two[1]), "{results:?}");
        results.remove(0)
    }

    fn program(dir: &Path, name: &str, text: &str) {
        let at = dir.join(name);
        fs::write(&at, format!("#!/bin/sh\ndir={}\n{text}\n", dir.display())).unwrap();
        fs::set_permissions(&at, fs::Permissions::from_mode(0o755)).unwrap();
    }

    const ROOMY: &str = "printf 'head\\nfs 9000000 9 8000000 1%% /\\n'";

    fn unsound(found: (Option<Soundness>, String)) -> String {
        match found.0 {
            Some(Soundness::Unsound(why)) => why,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn an_engine_that_starts_a_container_is_sound_and_keeps_nothing() {
        for (kind, rootless, network) in [
            (CheckKind::Engine, true, ""),
            (CheckKind::Engine, false, ""),
            (CheckKind::Network, false, "network create"),
        ] {
            let (sound, calls) = found(WORKS, kind, rootless, ROOMY);
            assert_eq!(sound, Some(Soundness::Sound), "{calls}");
            assert_eq!(calls.contains("--cgroups=disabled"), rootless, "{calls}");
            assert!(
                calls.contains("run --rm --network host") && calls.contains("rmi --force sha256:1"),
                "{calls}"
            );
            assert_eq!(calls.contains("network create"), !network.is_empty(), "{calls}");
            assert_eq!(
                calls.matches("network create").count(),
                calls.matches("network rm").count(),
                "{calls}"
            );
        }
    }

    #[test]
    fn each_part_that_fails_is_named_with_its_own_error() {
        let failing = |part: &str| {
            format!(
                "case \"$*\" in {part}) echo 'no such
thing' >&2; exit 125;; esac\n{WORKS}"
            )
        };
        for (part, kind, expected) in [
            ("info*", CheckKind::Engine, "`podman info` failed: no such thing"),
            ("import*", CheckKind::Engine, "`podman import` failed: no such thing"),
            ("run*", CheckKind::Engine, "`podman run` failed: no such thing"),
            ("'network create'*", CheckKind::Network, "`podman network create` failed: no such thing"),
            (
                "*'--network greenroom-check-'*",
                CheckKind::Network,
                "`podman run` with a network failed: no such thing",
            ),
        ] {
            assert_eq!(unsound(found(&failing(part), kind, false, ROOMY)).trim(), expected);
        }
        // A machine that runs privileged containers only.
        let privileged = "case \"$*\" in *--privileged*) ;; run*) exit 126;; esac\n".to_owned() + WORKS;
        assert_eq!(found(&privileged, CheckKind::Engine, false, ROOMY).0, Some(Soundness::Sound));
    }

    #[test]
    fn a_full_disk_is_measured() {
        let inodes = "case $1 in -Pi) printf 'head\\nfs 9000 8999 1 99%% /\\n';; *) printf 'head\\nfs 9 9 8000000 1%% /\\n';; esac";
        for (space, expected) in [
            ("printf 'head\\nfs 9000000 9 51200 99%% /\\n'", "the disk is full: 50 MiB free in "),
            (inodes, "the disk is full: 1 inodes free in "),
        ] {
            let why = unsound(found(WORKS, CheckKind::Engine, false, space));
            assert!(why.starts_with(expected), "{why}");
        }
        // Without a fixed number of inodes, and without an answer, there is room.
        let none = "case $1 in -Pi) printf 'head\\nfs 0 0 0 - /\\n';; *) exit 1;; esac";
        assert_eq!(found(WORKS, CheckKind::Engine, false, none).0, Some(Soundness::Sound));
    }

    #[test]
    fn a_check_without_a_result_is_a_fault_of_the_instance() {
        let said = no_result(&StageEnd::Exited(1), "sudo: a password is required\n");
        assert_eq!(
            said,
            "the container engine cannot be tried: exit status 1 (sudo: a password is required)"
        );
        assert_eq!(no_result(&StageEnd::Stopped, ""), "the container engine came to no result within 3m");
    }

    #[test]
    fn a_container_that_has_run_is_no_question_of_the_engine() {
        let dir = tempfile::tempdir().unwrap();
        program(dir.path(), "podman", "exit 9");
        program(dir.path(), "docker", "case $1 in inspect) cat $dir/state;; *) exit 9;; esac");
        for (engine, state, ran) in [
            (ContainerEngine::Docker, "2026-11-28T08:34:25.1Z", true),
            (ContainerEngine::Docker, "0001-01-01T00:00:00Z", false),
            (ContainerEngine::Docker, "2026-11-28T08:34:25.1Zfailed to create shim task", false),
            (ContainerEngine::Docker, "", false),
            (ContainerEngine::Podman, "4711", true),
            (ContainerEngine::Podman, "", false),
        ] {
            let job = ContainerName::parse("rootless-greenroom-a1").unwrap();
            let files = dir.path().join(".greenroom/run");
            fs::create_dir_all(&files).unwrap();
            fs::write(files.join(format!("{job}.pid")), state).unwrap();
            fs::write(dir.path().join("state"), state).unwrap();
            let limit = Duration::from_mins(1);
            let text =
                script(&ContainerName::of_check(NOW, true), engine, (CheckKind::Engine, limit), Some(&job));
            let path = format!("{}:{}", dir.path().display(), std::env::var("PATH").unwrap());
            let output = Command::new("sh")
                .args(["-c", &text])
                .env("PATH", path)
                .env("HOME", dir.path())
                .output()
                .unwrap();
            let found = Soundness::parse(&String::from_utf8_lossy(&output.stdout));
            assert_eq!(found == Some(Soundness::Ran), ran, "{engine:?} {state}: {found:?}");
            assert!(ran || matches!(found, Some(Soundness::Unsound(_))), "{engine:?} {state}: {found:?}");
        }
    }
}
