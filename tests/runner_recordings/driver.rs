//! The recording driver's side: what it saw in each call, read back from its files.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use greenroom_testkit::gitlab_runner::runner::Runner;

/// A directory with the driver, its records, and the runner's directories.
#[derive(Debug)]
pub struct Lab {
    home: tempfile::TempDir,
}

impl Lab {
    pub fn new() -> Self {
        let home = tempfile::tempdir().expect("a temporary directory");
        let script = home.path().join("driver");
        std::fs::write(&script, include_str!("driver.sh")).expect("the driver can be written");
        let executable = std::fs::Permissions::from_mode(0o755);
        std::fs::set_permissions(&script, executable).expect("the driver can be made executable");
        std::fs::create_dir(home.path().join("records")).expect("the records have a directory");
        Self { home }
    }

    pub fn path(&self) -> &Path {
        self.home.path()
    }

    pub fn records_dir(&self) -> PathBuf {
        self.path().join("records")
    }

    pub fn runner(&self) -> Runner {
        // Started by its interpreter: a file that was just written may still be open in a sibling being forked.
        let bash = Command::new("sh").args(["-c", "command -v bash"]).output().expect("a shell runs");
        let bash = String::from_utf8_lossy(&bash.stdout).trim().to_owned();
        let driver = self.path().join("driver");
        let driver = driver.to_str().expect("temporary directories have plain names");
        Runner::new(bash, self.path()).with_global_args(&[driver]).with_env("RECORDINGS", self.records_dir())
    }

    /// The calls that the driver saw, in order of their starts.
    pub fn sightings(&self) -> Vec<Sighting> {
        let entries = std::fs::read_dir(self.records_dir()).expect("the records can be listed");
        let mut files: Vec<PathBuf> = entries.map(|entry| entry.expect("an entry").path()).collect();
        files.retain(|path| path.extension().is_some_and(|end| end != "env" && end != "response"));
        files.sort();
        files.iter().map(|path| Sighting::read(path)).collect()
    }
}

/// One call as the driver saw it.
#[derive(Debug, Clone)]
pub struct Sighting {
    pub file: PathBuf,
    /// The beginning of the call, in seconds of the wall clock.
    pub began: f64,
    facts: Vec<(String, String)>,
}

impl Sighting {
    fn read(file: &Path) -> Self {
        let text = std::fs::read_to_string(file).expect("a record can be read");
        let name = file.file_name().and_then(|name| name.to_str()).expect("a record has a plain name");
        let mut parts = name.splitn(3, '.');
        let seconds = format!("{}.{}", parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
        let facts = text.lines().filter_map(|line| line.split_once(' '));
        let facts = facts.map(|(key, value)| (key.to_owned(), unquote(value))).collect();
        Self { file: file.into(), began: seconds.parse().expect("a record is named by its time"), facts }
    }

    pub fn all(&self, key: &str) -> Vec<&str> {
        let facts = self.facts.iter().filter(|(name, _)| name == key);
        facts.map(|(_, value)| value.as_str()).collect()
    }

    pub fn get(&self, key: &str) -> Option<&str> {
        self.all(key).first().copied()
    }

    #[track_caller]
    pub fn fact(&self, key: &str) -> &str {
        self.get(key).unwrap_or_else(|| panic!("no `{key}` in {self:?}"))
    }

    /// The environment that this call had, if the job asked for a sample.
    pub fn environment(&self) -> BTreeMap<String, OsString> {
        use std::os::unix::ffi::OsStringExt as _;
        let file = format!("{}.env", self.file.display());
        let bytes = std::fs::read(file).expect("the call wrote its environment down");
        let pairs = bytes.split(|byte| *byte == 0).filter_map(|pair| {
            let at = pair.iter().position(|byte| *byte == b'=')?;
            let key = String::from_utf8_lossy(&pair[..at]).into_owned();
            Some((key, OsString::from_vec(pair[at + 1..].to_vec())))
        });
        pairs.collect()
    }
}

/// Takes back bash's `%q`, for the characters that occur here.
fn unquote(text: &str) -> String {
    let inner = text.strip_prefix("$'").and_then(|rest| rest.strip_suffix('\''));
    let mut plain = String::new();
    let mut letters = inner.unwrap_or(text).chars();
    while let Some(letter) = letters.next() {
        match (letter, inner.is_some()) {
            ('\\', true) => match letters.next() {
                Some('n') => plain.push('\n'),
                Some(other) => plain.push(other),
                None => {}
            },
            ('\\', false) => plain.extend(letters.next()),
            _ => plain.push(letter),
        }
    }
    if text == "''" { String::new() } else { plain }
}
