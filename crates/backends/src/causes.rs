//! The causes of an error, for messages that are one line.

use std::error::Error;

/// An error and its causes, each once.
pub fn with_causes(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        let words = cause.to_string();
        // Transparent wrappers repeat what they wrap.
        if !text.ends_with(&words) {
            text = format!("{text}: {words}");
        }
        next = cause.source();
    }
    text
}
