//! The rules of layers: which one may use which, and what the core may not use.

use std::collections::BTreeSet;

use super::Finding;
use super::paths::{absolute, module_of, paths};
use super::source::{Source, crate_of, is_word};

/// Each crate of the workspace and the crates that its program code may use. Cargo refuses circles; this table says which of the
/// other arrows are meant. The package `greenroom` has the layers below.
const CRATES: &[(&str, &[&str])] = &[
    ("core", &[]),
    ("keys", &[]),
    ("ports", &["core"]),
    ("system", &[]),
    ("engine", &["core", "ports"]),
    ("manager", &["core", "ports", "system"]),
    ("ssh", &["core", "ports", "system"]),
    ("providers", &["core", "keys", "ports", "ssh", "system"]),
    ("backends", &["core", "keys", "ports", "providers", "ssh", "system"]),
    ("testkit", &["core", "keys", "ports"]),
    ("harness", &["core", "manager", "ports", "providers", "ssh", "system", "testkit"]),
    ("sim", &["core", "engine", "ports", "testkit"]),
    ("xtask", &[]),
    // The test kit is optional there: only the tests' own plugin needs it, which no package contains.
    (
        "greenroom",
        &["backends", "core", "engine", "keys", "manager", "ports", "providers", "ssh", "system", "testkit"],
    ),
];

/// Every layer of the package `greenroom`, and what it may use besides itself: layers and crates. `*` is everything. All may use the
/// test kit and the harness, because Cargo keeps them away from everything but tests.
const ARROWS: &[(&str, &[&str])] = &[
    ("config", &["core", "keys"]),
    // The list of providers.
    ("provider", &["backends", "keys", "providers"]),
    ("cli", &["*"]),
    ("bin", &["cli"]),
];

/// Crates whose folders are adapters: none may use another one of its crate. Files belong to all of them.
const FAMILIES: &[&str] = &["backends", "providers"];

/// Folders of a family that are no adapter, but what some of its adapters have in common.
const COMMONS: &[&str] =
    &["backends/cloud", "backends/program", "providers/conformance", "providers/supervised"];

/// Modules of crates that one file only uses, the one that chooses between them and others.
const CHOSEN_IN: &[(&str, &str)] = &[("manager::file_store", "src/cli/context.rs")];

/// The adapters there are: each folder of a family. Other files belong to the family.
pub(crate) fn adapters<'a>(files: impl Iterator<Item = &'a str>) -> BTreeSet<String> {
    let mut adapters = BTreeSet::new();
    for file in files {
        let module = module_of(file);
        if let [family, name, ..] = module.as_slice()
            && crate_of(file).is_some()
            && FAMILIES.contains(&family.as_str())
            && (module.len() > 2 || file.ends_with("/mod.rs"))
            && !COMMONS.contains(&format!("{family}/{name}").as_str())
        {
            adapters.insert(format!("{family}/{name}"));
        }
    }
    adapters
}

/// The layer of a module path; `None` for the crate's root.
fn layer(module: &[String], adapters: &BTreeSet<String>) -> Option<String> {
    let first = module.first()?;
    let adapter = module.get(1).map(|second| format!("{first}/{second}"));
    Some(adapter.filter(|adapter| adapters.contains(adapter)).unwrap_or_else(|| first.clone()))
}

fn may_use(from: &str, to: &str) -> Result<bool, String> {
    let known = ARROWS.iter().find(|(layer, _)| *layer == from);
    let (_, allowed) = known.ok_or_else(|| format!("`{from}` is no layer"))?;
    let to = to.split('/').next().unwrap_or(to);
    Ok(from == to || matches!(to, "testkit" | "harness") || allowed.iter().any(|one| ["*", to].contains(one)))
}

/// True if both layers are adapters of one crate, and different ones.
fn is_neighbour(from: &str, to: &str) -> bool {
    let family = |layer: &str| layer.split_once('/').map(|(family, _)| family.to_owned());
    from != to && family(from).is_some() && family(from) == family(to)
}

