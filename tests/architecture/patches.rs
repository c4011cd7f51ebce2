//! The seeded bugs still apply to the sources.
//!
//! `scripts/sim --planted` shows that the simulation finds each of them; this test keeps them up to date.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The kinds of code with seeded bugs, at least two in each.
const PLACES: [&str; 24] = [
    "adopt",
    "assign",
    "blame",
    "bound",
    "deadline",
    "disk",
    "early",
    "exit",
    "forget",
    "health",
    "images",
    "lease",
    "list",
    "location",
    "managers",
    "matrix",
    "order",
    "orders",
    "recheck",
    "reconcile",
    "repeat",
    "stages",
    "store",
    "tier",
];

fn patches(root: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(root.join("tests/planted")).expect("tests/planted is there");
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.expect("it can be read").path()).collect();
    paths.sort();
    paths
}

#[test]
fn every_planted_bug_still_applies_cleanly_and_says_what_it_breaks() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut planted: BTreeMap<String, u32> = BTreeMap::new();
    for path in patches(root) {
        let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        let text = fs::read_to_string(&path).expect("a patch is text");
        let description =
            text.split("--- a/").next().unwrap_or_default().split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(description.contains("breaks promise"), "{name} does not say which promise it breaks");
        let tried = Command::new("patch")
            .args(["--dry-run", "--batch", "--fuzz=0", "--strip=1", "--directory"])
            .arg(root)
            .arg("--input")
            .arg(&path)
            .output()
            .expect("`patch` is installed");
        let output = String::from_utf8_lossy(&tried.stdout).into_owned();
        assert!(tried.status.success(), "{name} does not apply any more; make it anew:\n{output}");
        *planted.entry(name.split('-').next().unwrap_or_default().to_owned()).or_default() += 1;
    }
    let places: Vec<&str> = planted.keys().map(String::as_str).collect();
    assert_eq!(places, PLACES);
    assert!(planted.values().all(|count| *count >= 2), "{planted:?}");
}
