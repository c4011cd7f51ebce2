//! docs/getting-started.md: its first blocks run as a reader types them, and print what the page shows.

use std::path::Path;

use super::program;
use super::settled::await_settled;

const PAGE: &str = "docs/getting-started.md";

/// A reader takes their time: the next job comes when the keeper has refilled the pool.
const READER: &str = r#"
greenroom() {
    if [ "$1" = try ] && [ -d state ]; then
        until command greenroom pool status --json | grep -q '"ready"'; do sleep 0.1; done
    fi
    command greenroom "$@"
}
"#;

/// A command with what the page shows below it.
#[derive(Debug, PartialEq, Eq)]
struct Shown {
    command: String,
    output: Vec<String>,
}

/// The commands of the console blocks. They begin with `$ `; a document of the shell follows up to its `END`.
fn shown(page: &str) -> Vec<Shown> {
    let mut found: Vec<Shown> = Vec::new();
    let (mut inside, mut document) = (false, false);
    for line in page.lines() {
        if line.starts_with("```") {
            inside = line == "```console";
        } else if let Some(last) = found.last_mut().filter(|_| document) {
            last.command = format!("{}\n{line}", last.command);
            document = line != "END";
        } else if let Some(command) = line.strip_prefix("$ ").filter(|_| inside) {
            document = command.ends_with("<<'END'");
            found.push(Shown { command: command.to_owned(), output: Vec::new() });
        } else if let Some(last) = found.last_mut().filter(|_| inside) {
            last.output.push(line.to_owned());
        }
    }
    found
}

/// A line without what differs from run to run: numbers, units of time, and where it ran.
fn plain(line: &str) -> String {
    let kept = line.split_whitespace().filter_map(|word| match word.trim_matches(['(', ')', ',']) {
        "ms" | "s" => None,
        path if path.starts_with('/') => Some("/".to_owned()),
        name if name.contains(|c: char| c.is_ascii_digit()) => Some("0".to_owned()),
        _ => Some(word.to_owned()),
    });
    kept.collect::<Vec<_>>().join(" ")
}

/// Each shown line is printed, in this order; `…` stands for any lines.
fn follows(printed: &str, step: &Shown) {
    let host = rustix::system::uname();
    let printed = printed.replace(&*host.nodename().to_string_lossy(), "ci-1");
    let mut lines = printed.lines().map(plain);
    for line in step.output.iter().filter(|line| *line != "…") {
        let expected = plain(line);
        assert!(
            lines.any(|printed| printed == expected),
            "{PAGE}: `{}` does not print `{line}`, or not there:\n{printed}",
            step.command
        );
    }
}

#[test]
fn the_first_blocks_print_what_the_page_shows() {
    let page = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(PAGE)).expect("the page");
    let steps = shown(page.split("\n## Real machines\n").next().expect("its first part"));
    assert!(steps.len() >= 9, "{steps:?}");
    let home = tempfile::tempdir().expect("a directory");
    let mut script = format!("exec 2>&1\n{READER}");
    for (at, step) in steps.iter().enumerate() {
        script = format!("{script}echo '=== {at}'\n{}\n", step.command);
    }
    let folder = Path::new(env!("CARGO_BIN_EXE_greenroom")).parent().expect("a folder");
    let [(_, search_path), _] = program::environment(home.path());
    let folders = std::iter::once(folder.to_owned()).chain(std::env::split_paths(&search_path));
    let mut bash = program::command("bash", home.path());
    bash.env("PATH", std::env::join_paths(folders).expect("a search path"));
    let output = bash.args(["-c", &script]).current_dir(home.path()).output().expect("bash runs");
    await_settled(home.path());
    let printed = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{printed}");
    for (at, step) in steps.iter().enumerate() {
        let after = printed.split(&format!("=== {at}\n")).nth(1).unwrap_or_default();
        follows(after.split("=== ").next().unwrap_or_default(), step);
    }
}

#[test]
fn a_page_that_shows_something_else_is_found() {
    let page = "```console\n$ cat <<'END'\na\nEND\nbooted in 12 ms\n…\ndone\n$ b\n```\n$ c\n";
    let steps = shown(page);
    assert_eq!((steps.len(), steps[0].command.as_str()), (2, "cat <<'END'\na\nEND"));
    follows("x\nbooted in 1.4 s\ny\ndone\n", &steps[0]);
    for printed in ["booted in 12 ms\n", "done\nbooted in 12 ms\n", "booted at 12 ms\ndone\n"] {
        std::panic::catch_unwind(|| follows(printed, &steps[0])).unwrap_err();
    }
}
