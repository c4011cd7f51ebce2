//! Builds the guest program of virtual machine images, a static binary that the program carries inside.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::Command;

fn main() {
    println!("cargo::rerun-if-changed=guest");
    let given = |name: &str| std::env::var_os(name).expect("cargo says how to build");
    let program = PathBuf::from(given("OUT_DIR")).join("greenroom-guest");
    if given("CARGO_CFG_TARGET_ARCH") == "x86_64" && given("CARGO_CFG_TARGET_OS") == "linux" {
        compile(&given("RUSTC"), &given("TARGET"), &program);
    } else {
        // Images are for x86-64 only; elsewhere `image build` says so.
        std::fs::write(program, []).expect("the output folder can be written");
    }
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
