//! Notices: whether the programs that deliver them can be executed, and whether the last one was delivered.

use std::os::unix::fs::PermissionsExt as _;

use greenroom_core::notice::Notices;
use greenroom_core::time::{Pretty, Stamp};
use greenroom_ports::finding::Finding;

use super::code;
use crate::cli::notify::helper;
use crate::cli::ui::plural;
use crate::config::Notify;

/// Runs none of them.
pub(super) fn check(notify: &Notify) -> impl Iterator<Item = Finding> {
    let missing = notify.webhook.as_ref().and_then(helper::missing).map(|problem| without_backends(&problem));
    command(notify).into_iter().chain(missing)
}

fn without_backends(problem: &str) -> Finding {
    let what = format!("notices cannot be delivered: {problem}");
    code::NOTIFY_BACKENDS
        .found(what, "install `greenroom-backends` of the same version in the directory of `greenroom`")
}

fn command(notify: &Notify) -> Option<Finding> {
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

/// Whether the keeper's last delivery failed.
pub(super) fn deliveries(notices: &Notices, now: Stamp) -> Option<Finding> {
    let (failure, dropped) = notices.last_failure()?;
    let waiting = plural(notices.waiting(), "notice");
    let what = format!(
        "the last delivery of a notice failed {} ago: {}; {waiting} waiting, {dropped} given up",
        Pretty(now.age_of(failure.at)),
        failure.problem
    );
    let help = if failure.problem.contains("certificate") {
        "correct the host of `webhook`, or add the certificate authority of its server to those of the system or of \
         `SSL_CERT_FILE`, then restart the keeper; notices that wait are delivered within ten minutes"
    } else {
        "correct `[notify]`, then restart the keeper; notices that wait are delivered within ten minutes"
    };
    Some(code::NOTIFY_UNDELIVERED.found(what, help))
}

#[cfg(test)]
pub(super) mod tests {
    use std::time::Duration;

    use greenroom_core::notation::NOW;
    use greenroom_core::notice::{Condition, NoticeKind};

    use super::*;

    fn failed() -> Notices {
        let (message, help) = (String::new(), String::new());
        let pool = Some("a".to_owned());
        let condition = Condition { kind: NoticeKind::BreakerOpen, pool, instance: None, message, help };
        let mut notices = Notices::default();
        notices.observe(&[condition], Duration::ZERO, NOW);
        notices.failed(NOW, "`/bin/false`: exit status: 1");
        notices
    }

    #[test]
    fn a_delivery_that_failed_is_told_until_one_succeeds() {
        let mut notices = failed();
        let what = deliveries(&notices, NOW.plus(Duration::from_mins(3))).unwrap().message;
        assert_eq!(
            what,
            "the last delivery of a notice failed 3m ago: `/bin/false`: exit status: 1; 1 notice waiting, 0 given up"
        );
        notices.delivered(NOW);
        assert_eq!(deliveries(&notices, NOW), None);
        let mut notices = failed();
        notices.failed(NOW, "https://a:443/…: invalid peer certificate: UnknownIssuer");
        let help = deliveries(&notices, NOW).unwrap().remedy.unwrap();
        assert!(help.contains("SSL_CERT_FILE"), "{help}");
    }

    fn found(program: &str) -> Option<Finding> {
        let command = Some(vec![program.to_owned(), "secret".to_owned()]);
        check(&Notify { command, webhook: None, min_interval: Duration::ZERO }).next()
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
        let missing = without_backends("the program `greenroom-backends` is missing");
        found("/no/such").into_iter().chain(deliveries(&failed(), NOW)).chain([missing]).collect()
    }
}
