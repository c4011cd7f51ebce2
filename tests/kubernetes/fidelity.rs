//! The stand-in answers as a real API server did.

#![cfg(test)]

use std::path::Path;
use std::process::Command;

#[test]
fn the_stand_in_answers_as_the_real_one_did() {
    let tests = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests");
    let mut command = Command::new("python3");
    command.arg("-B").arg(tests.join("kubernetes/cluster/compare.py")).arg(tests.join("cluster/recorded"));
    let compared = command.output().expect("Python starts");
    let told = String::from_utf8_lossy(&compared.stdout);
    assert!(compared.status.success(), "{told}{}", String::from_utf8_lossy(&compared.stderr));
    assert!(told.contains("27 answers compared, 0 differ"), "{told}");
}
