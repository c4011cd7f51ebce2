//! Patterns for names and paths, and what names and patterns of images in the configuration may contain.

use std::fmt;

/// `*` stands for any run of characters but `/`, `**` for any run at all, `?` for one character but `/`. Everything
/// else stands for itself; the pattern covers the whole name, and upper and lower case differ.
#[derive(Clone, PartialEq, Eq)]
pub struct Glob {
    text: String,
    parts: Vec<Part>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Part {
    Char(char),
    One,
    Run,
    AnyRun,
}

impl Glob {
    pub fn new(text: &str) -> Self {
        let mut parts = Vec::new();
        let mut rest = text.chars().peekable();
        while let Some(next) = rest.next() {
            parts.push(match next {
                '*' if rest.next_if_eq(&'*').is_some() => {
                    while rest.next_if_eq(&'*').is_some() {}
                    Part::AnyRun
                }
                '*' => Part::Run,
                '?' => Part::One,
                other => Part::Char(other),
            });
        }
        Self { text: text.to_owned(), parts }
    }

    pub fn matches(&self, name: &str) -> bool {
        // `reach[i]`: the parts so far can match the first `i` characters. Linear in pattern × name for any pattern,
        // because users choose names.
        let name: Vec<char> = name.chars().collect();
        let mut reach = vec![false; name.len() + 1];
        reach[0] = true;
        for part in &self.parts {
            let mut next = vec![false; name.len() + 1];
            match part {
                Part::Char(_) | Part::One => {
                    for (i, found) in name.iter().enumerate() {
                        next[i + 1] = reach[i] && part.takes(*found);
                    }
                }
                Part::Run | Part::AnyRun => {
                    next[0] = reach[0];
                    for (i, found) in name.iter().enumerate() {
                        next[i + 1] = reach[i + 1] || (next[i] && part.takes(*found));
                    }
                }
            }
            reach = next;
        }
        reach[name.len()]
    }
}

impl Part {
    fn takes(self, found: char) -> bool {
        match self {
            Self::Char(wanted) => wanted == found,
            Self::One | Self::Run => found != '/',
            Self::AnyRun => true,
        }
    }
}

impl fmt::Display for Glob {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl fmt::Debug for Glob {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Glob({})", self.text)
    }
}

/// The reason why a text is not a name or pattern of images. The sentence has no subject: that is the key of the
/// configuration.
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
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn stars_stop_at_slashes_and_double_stars_do_not() {
        for (pattern, name, matches) in [
            ("ruby:*", "ruby:3.3", true),
            ("ruby:*", "ruby:3/evil", false),
            ("ruby:*", "jruby:3", false),
            ("group/*", "group/app", true),
            ("group/*", "group/sub/app", false),
            ("group/**", "group/sub/app", true),
            ("group/**", "group", false),
            ("**", "", true),
            ("**", "a/b", true),
            ("*", "", true),
            ("", "", true),
            ("", "a", false),
            ("?", "/", false),
            ("v?.*", "v1.2", true),
            ("a*b*c", "aXbYc", true),
            ("a*b*c", "aXcYb", false),
            ("**/app", "a/b/app", true),
            ("***", "a/b", true),
            ("Main", "main", false),
            ("a.c", "abc", false),
        ] {
            assert_eq!(Glob::new(pattern).matches(name), matches, "{pattern} {name}");
        }
    }

    #[test]
    fn a_nasty_pattern_takes_no_exponential_time() {
        let pattern = Glob::new(&"*a".repeat(60));
        assert!(!pattern.matches(&"a".repeat(400).replace("aaaa", "aaab")[..399].replace('a', "c")));
        assert!(!pattern.matches(&format!("{}b", "a".repeat(2000))));
    }

    proptest! {
        #[test]
        fn a_pattern_without_wildcards_matches_itself_only(a in "[a-z/:.]{0,8}", b in "[a-z/:.]{0,8}") {
            prop_assert_eq!(Glob::new(&a).matches(&b), a == b);
        }

        #[test]
        fn a_star_in_the_middle_asks_for_both_ends(a in "[a-c]{0,4}", b in "[a-c]{0,4}", name in "[a-c]{0,10}") {
            let expected = name.len() >= a.len() + b.len() && name.starts_with(&a) && name.ends_with(&b);
            prop_assert_eq!(Glob::new(&format!("{a}*{b}")).matches(&name), expected);
        }
    }

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
