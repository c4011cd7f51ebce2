//! The common part of the commands of conformance kits: the keys of a run, its end, and its report.

use std::fmt::Write as _;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::PathBuf;

use anstyle::AnsiColor;
use fs_err as fs;
use greenroom_core::text::hex;
use greenroom_providers::conformance::report::{CheckReport, CheckResult, KitReport};
use greenroom_ssh::{Ssh, SshSettings};

use super::error::CliError;
use super::prompt::{self, Interrupts};
use super::ui::{self, paint};

/// Prints a report. `subject`: what was checked, as a noun.
pub(super) fn show(report: &KitReport, json: bool, subject: &str) -> Result<(), CliError> {
    if json {
        ui::out(&format!("{}\n", serde_json::to_string_pretty(report)?));
    } else {
        ui::out(&render(report, subject));
    }
    Ok(())
}

/// Asks a question; true if the answer is yes. `given`: the option `--yes`.
pub(super) fn is_confirmed(question: &str, given: bool) -> Result<bool, CliError> {
    Ok(given || prompt::is_confirmed(question, ui::err, "add `--yes` to leave out the question")?)
}

/// The words with which the messages of [`cleaned_up`] name the resources that a kit creates, and their end.
#[derive(Debug)]
pub(super) struct Words {
    /// The resources, in the plural.
    pub(super) things: &'static str,
    pub(super) ending: &'static str,
    pub(super) ended: &'static str,
}

/// Makes the checks, and then cleans up, also after an interruption. Returns the IDs of the resources that are left.
pub(super) async fn cleaned_up(
    words: &Words,
    checks: impl Future<Output = ()>,
    clean_up: impl Future<Output = Vec<String>>,
) -> Result<Vec<String>, CliError> {
    let Words { things, ending, ended } = words;
    let mut interrupts = Interrupts::new()?;
    let is_interrupted = tokio::select! {
        () = checks => false,
        () = interrupts.next() => true,
    };
    if is_interrupted {
        ui::err(&format!(
            "greenroom: interrupted, {ending} the {things} (press Ctrl-C again to leave them)\n"
        ));
    }
    let help = "repeat the command with `--clean` instead of `--live`";
    let left = tokio::select! {
        left = clean_up => left,
        () = interrupts.next() => {
            return Err(CliError::say(format!("interrupted: {things} may be left")).help(help));
        }
    };
    match (is_interrupted, left.is_empty()) {
        (false, _) => Ok(left),
        (true, true) => Err(CliError::say(format!("interrupted; the {things} are {ended}"))),
        (true, false) => Err(CliError::say(format!("interrupted; left: {}", left.join(", "))).help(help)),
    }
}

/// A directory for keys, which goes with the run.
#[derive(Debug)]
pub(super) struct Scratch {
    path: PathBuf,
    /// The name of the run, which distinguishes its launches.
    pub(super) run: String,
}

impl Scratch {
    pub(super) fn make() -> Result<Self, CliError> {
        let mut random = [0_u8; 4];
        rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty())?;
        let run = hex(&random);
        let path = std::env::temp_dir().join(format!("greenroom-kit-{run}"));
        std::fs::DirBuilder::new().mode(0o700).create(&path)?;
        Ok(Self { path, run })
    }

    #[cfg(feature = "fleeting")]
    pub(super) fn path(&self) -> &std::path::Path {
        &self.path
    }

    pub(super) fn ssh(&self) -> Ssh {
        Ssh::new(SshSettings::new(self.path.join("keys")))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        fs::remove_dir_all(&self.path).ok();
    }
}

