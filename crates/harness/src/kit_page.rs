//! The page of a conformance kit, compared with the kit's table of checks.

use greenroom_providers::conformance::report::Check;

/// Holds a kit's table to its page of the documentation, which has a row for each check.
pub fn hold_to_page(checks: &[Check], page: &str) {
    for (at, check) in checks.iter().enumerate() {
        let name = check.name;
        assert!(checks[..at].iter().all(|other| other.name != name), "{name} comes twice");
        assert!(check.expects.ends_with('.'), "{name}");
        assert!(!check.help.ends_with('.') && !check.help.is_empty(), "{name}");
        let row = format!("| `{name}` | {} |", check.expects);
        assert!(page.contains(&row), "the page lacks this line:\n{row}");
    }
}
