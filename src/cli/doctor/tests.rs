//! The overall result, and that no code is untested or undocumented.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use greenroom_testkit::REPOSITORY;

use super::*;

fn finding(severity: Severity, code: &'static str, remedy: Option<&str>) -> Finding {
    let what = format!("the {code} of this machine is not what it should be, and that has consequences");
    Finding { code, severity, message: what, remedy: remedy.map(str::to_owned) }
}

/// Removes the escapes of colours, or makes them visible.
fn shown(examined: &Examination) -> String {
    examined.text(60).replace('\u{1b}', "^")
}

#[test]
fn findings_come_worst_first_each_with_its_help() {
    let mut examined = Examination::default();
    examined.add("clock", [finding(Severity::Note, "n", None)]);
    examined.add(
        "keeper",
        [finding(Severity::Warning, "w", Some("`greenroom keep --with a-long-option` helps"))],
    );
    examined.add("clock", [finding(Severity::Error, "e", Some("set it"))]);
    examined.repaired("pool `linux`: kept 12 transactions");
    let expected = "\
repaired: pool `linux`: kept 12 transactions

^[31merror^[0m [e]: the e of this machine is not what it should be,
  and that has consequences
  help: set it

^[33mwarning^[0m [w]: the w of this machine is not what it should be,
  and that has consequences
  help: `greenroom keep --with a-long-option` helps

^[36mnote^[0m [n]: the n of this machine is not what it should be,
  and that has consequences

doctor: 1 error, 1 warning, 1 note; checked: clock, keeper
";
    assert_eq!(shown(&examined), expected, "{}", shown(&examined));
    assert!(examined.is_bad());
}

#[test]
fn a_sound_machine_is_told_what_was_checked() {
    let mut examined = Examination::default();
    examined.add("clock", []);
    examined.add("keeper", []);
    assert_eq!(shown(&examined), "doctor: all good; checked: clock, keeper\n");
    examined.saw("links of pool `linux`: 3");
    assert_eq!(shown(&examined), "links of pool `linux`: 3\n\ndoctor: all good; checked: clock, keeper\n");
    assert!(!examined.is_bad());
    examined.add("pools", [finding(Severity::Warning, "w", None)]);
    assert!(!examined.is_bad(), "warnings do not fail a script");
}

#[test]
fn json_has_every_field_of_a_finding() {
    let mut examined = Examination::default();
    examined.add("clock", [finding(Severity::Error, "e", Some("set it"))]);
    examined.saw("links of pool `linux`: 3");
    let expected = serde_json::json!({
        "findings": [{
            "code": "e",
            "severity": "error",
            "message": "the e of this machine is not what it should be, and that has consequences",
            "remedy": "set it",
        }],
        "seen": ["links of pool `linux`: 3"],
        "checked": ["clock"],
        "repaired": [],
    });
    assert_eq!(examined.json(), expected);
}

/// The findings that the tests of all checks provoke.
async fn provoked() -> Vec<Finding> {
    let mut all = boot::containers::tests::provoked();
    all.extend(clock::tests::provoked());
    all.extend(config::tests::provoked());
    all.extend(containers::tests::provoked());
    all.extend(state_dir::tests::provoked());
    all.extend(hosts::tests::provoked());
    all.extend(keeper::tests::provoked());
    all.extend(links::tests::provoked());
    all.extend(reporting::tests::provoked());
    all.extend(pools::tests::provoked());
    all.extend(provider::tests::provoked().await);
    all.extend(recorded::tests::provoked().await);
    all.extend(runner::tests::provoked());
    all
}

#[tokio::test]
async fn every_code_has_a_test_that_provokes_it_with_its_severity() {
    let provoked: BTreeSet<(&str, Severity)> =
        provoked().await.iter().map(|f| (f.code, f.severity)).collect();
    let listed: BTreeSet<(&str, Severity)> = code::ALL.iter().map(|c| (c.name, c.severity)).collect();
    assert_eq!(provoked, listed);
    assert_eq!(listed.len(), code::ALL.len(), "a code is listed twice");
}

#[tokio::test]
async fn every_warning_and_error_says_what_helps() {
    for finding in provoked().await {
        let needs = finding.severity > Severity::Note;
        assert!(!needs || finding.remedy.as_ref().is_some_and(|r| !r.is_empty()), "{finding}");
    }
}

#[test]
fn the_documentation_lists_the_same_codes() {
    let page = include_str!("../../../docs/doctor.md");
    for code in code::ALL {
        let row = format!("| `{}` | {} | {} |", code.name, code.severity, code.meaning);
        assert!(page.contains(&row), "docs/doctor.md lacks this line:\n{row}");
    }
    let rows = page.lines().filter(|line| line.starts_with("| `") && !line.starts_with("| `--")).count();
    let of_providers = provider_codes();
    for code in &of_providers {
        assert!(page.contains(&format!("| `{code}` |")), "docs/doctor.md lacks `{code}`");
    }
    assert_eq!(rows, code::ALL.len() + of_providers.len(), "docs/doctor.md lists a code that nobody reports");
}

/// Words in the sources of providers that look like codes: a program.
const NO_CODES: [&str; 1] = ["qemu-img"];

/// Codes that providers report, read from their sources without tests: each `"KIND-…"` in KIND's folder. A folder's name may be longer
/// than its kind (`static_hosts`: `static` is a keyword of Rust).
fn provider_codes() -> BTreeSet<String> {
    let mut codes = BTreeSet::new();
    for family in ["backends", "providers"].map(|name| format!("{REPOSITORY}/crates/{name}/src")) {
        for folder in std::fs::read_dir(family).unwrap().map(|entry| entry.unwrap()) {
            let name = folder.file_name().into_string().unwrap();
            let kind = format!("{}-", name.split('_').next().unwrap());
            if !crate::provider::all().iter().any(|known| format!("{}-", known.kind).starts_with(&kind)) {
                continue;
            }
            for source in sources(&folder.path()) {
                let code = source.split("#[cfg(test)]\nmod ").next().unwrap();
                codes.extend(code.split('"').filter(|text| is_code(text, &kind)).map(str::to_owned));
            }
        }
    }
    codes
}

fn is_code(text: &str, kind: &str) -> bool {
    text.strip_prefix(kind).is_some_and(|rest| !rest.is_empty() && !rest.ends_with('-'))
        && text.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-')
        && crate::provider::find(text).is_err()
        && !NO_CODES.contains(&text)
}

/// The sources in a folder and below it; those of tests have a name of their own.
fn sources(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().map(|entry| entry.unwrap().path());
    let read = |path: PathBuf| match path.extension() {
        Some(_) if path.ends_with("tests.rs") => Vec::new(),
        Some(extension) if extension == "rs" => vec![std::fs::read_to_string(&path).unwrap()],
        _ => sources(&path),
    };
    entries.flat_map(read).collect()
}
