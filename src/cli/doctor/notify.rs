//! Notices: whether their command can be executed.

use std::os::unix::fs::PermissionsExt as _;

use super::code;
use crate::config::Notify;
use crate::port::finding::Finding;

/// Does not run it.
pub(super) fn check(notify: &Notify) -> Option<Finding> {
    let program = notify.command.as_ref()?.first()?;
    let problem = match std::fs::metadata(program) {
        Err(error) => error.to_string(),
        Ok(found) if !found.is_file() => "it is not a file".to_owned(),
        Ok(found) if found.permissions().mode() & 0o111 == 0 => "it is not executable".to_owned(),
        Ok(_) => return None,
    };
    let what = format!("notices cannot be delivered: `{program}`: {problem}");
    Some(code::NOTIFY_COMMAND.found(what, "correct `command` in `[notify]`, or install the program"))
}

#[cfg(test)]
pub(super) mod tests {
    use std::time::Duration;

    use super::*;

    fn found(program: &str) -> Option<Finding> {
        let command = Some(vec![program.to_owned(), "secret".to_owned()]);
        check(&Notify { command, webhook: None, min_interval: Duration::ZERO })
    }

    #[test]
    fn a_command_must_exist_and_be_executable() {
        assert_eq!(found("/bin/sh"), None);
        for (program, expected) in
            [("/no/such", "No such file"), ("/etc", "not a file"), ("/etc/passwd", "not executable")]
        {
            let what = found(program).unwrap().message;
            assert!(what.contains(expected) && !what.contains("secret"), "{what}");
        }
    }

    /// One finding of each code.
    pub(in crate::cli::doctor) fn provoked() -> Vec<Finding> {
        found("/no/such").into_iter().collect()
    }
}
