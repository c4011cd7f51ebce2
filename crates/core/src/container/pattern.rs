//! What names and patterns of images in the configuration may contain.

/// Why a text is no name or pattern of images. Its sentence has no subject: that is the key of the configuration.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum PatternError {
    #[error("contains an empty pattern, which matches no image")]
    Empty,
    #[error("contains `{0}`, but patterns know only `*`, `**` and `?`")]
    Expression(char),
    #[error("contains {0:?}, which image names cannot have")]
    Character(char),
}

/// A pattern for images.
pub fn pattern(text: &str) -> Result<(), PatternError> {
    if text.is_empty() {
        return Err(PatternError::Empty);
    }
    name(text, "*?").map_err(|wrong| match wrong {
        '[' | ']' | '{' | '}' | '^' | '$' | '|' | '(' | ')' | '\\' | '+' => PatternError::Expression(wrong),
        other => PatternError::Character(other),
    })
}

/// The name of an image.
pub fn image(text: String) -> Result<String, PatternError> {
    match name(&text, "") {
        Ok(()) => Ok(text),
        Err(wrong) => Err(PatternError::Character(wrong)),
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_know_stars_and_names_none() {
        for good in ["ruby", "registry.example.com:5000/group/*", "**/ruby:3.?", "a@sha256:0f"] {
            assert_eq!(pattern(good), Ok(()), "{good}");
        }
        for (bad, said) in [
            ("", "contains an empty pattern, which matches no image"),
            ("ruby:[34]", "contains `[`, but patterns know only `*`, `**` and `?`"),
            ("ru by", "contains ' ', which image names cannot have"),
            ("https://a/b", "contains ':', which image names cannot have"),
        ] {
            assert_eq!(pattern(bad).unwrap_err().to_string(), said, "{bad}");
        }
        assert_eq!(image("ruby:3.3".to_owned()), Ok("ruby:3.3".to_owned()));
        assert_eq!(image("ruby:*".to_owned()), Err(PatternError::Character('*')));
    }
}
