//! What can be said of a cloud's pool without asking the cloud.

use crate::port::finding::{Finding, Severity};
use crate::provider::BuildContext;
use crate::provider::keys::KeyError;

/// The codes of one provider.
#[derive(Debug, Clone, Copy)]
pub struct Codes {
    /// The table has a mistake.
    pub table: &'static str,
    /// The program that makes the calls is not there.
    pub program: &'static str,
}

/// `wrong`: the mistake in its table, if there is one.
pub fn of_table(codes: Codes, context: &BuildContext, wrong: Option<&KeyError>) -> Vec<Finding> {
    let finding = |error: &KeyError| {
        let remedy = format!("correct `{}` in the table of pool `{}`", error.key, context.pool);
        Finding {
            code: codes.table,
            severity: Severity::Error,
            what: error.to_string(),
            remedy: Some(remedy),
        }
    };
    wrong.map(finding).into_iter().collect()
}

/// With what else was found, where nobody can ask the cloud.
pub fn without_calls(codes: Codes, context: &BuildContext, mut found: Vec<Finding>) -> Vec<Finding> {
    let what = format!("nobody here can work for pool `{}`: `greenroom-clouds` is missing", context.pool);
    let remedy = "put `greenroom-clouds` of the same version beside `greenroom`".to_owned();
    found.push(Finding { code: codes.program, severity: Severity::Error, what, remedy: Some(remedy) });
    found
}
