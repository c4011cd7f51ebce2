//! What first pools of clouds have in common.

/// The credentials that are there, and what they are for.
pub fn credentials(place: Option<&String>, of: Option<&String>) -> String {
    match (place, of) {
        (None, _) => "no credentials of this user; the machine itself may have some".to_owned(),
        (Some(place), None) => format!("credentials: {place}"),
        (Some(place), Some(of)) => format!("credentials: {place}, {of}"),
    }
}

/// The first value of a key in a file of the clouds' tools.
pub fn value(text: &str, key: &str) -> Option<String> {
    let values = text.lines().filter_map(|line| line.split_once('='));
    let found = values.into_iter().find(|(name, _)| name.trim() == key);
    found.map(|(_, value)| value.trim().to_owned()).filter(|value| !value.is_empty())
}

/// The command that launches one machine of a pool and lets it end.
pub fn boot(pool: &str, program: &str) -> String {
    format!("{program} doctor --boot {pool}")
}
