//! The documents say what the code does.

use std::fs;

use greenroom::core::plan::table::ROWS;

fn read(name: &str) -> String {
    let path = format!("{}/{name}", env!("CARGO_MANIFEST_DIR"));
    fs::read_to_string(&path).expect("the document is there")
}

#[test]
fn the_reconcile_table_in_architecture_is_the_one_in_the_code() {
    let text = read("ARCHITECTURE.md");
    let printed: Vec<&str> = text
        .lines()
        .skip_while(|line| !line.starts_with("| # | recorded |"))
        .skip(2)
        .take_while(|line| line.starts_with('|'))
        .collect();
    let expected: Vec<String> =
        ROWS.iter().map(|(n, r, o, w, v)| format!("| {n} | {r} | {o} | {w} | {v} |")).collect();
    assert_eq!(printed, expected, "copy the expected rows into ARCHITECTURE.md");
}

#[test]
fn architecture_stays_short_enough_to_be_read() {
    assert!(read("ARCHITECTURE.md").lines().count() <= 250);
}

/// Each promise names the test that holds it, and that test exists.
#[test]
fn every_promise_in_the_readme_names_a_test_that_exists() {
    let text = read("README.md");
    let promises: Vec<&str> = text
        .lines()
        .skip_while(|line| !line.starts_with("| promise |"))
        .skip(2)
        .take_while(|line| line.starts_with('|'))
        .collect();
    assert!(promises.len() >= 8, "{promises:?}");
    for promise in promises {
        let held_by = promise.trim_end_matches('|').rsplit('|').next().unwrap_or_default();
        let files: Vec<&str> = held_by.split('`').skip(1).step_by(2).collect();
        assert!(!files.is_empty(), "no test named: {promise}");
        for file in files {
            let path = format!("{}/{file}", env!("CARGO_MANIFEST_DIR"));
            assert!(fs::metadata(&path).is_ok(), "{file} does not exist: {promise}");
        }
    }
}
