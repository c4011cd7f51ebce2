//! The state directory: whether it can hold state, and whether it was copied or moved.

use std::path::Path;

use greenroom_manager::runner_host::{StateDir, StateDirError};
use greenroom_ports::finding::Finding;
use greenroom_ports::host_error::HostError;
use greenroom_ports::leadership::Identity;

use super::code;

/// Opens the directory without making or changing anything. `None`: nothing further can be checked.
pub(super) fn open(path: &Path) -> (Option<StateDir>, Vec<Finding>) {
    if !path.try_exists().unwrap_or(true) {
        let what = format!("the state directory `{}` does not exist yet", path.display());
        let remedy = "correct `state_dir`, unless this is a new installation: the first job or \
                      `greenroom keep` creates it";
        return (None, vec![code::STATE_DIR_MISSING.found(what, remedy)]);
    }
    match StateDir::open_for_repair(path) {
        Ok(state) => {
            let found = state.warning().map(ephemeral).into_iter().chain(owner_lost(&state)).collect();
            (Some(state), found)
        }
        // From a package or a checkout, and not used yet: the first use makes it private.
        Err(StateDirError::Readable { path, .. }) if !path.join("owner").exists() => (None, Vec::new()),
        Err(error) => (None, vec![refused(&error)]),
    }
}

fn ephemeral(warning: &str) -> Finding {
    code::STATE_DIR_EPHEMERAL
        .found(warning, "set `state_dir` to a directory on a persistent disk, or mount one there")
}

/// Without `owner` the next call would make a new one, unless instances of the old one may exist.
fn owner_lost(state: &StateDir) -> Option<Finding> {
    let has = |name: &str| state.root().join(name).exists();
    (has("generations") && !has("owner"))
        .then(|| refused(&StateDirError::OwnerMissing { path: state.root().to_owned() }))
}

/// Splits the error's sentence into message and remedy.
fn refused(error: &StateDirError) -> Finding {
    match error {
        StateDirError::NotADirectory { path } => {
            let what = format!("the state directory `{}` is not a directory", path.display());
            code::STATE_DIR_UNUSABLE.found(what, "correct `state_dir`")
        }
        StateDirError::Foreign { path, found, own } => {
            let what = format!(
                "the state directory `{}` belongs to user {found}, but doctor runs as user {own}",
                path.display()
            );
            code::STATE_DIR_OWNER
                .found(what, format!("run `sudo -u '#{found}' greenroom doctor`, or set another `state_dir`"))
        }
        StateDirError::Readable { path, found } => {
            let what =
                format!("the state directory `{}` has mode {found:04o}, expected 0700", path.display());
            code::STATE_DIR_MODE.found(what, format!("run `chmod 700 {}`", path.display()))
        }
        StateDirError::Remote { path, kind } => {
            let what = format!(
                "the state directory `{}` is on {kind}, where file locks are not reliable",
                path.display()
            );
            code::STATE_DIR_REMOTE.found(what, "set `state_dir` to a directory on a local file system")
        }
        StateDirError::ReadOnly { path } => {
            let what = format!("the state directory `{}` is on a read-only file system", path.display());
            code::STATE_DIR_READ_ONLY.found(what, "mount it read-write, or set another `state_dir`")
        }
        StateDirError::OwnerMissing { path } => {
            let what = format!(
                "the file `{}` is missing, although instances have been launched",
                path.join("owner").display()
            );
            let remedy = "restore it from a backup. Without one, run `greenroom doctor --new-owner`, and terminate the old \
                          owner's instances at the provider";
            code::OWNER_MISSING.found(what, remedy)
        }
        StateDirError::File(error) => code::STATE_DIR_UNUSABLE
            .found(error.to_string(), "correct `state_dir`, or the permissions of its parent directories"),
    }
}

/// The owner, and whether the directory was copied or moved.
pub(super) fn identity(found: &Result<Identity, HostError>) -> Option<Finding> {
    match found {
        Ok(identity) => {
            let what = identity.moved.clone()?;
            let remedy = "run one of these commands: until then, nothing is launched, granted or terminated";
            Some(code::OWNER_MOVED.found(what, remedy))
        }
        Err(error) => {
            let remedy = "restore the file `owner` from a backup, or run `greenroom doctor --new-owner`";
            Some(code::OWNER_UNREADABLE.found(error.to_string(), remedy))
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::collections::BTreeSet;
    use std::fs;
    use std::os::unix::fs::PermissionsExt as _;

    use greenroom_core::ids::OwnerId;

    use super::*;

    /// A directory that was used, then changed.
    fn used(change: impl FnOnce(&Path)) -> Vec<Finding> {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("state");
        StateDir::open(&path).unwrap();
        change(&path);
        // Where tests run may be memory.
        open(&path).1.into_iter().filter(|f| f.code != "state-dir-ephemeral").collect()
    }

    fn codes(found: &[Finding]) -> Vec<&'static str> {
        found.iter().map(|f| f.code).collect()
    }

    fn loosen(path: &Path) {
        fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
    }

    fn lose_owner(path: &Path) {
        fs::write(path.join("generations"), "0123abcd\n").unwrap();
        fs::remove_file(path.join("owner")).unwrap();
    }

    fn become_a_file(path: &Path) {
        fs::remove_dir_all(path).unwrap();
        fs::write(path, "").unwrap();
    }

    #[test]
    fn a_used_directory_is_fine_and_looking_makes_none() {
        assert_eq!(used(|_| ()), []);
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("state");
        assert_eq!(codes(&open(&path).1), ["state-dir-missing"]);
        assert!(!path.exists());
    }

    #[test]
    fn a_checkouts_folder_that_nobody_used_may_be_open() {
        let home = tempfile::tempdir().unwrap();
        loosen(home.path());
        assert_eq!(open(home.path()).1, []);
    }

    #[test]
    fn what_was_done_to_a_directory_is_said() {
        assert_eq!(codes(&used(loosen)), ["state-dir-mode"]);
        assert_eq!(codes(&used(lose_owner)), ["owner-missing"]);
        assert_eq!(codes(&used(become_a_file)), ["state-dir-unusable"]);
    }

    #[test]
    fn what_helps_stands_apart_from_what_is_so() {
        let path = "/s".into();
        let found = refused(&StateDirError::Foreign { path, found: 998, own: 0 });
        assert_eq!(
            found.to_string(),
            "error [state-dir-owner]: the state directory `/s` belongs to user 998, but doctor runs as user 0\n  \
             help: run `sudo -u '#998' greenroom doctor`, or set another `state_dir`"
        );
    }

    /// One finding of each code.
    pub(in crate::cli::doctor) fn provoked() -> Vec<Finding> {
        let path = || "/s".into();
        let mut all = [used(loosen), used(lose_owner), used(become_a_file)].concat();
        all.extend(open(Path::new("/no/such/state")).1);
        all.extend([
            refused(&StateDirError::Foreign { path: path(), found: 998, own: 0 }),
            refused(&StateDirError::Remote { path: path(), kind: "NFS" }),
            refused(&StateDirError::ReadOnly { path: path() }),
        ]);
        all.push(ephemeral("the state directory `/s` is in memory"));
        let owner = OwnerId::new("0123");
        let moved = Some("the state directory `/s` was copied or moved".to_owned());
        all.extend(identity(&Ok(Identity { owner, moved, generations: BTreeSet::new() })));
        all.extend(identity(&Err(HostError::Io { what: "`/s/owner` is damaged".into() })));
        all
    }
}
