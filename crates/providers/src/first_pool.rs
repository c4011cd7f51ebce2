//! A provider's part of `greenroom init`: what it finds on the runner host, and what follows for a first pool of it.

use std::ffi::OsString;
use std::fmt;
use std::path::{Path, PathBuf};

use toml::{Table, Value};

/// A provider's part of `greenroom init`.
#[derive(Debug, Clone, Copy)]
pub struct FirstPool {
    /// The usual name of a pool.
    pub name: &'static str,
    /// The provider's instances in a few words, for the choice of a provider.
    pub about: &'static str,
    /// Keys that a new file has as comments, each with a value that parses.
    pub comments: &'static [(&'static str, &'static str)],
    /// Looks around on the runner host. Starts nothing, changes nothing, connects to nothing.
    pub look: fn(&RunnerHost<'_>) -> Box<dyn Found>,
}

/// The findings of a provider on the runner host, and their consequences for a pool. By default there are none.
pub trait Found: fmt::Debug {
    /// The findings as the end of a line. `None`: the provider needs nothing of the runner host.
    fn text(&self) -> Option<String> {
        None
    }

    /// Tells how well the provider suits what is there.
    fn suits(&self) -> Suits {
        Suits::Unknown
    }

    /// Keys that `init` asks for although they are not required.
    fn asks_for(&self) -> &'static [&'static str] {
        &[]
    }

    /// The likely value of a key.
    fn likely(&self, _key: &str, _given: &Given<'_>) -> Option<String> {
        None
    }

    /// True if another key, which is set, takes the place of this one.
    fn replaces(&self, _key: &str, _given: &Given<'_>) -> bool {
        false
    }

    /// Keys of the provider that follow from those that are set. `init` asks before it asks the operator, and again
    /// afterwards.
    fn follows(&self, _given: &Given<'_>) -> Vec<(&'static str, Value)> {
        Vec::new()
    }

    /// Keys of the pool that follow from those that are set.
    fn follows_for_pool(&self, _given: &Given<'_>) -> Vec<(&'static str, Value)> {
        Vec::new()
    }

    /// The table of a host that the operator names as `[USER@]HOST[:PORT]`; `None` for anything else.
    fn host(&self, _text: &str) -> Option<Table> {
        None
    }

    /// A danger that the operator has to accept first.
    fn danger(&self, _given: &Given<'_>) -> Option<Danger> {
        None
    }

    /// The likely limit of instances. `None`: nothing here bounds it.
    fn instances(&self, _given: &Given<'_>) -> Option<u32> {
        None
    }

    /// The likely number of spare job slots.
    fn spare(&self) -> u32 {
        0
    }

    /// The commands that a new pool still needs. `program`: how they call Greenroom.
    fn steps(&self, _pool: &str, _given: &Given<'_>, _program: &str) -> Vec<String> {
        Vec::new()
    }
}

/// The findings of a provider to which nothing on the runner host matters.
#[derive(Debug)]
pub struct Nothing;

impl Found for Nothing {}

/// The degree to which a provider suits what is on the runner host, from the least.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Suits {
    Unknown,
    /// Something has to be installed first.
    AfterInstallation,
    Now,
}

/// A danger that the operator has to accept before a pool is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Danger {
    /// A sentence without its period.
    pub what: &'static str,
    /// The key that accepts it when it is `true`.
    pub key: &'static str,
    pub otherwise: &'static str,
}

/// The keys that options and answers have set so far.
#[derive(Debug, Clone, Copy)]
pub struct Given<'a> {
    /// Keys of the provider's table.
    pub provider: &'a [(String, Value)],
    /// The tables of hosts.
    pub hosts: &'a [Table],
}

impl Given<'_> {
    pub fn has(&self, key: &str) -> bool {
        self.provider.iter().any(|(name, _)| name == key)
    }

    /// The text that a key is set to.
    pub fn text(&self, key: &str) -> Option<&str> {
        self.provider.iter().find(|(name, _)| name == key).and_then(|(_, value)| value.as_str())
    }
}

/// The runner host, as its user sees it.
pub struct RunnerHost<'a> {
    pub state_dir: &'a Path,
    /// The environment.
    pub variable: &'a dyn Fn(&str) -> Option<OsString>,
}

impl RunnerHost<'_> {
    /// A variable that is not empty.
    pub fn set(&self, name: &str) -> Option<OsString> {
        (self.variable)(name).filter(|value| !value.is_empty())
    }

    /// The value of [`Self::set`] as text.
    pub fn text(&self, name: &str) -> Option<String> {
        self.set(name).and_then(|value| value.into_string().ok())
    }

    pub fn home(&self) -> Option<PathBuf> {
        self.set("HOME").map(PathBuf::from)
    }

    /// A file below the home.
    pub fn file_at_home(&self, path: &str) -> Option<PathBuf> {
        self.home().map(|home| home.join(path)).filter(|path| path.is_file())
    }

    pub fn read_at_home(&self, path: &str) -> Option<String> {
        self.file_at_home(path).and_then(|path| std::fs::read_to_string(path).ok())
    }
}

impl fmt::Debug for RunnerHost<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RunnerHost").field("state_dir", &self.state_dir).finish_non_exhaustive()
    }
}

/// A list of names, of which the first five stand for many.
pub fn few(names: &[&str]) -> String {
    match names {
        few if few.len() <= 6 => few.join(", "),
        many => format!("{}, and {} more", many[..5].join(", "), many.len() - 5),
    }
}
