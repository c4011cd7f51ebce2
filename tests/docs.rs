//! The documents match the code.

#[path = "docs/bounds.rs"]
mod bounds;
#[path = "docs/figures.rs"]
mod figures;
#[path = "docs/links.rs"]
mod links;
#[path = "docs/pictures.rs"]
mod pictures;
#[path = "docs/quotes.rs"]
mod quotes;
#[path = "docs/schema.rs"]
mod schema;

use std::fs;
use std::path::{Path, PathBuf};

use greenroom::config;
use greenroom::provider;
use greenroom_core::metrics::{Metric, catalogue};
use greenroom_core::plan::table::ROWS;
use greenroom_keys::TakesEffect;
use greenroom_keys::page;
use greenroom_xtask::steps::STEPS;

fn path(name: &str) -> String {
    format!("{}/{name}", env!("CARGO_MANIFEST_DIR"))
}

/// The folders of sources: the program's, and that of each crate.
fn source_folders() -> Vec<PathBuf> {
    let crates = fs::read_dir(path("crates")).expect("the folder of the crates");
    let crates = crates.map(|one| one.expect("a crate").path().join("src"));
    let folders: Vec<PathBuf> = crates.chain([path("src").into()]).collect();
    assert!(folders.len() > 1 && folders.iter().all(|folder| folder.is_dir()), "{folders:?}");
    folders
}

fn read(name: &str) -> String {
    fs::read_to_string(path(name)).expect("the document is there")
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

#[test]
fn the_page_of_the_configuration_is_made_from_the_tables_of_keys() {
    let name = "docs/configuration.md";
    let page = page::render(config::KEYS, provider::KEYS);
    if std::env::var_os("UPDATE_DOCS").is_some() {
        fs::write(path(name), &page).expect("the document can be written");
    }
    let there = fs::read_to_string(path(name)).unwrap_or_default();
    let first = there.lines().zip(page.lines()).take_while(|(there, made)| there == made).count();
    assert!(
        there == page,
        "{name} is not what the tables of keys make, from line {}: run `UPDATE_DOCS=1 cargo test --test docs`",
        first + 1
    );
}

/// Each key is explained in sentences of at most 25 words, and its explanation names when a change takes effect.
#[test]
fn every_key_is_explained_in_short_sentences() {
    let of_providers = provider::KEYS.iter().flat_map(|(_, tables)| *tables);
    for table in config::KEYS.iter().chain(of_providers) {
        assert!(table.about.ends_with('.') && !table.keys.is_empty(), "{}", table.header);
        for key in table.keys {
            let at = format!("`{}` of {}", key.name, table.header);
            assert!(!key.doc.is_empty(), "{at}: nothing says what it means");
            assert_eq!(key.takes_effect == TakesEffect::Within, key.opens_table(), "{at}");
            let text = [key.doc, key.notes].join(" ");
            assert!(
                text.trim_end().ends_with('.') && !text.contains("  ") && !text.contains('\n'),
                "{at}: {text}"
            );
            for sentence in text.split_inclusive(". ") {
                assert!(sentence.split_whitespace().count() <= 25, "{at}: {sentence}");
            }
        }
    }
}

/// The rows of all tables with this first column, without their formatting.
fn first_column(text: &str, header: &str) -> Vec<String> {
    let (mut found, mut inside) = (Vec::new(), false);
    for line in text.lines() {
        let cell = line.strip_prefix("| ").and_then(|rest| rest.split(" | ").next());
        match cell {
            None => inside = false,
            Some(cell) if cell == header => inside = true,
            Some(cell) if inside && !cell.starts_with("---") => found.push(cell.to_owned()),
            Some(_) => {}
        }
    }
    found
}

/// The page names the steps in the order in which they run.
#[test]
fn the_page_for_developers_names_every_step_of_the_test_script_and_no_other() {
    let steps: Vec<&str> = STEPS.iter().map(|step| step.name).collect();
    assert_eq!(
        first_column(&read("docs/development.md"), "step"),
        steps,
        "the tables of docs/development.md"
    );
}

#[test]
fn every_link_leads_somewhere() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let broken = links::broken(&links::pages(root), |path| root.join(path).exists());
    assert!(broken.is_empty(), "\n{}", broken.join("\n"));
}

#[test]
fn every_page_can_be_reached_from_the_readme() {
    let pages = links::pages(Path::new(env!("CARGO_MANIFEST_DIR")));
    let unreachable = links::unreachable(&pages, Path::new("README.md"));
    assert!(unreachable.is_empty(), "no link leads to {unreachable:?}");
}

/// One that does not know the sentence that it has in its job log searches for it here.
#[test]
fn the_program_can_print_each_sentence_that_is_explained() {
    let sources: Vec<String> = source_folders().iter().flat_map(|folder| quotes::sources(folder)).collect();
    let stale = quotes::stale(&read("docs/troubleshooting.md"), "sentence", &sources);
    assert!(stale.is_empty(), "docs/troubleshooting.md:\n{}", stale.join("\n"));
}

