//! What somebody may have meant.

/// The nearest of some names, if it is near enough: a third of its letters may differ.
pub fn nearest<'a>(name: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let reach = (name.chars().count() / 3).max(1);
    known
        .into_iter()
        .map(|candidate| (strsim::damerau_levenshtein(name, candidate), candidate))
        .filter(|(distance, _)| *distance <= reach)
        .min()
        .map(|(_, candidate)| candidate)
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
