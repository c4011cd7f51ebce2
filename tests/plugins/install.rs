//! Installations and lists without faults.

use std::os::unix::fs::PermissionsExt as _;

use serde_json::json;

use crate::artifact::{Plugin, architectures, plugin, program, publish};
use crate::site::{NO_PLUGINS, Site};

const POOL: &str = "
[pool.linux]
max_instances = 1
[pool.linux.provider]
kind = \"fleeting\"
plugin = \"PLUGIN\"
host_keys = \"first-use\"
";

fn configuration(plugins: &[&str]) -> String {
    let pool = |(at, plugin): (usize, &&str)| {
        POOL.replace("pool.linux", &format!("pool.linux-{at}")).replace("PLUGIN", plugin)
    };
    let pools: String = plugins.iter().enumerate().map(pool).collect();
    format!("default_pool = \"linux-0\"\n{pools}")
}

#[test]
fn a_plugin_is_installed_listed_and_upgraded() {
    let Some(site) = Site::open() else { return };
    let (here, _) = architectures();
    let first = publish(&site.storage(), "team/own", &["1.0.0", "1.0", "1", "latest"], &plugin("1.0.0"));
    let said = site.succeeds(&["install", &site.own("1")]);
    let file = site.folder().join("1.0.0/plugin");
    assert_eq!(said, format!("installed own 1.0.0: {}\n", file.display()));
    assert_eq!(site.run("1.0.0"), format!("own 1.0.0 {here}"), "the one of this platform");
    assert_eq!(file.metadata().expect("it").permissions().mode() & 0o7777, 0o755);

    // A newer version changes nothing without `--upgrade`; no call is made.
    let second = publish(&site.storage(), "team/own", &["1.1.0", "1.1", "1", "latest"], &plugin("1.1.0"));
    let said = site.succeeds(&["install", &site.own("1")]);
    assert!(said.starts_with("own 1.0.0 is already installed"), "{said}");
    site.succeeds(&["install", &site.own("1"), "--upgrade"]);
    let said = site.succeeds(&["install", &site.own("1"), "--upgrade"]);
    assert!(said.starts_with("own 1.1.0 is already installed"), "{said}");
    assert_eq!(site.run("1.1.0"), format!("own 1.1.0 {here}"));

    site.write("greenroom.toml", &configuration(&[&site.own("1.0.0"), &site.own("1"), "aws:7"]));
    let listed = site.list();
    let entry = |version: &str, index: &str, pool: &str| {
        let file = site.folder().join(version).join("plugin");
        json!({
            "name": format!("{}/team/own", site.registry), "version": version, "path": file,
            "digest": format!("sha256:{index}"), "pools": [pool],
        })
    };
    let expected = json!([entry("1.0.0", &first.index, "linux-0"), entry("1.1.0", &second.index, "linux-1")]);
    assert_eq!(listed["plugins"], expected, "{listed:#}");
    assert_eq!(listed["missing"][0]["pool"], json!("linux-2"), "{listed:#}");
    let output = site.command(&["list"]).output().expect("the program");
    assert_eq!(output.status.code(), Some(1), "a pool's plugin is missing");
    let table = String::from_utf8_lossy(&output.stdout).into_owned();
    for part in
        ["PLUGIN", "1.1.0", &format!("sha256:{}", &second.index[..12]), "linux-1", "team/own/1.1.0/plugin"]
    {
        assert!(table.contains(part), "{part}: {table}");
    }
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(errors.contains("linux-2") && errors.contains("greenroom plugin install aws:7"), "{errors}");
}

#[test]
fn what_another_installer_has_left_is_used_and_has_no_digest() {
    let Some(site) = Site::open() else { return };
    std::fs::create_dir_all(site.folder().join("2.0.0")).expect("a folder");
    let file = site.folder().join("2.0.0/plugin");
    std::fs::write(&file, "#!/bin/sh\n").expect("a plugin");
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o755)).expect("its mode");
    let said = site.succeeds(&["install", &site.own("2")]);
    assert!(said.contains("2.0.0 is already installed"), "{said}");
    assert_eq!(site.list()["plugins"][0]["digest"], json!(null));
}

#[test]
fn an_installed_version_needs_no_registry() {
    let Some(mut site) = Site::open() else { return };
    publish(&site.storage(), "team/own", &["1.0.0"], &plugin("1.0.0"));
    site.succeeds(&["install", &site.own("1.0.0")]);
    site.stop();
    site.succeeds(&["install", &site.own("1.0.0")]);
    site.fails(&["install", &site.own("1.0.0"), "--upgrade"], &["cannot be reached"]);
}

#[test]
fn a_platform_that_is_missing_is_named_with_those_that_are_there() {
    let Some(site) = Site::open() else { return };
    let (_, other) = architectures();
    let foreign = |os, architecture| (os, architecture, vec![program("1.0.0", architecture)]);
    let platforms = vec![foreign("linux", other), foreign("windows", "amd64"), foreign("linux", "s390x")];
    publish(&site.storage(), "team/own", &["1.0.0"], &Plugin { version: "1.0.0", platforms });
    let there = format!("only for linux/{other}, windows/amd64, linux/s390x");
    site.fails(&["install", &site.own("1.0.0")], &[&there]);
    site.expect_nothing();
}

#[test]
fn without_names_the_pools_decide_and_then_the_lock_file() {
    let Some(site) = Site::open() else { return };
    site.fails(&["install"], &["no pool", "greenroom plugin install aws"]);
    publish(&site.storage(), "team/own", &["1.0.0", "1"], &plugin("1.0.0"));
    publish(&site.storage(), "team/other", &["3.0.0", "latest"], &plugin("3.0.0"));
    let other = format!("{}/team/other", site.registry);
    site.write("greenroom.toml", &configuration(&[&site.own("1"), "/bin/sh", &other, &other]));
    let said = site.succeeds(&["install"]);
    assert_eq!(said.lines().count(), 2, "{said}");
    for part in ["installed own 1.0.0", "installed other 3.0.0"] {
        assert!(said.contains(part), "{said}");
    }
    // On another host, with the lock file alone. The registry has a newer version by now.
    publish(&site.storage(), "team/own", &["1.1.0", "1"], &plugin("1.1.0"));
    site.write("greenroom.toml", NO_PLUGINS);
    let lock = std::fs::read(site.plugins().join("greenroom-plugins.lock")).expect("the lock file");
    std::fs::remove_dir_all(site.plugins()).expect("the plugins");
    site.write("plugins/greenroom-plugins.lock", &String::from_utf8(lock).expect("text"));
    let said = site.succeeds(&["install"]);
    for part in ["installed own 1.0.0", "installed other 3.0.0"] {
        assert!(said.contains(part), "{said}");
    }
    assert_eq!(site.list()["plugins"].as_array().map(Vec::len), Some(2));
}

#[test]
fn a_mirror_without_short_tags_and_a_registry_option() {
    let Some(site) = Site::open() else { return };
    for version in ["1.9.0", "1.10.0", "2.0.0-rc.1"] {
        publish(&site.storage(), "gitlab-org/fleeting/plugins/own", &[version], &plugin(version));
    }
    let said = site.succeeds(&["install", "own", "--registry", &site.registry]);
    assert!(said.contains("installed own 1.10.0"), "{said}");
    let said = site.succeeds(&["install", "own:2.0.0-rc.1", "--registry", &site.registry]);
    assert!(said.contains("installed own 2.0.0-rc.1"), "{said}");
}
