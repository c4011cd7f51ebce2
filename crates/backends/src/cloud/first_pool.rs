//! The part of `greenroom init` that the clouds share: an account of the operator's on the runner host.

use greenroom_providers::first_pool::{Found, Given, RunnerHost};

/// An account whose credentials, and the place in it where instances run, are looked up on the runner host.
#[derive(Debug)]
pub struct CloudAccount {
    /// The place of the credentials; `None`: none were found.
    pub credentials: Option<String>,
    /// The value of `place_key`.
    pub place: Option<String>,
    /// The key for the region, or the project.
    pub place_key: &'static str,
    /// Keys that `init` asks for although they are not required.
    pub asks_for: &'static [&'static str],
    /// A key, and the one that takes its place.
    pub replaced: Option<(&'static str, &'static str)>,
}

impl Found for CloudAccount {
    fn text(&self) -> Option<String> {
        Some(match (&self.credentials, &self.place) {
            (None, _) => "no credentials of this user; the machine itself may have some".to_owned(),
            (Some(credentials), None) => format!("credentials: {credentials}"),
            (Some(credentials), Some(place)) => format!("credentials: {credentials}, {place}"),
        })
    }

    fn asks_for(&self) -> &'static [&'static str] {
        self.asks_for
    }

    fn likely(&self, key: &str, _given: &Given<'_>) -> Option<String> {
        self.place.clone().filter(|_| key == self.place_key)
    }

    fn replaces(&self, key: &str, given: &Given<'_>) -> bool {
        self.replaced.is_some_and(|(replaced, by)| key == replaced && given.has(by))
    }

    fn steps(&self, pool: &str, _given: &Given<'_>, program: &str) -> Vec<String> {
        vec![boot(pool, program)]
    }
}

/// The first value of a key in a file of the clouds' tools, below the operator's home.
pub fn value_at_home(host: &RunnerHost<'_>, path: &str, key: &str) -> Option<String> {
    let text = host.read_at_home(path)?;
    let mut values = text.lines().filter_map(|line| line.split_once('='));
    let found = values.find(|(name, _)| name.trim() == key);
    found.map(|(_, value)| value.trim().to_owned()).filter(|value| !value.is_empty())
}

/// The command that launches one machine of a pool and lets it end.
pub fn boot(pool: &str, program: &str) -> String {
    format!("{program} doctor --boot {pool}")
}
