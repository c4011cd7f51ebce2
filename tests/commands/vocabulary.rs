//! No text for people has a retired term.
//!
//! docs/glossary.md has the terms of the field. Each retired term stands here beside the one that replaced it.

use std::path::{Path, PathBuf};
use std::process::Command;

/// Retired phrases in lower case, and what to write instead.
const RETIRED: &[(&str, &str)] = &[
    ("again and again", "every 5 s"),
    ("another manager", "another keeper"),
    ("anybody", "the actor's name"),
    ("at once", "concurrently, immediately"),
    ("author of the job", "the job log"),
    ("candidate", "offering"),
    ("capacity matrix", "offering availability"),
    ("doubted", "unreachable"),
    ("fixed host", "static host"),
    ("host of your own", "static host"),
    ("hosts of your own", "static hosts"),
    ("in force", "active, applied"),
    ("last words", "the last lines"),
    ("left over", "orphaned"),
    ("leftover", "orphan"),
    ("lets us in", "accepts the login"),
    ("lingering", "closing"),
    ("looks again", "next pass"),
    ("mended", "repaired"),
    ("misfit", "inapplicable event"),
    ("nobody", "the actor's name"),
    ("out of stock", "no capacity"),
    ("passed over", "unavailable"),
    ("passing fault", "transient error"),
    ("planted bug", "seeded bug"),
    ("set aside", "out of service"),
    ("somebody", "the actor's name"),
    ("stand still", "suspended, paused, backing off"),
    ("stands still", "suspended, paused, backing off"),
    ("the other program", "greenroom-backends"),
    ("to be had", "available"),
    ("whoever", "the actor's name"),
    ("world in a box", "deterministic simulation"),
];

/// Retired names of `--json` fields.
const RETIRED_FIELDS: &[&str] = &[
    "asked",
    "candidate",
    "candidates",
    "found",
    "gives_up",
    "launches_stand_still",
    "launches_wait_on",
    "left",
    "left_over",
    "lingering",
    "looked",
    "looks_again",
    "mended",
    "on",
    "passed_over",
    "standing",
    "what",
    "why",
];

/// Phrases in which a retired term is right: another meaning, or a name.
const RIGHT: &[&str] =
    &["user `nobody`", "(or `nobody`)", "otherwise `nobody`", "as `nobody`", "else \"nobody\"", "--planted"];

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// The retired phrases in a text, each with its line.
fn retired(name: &str, text: &str) -> Vec<String> {
    let mut found = Vec::new();
    for (number, line) in text.lines().enumerate() {
        let mut line = line.to_lowercase();
        for right in RIGHT {
            line = line.replace(right, "");
        }
        for (term, instead) in RETIRED {
            let begins = |at: usize| !line[..at].ends_with(|c: char| c.is_alphanumeric());
            if line.match_indices(term).any(|(at, _)| begins(at)) {
                found.push(format!("{name}:{}: `{term}`, write: {instead}", number + 1));
            }
        }
    }
    found
}

fn pages(dir: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(dir).expect("a folder of the repository") {
        let path = entry.expect("an entry").path();
        let is_page = |path: &Path| path.extension().is_some_and(|kind| kind == "md" || kind == "toml");
        if path.is_dir() {
            pages(&path, found);
        } else if is_page(&path) {
            found.push(path);
        }
    }
}

/// The help of a command and of all commands below it.
fn help(path: &[&str], found: &mut Vec<(String, String)>) {
    let output = Command::new(env!("CARGO_BIN_EXE_greenroom"))
        .env("COLUMNS", "1000")
        .args(path)
        .arg("--help")
        .output()
        .expect("the binary runs");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success() && !text.is_empty(), "{path:?}: {output:?}");
    let commands: Vec<String> = text
        .lines()
        .skip_while(|line| *line != "Commands:")
        .skip(1)
        .take_while(|line| line.starts_with("  "))
        .filter(|line| !line.starts_with("   "))
        .filter_map(|line| line.split_whitespace().next().map(str::to_owned))
        .filter(|command| command != "help")
        .collect();
    found.push((format!("greenroom {} --help", path.join(" ")), text));
    for command in &commands {
        help(&[path, &[command.as_str()]].concat(), found);
    }
}

#[test]
fn help_has_no_retired_term() {
    let mut texts = Vec::new();
    help(&[], &mut texts);
    assert!(texts.len() > 15, "every command has its help: {}", texts.len());
    let found: Vec<String> = texts.iter().flat_map(|(name, text)| retired(name, text)).collect();
    assert!(found.is_empty(), "{}", found.join("\n"));
}

#[test]
fn pages_and_examples_have_no_retired_term() {
    let mut paths =
        vec![root().join("README.md"), root().join("ARCHITECTURE.md"), root().join("CHANGELOG.md")];
    for folder in ["docs", "examples", "crates/backends/src", "crates/providers/src"] {
        pages(&root().join(folder), &mut paths);
    }
    paths.extend(["state/README.md", "tests/lab/README.md"].map(|page| root().join(page)));
    assert!(paths.len() > 15, "{paths:?}");
    let found: Vec<String> = paths
        .iter()
        .flat_map(|path| {
            let text = std::fs::read_to_string(path).expect("a page");
            let name = path.strip_prefix(root()).unwrap_or(path).display().to_string();
            retired(&name, &text)
        })
        .collect();
    assert!(found.is_empty(), "{}", found.join("\n"));
}

#[test]
fn codes_of_doctor_have_no_retired_term() {
    let codes = greenroom::cli::doctor::code::ALL;
    let found: Vec<String> = codes
        .iter()
        .flat_map(|code| retired(code.name, &format!("{}\n{}", code.name.replace('-', " "), code.meaning)))
        .collect();
    assert!(found.is_empty(), "{}", found.join("\n"));
}

/// The fields of every type that is written for scripts.
#[test]
fn fields_of_json_have_no_retired_name() {
    let mut fields = 0;
    let files = [
        "src/cli/pool/status/view.rs",
        "src/cli/pool/status/instance.rs",
        "src/cli/pool/status/links.rs",
        "src/cli/pool/leaks/view.rs",
        "src/cli/explain/mod.rs",
        "src/cli/explain/past.rs",
        "src/cli/doctor/mod.rs",
        "crates/ports/src/finding.rs",
    ];
    for file in files {
        let text = std::fs::read_to_string(root().join(file)).expect("a source file");
        let types = text.split("#[derive(").skip(1);
        let types =
            types.filter(|part| part.lines().next().is_some_and(|derived| derived.contains("Serialize")));
        let before = fields;
        for line in types.flat_map(|part| part.lines().skip(1).take_while(|line| *line != "}")) {
            let line = line.trim();
            let visible = line.split_once(' ').filter(|(first, _)| first.starts_with("pub"));
            let line = visible.map_or(line, |(_, field)| field);
            let Some((name, _)) = line.split_once(": ") else { continue };
            assert!(!RETIRED_FIELDS.contains(&name), "{file}: `{name}`");
            fields += 1;
        }
        assert!(fields > before, "{file} has none");
    }
    assert!(fields > 60, "the fields were found: {fields}");
}
