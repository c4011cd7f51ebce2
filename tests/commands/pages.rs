//! Console blocks of pages: their commands, and whether what they print is what the page shows.

use std::path::Path;
use std::process::Output;

use greenroom_testkit::pace::await_settled;
use greenroom_testkit::program;

/// A command with what the page shows below it.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Shown {
    pub(crate) command: String,
    output: Vec<String>,
}

pub(crate) fn read(page: &str) -> String {
    std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(page)).expect("the page")
}

/// The text below a heading, up to the next heading.
pub(crate) fn section<'a>(page: &'a str, heading: &str) -> &'a str {
    let (_, below) = page.split_once(&format!("\n{heading}\n")).expect("a section of that name");
    // Inside a console block, `# ` stands before root's commands.
    let end =
        below.match_indices("\n#").map(|(at, _)| at).find(|at| below[..*at].matches("```").count() % 2 == 0);
    &below[..end.unwrap_or(below.len())]
}

/// The commands of the console blocks. They begin with `$ ` or `# `; a document of the shell follows up to its `END`.
pub(crate) fn shown(text: &str) -> Vec<Shown> {
    let mut found: Vec<Shown> = Vec::new();
    let (mut inside, mut document) = (false, false);
    for line in text.lines() {
        if line.starts_with("```") {
            inside = line == "```console";
        } else if let Some(last) = found.last_mut().filter(|_| document) {
            last.command = format!("{}\n{line}", last.command);
            document = line != "END";
        } else if let Some(command) = line.strip_prefix("$ ").or(line.strip_prefix("# ")).filter(|_| inside) {
            document = command.ends_with("<<'END'");
            found.push(Shown { command: command.to_owned(), output: Vec::new() });
        } else if let Some(last) = found.last_mut().filter(|_| inside) {
            last.output.push(line.to_owned());
        }
    }
    found
}

/// Runs the commands in an empty directory, after `before`, and compares what each prints.
pub(crate) fn hold(page: &str, before: &str, steps: &[Shown]) {
    let home = tempfile::tempdir().expect("a directory");
    let mut script = format!("exec 2>&1\n{before}\n");
    for (at, step) in steps.iter().enumerate() {
        script = format!("{script}echo '=== {at}'\n{}\n", step.command);
    }
    let output = bash(home.path(), &script);
    empty(home.path());
    await_settled(home.path());
    let printed = String::from_utf8_lossy(&output.stdout).into_owned();
    for (at, step) in steps.iter().enumerate() {
        let after = printed.split(&format!("=== {at}\n")).nth(1).unwrap_or_default();
        let own = after.split("=== ").next().unwrap_or_default();
        let problem = missing(own, &step.output);
        assert_eq!(problem, None, "{page}: `{}` does not print this, or not there:\n{printed}", step.command);
    }
}

/// Removes all that is in a directory: what still runs there ends then. Until it does, it may add a file, and a directory
/// that gets one cannot be removed.
fn empty(home: &Path) {
    let left = || std::fs::read_dir(home).expect("the directory").flatten().map(|entry| entry.path()).next();
    for _ in 0..1_000 {
        let Some(next) = left() else { return };
        match std::fs::symlink_metadata(&next) {
            Ok(found) if found.is_dir() => std::fs::remove_dir_all(&next).ok(),
            _ => std::fs::remove_file(&next).ok(),
        };
    }
    assert_eq!(left(), None, "it cannot be removed");
}

fn bash(home: &Path, script: &str) -> Output {
    let folder = Path::new(env!("CARGO_BIN_EXE_greenroom")).parent().expect("a folder");
    let [(_, search_path), _] = program::environment(home);
    let folders = std::iter::once(folder.to_owned()).chain(std::env::split_paths(&search_path));
    let mut bash = program::command("bash", home);
    bash.env("PATH", std::env::join_paths(folders).expect("a search path"));
    bash.args(["-c", script]).current_dir(home).output().expect("bash runs")
}

/// The words of a text, without what differs from run to run: numbers, units of time, places, widths of a terminal.
fn words<'a>(lines: impl Iterator<Item = &'a str>) -> Vec<String> {
    let word = |word: &str| match word.trim_matches(['(', ')', ',', '`', ':', ';']) {
        "ms" | "s" => None,
        path if path.starts_with('/') => Some("/".to_owned()),
        name if name.contains(|c: char| c.is_ascii_digit()) => Some("0".to_owned()),
        _ => Some(word.to_owned()),
    };
    lines.flat_map(str::split_whitespace).filter_map(word).collect()
}

/// The first shown lines that are not printed, each part after the one before; `…` stands for any lines.
fn missing(printed: &str, shown: &[String]) -> Option<String> {
    let host = rustix::system::uname();
    let printed = printed.replace(&*host.nodename().to_string_lossy(), "ci-1");
    let printed = words(printed.lines());
    let mut left = printed.as_slice();
    for part in shown.split(|line| line == "…").filter(|part| !part.is_empty()) {
        let expected = words(part.iter().map(String::as_str));
        let found = left.windows(expected.len()).position(|window| window == expected.as_slice());
        let Some(at) = found else { return Some(part.join("\n")) };
        left = &left[at + expected.len()..];
    }
    None
}

#[test]
fn a_page_that_shows_something_else_is_found() {
    let page = "\n## A\n```console\n$ cat <<'END'\na\nEND\nbooted in 12 ms\n…\nall is\n  done\n# b\n```\n$ c\n## B\n```console\n$ d\n```\n";
    let steps = shown(section(page, "## A"));
    assert_eq!((steps.len(), steps[0].command.as_str()), (2, "cat <<'END'\na\nEND"));
    assert_eq!(missing("x\nbooted in 1.4 s\ny\nall\nis done\n", &steps[0].output), None);
    for printed in ["booted in 12 ms\n", "all is done\nbooted in 12 ms\n", "booted at 12 ms\nall is done\n"] {
        assert!(missing(printed, &steps[0].output).is_some(), "{printed}");
    }
}
