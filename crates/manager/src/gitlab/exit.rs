//! The end of a call, in the runner's terms.
//!
//! The driver's exit code names the responsible party; the script's own code goes into a file. The runner reads that
//! file only after a build failure and never removes it, so an earlier stage's code would be taken for the current
//! one's.

use std::ffi::OsStr;
use std::io::{self, Write as _};
use std::num::NonZeroI32;
use std::path::PathBuf;

use fs_err as fs;

/// The end of a call, in the runner's terms.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    Success,
    /// The script's own failure, or a job that requests something impossible: another attempt cannot help.
    Build(NonZeroI32),
    /// A failure of Greenroom, the instance or the cloud: the runner may try again, and users may with `retry: when:
    /// runner_system_failure`.
    System,
}

impl Outcome {
    /// A job that requests something that this runner does not offer.
    pub const IMPOSSIBLE: Self = Self::Build(NonZeroI32::new(1).expect("1 is not 0"));

    /// The outcome of a guest's exit status. Unix has 0 to 255; Windows has 32 bits, which the runner expects signed.
    pub fn of_exit(status: u32) -> Self {
        NonZeroI32::new(status.cast_signed()).map_or(Self::Success, Self::Build)
    }

    /// The outcome of a script that was killed by a signal, named without `SIG`: 128 plus the signal's number, as in
    /// shells.
    pub fn of_signal(name: &str) -> Self {
        let number = SIGNALS.iter().find(|(known, _)| *known == name).map_or(0, |(_, number)| *number);
        NonZeroI32::new(128 + number).map_or(Self::System, Self::Build)
    }
}

/// The signals that SSH names (RFC 4254, 6.10), with Linux's numbers.
const SIGNALS: &[(&str, i32)] = &[
    ("HUP", 1),
    ("INT", 2),
    ("QUIT", 3),
    ("ILL", 4),
    ("ABRT", 6),
    ("FPE", 8),
    ("KILL", 9),
    ("USR1", 10),
    ("SEGV", 11),
    ("USR2", 12),
    ("PIPE", 13),
    ("ALRM", 14),
    ("TERM", 15),
];

/// The driver's exit codes, as the runner announces them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ExitCodes {
    /// The value of `BUILD_FAILURE_EXIT_CODE`. Default 1.
    pub build_failure: u8,
    /// The value of `SYSTEM_FAILURE_EXIT_CODE`. Default 2.
    pub system_failure: u8,
}

impl Default for ExitCodes {
    fn default() -> Self {
        Self { build_failure: 1, system_failure: 2 }
    }
}

impl ExitCodes {
    /// Values that are not exit codes of a failure (0, more than 255, not a number) are replaced by the default.
    pub(super) fn of(build_failure: Option<&OsStr>, system_failure: Option<&OsStr>) -> Self {
        let code = |text: Option<&OsStr>, default| {
            let code = text.and_then(OsStr::to_str).and_then(|text| text.parse::<u8>().ok());
            code.filter(|code| *code != 0).unwrap_or(default)
        };
        let default = Self::default();
        Self {
            build_failure: code(build_failure, default.build_failure),
            system_failure: code(system_failure, default.system_failure),
        }
    }

    /// The exit code of this process.
    pub fn of_outcome(&self, outcome: Outcome) -> u8 {
        match outcome {
            Outcome::Success => 0,
            Outcome::Build(_) => self.build_failure,
            Outcome::System => self.system_failure,
        }
    }
}

/// The file for a script's own exit code.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CodeFile {
    path: PathBuf,
}

impl CodeFile {
    pub(super) fn at(path: PathBuf) -> Self {
        Self { path }
    }

    /// Removes the file of an earlier stage. Every `run` does that first.
    pub fn clear(&self) -> io::Result<()> {
        match fs::remove_file(&self.path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            other => other,
        }
    }

