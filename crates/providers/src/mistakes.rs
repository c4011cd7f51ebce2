//! Findings of a provider's doctor, and the mistakes of its table as findings.

use greenroom_keys::problem::{Place, Problem, Problems};
use greenroom_ports::finding::{Finding, Severity};

/// One finding for each mistake.
pub fn findings(code: &'static str, problems: &Problems) -> Vec<Finding> {
    let of_problem = |problem: &Problem| {
        let place = problem.marks.first().map_or("provider", |(Place { path, .. }, _)| path);
        let remedy = format!("correct `{place}` in the configuration");
        finding(code, Severity::Error, problem.to_string(), remedy)
    };
    problems.0.iter().map(of_problem).collect()
}

/// A finding with a remedy.
pub(crate) fn finding(
    code: &'static str,
    severity: Severity,
    message: String,
    remedy: impl Into<String>,
) -> Finding {
    Finding { code, severity, message, remedy: Some(remedy.into()) }
}
