//! Builds in the state directory, and those that outlive their attempt.

use std::collections::BTreeSet;
use std::os::unix::fs::PermissionsExt;

use rustix::thread::{CapabilitySet, capabilities, set_capabilities};

use super::*;

/// A read-only tree, as Go's module cache is.
fn builds(root: &Path, attempt: &str) -> PathBuf {
    let builds = root.join("builds").join(attempt);
    let module = builds.join("group/project/.go/pkg/mod/example.org@v1");
    fs::create_dir_all(&module).unwrap();
    fs::write(module.join("file"), "x").unwrap();
    for closed in module.ancestors().take(3) {
        fs::set_permissions(closed, PermissionsExt::from_mode(0o555)).unwrap();
    }
    builds
}

/// Permissions do not bind root, except without these capabilities. Other threads keep them.
fn be_bound_by_permissions() {
    let mut sets = capabilities(None).unwrap();
    sets.effective.remove(CapabilitySet::DAC_OVERRIDE | CapabilitySet::DAC_READ_SEARCH);
    set_capabilities(None, sets).unwrap();
}

#[test]
fn builds_go_with_their_attempt_and_are_found_without_it() {
    let home = home();
    let root = home.path().join("state");
    let at = root.clone();
    let play = async move |host: LocalHost| {
        be_bound_by_permissions();
        let gone = AttemptName::new("custom-executor2");
        let (own, orphaned) = (builds(&at, name().as_str()), builds(&at, gone.as_str()));
        fs::write(at.join("builds/.a file of the operator's"), "").unwrap();
        drop(host.begin_attempt(&name(), &record(&host)).await.unwrap());
        assert_eq!(host.orphaned_builds().await, BTreeSet::from([gone.clone()]));
        assert_eq!(host.orphaned_builds().await, BTreeSet::new(), "not searched for again so soon");
        host.forget_attempt(&gone).await.unwrap();
        assert!(own.exists() && !orphaned.exists());
        host.forget_attempt(&name()).await.unwrap();
        assert!(own.exists() && seen(&host).await.is_some(), "it is open");
        drop(host.close_attempt(&name(), End::CleanedUp).await.unwrap());
        until_seen(&host, "a free lease", |a| !a.lease_held).await;
        host.forget_attempt(&name()).await.unwrap();
        assert!(!own.exists() && seen(&host).await.is_none());
        // Killed between the two: the next keeper finds the builds.
        builds(&at, name().as_str());
        assert_eq!(operator(&at).orphaned_builds().await, BTreeSet::from([name()]));
    };
    on_own_thread(&root, play).join().unwrap();
}
