//! Licences, sources and duplicate versions of all libraries, judged by deny.toml as `cargo deny` judges them.
//!
//! This test needs neither `cargo deny` nor the internet. Advisories need both.

#![expect(clippy::unwrap_used, clippy::panic, reason = "tests fail by panicking, in helpers too")]

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;

use serde_json::Value;

/// The packages of all features that are built on this machine, from Cargo.lock.
fn packages() -> Vec<Value> {
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--locked", "--format-version", "1", "--all-features"])
        .args(["--filter-platform", "x86_64-unknown-linux-gnu"])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let metadata: Value = serde_json::from_slice(&output.stdout).unwrap();
    let built: BTreeSet<&str> =
        metadata["resolve"]["nodes"].as_array().unwrap().iter().map(|node| text(&node["id"])).collect();
    let all = metadata["packages"].as_array().unwrap();
    all.iter().filter(|package| built.contains(text(&package["id"]))).cloned().collect()
}

fn rules() -> toml::Table {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/deny.toml");
    std::fs::read_to_string(path).unwrap().parse().unwrap()
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_else(|| panic!("no text: {value}"))
}

fn strings(list: &toml::Value) -> BTreeSet<&str> {
    list.as_array().unwrap().iter().map(|entry| entry.as_str().unwrap()).collect()
}

/// True if every part of an expression has an allowed alternative. `A OR B AND C` needs C: stricter than SPDX.
fn is_allowed(expression: &str, allowed: &BTreeSet<&str>) -> bool {
    expression.split(" AND ").all(|part| {
        let alternatives = part.trim_matches(['(', ')']).split(" OR ").flat_map(|one| one.split('/'));
        alternatives.map(str::trim).any(|one| allowed.contains(one))
    })
}

#[test]
fn every_library_has_an_allowed_licence() {
    let rules = rules();
    let allowed = strings(&rules["licenses"]["allow"]);
    for package in packages() {
        let licence = package["license"].as_str().unwrap_or("no licence");
        assert!(is_allowed(licence, &allowed), "{}: {licence}", text(&package["name"]));
    }
}

#[test]
fn licences_are_read_part_by_part() {
    let allowed = BTreeSet::from(["MIT", "Unicode-3.0"]);
    for expression in ["MIT", "GPL-3.0 OR MIT", "Apache-2.0/MIT", "(MIT OR Zlib) AND Unicode-3.0"] {
        assert!(is_allowed(expression, &allowed), "{expression}");
    }
    for expression in ["GPL-3.0", "MIT AND GPL-3.0", "MIT-0", "no licence", "(GPL-3.0 OR Zlib) AND MIT"] {
        assert!(!is_allowed(expression, &allowed), "{expression}");
    }
}

#[test]
fn every_library_comes_from_an_allowed_registry() {
    let rules = rules();
    let allowed = strings(&rules["sources"]["allow-registry"]);
    for package in packages() {
        // Without a source: this package.
        let Some(source) = package["source"].as_str() else { continue };
        let registry = source.strip_prefix("registry+").unwrap_or(source);
        assert!(allowed.contains(registry), "{}: {source}", text(&package["name"]));
    }
}

#[test]
fn every_duplicate_version_has_its_reason() {
    let rules = rules();
    let skipped: BTreeSet<String> = rules["bans"]["skip"]
        .as_array()
        .unwrap()
        .iter()
        .map(|entry| {
            assert!(!entry["reason"].as_str().unwrap().is_empty());
            entry["crate"].as_str().unwrap().to_owned()
        })
        .collect();
    let mut versions: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for package in packages() {
        let entry = versions.entry(text(&package["name"]).to_owned()).or_default();
        entry.insert(text(&package["version"]).to_owned());
    }
    let mut several = BTreeSet::new();
    for (name, versions) in versions.iter().filter(|(_, versions)| versions.len() > 1) {
        let named: BTreeSet<String> = versions.iter().map(|version| format!("{name}@{version}")).collect();
        let unnamed: Vec<_> = named.difference(&skipped).collect();
        assert!(unnamed.len() <= 1, "give the older ones a reason in deny.toml: {unnamed:?}");
        several.extend(named);
    }
    let past: Vec<_> = skipped.difference(&several).collect();
    assert!(past.is_empty(), "no longer duplicates, remove them from deny.toml: {past:?}");
}
