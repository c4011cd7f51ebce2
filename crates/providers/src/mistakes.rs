//! The mistakes of a provider's table as findings.

use greenroom_keys::problem::{Place, Problem, Problems};
use greenroom_ports::finding::{Finding, Severity};

/// One finding for each mistake.
pub fn findings(code: &'static str, problems: &Problems) -> Vec<Finding> {
    let finding = |problem: &Problem| {
        let place = problem.marks.first().map_or("provider", |(Place { path, .. }, _)| path);
        Finding {
            code,
            severity: Severity::Error,
            message: problem.to_string(),
            remedy: Some(format!("correct `{place}` in the configuration")),
        }
    };
    problems.0.iter().map(finding).collect()
}
