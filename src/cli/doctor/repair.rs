//! `--repair`, `--take-over`, `--new-owner`: repairs before the checks.

use std::time::Duration;

use greenroom_core::ids::PoolName;
use greenroom_manager::runner_host::LocalHost;
use greenroom_ports::leadership::Leadership as _;
use greenroom_ports::lock::Lock;
use greenroom_ports::store::Repaired;

use super::Examination;
use crate::cli::args::DoctorOptions;
use crate::cli::context::PoolStore;
use crate::cli::error::CliError;
use crate::cli::ui::plural;

/// The time that a keeper may take to exit.
const KEEPER_GOES: Duration = Duration::from_secs(3);

/// Does the requested repairs, in an order in which each step can rely on the one before.
pub(super) async fn repair(
    options: &DoctorOptions,
    host: &LocalHost,
    stores: &[PoolStore],
    examined: &mut Examination,
) -> Result<(), CliError> {
    if options.take_over || options.new_owner {
        // A keeper reads the owner before each pass: it must not see another one in the middle.
        let _keeper_lock = lock_keeper(host, KEEPER_GOES).await?;
        if options.take_over {
            let owner = host.state().take_over()?;
            examined.repaired(format!(
                "the state directory belongs to this location now; its owner is still {owner}"
            ));
        } else {
            let owner = host.state().new_owner()?;
            examined.repaired(format!(
                "the state directory has a new owner, {owner}; instances of the old one are left alone"
            ));
        }
    }
    if options.repair {
        for (pool, store) in stores {
            if let Some(repaired) = store.repair().await? {
                examined.repaired(summary(pool, &repaired));
            }
        }
    }
    Ok(())
}

async fn lock_keeper(host: &LocalHost, within: Duration) -> Result<Lock, CliError> {
    let held = host.lock_keeper(within).await?;
    held.ok_or_else(|| {
        CliError::system("the owner cannot be changed while a keeper is running").help(
            "stop it (`systemctl stop greenroom`, or kill the process that holds keeper.lock), then repeat the command",
        )
    })
}

fn summary(pool: &PoolName, repaired: &Repaired) -> String {
    let kept = match repaired.kept {
        0 => "Nothing could be kept".to_owned(),
        n => format!("Everything up to transaction {n} is kept"),
    };
    let lost = plural(usize::try_from(repaired.lost).unwrap_or(usize::MAX), "valid transaction");
    let aside: Vec<String> = repaired.side_files.iter().map(|path| format!("`{}`", path.display())).collect();
    format!(
        "pool `{pool}`: {}. {kept}; {lost} after the damage cannot be used. The damaged files are saved as {}",
        repaired.damage,
        aside.join(", ")
    )
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use greenroom_core::policy::Policy;
    use greenroom_manager::runner_host::{KeeperCommand, Role, Signals, StateDir};

    use super::*;
    use crate::cli::context::{self, StoreOptions};
    use crate::cli::fixture::{EventFixture, pool};

    fn host(path: &Path) -> LocalHost {
        let nothing: [&str; 0] = [];
        let command = KeeperCommand::new("/no/such/greenroom", nothing, Vec::new);
        let state = StateDir::open_for_repair(path).unwrap();
        LocalHost::open(state, Role::Operator, command, Signals::default_actions()).unwrap()
    }

    fn options(repair: bool, take_over: bool, new_owner: bool) -> DoctorOptions {
        DoctorOptions {
            runner_config: "/no/such".into(),
            repair,
            new_installation: false,
            take_over,
            new_owner,
            pin: None,
            clean_script: None,
            boot: None,
            pool: None,
            yes: false,
            json: false,
        }
    }

    /// A used state directory, moved: another inode under the same name.
    fn moved() -> (tempfile::TempDir, LocalHost) {
        let home = tempfile::tempdir().unwrap();
        let old = home.path().join("old");
        let new = home.path().join("new");
        StateDir::open(&old).unwrap();
        std::os::unix::fs::DirBuilderExt::mode(&mut std::fs::DirBuilder::new(), 0o700).create(&new).unwrap();
        std::fs::copy(old.join("owner"), new.join("owner")).unwrap();
        let host = host(&new);
        (home, host)
    }

    async fn repaired(options: &DoctorOptions, host: &LocalHost) -> Result<Vec<String>, CliError> {
        let mut examined = Examination::default();
        repair(options, host, &[], &mut examined).await?;
        Ok(examined.repaired)
    }

    #[tokio::test]
    async fn a_moved_directory_is_taken_over_with_its_owner() {
        let (_home, host) = moved();
        let before = host.identity().await.unwrap();
        assert!(before.moved.is_some());
        let output = repaired(&options(false, true, false), &host).await.unwrap();
        let after = host.identity().await.unwrap();
        assert_eq!((after.owner.clone(), after.moved), (before.owner, None));
        assert_eq!(
            output,
            [format!("the state directory belongs to this location now; its owner is still {}", after.owner)]
        );
    }

    #[tokio::test]
    async fn a_copied_directory_gets_an_owner_of_its_own() {
        let (_home, host) = moved();
        let before = host.identity().await.unwrap();
        repaired(&options(false, false, true), &host).await.unwrap();
        let after = host.identity().await.unwrap();
        assert_ne!(after.owner, before.owner);
        assert_eq!(after.moved, None);
    }

    #[tokio::test]
    async fn beside_a_keeper_no_owner_is_changed() {
        let (home, host) = moved();
        let lock = std::fs::File::create(home.path().join("new/keeper.lock")).unwrap();
        lock.lock().unwrap();
        let error = lock_keeper(&host, Duration::from_millis(50)).await.unwrap_err().for_operator();
        assert!(error.contains("while a keeper is running") && error.contains("systemctl stop"), "{error}");
    }

    #[tokio::test]
    async fn damage_is_repaired_and_told() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("state");
        StateDir::open(&path).unwrap();
        let open = || context::open_stores(&path, StoreOptions::default()).unwrap().store(&pool()).unwrap();
        let store = open();
        for event in EventFixture::of(Policy::default()).ready(1, 1.0).events.clone() {
            store.transact(&mut |_| vec![event.clone()]).await.unwrap();
        }
        let journal = path.join("pools/linux/journal.jsonl");
        let text = std::fs::read_to_string(&journal).unwrap();
        std::fs::write(&journal, text.replacen("launch-answered", "launch-ansWered", 1)).unwrap();

        let mut examined = Examination::default();
        let stores = [(pool(), open())];
        repair(&options(true, false, false), &host(&path), &stores, &mut examined).await.unwrap();
        let output = examined.repaired.join("\n");
        assert!(
            output.contains(
                "Everything up to transaction 3 is kept; 2 valid transactions after the damage cannot be used"
            ),
            "{output}"
        );
        assert!(output.contains("journal.damaged-"), "{output}");
        assert!(open().verify().await.unwrap().damage.is_none());
    }
}