/// The failed checks first, then warnings, what was skipped and why, and the counts. `subject`: what was checked, as a
/// noun.
pub(super) fn render(report: &KitReport, subject: &str) -> String {
    let mut text = String::new();
    for result in [CheckResult::Failed, CheckResult::Warned] {
        for check in report.checks.iter().filter(|check| check.result == result) {
            write_full(&mut text, check);
        }
    }
    let passed: Vec<&str> = of(report, CheckResult::Passed).map(|check| check.name).collect();
    if !passed.is_empty() {
        writeln!(text, "{} {}", paint(AnsiColor::Green, "passed"), passed.join(", ")).ok();
    }
    // One line for each reason: most checks are skipped for the same one.
    let mut reasons: Vec<(&str, Vec<&str>)> = Vec::new();
    for check in of(report, CheckResult::Skipped) {
        let reason = check.reason.as_deref().unwrap_or_default();
        match reasons.iter_mut().find(|(known, _)| *known == reason) {
            Some((_, names)) => names.push(check.name),
            None => reasons.push((reason, vec![check.name])),
        }
    }
    for (reason, names) in reasons {
        writeln!(text, "skipped {}: {reason}", names.join(", ")).ok();
    }
    text.push_str(&summary(report, subject));
    text
}

fn of(report: &KitReport, result: CheckResult) -> impl Iterator<Item = &CheckReport> {
    report.checks.iter().filter(move |check| check.result == result)
}

fn write_full(text: &mut String, check: &CheckReport) {
    let head = match check.result {
        CheckResult::Failed => paint(AnsiColor::Red, "FAILED"),
        _ => paint(AnsiColor::Yellow, "warned"),
    };
    writeln!(text, "{head} {}", check.name).ok();
    writeln!(text, "  expected: {}", check.expected).ok();
    writeln!(text, "  actual:   {}", check.actual.as_deref().unwrap_or_default()).ok();
    if let Some(help) = check.help {
        writeln!(text, "  help:     {help}").ok();
    }
    text.push('\n');
}

fn summary(report: &KitReport, subject: &str) -> String {
    let KitReport { passed, failed, warned, skipped, .. } = report;
    let mut text = format!("\n{passed} passed, {failed} failed, {warned} warned, {skipped} skipped: ");
    let verdict = match (report.conforms, report.live) {
        (true, true) => "conforms",
        (true, false) => "conforms as far as it can be judged without machines",
        (false, _) => "does not conform",
    };
    writeln!(text, "the {subject} {verdict}.").ok();
    if !report.remaining.is_empty() {
        let all = report.remaining.join(", ");
        writeln!(text, "{}: {all}", paint(AnsiColor::Red, "LEFT, and perhaps costing money")).ok();
    }
    text
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use greenroom_providers::conformance::report::{Check, CheckGroup, CheckOutcome, check, named};
    use greenroom_providers::conformance::verdict::CheckVerdict;

    use super::*;

    static CHECKS: [Check; 4] = [
        check("capabilities", CheckGroup::Cheap, "The program describes itself.", "read the log"),
        check("launch", CheckGroup::Live, "`launch` answers.", "call `launch` by hand"),
        check("login", CheckGroup::Live, "The key can log in.", "install the key"),
        check("host-key", CheckGroup::Live, "The host key is the right one.", "install the host key"),
    ];

    #[test]
    fn failures_come_first_with_what_to_do_and_equal_reasons_share_a_line() {
        let outcome =
            |name, verdict| CheckOutcome { check: named(&CHECKS, name), verdict, took: Duration::ZERO };
        let skipped = || CheckVerdict::Skipped("no machine".to_owned());
        let outcomes = vec![
            outcome("capabilities", CheckVerdict::Passed),
            outcome("launch", CheckVerdict::Failed("`launch` was refused".to_owned())),
            outcome("login", skipped()),
            outcome("host-key", skipped()),
        ];
        let text = render(&KitReport::new("./mine".to_owned(), None, true, outcomes), "program");
        let text = anstream::adapter::strip_str(&text).to_string();
        assert!(text.starts_with("FAILED launch\n  expected: `launch` answers"), "{text}");
        assert!(text.contains("  help:     call `launch` by hand"), "{text}");
        assert!(text.contains("passed capabilities\nskipped login, host-key: no machine\n"), "{text}");
        assert!(
            text.ends_with("1 passed, 1 failed, 0 warned, 2 skipped: the program does not conform.\n"),
            "{text}"
        );
    }
}
