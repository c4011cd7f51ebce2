//! `greenroom provider new`: writes a working program, its test and its settings.

use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use fs_err as fs;
use greenroom_core::ids::PoolName;

use super::{Language, NewOptions};
use crate::cli::error::CliError;
use crate::cli::ui;

/// A file of the skeleton.
struct SkeletonFile {
    name: String,
    text: String,
    is_executable: bool,
}

/// Names of files beside the program.
const TAKEN: [&str; 3] = ["test", "delete", "machines"];

/// Writes the skeleton, or nothing.
pub(super) fn new(options: &NewOptions) -> Result<(), CliError> {
    let name = &options.name;
    if PoolName::parse(name).is_err() || TAKEN.contains(&name.as_str()) {
        let rule =
            format!("use lower-case letters, digits and hyphens, and none of `{}`", TAKEN.join("`, `"));
        return Err(CliError::say(format!("`{name}` cannot be the name of a program")).help(rule));
    }
    let directory = options.directory.clone().unwrap_or_else(|| PathBuf::from(name));
    let exists = |error: &CliError| {
        CliError::say(error.in_a_line()).help("name a new directory with `--directory DIR`")
    };
    match fs::read_dir(&directory) {
        Ok(mut entries) => {
            if entries.next().is_some() {
                let what = format!("the directory `{}` is not empty", directory.display());
                return Err(exists(&CliError::say(what)));
            }
        }
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => fs::create_dir_all(&directory)?,
        Err(error) => return Err(exists(&CliError::system(error))),
    }
    for file in files(options.language, name, &std::path::absolute(&directory)?) {
        write(&directory, &file)?;
    }
    ui::out(&next_steps(options.language, name, &directory));
    Ok(())
}

/// Writes one file of the skeleton, never over a file that exists.
fn write(directory: &Path, file: &SkeletonFile) -> Result<(), CliError> {
    let path = directory.join(&file.name);
    let mode = if file.is_executable { 0o755 } else { 0o644 };
    let mut open = std::fs::OpenOptions::new();
    let mut made = open
        .write(true)
        .create_new(true)
        .mode(mode)
        .open(&path)
        .map_err(|error| CliError::say(format!("cannot write `{}`: {error}", path.display())))?;
    Ok(made.write_all(file.text.as_bytes())?)
}

fn files(language: Language, name: &str, directory: &Path) -> Vec<SkeletonFile> {
    let program = directory.join(name).display().to_string();
    let (source, needs, build) = match language {
        Language::Sh => (format!("`{name}`"), "The example needs `jq`, `flock` and `sshd`.", String::new()),
        Language::Python => (format!("`{name}`"), "The example needs `python3` and `sshd`.", String::new()),
        Language::Go => (
            "`main.go`".to_owned(),
            "The example needs `go` and `sshd`.",
            format!("go build -o ./{name} .\n"),
        ),
    };
    let filled = |text: &str| {
        let text = text.replace("@NAME@", name).replace("@SOURCE@", &source).replace("@NEEDS@", needs);
        let text = text.replace("@PATH@", &program).replace("@BUILD@", &build);
        text.replace("@DIRECTORY@", &directory.display().to_string())
    };
    let file = |name: &str, text: &str, is_executable| SkeletonFile {
        name: name.to_owned(),
        text: filled(text),
        is_executable,
    };
    let mut all = vec![
        file("test", include_str!("skeleton/test"), true),
        file("delete", include_str!("skeleton/delete"), true),
        file("settings.toml", include_str!("skeleton/settings.toml"), false),
        file("README.md", include_str!("skeleton/readme"), false),
    ];
    match language {
        Language::Sh => all.push(file(name, include_str!("skeleton/sh/program"), true)),
        Language::Python => all.push(file(name, include_str!("skeleton/python/program"), true)),
        Language::Go => all.extend([
            file("main.go", include_str!("skeleton/go/program.go.txt"), false),
            file("protocol.go", include_str!("skeleton/go/protocol.go.txt"), false),
            file("sshd.go", include_str!("skeleton/go/sshd.go.txt"), false),
            file("go.mod", include_str!("skeleton/go/go.mod.txt"), false),
        ]),
    }
    all
}

fn next_steps(language: Language, name: &str, directory: &Path) -> String {
    let source = if language == Language::Go { "main.go" } else { name };
    let at = directory.display();
    let live = "test --live";
    let width = live.len().max(source.len());
    format!(
        "Wrote a program that works as it is: each of its machines is an sshd on this host.\n\
         Next:\n  \
         {at}/{test:width$}  run the conformance kit without machines\n  \
         {at}/{live:width$}  run all of it\n  \
         {at}/{source:width$}  replace the functions that are marked REPLACE\n",
        test = "test"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_placeholder_is_filled() {
        for language in [Language::Sh, Language::Python, Language::Go] {
            for file in files(language, "mine", Path::new("/etc/mine")) {
                for placeholder in ["NAME", "SOURCE", "NEEDS", "PATH", "BUILD", "DIRECTORY"] {
                    assert!(!file.text.contains(&format!("@{placeholder}@")), "{}: {placeholder}", file.name);
                }
            }
        }
    }

    #[test]
    fn nothing_that_exists_is_written_over() {
        let dir = tempfile::tempdir().unwrap();
        let options = |name: &str| NewOptions {
            name: name.to_owned(),
            language: Language::Sh,
            directory: Some(dir.path().join("new")),
        };
        for bad in ["", "A", "a/b", "test", "../x"] {
            assert!(new(&options(bad)).is_err(), "{bad}");
        }
        new(&options("mine")).unwrap();
        let before = fs::read(dir.path().join("new/mine")).unwrap();
        let error = new(&options("mine")).unwrap_err().for_operator();
        assert!(error.contains("is not empty") && error.contains("--directory"), "{error}");
        assert_eq!(fs::read(dir.path().join("new/mine")).unwrap(), before);
    }
}
