//! A provider that exists in this file only: everything that reads providers finds it, and no other file names it. And the
//! files that name the providers that exist.

use std::collections::BTreeSet;
use std::path::Path;

use greenroom::provider;
use greenroom::provider::WITHOUT_BACKENDS;
use greenroom_keys::problem::Problem;
use greenroom_keys::{DefaultValue, KeySpec, KeyTable, TakesEffect, ValueType, key, page, table};
use greenroom_providers::first_pool::{FirstPool, Nothing};
use greenroom_providers::registration::{BuildContext, Built, Calls, Registration};

/// The keys of the table.
const KEYS: &[KeyTable] =
    &[KeyTable { header: "[pool.NAME.provider]", about: "Sheets of paper.", keys: &[SHEETS] }];
const SHEETS: KeySpec = key("sheets", ValueType::Count(1), DefaultValue::Required, TakesEffect::Launch)
    .doc("Sheets per instance.");

const PAPER: Registration = Registration {
    kind: "paper",
    example: "kind = \"paper\"\nsheets = 4\n",
    calls: Calls::Here,
    environment: &["PAPER_HOME"],
    build,
    guest_dirs: None,
    lifetime: None,
    suspends: false,
    engines: true,
    cloud_init: false,
    orders: None,
    reaches: None,
    static_hosts: None,
    doctor: |_, _| Vec::new(),
    first_pool: FirstPool {
        name: "sheets",
        about: "sheets of paper",
        comments: &[],
        look: |_| Box::new(Nothing),
    },
};

fn build(context: &BuildContext, table: &toml::Table) -> Built {
    let help = "set the number of sheets";
    let sheets = |table: &table::Table<'_>| table.required("sheets", table.count("sheets"), help).or(1);
    let sheets: u32 = table::read(KEYS, context.pool.as_str(), table, sheets)?;
    Err(Problem::new(format!("{sheets} sheets are not enough")).into())
}

#[test]
fn a_provider_in_one_place_is_found_everywhere() {
    let mut providers = WITHOUT_BACKENDS.to_vec();
    providers.push(PAPER);
    provider::install(providers.leak());

    assert_eq!(provider::find("paper").unwrap().example, PAPER.example);
    let error = provider::find("papre").unwrap_err().to_string();
    assert_eq!(error, "there is no provider `papre` (did you mean `paper`?)");
    assert!(provider::needs_variable("PAPER_HOME") && !provider::needs_variable("PAPER_SECRET"));

    let page = page::render(&[], &[provider::KEYS, &[(PAPER.kind, KEYS)]].concat());
    assert!(page.contains("## Provider `paper`") && page.contains("| `sheets` |"), "{page}");
}

#[test]
fn the_released_backends_have_every_provider_that_comes_with_an_sdk() {
    let manifest = include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml"));
    let manifest: toml::Table = manifest.parse().unwrap();
    let features = manifest["features"].as_table().unwrap();
    let enables = |feature: &toml::Value, name: &str| {
        feature.as_array().unwrap().iter().any(|other| other.as_str() == Some(name))
    };
    let with_sdk: Vec<_> = features.iter().filter(|(_, feature)| enables(feature, "backends")).collect();
    assert!(!with_sdk.is_empty());
    for (name, _) in with_sdk {
        assert!(enables(&features["all-backends"], name), "`all-backends` lacks `{name}`");
    }
}

/// True if the text has the word, alone.
fn names(text: &str, word: &str) -> bool {
    let is_part = |one: char| one.is_alphanumeric() || one == '-' || one == '_';
    text.match_indices(word)
        .any(|(at, _)| !text[..at].ends_with(is_part) && !text[at + word.len()..].starts_with(is_part))
}

fn files_below(dir: &Path, found: &mut Vec<std::path::PathBuf>) {
    for entry in std::fs::read_dir(dir).expect("a directory") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            files_below(&path, found);
        } else {
            found.push(path);
        }
    }
}

#[test]
fn the_page_for_developers_lists_the_files_that_name_providers() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let read = |file: &str| std::fs::read_to_string(root.join(file)).unwrap();
    let manifest: toml::Table = read("Cargo.toml").parse().unwrap();
    let kinds: Vec<&str> = WITHOUT_BACKENDS.iter().map(|known| known.kind).collect();
    let with_feature = |kind: &&str| manifest["features"].get(kind).is_some();

    let page = read("docs/development.md");
    let (_, section) = page.split_once("\n| existing file | which providers |").expect("the table");
    let rows = section.lines().skip(2).take_while(|line| line.starts_with('|'));
    let mut listed = BTreeSet::new();
    for row in rows {
        let cells: Vec<&str> = row.split('|').map(str::trim).collect();
        let (file, which) = (cells[1].trim_matches('`'), cells[2]);
        let expected: Vec<&str> = match which {
            "all" => kinds.clone(),
            "with a feature" => kinds.iter().copied().filter(with_feature).collect(),
            other => unreachable!("{other}"),
        };
        let text = read(file);
        let missing: Vec<_> = expected.iter().filter(|kind| !names(&text, kind)).collect();
        assert!(missing.is_empty() && !expected.is_empty(), "{file} does not name {missing:?}");
        listed.insert(file.to_owned());
    }

    let mut files = Vec::new();
    files_below(&root.join("src"), &mut files);
    files_below(&root.join("crates"), &mut files);
    let name_all = files.iter().filter(|file| {
        std::fs::read_to_string(file).is_ok_and(|text| kinds.iter().all(|kind| names(&text, kind)))
    });
    for file in name_all {
        let file = file.strip_prefix(root).unwrap().to_string_lossy().into_owned();
        assert!(
            listed.contains(&file),
            "{file} names every provider, but docs/development.md does not list it"
        );
    }
}
