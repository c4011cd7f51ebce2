//! The packages: the same input makes the same bytes, and a host survives their installation, upgrade and removal.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Output;

use greenroom_testkit::program;
use greenroom_testkit::skipped::skipped;

#[path = "packages/host.rs"]
mod host;
#[path = "situations/packages/purge.rs"]
mod situation_purge;

const ROOT: &str = env!("CARGO_MANIFEST_DIR");

/// A script in place of both programs: enough for a package, and small.
const STUB: &str = r#"#!/bin/sh
case "$1" in
  completions) echo "completions of greenroom for $2" ;;
  man) mkdir -p "$3" && echo ".TH greenroom 1" > "$3/greenroom.1" ;;
esac
"#;

/// The tools that make packages; true if one is missing, and the test is skipped.
fn cannot_package() -> bool {
    let tools = ["dpkg-deb", "rpmbuild", "python3", "readelf"];
    let missing = tools.iter().find(|tool| !has(tool));
    if let Some(tool) = missing {
        skipped(format_args!("packages cannot be made: no {tool}"));
    }
    missing.is_some()
}

fn has(tool: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|folder| folder.join(tool).exists())
}

/// Makes packages of the programs in `from`.
fn package(from: &Path, to: &Path, options: &[&str], environment: &[(&str, &str)]) -> Output {
    let mut command = program::command(format!("{ROOT}/scripts/package"), to.parent().expect("a directory"));
    command.args(options).args(["--fast", "--from"]).arg(from).arg(to);
    for name in ["CARGO_HOME", "RUSTUP_HOME", "HOME"] {
        command.envs(std::env::var_os(name).map(|value| (name, value)));
    }
    command.envs(environment.iter().copied()).output().expect("the script runs")
}

#[track_caller]
fn text(output: &Output) -> String {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let all = text(&output.stdout) + &text(&output.stderr);
    assert!(output.status.success(), "{}: {all}", output.status);
    all
}

/// Programs for a package, in a folder.
fn programs(home: &Path, greenroom: impl FnOnce(&Path)) -> PathBuf {
    use std::os::unix::fs::PermissionsExt as _;
    let folder = home.join("programs");
    std::fs::create_dir(&folder).expect("a directory");
    std::fs::write(folder.join("greenroom-backends"), STUB).expect("a file");
    std::fs::write(folder.join("greenroom-server"), STUB).expect("a file");
    greenroom(&folder.join("greenroom"));
    for name in ["greenroom", "greenroom-backends", "greenroom-server"] {
        let mode = std::fs::Permissions::from_mode(0o755);
        std::fs::set_permissions(folder.join(name), mode).expect("a mode");
    }
    folder
}

fn files(folder: &Path) -> BTreeMap<String, Vec<u8>> {
    let entries = std::fs::read_dir(folder).expect("the folder").map(|entry| entry.expect("a file").path());
    let name = |path: &Path| path.file_name().expect("a name").to_string_lossy().into_owned();
    entries.map(|path| (name(&path), std::fs::read(&path).expect("a file"))).collect()
}

#[test]
fn the_same_input_makes_the_same_bytes() {
    if cannot_package() {
        return;
    }
    let home = tempfile::tempdir().expect("a directory");
    let from = programs(home.path(), |path| std::fs::write(path, STUB).expect("a file"));
    let made = [("one", "TZ", "Asia/Tokyo"), ("two", "LC_ALL", "C.UTF-8")].map(|(name, variable, value)| {
        let date = ("SOURCE_DATE_EPOCH", "1700000000");
        text(&package(&from, &home.path().join(name), &["--version", "1.2.3"], &[date, (variable, value)]));
        files(&home.path().join(name))
    });
    let names: Vec<&str> = made[0].keys().map(String::as_str).collect();
    let expected = [
        "SHA256SUMS",
        "greenroom-1.2.3-1.x86_64.rpm",
        "greenroom-1.2.3-x86_64-unknown-linux-gnu.tar.gz",
        "greenroom_1.2.3_amd64.deb",
    ];
    assert_eq!(names, expected);
    for name in names {
        assert!(made[0][name] == made[1].get(name).cloned().unwrap_or_default(), "{name} differs");
    }
    let deb = home.path().join("one/greenroom_1.2.3_amd64.deb");
    let listed = program::command("dpkg-deb", home.path()).arg("--contents").arg(deb).output();
    let listed = text(&listed.expect("dpkg-deb runs"));
    for path in [
        "etc/greenroom/environment",
        "usr/bin/greenroom-backends",
        "usr/lib/greenroom/greenroom-server",
        "usr/lib/systemd/system/greenroom-reap.timer",
        "usr/lib/sysusers.d/greenroom.conf",
        "usr/lib/tmpfiles.d/greenroom.conf",
        "usr/share/bash-completion/completions/greenroom",
        "usr/share/doc/greenroom/docs/install.md",
        "usr/share/doc/greenroom/examples/systemd/sandbox.conf",
        "usr/share/fish/vendor_completions.d/greenroom.fish",
        "usr/share/man/man1/greenroom.1.gz",
        "usr/share/zsh/vendor-completions/_greenroom",
    ] {
        let line = listed.lines().find(|line| line.ends_with(&format!(" ./{path}")));
        assert!(line.is_some_and(|line| line.contains(" root/root ")), "{path}: {listed}");
    }
    let archive = home.path().join("one/greenroom-1.2.3-x86_64-unknown-linux-gnu.tar.gz");
    let libraries = program::command("tar", home.path())
        .args(["--extract", "--to-stdout", "--wildcards", "*/libraries.txt", "--file"])
        .arg(archive)
        .output();
    let libraries = text(&libraries.expect("tar runs"));
    let has = |name: &str| libraries.lines().any(|line| line.split('\t').next() == Some(name));
    assert!(has("clap") && has("aws-sdk-ec2") && has("kube"), "{libraries}");
    assert!(!has("boon") && !has("proptest") && !has("greenroom"), "only tests need them: {libraries}");
    assert!(libraries.lines().all(|line| line.split('\t').count() == 3), "{libraries}");
    let sums = program::command("sha256sum", home.path())
        .args(["--check", "--strict", "SHA256SUMS"])
        .current_dir(home.path().join("one"))
        .output()
        .expect("sha256sum runs");
    assert_eq!(text(&sums).matches(": OK").count(), 3);
}