#[test]
fn each_code_that_a_page_names_is_in_the_list_of_codes() {
    let codes = first_column(&read("docs/doctor.md"), "code");
    assert!(codes.len() > 100, "{codes:?}");
    let pages = links::pages(Path::new(env!("CARGO_MANIFEST_DIR")));
    let unknown = pages.iter().flat_map(|(page, text)| {
        quotes::unknown_codes(text, &codes).into_iter().map(move |line| format!("{}: {line}", page.display()))
    });
    let unknown: Vec<String> = unknown.collect();
    assert!(unknown.is_empty(), "\n{}", unknown.join("\n"));
}

#[test]
fn the_picture_of_the_concepts_can_be_read_everywhere() {
    match pictures::faults(Path::new(&path("docs/concepts.svg"))) {
        Some(faults) => assert!(faults.is_empty(), "docs/concepts.svg: {faults:?}"),
        None => greenroom_testkit::skipped::skipped("`python3` is missing"),
    }
}

#[test]
fn the_comparison_repeats_measured_figures_only() {
    let unmeasured = figures::unmeasured(&read("docs/comparison.md"), &read("docs/benchmarks.md"));
    assert!(unmeasured.is_empty(), "docs/benchmarks.md does not have {unmeasured:?}");
}

/// The names of metrics in a text, without what Prometheus adds to histograms.
fn metrics_in(text: &str) -> Vec<String> {
    let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let words = text.split(|c: char| !is_part(c)).filter(|word| word.starts_with("greenroom_"));
    let base = |word: &str| {
        let suffix = ["_bucket", "_sum", "_count"].into_iter().find_map(|end| word.strip_suffix(end));
        suffix.unwrap_or(word).to_owned()
    };
    words.map(base).collect()
}

#[test]
fn the_page_of_metrics_lists_each_of_them() {
    let page = read("docs/metrics.md");
    let printed: Vec<&str> = page.lines().filter(|line| line.starts_with("| `greenroom_")).collect();
    let row = |metric: &Metric| {
        let labels: Vec<String> = metric.labels.iter().map(|label| format!("`{label}`")).collect();
        let (kind, source) = (metric.kind.word(), metric.source.word());
        format!("| `{}` | {kind} | {} | {source} | {} |", metric.name, labels.join(", "), metric.help)
    };
    let expected: Vec<String> = catalogue::ALL.iter().map(row).collect();
    assert_eq!(printed, expected, "copy the expected rows into docs/metrics.md");
}

#[test]
fn rules_and_dashboard_name_only_metrics_that_exist() {
    let known: Vec<&str> = catalogue::ALL.iter().map(|metric| metric.name).collect();
    for name in [
        "examples/prometheus/greenroom.rules.yml",
        "examples/prometheus/greenroom.test.yml",
        "examples/grafana/greenroom.json",
    ] {
        let text = read(name);
        let named = metrics_in(&text);
        assert!(named.len() > 5, "{name}");
        for metric in named {
            assert!(known.contains(&metric.as_str()), "{name} names `{metric}`, which is not exported");
        }
    }
    let dashboard: serde_json::Value =
        serde_json::from_str(&read("examples/grafana/greenroom.json")).expect("the dashboard is JSON");
    assert!(dashboard["panels"].as_array().is_some_and(|panels| panels.len() > 10));
}

/// The alerts of the rules, each with its `runbook`.
fn runbooks(rules: &str) -> Vec<(String, Option<String>)> {
    let mut found: Vec<(String, Option<String>)> = Vec::new();
    for line in rules.lines().map(str::trim) {
        if let Some(alert) = line.strip_prefix("- alert: ") {
            found.push((alert.to_owned(), None));
        } else if let (Some(section), Some(last)) = (line.strip_prefix("runbook: "), found.last_mut()) {
            last.1 = Some(section.to_owned());
        }
    }
    found
}

#[test]
fn each_alert_names_its_own_section_of_the_page_of_operations() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let alerts = runbooks(&read("examples/prometheus/greenroom.rules.yml"));
    assert!(alerts.len() >= 8, "{alerts:?}");
    let mut pages = links::pages(root);
    let link = |(alert, section): &(String, Option<String>)| {
        let section = section.as_deref().unwrap_or_default();
        assert!(section.ends_with(&format!("#{}", alert.to_lowercase())), "{alert}: `{section}`");
        format!("[{alert}]({section})")
    };
    pages.insert("alerts.md".into(), alerts.iter().map(link).collect::<Vec<_>>().join("\n"));
    let broken = links::broken(&pages, |path| root.join(path).exists());
    assert!(broken.is_empty(), "\n{}", broken.join("\n"));
}
