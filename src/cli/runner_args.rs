//! The command lines of GitLab Runner's calls, which come ten times per job.
//!
//! Defining even these few arguments to the argument parser, and running it, takes longer than a call's own work. So
//! this module reads plain calls; `Cli` handles everything else, including help and errors.

use std::ffi::{OsStr, OsString};
use std::path::PathBuf;

use super::args::{GlobalOptions, PoolOption, RunnerCall};

/// A call of the runner, if it is a plain one. `variable`: this process's environment.
pub(super) fn read(
    args: &[OsString],
    variable: impl Fn(&str) -> Option<OsString>,
) -> Option<(GlobalOptions, RunnerCall)> {
    let mut config = None;
    let mut state_dir = None;
    let mut pool = None;
    let mut words: Vec<&OsStr> = Vec::new();
    let mut args = args.iter().skip(1);
    while let Some(arg) = args.next() {
        if is_word(arg) {
            words.push(arg);
            continue;
        }
        let (name, value) = match arg.to_str()?.split_once('=') {
            Some((name, value)) => (name, OsString::from(value)),
            None => (arg.to_str()?, args.next()?.clone()),
        };
        let option = match name {
            "--config" => &mut config,
            "--state-dir" => &mut state_dir,
            "--pool" => &mut pool,
            _ => return None,
        };
        if !is_word(&value) || option.replace(value).is_some() {
            return None;
        }
    }
    let config = config.or_else(|| variable("GREENROOM_CONFIG"));
    let state_dir = state_dir.or_else(|| variable("GREENROOM_STATE_DIR"));
    if config.iter().chain(&state_dir).any(|path| path.is_empty()) {
        return None;
    }
    let place = GlobalOptions { config: config.map(PathBuf::from), state_dir: state_dir.map(PathBuf::from) };
    let named = PoolOption { pool: pool.map(OsString::into_string).transpose().ok()? };
    let (call, rest) = words.split_first()?;
    let call = match (call.to_str()?, rest) {
        ("config", []) => RunnerCall::Config(named),
        ("prepare", []) => RunnerCall::Prepare(named),
        ("cleanup", []) => RunnerCall::Cleanup(named),
        ("run", [script, stage]) if named.pool.is_none() => {
            RunnerCall::Run { script: PathBuf::from(script), stage: stage.to_str()?.to_owned() }
        }
        _ => return None,
    };
    Some((place, call))
}

/// Neither an option nor empty.
fn is_word(arg: &OsStr) -> bool {
    !arg.is_empty() && !arg.as_encoded_bytes().starts_with(b"-")
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::super::args::{Cli, Command};
    use super::*;

    /// The results of `Cli` and of this module for the same arguments.
    fn both(words: &str) -> (Result<Cli, clap::Error>, Option<(GlobalOptions, RunnerCall)>) {
        let words = std::iter::once("greenroom").chain(words.split(' ')).map(OsString::from);
        let words: Vec<OsString> = words.collect();
        (Cli::try_parse_from(&words), read(&words, |name| std::env::var_os(name)))
    }

    #[test]
    fn the_short_way_takes_each_call_of_the_runner_and_understands_the_same() {
        for words in [
            "config",
            "--config /c prepare --pool linux",
            "prepare --pool=linux --config /c --state-dir /s",
            "run /tmp/script build_script",
            "--state-dir /s run --config=/c script after_script",
            "--config=/c=d config",
            "cleanup --state-dir /s",
        ] {
            let (Ok(long), Some(short)) = both(words) else { panic!("`{words}` is refused") };
            let Command::Runner(call) = long.command else { panic!("`{words}` is no call of the runner") };
            assert_eq!(format!("{:?}", (long.place, call)), format!("{short:?}"), "{words}");
        }
    }

    #[test]
    fn the_environment_says_what_the_words_do_not() {
        let set = |name: &str| Some(OsString::from(format!("/{name}")));
        let words = ["greenroom", "--config", "/c", "config"].map(OsString::from);
        let (place, _) = read(&words, set).unwrap();
        assert_eq!(place.config, Some(PathBuf::from("/c")));
        assert_eq!(place.state_dir, Some(PathBuf::from("/GREENROOM_STATE_DIR")));
        assert!(read(&words, |_| Some(OsString::new())).is_none(), "an empty one is no directory");
    }

    #[test]
    fn everything_else_is_left_to_the_whole_definition() {
        for words in [
            "",
            "help",
            "help run",
            "--help",
            "-h",
            "--version",
            "-V",
            "run",
            "run script",
            "run --help",
            "run script -- --odd-stage",
            "run --pool linux script stage",
            "config -h",
            "config extra",
            "config --config /a --config /b",
            "config --config --pool",
            "config --state-dir=",
            "prepare --pol linux",
            "cleanup --pool",
            "run a b c",
            "run  stage",
            "conf",
            "--bogus config",
            "doctor",
            "pool status",
            "keep --background",
            "link",
            "instance x",
            "completions bash",
        ] {
            assert!(both(words).1.is_none(), "`{words}` was taken");
        }
    }
}
