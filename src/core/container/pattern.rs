//! What names and patterns of images in the configuration may contain. Objections are ends of sentences about the key.

/// A pattern for images.
pub fn pattern(text: &str) -> Result<(), String> {
    if text.is_empty() {
        return Err("contains an empty pattern, which matches no image".to_owned());
    }
    name(text, "*?").map_err(|wrong| match wrong {
        '[' | ']' | '{' | '}' | '^' | '$' | '|' | '(' | ')' | '\\' | '+' => {
            format!("contains `{wrong}`, but patterns know only `*`, `**` and `?`")
        }
        other => format!("contains {other:?}, which image names cannot have"),
    })
}

/// The name of an image.
pub fn image(text: String) -> Result<String, String> {
    match name(&text, "") {
        Ok(()) => Ok(text),
        Err(wrong) => Err(format!("contains {wrong:?}, which image names cannot have")),
    }
}

/// Fails with the first character that image names cannot have. `beside`: characters that are permitted, too.
pub fn name(text: &str, beside: &str) -> Result<(), char> {
    let permitted = |c: char| c.is_ascii_alphanumeric() || "-_./:@".contains(c) || beside.contains(c);
    if text.contains("://") {
        return Err(':');
    }
    text.chars().find(|c| !permitted(*c)).map_or(Ok(()), Err)
}