/// The relocations at each start are packed (docs/benchmarks.md, "Driver calls").
#[cfg(all(target_os = "linux", target_env = "gnu", target_feature = "crt-static"))]
#[test]
fn the_programs_relocations_are_packed() {
    if cannot_package() {
        return;
    }
    let mut readelf = program::command("readelf", Path::new("/"));
    let sections = readelf.args(["--sections", "--wide", env!("CARGO_BIN_EXE_greenroom")]).output();
    assert!(text(&sections.expect("readelf runs")).contains(" .relr.dyn "));
}

#[test]
fn a_version_that_no_package_can_have_is_refused() {
    let home = tempfile::tempdir().expect("a directory");
    let from = programs(home.path(), |path| std::fs::write(path, STUB).expect("a file"));
    let output = package(&from, &home.path().join("out"), &["--version", "1.0-$(id)"], &[]);
    assert!(!output.status.success());
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(stderr.contains("cannot be the version of a package") || cannot_package(), "{stderr}");
}

/// RPM without its scriptlets: the test machine has no shell and no libraries in the other root.
#[test]
fn an_rpm_installs_upgrades_and_leaves_the_operators_files() {
    if cannot_package() || !has("rpm") || !rustix::process::geteuid().is_root() {
        skipped("packages cannot be installed: no rpm, or not root");
        return;
    }
    let home = tempfile::tempdir().expect("a directory");
    let from = programs(home.path(), |path| std::fs::write(path, STUB).expect("a file"));
    let (out, root) = (home.path().join("out"), home.path().join("root"));
    std::fs::create_dir(&root).expect("a directory");
    let rpm = |arguments: &[&str]| {
        let mut command = program::command("rpm", home.path());
        command.args(["--dbpath", "/rpmdb", "--root"]).arg(&root);
        text(&command.args(arguments).output().expect("rpm runs"))
    };
    let file = |version: &str| out.join(format!("greenroom-{version}-1.x86_64.rpm")).display().to_string();
    for version in ["1.0", "2.0"] {
        text(&package(&from, &out, &["--only", "rpm", "--version", version], &[]));
    }
    rpm(&["--nodeps", "--noscripts", "--install", &file("1.0")]);
    let environment = root.join("etc/greenroom/environment");
    std::fs::write(&environment, "NO_PROXY=mine\n").expect("a file");
    std::fs::write(root.join("etc/greenroom/greenroom.toml"), "# mine\n").expect("a file");
    rpm(&["--nodeps", "--noscripts", "--upgrade", &file("2.0")]);
    assert_eq!(rpm(&["--query", "greenroom"]), "greenroom-2.0-1.x86_64\n");
    assert_eq!(std::fs::read_to_string(&environment).expect("a file"), "NO_PROXY=mine\n");
    let installed = [
        "usr/bin/greenroom",
        "usr/lib/systemd/system/greenroom.service",
        "usr/share/man/man1/greenroom.1.gz",
    ];
    for path in installed {
        assert!(root.join(path).is_file(), "{path}");
    }
    rpm(&["--noscripts", "--erase", "greenroom"]);
    for path in installed {
        assert!(!root.join(path).exists(), "{path}");
    }
    assert_eq!(
        std::fs::read_to_string(environment.with_extension("rpmsave")).expect("a file"),
        "NO_PROXY=mine\n"
    );
    assert!(root.join("etc/greenroom/greenroom.toml").is_file());
}
