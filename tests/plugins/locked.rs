//! The lock file: what it refuses, and what it decides.

use crate::artifact::{plugin, publish, with};
use crate::site::Site;

#[test]
fn a_version_that_was_replaced_in_the_registry_is_refused() {
    let Some(site) = Site::open() else { return };
    let first = publish(&site.storage(), "team/own", &["1.0.0", "1"], &plugin("1.0.0"));
    site.succeeds(&["install", &site.own("1")]);
    let second = publish(
        &site.storage(),
        "team/own",
        &["1.0.0", "1"],
        &with("1.0.0", &[("plugin/evil", tar::EntryType::Regular, "x".into())]),
    );
    let digests = [format!("sha256:{}", first.index), format!("sha256:{}", second.index)];
    let expected = ["is not the one in the lock file", &digests[0], &digests[1], "greenroom-plugins.lock"];
    // Also where it is installed: an upgrade looks at the registry.
    site.fails(&["install", &site.own("1"), "--upgrade"], &expected);
    std::fs::remove_dir_all(site.folder()).expect("the version");
    site.fails(&["install", &site.own("1")], &expected);
    site.fails(&["install", &site.own("1.0.0")], &expected);
    site.expect_nothing();
    // What the message advises.
    std::fs::remove_file(site.plugins().join("greenroom-plugins.lock")).expect("the lock file");
    site.succeeds(&["install", &site.own("1")]);
}

#[test]
fn the_locked_version_is_installed_and_not_a_newer_one() {
    let Some(site) = Site::open() else { return };
    publish(&site.storage(), "team/own", &["1.0.0", "1"], &plugin("1.0.0"));
    site.succeeds(&["install", &site.own("1")]);
    std::fs::remove_dir_all(site.folder()).expect("the version");
    publish(&site.storage(), "team/own", &["1.1.0", "1"], &plugin("1.1.0"));
    let said = site.succeeds(&["install", &site.own("1")]);
    assert!(said.contains("installed own 1.0.0"), "{said}");
    let said = site.succeeds(&["install", &site.own("1"), "--upgrade"]);
    assert!(said.contains("installed own 1.1.0"), "{said}");
}

#[test]
fn a_program_that_was_changed_after_its_installation_is_reported() {
    let Some(site) = Site::open() else { return };
    publish(&site.storage(), "team/own", &["1.0.0"], &plugin("1.0.0"));
    site.succeeds(&["install", &site.own("1.0.0")]);
    let file = site.folder().join("1.0.0/plugin");
    std::fs::write(&file, "#!/bin/sh\necho another one\n").expect("a change");
    let folder = format!("remove the folder `{}`", site.folder().join("1.0.0").display());
    site.fails(&["install", &site.own("1.0.0")], &["the installed plugin", "lock file", &folder]);
    std::fs::remove_dir_all(site.folder().join("1.0.0")).expect("the folder");
    site.succeeds(&["install", &site.own("1.0.0")]);
}

#[test]
fn a_damaged_lock_file_stops_everything_and_is_named() {
    let Some(site) = Site::open() else { return };
    publish(&site.storage(), "team/own", &["1.0.0"], &plugin("1.0.0"));
    site.write("plugins/greenroom-plugins.lock", "[[plugin]]\nname = 7\n");
    for arguments in [&["install", &site.own("1.0.0")][..], &["list"]] {
        site.fails(arguments, &["greenroom-plugins.lock", "cannot be read"]);
    }
    assert!(!site.folder().exists());
}
