//! The owners of a job's files on its instance, if the runner's own stages close them to other users.

use std::fmt;
use std::time::Duration;

use futures_util::future::{Either, select};
use greenroom_core::container::engine::EnginePlace;
use greenroom_core::container::name::{JobContainer, Owner};
use greenroom_core::ids::AttemptName;
use greenroom_core::text::{clean_line, quoted};
use greenroom_ports::attempts::Assignment;
use greenroom_ports::connector::{ConnectError, RemoteCommand, StageEnd};
use greenroom_ports::tail::Tail;

use crate::Engine;
use crate::stage::StageKind;

/// Limit for the change of owners: as long as a large checkout.
const WITHIN: Duration = Duration::from_mins(10);
/// The longest text of the instance's own errors, in characters.
const LINE: usize = 300;

/// The user who gets the files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum NewOwner {
    /// The user of the container.
    Container(Owner),
    /// The user of the login, which is not root. Where it runs the engine, it is root to the script.
    Login,
}

impl fmt::Display for NewOwner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Container(Owner { user, group }) => write!(f, "u={user} g={group}"),
            Self::Login => f.write_str("u=${SUDO_UID:-0} g=${SUDO_GID:-0}"),
        }
    }
}

/// `None`: the files stay as they are before this stage.
fn new_owner(container: &JobContainer, login: &str, kind: StageKind) -> Option<NewOwner> {
    let owner = container.owner?;
    if kind.in_container {
        return Some(NewOwner::Container(owner));
    }
    // Root needs no permission.
    (login != "root" && !kind.before_container).then_some(NewOwner::Login)
}

/// The script `owners.sh` for a directory.
fn script(dir: &str, owner: NewOwner) -> String {
    format!("d={} {owner}\n{}", quoted(dir), include_str!("owners.sh"))
}

impl Engine {
    /// Gives the job's files on the instance to the user of the stage that follows. `Stopped`: the job was stopped
    /// meanwhile.
    pub(crate) async fn own_files(
        &self,
        attempt: &AttemptName,
        assignment: &Assignment,
        builds_dir: Option<&str>,
        kind: StageKind,
    ) -> Result<Option<StageEnd>, ConnectError> {
        let (Some(container), Some(dir)) = (&assignment.container, builds_dir) else { return Ok(None) };
        let at = &assignment.endpoint;
        let Some(owner) = new_owner(container, &at.user, kind) else { return Ok(None) };
        let input = script(dir, owner);
        let start_within = assignment.timeouts.start_within;
        let text = &EnginePlace::of(&container.name).reader_with_ids();
        let command = RemoteCommand { text, input: &input, within: WITHIN, start_within, shared: true };
        let mut errors = Tail::default();
        let ended = {
            let run = self.connector.command(&assignment.instance, at, command, &mut errors);
            match select(run, self.host.wakeups.stopped(attempt)).await {
                Either::Left((ended, _)) => ended?,
                Either::Right(_) => return Ok(Some(StageEnd::Stopped)),
            }
        };
        if ended == StageEnd::Exited(0) {
            return Ok(None);
        }
        let errors = clean_line(errors.text().as_bytes(), LINE);
        let why = format!("the job's files in {dir} did not get their owner: {ended} ({errors})");
        Err(ConnectError::NotBegun { at: at.place(), why })
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{MetadataExt as _, symlink};
    use std::path::Path;
    use std::process::Command;

    use greenroom_core::container::name::ContainerName;

    use super::*;

    const APP: Owner = Owner { user: 1000, group: 1001 };

    fn kind(in_container: bool, before_container: bool) -> StageKind {
        StageKind { in_container, before_container, ..StageKind::default() }
    }

    #[test]
    fn files_change_hands_only_where_a_user_other_than_root_needs_them() {
        let name = ContainerName::parse("c").unwrap();
        let with = |owner| JobContainer {
            name: name.clone(),
            engine: greenroom_core::container::engine::ContainerEngine::Podman,
            open_umask: false,
            starts_ahead: false,
            owner,
            shown_services: Vec::new(),
        };
        let app = Some(NewOwner::Container(APP));
        for (owner, login, kind, expected) in [
            (Some(APP), "root", kind(true, false), app),
            (Some(APP), "ci", kind(true, false), app),
            (None, "ci", kind(true, false), None),
            (Some(APP), "root", kind(false, false), None),
            (Some(APP), "ci", kind(false, true), None),
            (Some(APP), "ci", kind(false, false), Some(NewOwner::Login)),
        ] {
            assert_eq!(new_owner(&with(owner), login, kind), expected, "{owner:?} {login} {kind:?}");
        }
    }

    fn run(dir: &Path, owner: NewOwner) {
        let text = script(dir.to_str().unwrap(), owner);
        let mut command = Command::new("sh");
        command.args(["-c", &text]).env("SUDO_UID", "7").env("SUDO_GID", "8");
        let ended = command.output().unwrap();
        assert!(ended.status.success(), "{}", String::from_utf8_lossy(&ended.stderr));
    }

    /// User and group of a path itself, and when they last changed.
    fn owner_of(path: &Path) -> (u32, u32, i64) {
        let known = path.symlink_metadata().unwrap();
        (known.uid(), known.gid(), known.ctime_nsec())
    }

    #[test]
    fn everything_below_gets_the_owner_once_and_nothing_behind_a_link() {
        if !rustix::process::getuid().is_root() {
            return;
        }
        let home = tempfile::tempdir().unwrap();
        let builds = home.path().join("it's builds");
        let outside = home.path().join("outside");
        std::fs::create_dir_all(builds.join("demo.tmp")).unwrap();
        std::fs::create_dir(&outside).unwrap();
        std::fs::write(outside.join("file"), "x").unwrap();
        let file = builds.join("demo.tmp/KEY");
        let link = builds.join("link");
        std::fs::write(&file, "x").unwrap();
        symlink(&outside, &link).unwrap();
        run(&builds, NewOwner::Container(APP));
        let after = [&builds, &file, &link].map(|path| owner_of(path));
        assert!(after.iter().all(|(user, group, _)| (*user, *group) == (1000, 1001)), "{after:?}");
        run(&builds, NewOwner::Container(APP));
        assert_eq!([&builds, &file, &link].map(|path| owner_of(path)), after, "nothing to change");
        run(&builds, NewOwner::Login);
        assert_eq!((owner_of(&file).0, owner_of(&file).1), (7, 8));
        for path in [&outside, &outside.join("file")] {
            assert_eq!(owner_of(path).0, 0, "{}", path.display());
        }
        run(&link, NewOwner::Container(APP));
        assert_eq!(owner_of(&outside).0, 0, "a directory that is a link");
        run(&home.path().join("missing"), NewOwner::Login);
    }
}
