//! Suggestions for misspelt names.

/// The nearest of the known names, if at most a third of its letters differ.
pub fn nearest<'a>(name: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let reach = (name.chars().count() / 3).max(1);
    known
        .into_iter()
        .map(|other| (strsim::damerau_levenshtein(name, other), other))
        .filter(|(distance, _)| *distance <= reach)
        .min()
        .map(|(_, other)| other)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn near_names_are_suggested_and_far_ones_are_not() {
        assert_eq!(nearest("linus", ["windows", "linux"]), Some("linux"));
        assert_eq!(nearest("4712", ["4711", "9000"]), Some("4711"));
        assert_eq!(nearest("linux", ["windows", "macos"]), None);
    }
}
