//! Findings of `doctor` that all clouds share.

use greenroom_ports::finding::{Finding, Severity};
use greenroom_providers::registration::BuildContext;

/// Adds the finding that the program with the calls is missing.
pub fn without_calls(code: &'static str, context: &BuildContext, mut found: Vec<Finding>) -> Vec<Finding> {
    let message = format!("pool `{}` cannot be served: `greenroom-backends` is missing", context.pool);
    let remedy =
        "install `greenroom-backends` of the same version in the directory of `greenroom`".to_owned();
    found.push(Finding { code, severity: Severity::Error, message, remedy: Some(remedy) });
    found
}

/// Groups refusals by their message: a missing image causes one for every offering.
#[must_use]
pub fn group_by_message(refused: &[(String, String)]) -> Vec<(String, &str)> {
    let mut grouped: Vec<(Vec<&str>, &str)> = Vec::new();
    for (offering, message) in refused {
        match grouped.iter_mut().find(|(_, known)| known == message) {
            Some((offerings, _)) => offerings.push(offering),
            None => grouped.push((vec![offering], message)),
        }
    }
    let named = |offerings: &[&str]| match offerings {
        [first, rest @ ..] if !rest.is_empty() => format!("{first} and {} more", rest.len()),
        _ => offerings.concat(),
    };
    grouped.into_iter().map(|(offerings, message)| (named(&offerings), message)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_in_the_same_words_are_one() {
        let refused = [("a", "no image"), ("b", "no type"), ("c", "no image")];
        let refused = refused.map(|(offering, message)| (offering.to_owned(), message.to_owned()));
        let wanted = [("a and 1 more".to_owned(), "no image"), ("b".to_owned(), "no type")];
        assert_eq!(group_by_message(&refused), wanted);
    }
}
