//! Builds the guest program of virtual machine images, a static binary that the program carries inside, and records the
//! commit and the features of this build.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Names the commit where git is missing, as in an unpacked archive of the source.
const COMMIT: &str = "GREENROOM_COMMIT";

/// Features that only stand for others.
const GROUPS: [&str; 2] = ["backends", "all-backends"];

fn main() {
    println!("cargo::rerun-if-changed=guest");
    println!("cargo::rustc-env=GREENROOM_BUILD_COMMIT={}", commit());
    println!("cargo::rustc-env=GREENROOM_BUILD_FEATURES={}", features());
    let given = |name: &str| std::env::var_os(name).expect("cargo says how to build");
    if given("CARGO_CFG_TARGET_OS") == "linux" && is_static() {
        // It relocates itself at each start: packed, it has a hundredth of the bytes to read for that (docs/benchmarks.md).
        // A program that is linked dynamically would need glibc 2.36.
        println!("cargo::rustc-link-arg-bin=greenroom=-Wl,-z,pack-relative-relocs");
    }
    let program = PathBuf::from(given("OUT_DIR")).join("greenroom-guest");
    if given("CARGO_CFG_TARGET_ARCH") == "x86_64" && given("CARGO_CFG_TARGET_OS") == "linux" {
        compile(&given("RUSTC"), &given("TARGET"), &program);
    } else {
        // Images are for x86-64 only; elsewhere `image build` says so.
        std::fs::write(program, []).expect("the output folder can be written");
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

fn compile(compiler: &OsString, target: &OsString, program: &PathBuf) {
    let mut rustc = Command::new(compiler);
    rustc
        .args(["guest/main.rs", "--crate-name", "greenroom_guest", "--edition", "2024", "--target"])
        .arg(target);
    for option in ["target-feature=+crt-static", "opt-level=s", "panic=abort", "strip=symbols"] {
        rustc.args(["-C", option]);
    }
    let status = rustc.arg("-o").arg(program).status().expect("the compiler starts");
    assert!(status.success(), "the guest program does not build: {status}");
}