    /// Writes the code of a build failure, whole or not at all, because half a number is a number too. Other outcomes
    /// have no code. If this fails, the runner takes 1.
    pub fn record(&self, outcome: Outcome) -> io::Result<()> {
        let Outcome::Build(code) = outcome else { return Ok(()) };
        // RACE: a `run` that is being stopped may still be running beside the next one; each writes its own draft.
        let mut draft = self.path.clone().into_os_string();
        draft.push(format!(".{}", std::process::id()));
        let written = fs::File::create(&draft)
            .and_then(|mut file| file.write_all(format!("{code}\n").as_bytes()))
            .and_then(|()| fs::rename(&draft, &self.path));
        // On a full disk, the draft goes.
        written.inspect_err(|_| drop(fs::remove_file(&draft)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn build(code: i32) -> Outcome {
        Outcome::Build(NonZeroI32::new(code).unwrap())
    }

    #[test]
    fn a_guests_status_becomes_a_code_that_the_runner_reads() {
        for (status, outcome) in [
            (0, Outcome::Success),
            (1, build(1)),
            (42, build(42)),
            (255, build(255)), // never ssh's own 255: failures of the transport are reported separately
            (256, build(256)),
            (0xC000_0005, build(-1_073_741_819)), // Windows: access violation
            (u32::MAX, build(-1)),
        ] {
            assert_eq!(Outcome::of_exit(status), outcome, "{status}");
        }
    }

    #[test]
    fn a_script_that_was_killed_has_failed_as_in_a_shell() {
        for (name, code) in [("KILL", 137), ("TERM", 143), ("SEGV", 139), ("WINCH", 128), ("", 128)] {
            assert_eq!(Outcome::of_signal(name), build(code), "{name}");
        }
    }

    #[test]
    fn the_runners_codes_are_used_and_nonsense_is_not() {
        let codes = |build: &str, system: &str| ExitCodes::of(Some(build.as_ref()), Some(system.as_ref()));
        assert_eq!(codes("1", "2"), ExitCodes::default());
        assert_eq!(codes("41", "42"), ExitCodes { build_failure: 41, system_failure: 42 });
        for nonsense in ["0", "", "256", "-1", "x"] {
            assert_eq!(codes(nonsense, nonsense), ExitCodes::default(), "{nonsense}");
        }
        let odd = codes("41", "42");
        assert_eq!([Outcome::Success, build(7), Outcome::System].map(|o| odd.of_outcome(o)), [0, 41, 42]);
    }

    #[test]
    fn the_file_holds_one_number_and_a_newline() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("build_exit_code");
        let file = CodeFile::at(path.clone());
        file.clear().unwrap();
        for code in [42, -1_073_741_819] {
            file.record(build(code)).unwrap();
            assert_eq!(fs::read_to_string(&path).unwrap(), format!("{code}\n"));
        }
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1, "no draft is left");
    }

    #[test]
    fn what_an_earlier_stage_left_is_gone_after_clear() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("build_exit_code");
        fs::write(&path, "42\n").unwrap();
        let file = CodeFile::at(path.clone());
        file.clear().unwrap();
        for outcome in [Outcome::Success, Outcome::System] {
            file.record(outcome).unwrap();
            assert!(!path.exists(), "{outcome:?} has no code");
        }
    }

    #[test]
    fn a_directory_that_vanished_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let file = CodeFile::at(dir.path().join("gone/build_exit_code"));
        file.clear().unwrap();
        let error = file.record(build(1)).unwrap_err().to_string();
        assert!(error.contains("gone/build_exit_code"), "{error}");
    }

    proptest! {
        #[test]
        fn only_zero_is_success_and_no_failure_is_zero(status: u32) {
            match Outcome::of_exit(status) {
                Outcome::Success => prop_assert_eq!(status, 0),
                Outcome::Build(code) => prop_assert_eq!(code.get().cast_unsigned(), status),
                Outcome::System => prop_assert!(false, "the guest answered, so the system did not fail"),
            }
        }
    }
}

/// The file for a script's own exit code, with each error of the table in each of its writes.
#[cfg(test)]
mod failing_writes {
    use std::path::Path;

    use fs_err as fs;
    use greenroom_testkit::faulty::{Action, Ended, act, listed, with_each_error};

    use super::super::env::JobEnv;
    use super::{CodeFile, Outcome};

    const ACTIONS: [Action; 2] = [
        Action { name: "a stage's code", prepare: made, act: record, judge: judge_code },
        Action { name: "the removal of a code", prepare: recorded, act: clear, judge: judge_removal },
    ];

    const NAME: &str = "build_exit_code";

    fn file(dir: &Path) -> CodeFile {
        let path = dir.join(NAME);
        let variable = |name: &str| (name == "BUILD_EXIT_CODE_FILE").then(|| path.clone().into_os_string());
        JobEnv::read(variable).code_file().unwrap()
    }

    fn made(dir: &Path) {
        fs::create_dir(dir).unwrap();
    }

    fn recorded(dir: &Path) {
        made(dir);
        file(dir).record(Outcome::of_exit(43)).unwrap();
    }

    fn record(dir: &Path, begin: &dyn Fn()) -> Result<(), String> {
        begin();
        file(dir).record(Outcome::of_exit(42)).map_err(|error| error.to_string())
    }

    fn clear(dir: &Path, begin: &dyn Fn()) -> Result<(), String> {
        begin();
        file(dir).clear().map_err(|error| error.to_string())
    }

    fn read(dir: &Path) -> Option<String> {
        fs::read_to_string(dir.join(NAME)).ok()
    }

    fn judge_code(dir: &Path, ended: &Ended) {
        let how = &ended.how;
        let expected = ended.is_done.then_some("42\n");
        assert_eq!(read(dir).as_deref(), expected, "{how}");
        file(dir).record(Outcome::of_exit(44)).unwrap();
        assert_eq!(read(dir).as_deref(), Some("44\n"), "{how}");
        ended.no_remains(dir, |name| name != NAME);
    }

    fn judge_removal(dir: &Path, ended: &Ended) {
        let how = &ended.how;
        assert_eq!(read(dir).is_none(), ended.is_done, "{how}");
        file(dir).clear().unwrap();
        assert_eq!(listed(dir), [""; 0], "{how}");
    }

    #[test]
    #[ignore = "another test starts it in a process of its own"]
    fn a_process_that_acts() {
        act(&ACTIONS);
    }

    #[test]
    fn an_error_of_any_write_of_a_code_is_reported_and_leaves_no_other_number() {
        with_each_error("gitlab::exit::failing_writes::a_process_that_acts", &ACTIONS, |action, tally| {
            println!("{}", tally.text);
            assert!(tally.tried >= 2 && tally.reported == tally.tried, "{}: {tally:?}", action.name);
        });
    }
}
