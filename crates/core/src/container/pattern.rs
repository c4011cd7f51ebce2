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
            assert_eq!(pattern(bad), Err(said.to_owned()), "{bad}");
        }
        assert_eq!(image("ruby:3.3".to_owned()), Ok("ruby:3.3".to_owned()));
        let said = "contains '*', which image names cannot have";
        assert_eq!(image("ruby:*".to_owned()), Err(said.to_owned()));
    }
}
