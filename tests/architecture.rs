//! Checks the architecture: layers, purity, sizes, forbidden words.
//!
//! Every check is a function of paths and texts; planted.rs shows that each one finds its violations.

#[path = "architecture/layers.rs"]
mod layers;
#[path = "architecture/patches.rs"]
mod patches;
#[path = "architecture/paths.rs"]
mod paths;
#[path = "architecture/planted.rs"]
mod planted;
#[path = "architecture/sizes.rs"]
mod sizes;
#[path = "architecture/source.rs"]
mod source;
#[path = "architecture/tree.rs"]
mod tree;
#[path = "architecture/words.rs"]
mod words;

use std::fmt;

use source::Source;
use tree::Tree;

/// Packages in Cargo.lock.
const MOST_PACKAGES: usize = 480;

/// A violation of the rules.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Finding {
    file: String,
    line: usize,
    what: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}", self.file, self.line, self.what)
    }
}

fn report(findings: &[Finding]) -> String {
    let lines: Vec<String> = findings.iter().map(ToString::to_string).collect();
    lines.join("\n")
}

#[track_caller]
fn none(mut findings: Vec<Finding>) {
    findings.sort();
    assert!(findings.is_empty(), "\n{}", report(&findings));
}

fn all(tree: &Tree, check: impl Fn(&Source) -> Vec<Finding>) -> Vec<Finding> {
    tree.sources.iter().flat_map(check).collect()
}

#[test]
fn every_arrow_points_the_right_way() {
    let tree = Tree::of_this_workspace();
    let adapters = layers::adapters(tree.sources.iter().map(|source| source.path.as_str()));
    none(all(&tree, |source| layers::arrows(source, &adapters)));
    none(layers::wrong_crates("greenroom", &tree.manifest));
    none(tree.crates.iter().flat_map(|(name, manifest)| layers::wrong_crates(name, manifest)).collect());
}

#[test]
fn every_dependency_is_used() {
    let tree = Tree::of_this_workspace();
    none(tree::unused("", &tree.manifest, &tree.sources));
    for (name, manifest) in &tree.crates {
        none(tree::unused(&format!("crates/{name}/"), manifest, &tree.sources));
    }
}

#[test]
fn the_core_is_pure() {
    let tree = Tree::of_this_workspace();
    assert!(tree.sources.iter().filter(|source| layers::is_core(source)).count() > 50, "the core is found");
    none(all(&tree, layers::impurities));
    let crates = tree::dependencies(&tree.crates["core"]);
    assert!(crates.iter().any(|name| name == "serde"), "the manifest is understood");
    none(layers::foreign_crates(&crates));
}

#[test]
fn files_and_functions_are_small() {
    let tree = Tree::of_this_workspace();
    let tests = tree::test_files(&tree.sources);
    let code = || tree.sources.iter().filter(|source| source.is_ours() && !tests.contains(&source.path));
    none(code().filter_map(sizes::long_file).collect());
    none(all(&tree, sizes::long_functions));
}

#[test]
fn every_file_says_first_what_it_is() {
    none(all(&Tree::of_this_workspace(), words::no_first_line));
}

#[test]
fn nothing_is_silenced_and_nothing_is_left_to_do() {
    none(all(&Tree::of_this_workspace(), words::leftovers));
}

#[test]
fn no_file_says_what_does_not_belong_there() {
    let tree = Tree::of_this_workspace();
    none(tree.texts.iter().flat_map(|(path, text)| words::forbidden(path, text)).collect());
}

/// The folders that may name kinds of providers: the providers themselves, and those that only tests use.
const NAMES_KINDS: &[&str] =
    &["crates/backends/", "crates/providers/", "crates/harness/", "crates/testkit/", "crates/xtask/"];

#[test]
fn only_a_provider_names_its_kind() {
    let tree = Tree::of_this_workspace();
    let tests = tree::test_files(&tree.sources);
    let kinds: Vec<&str> = greenroom::provider::WITHOUT_BACKENDS.iter().map(|known| known.kind).collect();
    none(all(&tree, |source| {
        let may = |place: &&str| source.path.starts_with(place);
        let is_judged = source.is_ours() && !tests.contains(&source.path) && !NAMES_KINDS.iter().any(may);
        if is_judged { words::kinds(source, &kinds) } else { Vec::new() }
    }));
}

#[test]
fn no_file_is_forgotten() {
    let tree = Tree::of_this_workspace();
    let manifests: Vec<&str> =
        std::iter::once(&tree.manifest).chain(tree.crates.values()).map(String::as_str).collect();
    none(tree::forgotten(&tree.sources, &manifests.concat()));
}

#[test]
fn the_tree_of_packages_stays_small_and_comes_from_one_place() {
    let lock = Tree::of_this_workspace().lock;
    let count = lock.matches("[[package]]").count();
    assert!(
        count > 0 && count <= MOST_PACKAGES,
        "Cargo.lock has {count} packages, at most {MOST_PACKAGES} are allowed"
    );
    none(words::strange_sources(&lock));
}
