//! docs/providers/external-examples.md: it names each example and its tests, and its programs are programs.

use std::collections::BTreeSet;
use std::fs;
use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};

fn page() -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/providers/external-examples.md");
    fs::read_to_string(path).expect("the page")
}

/// The fenced blocks of one language.
fn blocks(page: &str, language: &str) -> Vec<String> {
    let parts = page.split(&format!("```{language}\n")).skip(1).map(str::to_owned).collect::<Vec<_>>();
    parts.iter().filter_map(|part| Some(part.split_once("```")?.0.to_owned())).collect()
}

/// The provider's table of an example.
pub(super) fn table(name: &str) -> toml::Table {
    let program = format!("program = \"/etc/greenroom/{name}\"");
    let block = blocks(&page(), "toml").into_iter().find(|table| table.contains(&program));
    let table: toml::Table = block.expect("the page has a table of each example").parse().expect("TOML");
    let pool = table["pool"].as_table().and_then(|pools| pools.values().next()).expect("a pool");
    pool["provider"].as_table().expect("a provider").clone()
}

fn names(directory: &str) -> BTreeSet<String> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(directory);
    let entries = fs::read_dir(path).expect("a directory");
    entries.map(|entry| entry.expect("an entry").file_name().to_string_lossy().into_owned()).collect()
}

/// An example that no test runs is not shipped as a file.
#[test]
fn each_example_has_a_row_a_table_and_a_test() {
    let (page, tests) = (page(), names("tests/external/examples"));
    let listed =
        page.lines().filter_map(|line| line.strip_prefix("| [`")?.split_once("`](../../examples/providers/"));
    let listed: BTreeSet<String> = listed.map(|(name, _)| name.to_owned()).collect();
    assert_eq!(listed, names("examples/providers"));
    for name in &listed {
        assert!(tests.contains(&format!("{}.rs", name.replace('-', "_"))), "no test runs {name}: {tests:?}");
        assert_eq!(table(name)["kind"].as_str(), Some("external"), "{name}");
    }
}

#[test]
fn what_no_test_runs_is_at_least_a_program_for_any_shell() {
    let page = page();
    let programs = blocks(&page, "sh");
    assert_eq!(programs.len(), page.matches("\n## Not tried: ").count());
    for program in programs {
        let mut shell = Command::new("sh").arg("-n").stdin(Stdio::piped()).spawn().expect("sh starts");
        shell.stdin.take().expect("a pipe").write_all(program.as_bytes()).expect("sh reads");
        assert!(shell.wait().expect("sh ends").success(), "{program}");
        for verb in ["capabilities)", "launch)", "list)", "terminate)", "*) fail 14"] {
            assert!(program.contains(verb), "{verb}: {program}");
        }
    }
}
