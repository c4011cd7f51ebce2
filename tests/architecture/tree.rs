//! The files of this workspace, and how they hang together.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;

use super::Finding;
use super::source::{Source, is_word};

/// Everything that is, or is about to be, part of the repository.
pub(crate) struct Tree {
    pub(crate) manifest: String,
    /// The manifests of the crates, by the names of their folders.
    pub(crate) crates: BTreeMap<String, String>,
    pub(crate) lock: String,
    /// Rust files.
    pub(crate) sources: Vec<Source>,
    /// All text files, Rust included.
    pub(crate) texts: Vec<(String, String)>,
}

impl Tree {
    pub(crate) fn of_this_workspace() -> Self {
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        let mut texts = Vec::new();
        for path in listed(root).unwrap_or_else(|| walked(root)) {
            // Deleted but not yet committed, or no text.
            if let Ok(text) = std::fs::read_to_string(root.join(&path)) {
                texts.push((path, text));
            }
        }
        let rust =
            texts.iter().filter(|(path, _)| Path::new(path).extension().is_some_and(|ending| ending == "rs"));
        let sources: Vec<Source> = rust.map(|(path, text)| Source::new(path, text)).collect();
        let has = |path: &str| sources.iter().any(|source| source.path == path);
        assert!(has("src/lib.rs"), "the package's files are found");
        let text = |name: &str| std::fs::read_to_string(root.join(name)).unwrap_or_default();
        let mut crates = BTreeMap::new();
        for name in std::fs::read_dir(root.join("crates")).expect("the folder of the crates") {
            let name = name.expect("a crate").file_name().to_string_lossy().into_owned();
            assert!(has(&format!("crates/{name}/src/lib.rs")), "the files of the crate `{name}` are found");
            crates.insert(name.clone(), text(&format!("crates/{name}/Cargo.toml")));
        }
        Self { manifest: text("Cargo.toml"), crates, lock: text("Cargo.lock"), sources, texts }
    }
}

/// The files that git tracks, and those that it would track after `git add`.
fn listed(root: &Path) -> Option<Vec<String>> {
    let arguments = ["ls-files", "-z", "--cached", "--others", "--exclude-standard"];
    let output = Command::new("git").args(arguments).current_dir(root).output().ok()?;
    let text =
        String::from_utf8(output.stdout).ok().filter(|text| output.status.success() && !text.is_empty())?;
    let files: BTreeSet<String> =
        text.split('\0').filter(|path| !path.is_empty()).map(str::to_owned).collect();
    Some(files.into_iter().collect())
}

/// The files below a root without git: all but those that a build leaves.
fn walked(root: &Path) -> Vec<String> {
    let mut files = Vec::new();
    let mut folders = vec![root.to_path_buf()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
            let path = entry.path();
            let inside = path.strip_prefix(root).unwrap_or(&path).to_string_lossy().into_owned();
            let built =
                [".git", "target", "state", "mutants.out"].iter().any(|name| inside.starts_with(name));
            if path.is_dir() && !built {
                folders.push(path);
            } else if path.is_file() && inside != ".git" {
                files.push(inside);
            }
        }
    }
    files.sort();
    files
}

/// The crates that the manifest names, as they are called in code.
pub(crate) fn dependencies(manifest: &str) -> Vec<String> {
    named(manifest, &["dependencies", "dev-dependencies", "build-dependencies"])
}

/// The crates that the manifest names for other purposes than tests.
pub(crate) fn shipped_dependencies(manifest: &str) -> Vec<String> {
    named(manifest, &["dependencies", "build-dependencies"])
}

/// Dependencies of a package that none of its files names. `folder` is empty, or ends with a slash.
pub(crate) fn unused(folder: &str, manifest: &str, sources: &[Source]) -> Vec<Finding> {
    let is_own = |source: &&Source| match folder {
        "" => !source.path.starts_with("crates/"),
        folder => source.path.starts_with(folder),
    };
    let words = |source: &Source| -> Vec<String> {
        source.code.split(|c| !is_word(c)).filter(|word| !word.is_empty()).map(str::to_owned).collect()
    };
    let named: BTreeSet<String> = sources.iter().filter(is_own).flat_map(words).collect();
    // Its tests have the core with the feature `samples`.
    let own_name = format!("greenroom_{}", folder.trim_start_matches("crates/").trim_end_matches('/'));
    let unused = dependencies(manifest).into_iter().filter(|name| !named.contains(name) && *name != own_name);
    let what = |name| format!("no file uses the dependency `{name}`");
    unused.map(|name| Finding { file: format!("{folder}Cargo.toml"), line: 1, what: what(name) }).collect()
}

