//! Records the commit and the features of this build.

use std::path::{Path, PathBuf};
use std::process::Command;

/// Names the commit where git is missing, as in an unpacked archive of the source.
const COMMIT: &str = "GREENROOM_COMMIT";

/// Features that only stand for others.
const GROUPS: [&str; 2] = ["backends", "all-backends"];

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-env=GREENROOM_BUILD_COMMIT={}", commit());
    println!("cargo::rustc-env=GREENROOM_BUILD_FEATURES={}", features());
    let system = std::env::var_os("CARGO_CFG_TARGET_OS").expect("cargo says how to build");
    if system == "linux" && is_static() {
        // It relocates itself at each start: packed, it has a hundredth of the bytes to read for that (docs/benchmarks.md).
        // A program that is linked dynamically would need glibc 2.36.
        println!("cargo::rustc-link-arg-bin=greenroom=-Wl,-z,pack-relative-relocs");
    }
}

/// The commit that this is built from. Debug builds ask for none: each commit would make them compile anew.
fn commit() -> String {
    println!("cargo::rerun-if-env-changed={COMMIT}");
    let given = std::env::var(COMMIT).ok().filter(|given| !given.trim().is_empty());
    let is_release = std::env::var("PROFILE").is_ok_and(|profile| profile == "release");
    given
        .map(|given| given.trim().to_owned())
        .or_else(|| is_release.then(head).flatten())
        .unwrap_or_else(|| "unknown".to_owned())
}

/// The commit of this repository. A repository around an unpacked archive has another root.
fn head() -> Option<String> {
    let root = PathBuf::from(std::env::var_os("CARGO_MANIFEST_DIR")?);
    if Path::new(&git(&["rev-parse", "--show-toplevel"])?).canonicalize().ok()? != root.canonicalize().ok()? {
        return None;
    }
    // Each commit and each change of the branch adds a line there, if there is a log.
    let log = git(&["rev-parse", "--git-path", "logs/HEAD"]).filter(|log| Path::new(log).exists());
    println!("cargo::rerun-if-changed={}", log.or_else(|| git(&["rev-parse", "--git-path", "HEAD"]))?);
    git(&["rev-parse", "HEAD"])
}

fn git(arguments: &[&str]) -> Option<String> {
    let output =
        Command::new("git").args(arguments).output().ok().filter(|output| output.status.success())?;
    Some(String::from_utf8(output.stdout).ok()?.trim().to_owned())
}

/// Whether the programs have the C library inside.
fn is_static() -> bool {
    let is_gnu = std::env::var("CARGO_CFG_TARGET_ENV").is_ok_and(|env| env == "gnu");
    is_gnu
        && std::env::var("CARGO_CFG_TARGET_FEATURE")
            .is_ok_and(|all| all.split(',').any(|one| one == "crt-static"))
}

/// The features of Cargo.toml that are set, in the order of the alphabet.
fn features() -> String {
    // Cargo's list of them, each by the name that Cargo.toml has.
    let set = std::env::var("CARGO_CFG_FEATURE").unwrap_or_default();
    let is_named = |name: &&str| !name.is_empty() && !GROUPS.contains(name);
    let mut set: Vec<&str> = set.split(',').filter(is_named).collect();
    set.sort_unstable();
    if set.is_empty() { "none".to_owned() } else { set.join(", ") }
}
