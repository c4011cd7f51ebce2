//! Every sentence that a page quotes is one that the program can print.

use std::fs;
use std::path::Path;

use super::links::prose;

/// The texts of a source folder, each without its tests, and with its literals in one piece.
pub(crate) fn sources(folder: &Path) -> Vec<String> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).expect("a folder of sources") {
        let path = entry.expect("its entry").path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if path.is_dir() && name != "tests" {
            found.extend(sources(&path));
        } else if path.extension().is_some_and(|end| end == "rs") && !name.ends_with("tests.rs") {
            found.push(program_text(&fs::read_to_string(&path).expect("a source")));
        }
    }
    found
}

/// The source without its unit tests; a literal's continued lines are joined.
fn program_text(source: &str) -> String {
    let program = source.split("\n#[cfg(test)]\nmod ").next().unwrap_or_default();
    let mut text = String::new();
    for (at, piece) in program.split("\\\n").enumerate() {
        text.push_str(if at == 0 { piece } else { piece.trim_start() });
    }
    text
}

/// The quotes in the first column of the tables: line and sentence.
fn quoted(page: &str, header: &str) -> Vec<(usize, String)> {
    let (mut found, mut inside) = (Vec::new(), false);
    for (number, line) in prose(page) {
        let cell = line.strip_prefix("| ").and_then(|rest| rest.split(" | ").next());
        inside = cell.is_some_and(|cell| cell == header || inside);
        let spans = cell.unwrap_or_default().split('`').skip(1).step_by(2);
        found.extend(spans.filter(|_| inside).map(|span| (number, span.to_owned())));
    }
    found
}

/// The quotes that no source has. `…` stands for any text; one source has to have all that stands between.
pub(crate) fn stale(page: &str, header: &str, sources: &[String]) -> Vec<String> {
    let quotes = quoted(page, header);
    assert!(!quotes.is_empty(), "no table with the column `{header}`");
    let unknown = quotes.into_iter().filter(|(_, quote)| {
        let parts: Vec<&str> = quote.split('…').map(str::trim).filter(|part| part.len() > 1).collect();
        assert!(parts.iter().any(|part| part.len() >= 8), "a quote that proves nothing: {quote}");
        !sources.iter().any(|source| parts.iter().all(|part| source.contains(part)))
    });
    unknown.map(|(line, quote)| format!("line {line}: no source has `{quote}`")).collect()
}

/// Files of the state directory, and events of notices.
const NO_CODES: [&str; 5] =
    ["config-path", "keeper-starts", "metrics-address", "host-out-of-service", "keeper-restarts"];

/// The names in a page that look like codes of findings, and are not in the list.
pub(crate) fn unknown_codes(page: &str, codes: &[String]) -> Vec<String> {
    let areas = codes.iter().filter_map(|code| code.trim_matches('`').split_once('-').map(|(area, _)| area));
    let areas: Vec<&str> = areas.collect();
    let mut found = Vec::new();
    for (number, line) in prose(page) {
        for span in line.split('`').skip(1).step_by(2) {
            let (area, rest) = span.split_once('-').unwrap_or_default();
            let is_plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
            let is_code = areas.contains(&area)
                && !rest.is_empty()
                && span.chars().all(is_plain)
                && !NO_CODES.contains(&span)
                && !codes.iter().any(|code| code.starts_with(&format!("`{span}-")));
            if is_code && !codes.contains(&format!("`{span}`")) {
                found.push(format!("line {number}: docs/doctor.md has no code `{span}`"));
            }
        }
    }
    found
}

mod planted {
    use super::{program_text, stale, unknown_codes};

    const SOURCE: &str = "fn f() {\n    g(\"all {n} of \\\n       the hosts are {state}\")\n}\n\n#[cfg(test)]\nmod tests {\n    \"only a test says this\"\n}\n";

    fn of(quote: &str) -> Vec<String> {
        let page = format!("| sentence | cause |\n| --- | --- |\n| `{quote}` | `not quoted` |\n");
        stale(&page, "sentence", &[program_text(SOURCE), "another source".to_owned()])
    }

    #[test]
    fn a_sentence_that_the_program_no_longer_prints_is_found() {
        assert_eq!(of("all … of the hosts are …"), Vec::<String>::new());
        for quote in ["all … of the guests are …", "only a test says this", "the hosts are … another source"]
        {
            assert_eq!(of(quote), [format!("line 3: no source has `{quote}`")]);
        }
    }

    #[test]
    fn a_code_that_does_not_exist_is_found() {
        let codes = ["`pool-paused`".to_owned()];
        let page = "`pool-paused`, `pool drain`, `idle-time`, `pool-stopped`";
        assert_eq!(unknown_codes("`pool`, `pool-`, `config-path`", &codes), Vec::<String>::new());
        assert_eq!(unknown_codes(page, &codes), ["line 1: docs/doctor.md has no code `pool-stopped`"]);
    }
}