fn named(manifest: &str, tables: &[&str]) -> Vec<String> {
    let manifest: toml::Table = manifest.parse().expect("the manifest is TOML");
    let targets = manifest.get("target").and_then(toml::Value::as_table);
    let places = targets.into_iter().flat_map(|targets| targets.values().filter_map(toml::Value::as_table));
    let places: Vec<&toml::Table> = std::iter::once(&manifest).chain(places).collect();
    let found = tables.iter().flat_map(|name| places.iter().filter_map(|place| place.get(*name)?.as_table()));
    found.flat_map(|table| table.keys().map(|name| name.replace('-', "_"))).collect()
}

/// A `mod name;` and the file it stands for.
struct Link {
    /// The offerings, of which one should exist.
    targets: [String; 2],
    for_tests: bool,
}

fn links(source: &Source, is_root: bool) -> Vec<Link> {
    let (folder, file) = source.path.rsplit_once('/').unwrap_or(("", &source.path));
    let own_folder = is_root || matches!(file, "mod.rs" | "lib.rs" | "main.rs");
    let below = if own_folder { folder.to_owned() } else { source.path.trim_end_matches(".rs").to_owned() };
    let inline = source.inline_modules();
    let tests = source.test_parts();
    let mut found = Vec::new();
    for (name, after) in source.items("mod") {
        if !source.code[after..].trim_start().starts_with(';') {
            continue;
        }
        let mut place = below.clone();
        for outer in inline.iter().filter(|outer| outer.body.contains(&after)) {
            place = format!("{place}/{}", outer.name);
        }
        let targets = match named_path(source, after) {
            Some(path) => [joined(folder, &path), String::new()],
            None => [format!("{place}/{name}.rs"), format!("{place}/{name}/mod.rs")],
        };
        found.push(Link { targets, for_tests: tests.iter().any(|part| part.contains(&(after - 1))) });
    }
    found
}

/// A path from a folder, with `..` resolved.
fn joined(folder: &str, path: &str) -> String {
    let mut parts: Vec<&str> = folder.split('/').collect();
    for part in path.split('/') {
        if part == ".." {
            parts.pop();
        } else {
            parts.push(part);
        }
    }
    parts.join("/")
}

/// The `#[path = "…"]` in front of a module. The code is blanked, so it is read in the text.
fn named_path(source: &Source, after: usize) -> Option<String> {
    let before = source.code[..after].rfind([';', '}', '{']).map_or(0, |at| at + 1);
    let at = before + source.code[before..after].rfind("#[path =")?;
    let mut quoted = source.text[at..after].split('"');
    quoted.nth(1).map(str::to_owned)
}

/// Roots of crates: the library, binaries, and each test, benchmark and example.
fn is_root(path: &str, manifest: &str) -> bool {
    let parts: Vec<&str> = path.split('/').collect();
    let inside = if parts[0] == "crates" { parts.get(2..).unwrap_or_default() } else { &parts };
    match inside {
        ["src", "lib.rs" | "main.rs"]
        | ["build.rs"]
        | ["src", "bin", _]
        | ["tests" | "benches" | "examples", _]
        | ["tests" | "benches" | "examples", _, "main.rs"] => true,
        _ => manifest.contains(&format!("path = \"{}\"", inside.join("/"))),
    }
}

/// Files that no `mod` leads to. `manifest`: the manifests of all packages.
pub(crate) fn forgotten(sources: &[Source], manifest: &str) -> Vec<Finding> {
    let by_path: BTreeMap<&str, &Source> =
        sources.iter().map(|source| (source.path.as_str(), source)).collect();
    let mut reached: BTreeSet<&str> =
        by_path.keys().copied().filter(|path| is_root(path, manifest)).collect();
    let mut todo: Vec<&str> = reached.iter().copied().collect();
    while let Some(path) = todo.pop() {
        for link in links(by_path[path], is_root(path, manifest)) {
            for target in &link.targets {
                if let Some((target, _)) = by_path.get_key_value(target.as_str())
                    && reached.insert(target)
                {
                    todo.push(target);
                }
            }
        }
    }
    let lost = by_path.keys().filter(|path| !reached.contains(*path));
    let what = "no `mod` leads to this file";
    lost.map(|path| Finding { file: (*path).to_owned(), line: 1, what: what.to_owned() }).collect()
}

/// Files that are compiled for tests only: behind a `#[cfg(test)] mod name;`, and what hangs below them.
pub(crate) fn test_files(sources: &[Source]) -> BTreeSet<String> {
    let mut found: BTreeSet<String> = BTreeSet::new();
    loop {
        let before = found.len();
        for source in sources.iter().filter(|source| source.is_ours()) {
            let all = found.contains(&source.path);
            for link in links(source, is_root(&source.path, "")) {
                if all || link.for_tests {
                    found.extend(link.targets.into_iter().filter(|target| !target.is_empty()));
                }
            }
        }
        if found.len() == before {
            return found;
        }
    }
}