/// Paths that lead from a layer to one that it may not use, and from an adapter to another one.
pub(crate) fn arrows(source: &Source, adapters: &BTreeSet<String>) -> Vec<Finding> {
    let finding = |line, what| Finding { file: source.path.clone(), line, what };
    let Some(from) = layer(&module_of(&source.path), adapters).filter(|_| source.is_ours()) else {
        return Vec::new();
    };
    let in_crate = crate_of(&source.path).is_some();
    if !in_crate && let Err(what) = may_use(&from, &from) {
        return vec![finding(1, what)];
    }
    let mut found = Vec::new();
    for path in paths(source) {
        let Some(target) = absolute(source, &path) else { continue };
        let Some(to) = layer(&target, adapters) else { continue };
        let named = target.join("::");
        let chosen =
            CHOSEN_IN.iter().find(|(module, file)| named.starts_with(module) && *file != source.path);
        let what = match chosen {
            // Cargo knows which crate may use which.
            _ if in_crate && !is_neighbour(&from, &to) => continue,
            Some((module, file)) => format!("only `{file}` may use `{module}`"),
            None if in_crate || may_use(&from, &to) == Ok(false) => {
                format!("`{from}` may not use `{to}` ({})", path.parts.join("::"))
            }
            None => continue,
        };
        found.push((to, finding(source.line(path.at), what)));
    }
    // `use a::{self, b}` is one arrow.
    found.dedup_by(|(to, a), (other, b)| to == other && a.line == b.line);
    found.into_iter().map(|(_, finding)| finding).collect()
}

/// Crates of the workspace that the program code of another one may not use, and crates that are missing in the table.
pub(crate) fn wrong_crates(package: &str, manifest: &str) -> Vec<Finding> {
    let folder = if package == "greenroom" { String::new() } else { format!("crates/{package}/") };
    let finding = |what| Finding { file: format!("{folder}Cargo.toml"), line: 1, what };
    let Some((_, allowed)) = CRATES.iter().find(|(name, _)| *name == package) else {
        return vec![finding(format!("`{package}` is no crate of the table"))];
    };
    let used = super::tree::shipped_dependencies(manifest);
    let ours = used.iter().filter_map(|name| name.strip_prefix("greenroom_"));
    let wrong = ours.filter(|name| !allowed.contains(name));
    wrong.map(|name| finding(format!("the crate `{package}` may not use `{name}`"))).collect()
}

/// The paths that the core may not name: everything at or below them, and every import of a whole module above.
const IMPURE: &[&str] = &[
    "std::time::SystemTime",
    "std::time::Instant",
    "std::time::UNIX_EPOCH",
    "std::env",
    "std::fs",
    "std::io",
    "std::net",
    "std::os",
    "std::process",
    "std::thread",
    "std::collections::HashMap",
    "std::collections::HashSet",
    "std::collections::hash_map",
    "std::collections::hash_set",
    "std::hash::RandomState",
];

/// Functions that query the machine, by the end of their paths.
const IMPURE_ENDS: &[&str] = &["Timestamp::now", "Zoned::now", "TimeZone::system", "TimeZone::try_system"];

/// Types that the core may not use, by their last names, however they were imported.
const IMPURE_NAMES: &[&str] = &["SystemTime", "Instant", "HashMap", "HashSet", "RandomState"];

/// The crates the core may use; in its tests, proptest and itself.
const PURE_CRATES: &[&str] =
    &["base64ct", "cronexpr", "greenroom_core", "jiff", "proptest", "serde", "serde_json", "thiserror"];

/// Crates that the core's manifest names, and that it may not use.
pub(crate) fn foreign_crates(crates: &[String]) -> Vec<Finding> {
    let foreign = crates.iter().filter(|name| !PURE_CRATES.contains(&name.as_str()));
    let what = |name| format!("the core may not use the crate `{name}`");
    foreign
        .map(|name| Finding { file: "crates/core/Cargo.toml".to_owned(), line: 1, what: what(name) })
        .collect()
}

/// True if the file is part of the core.
pub(crate) fn is_core(source: &Source) -> bool {
    crate_of(&source.path) == Some("core")
}

/// Clock, environment, input and output, threads and unordered maps in the core.
pub(crate) fn impurities(source: &Source) -> Vec<Finding> {
    if !is_core(source) {
        return Vec::new();
    }
    let mut found = Vec::new();
    let mut find = |at, what| found.push(Finding { file: source.path.clone(), line: source.line(at), what });
    for path in paths(source) {
        let name = path.parts.join("::");
        let whole = name.strip_suffix("::*").unwrap_or(&name);
        let below =
            |longer: &str, shorter: &str| longer == shorter || longer.starts_with(&format!("{shorter}::"));
        let ends = |end: &&str| name == **end || name.ends_with(&format!("::{end}"));
        if IMPURE.iter().any(|impure| below(whole, impure) || below(impure, whole))
            || IMPURE_ENDS.iter().any(ends)
        {
            find(path.at, format!("the core is pure: no `{name}`"));
        }
    }
    for name in IMPURE_NAMES {
        for (at, _) in source.code.match_indices(name) {
            let (before, after) = (&source.code[..at], &source.code[at + name.len()..]);
            let alone = !before.chars().next_back().is_some_and(is_word)
                && !after.chars().next().is_some_and(is_word);
            if alone {
                find(at, format!("the core is pure: no `{name}`"));
            }
        }
    }
    found.sort();
    found.dedup_by(|a, b| a.line == b.line);
    found
}
