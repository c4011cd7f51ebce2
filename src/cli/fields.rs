//! The forms of JSON fields, for scripts: `serialize_with` of the views that `--json` prints.

use std::fmt::Display;
use std::time::Duration;

use greenroom_core::time::Stamp;
use serde::{Serialize, Serializer};
use serde_json::Value;

use crate::cli::when::rfc3339;

/// A moment, or none: RFC 3339 in UTC.
pub(super) fn moment<S: Serializer>(
    at: &(impl Copy + Into<Option<Stamp>>),
    to: S,
) -> Result<S::Ok, S::Error> {
    let at: Option<Stamp> = (*at).into();
    at.map(rfc3339).serialize(to)
}

/// A duration, or none: whole seconds.
pub(super) fn seconds<S: Serializer>(
    duration: &(impl Copy + Into<Option<Duration>>),
    to: S,
) -> Result<S::Ok, S::Error> {
    let duration: Option<Duration> = (*duration).into();
    duration.map(|duration| duration.as_secs()).serialize(to)
}

/// The text that people read.
pub(super) fn text<S: Serializer>(value: &impl Display, to: S) -> Result<S::Ok, S::Error> {
    to.collect_str(value)
}

/// The words of a table's cell as one word.
pub(super) fn word<S: Serializer>(words: &str, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_str(&words.replace(' ', "-"))
}

/// The word that names the variant in the journal or in the report's file; one vocabulary for both and for scripts.
pub(super) fn tag(value: &impl Serialize, field: &str) -> String {
    let value = serde_json::to_value(value).ok();
    let word = value.as_ref().and_then(|v| v.get(field)).and_then(Value::as_str);
    word.unwrap_or_default().to_owned()
}
