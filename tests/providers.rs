//! A provider that exists in this file only: everything that reads providers finds it, and no other file names it.

use greenroom::keys::problem::Problem;
use greenroom::keys::{Applies, Key, KeyTable, Takes, Unset, key, page, table};
use greenroom::provider::{self, BuildContext, Built, Calls, Registration, WITHOUT_BACKENDS};

/// The keys of the table.
const KEYS: &[KeyTable] =
    &[KeyTable { header: "[pool.NAME.provider]", about: "Sheets of paper.", keys: &[SHEETS] }];
const SHEETS: Key =
    key("sheets", Takes::Count(1), Unset::Required, Applies::Launch).means("Sheets per instance.");

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
