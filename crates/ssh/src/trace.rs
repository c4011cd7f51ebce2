//! The trace of a stage, for cleaning a host that other jobs use afterwards.
//!
//! A stage first leaves:
//! * a symbolic link `~/.greenroom/MARK/ATTEMPT.builds` to the attempt's builds directory; only the first stage makes it
//! * its session, as an empty file `ATTEMPT.SESSION.START` beside the link
//! * the mark, in the environment of every process that it starts
//! * a separate directory for temporary files
//!
//! Link and file need no space on a full disk. The shell makes the file itself: the guest would need more time to start
//! a program for it than for the rest of the trace.
//!
//! A stage that cannot leave its trace does not run, because cleaning would miss it.

use greenroom_core::text::quoted;
use greenroom_ports::connector::{Mark, Reader, Stage, Trace};

use super::container;

/// Shell commands for `/bin/sh`, to run before a stage's reader, or before that of a later stage.
pub(super) fn before(stage: &Stage, reader: &Reader) -> String {
    let limit = match reader {
        Reader::Container(_) => container::limit(stage.container_start),
        Reader::Shell(_) => String::new(),
    };
    prelude(stage.trace.as_ref()) + &limit
}

/// Shell commands for `/bin/sh`, to run before the interpreter takes its place.
pub(super) fn prelude(trace: Option<&Trace>) -> String {
    let Some(Trace { mark, attempt, builds_dir }) = trace else { return String::new() };
    let (mark, attempt, builds) = (mark.as_str(), attempt.as_str(), quoted(builds_dir));
    format!(
        "n=\"$HOME/.greenroom/{mark}\"; b={builds}; set --; \
         [ -r /proc/$$/stat ] && read -r s </proc/$$/stat && set -- ${{s##*) }}; \
         [ -d \"$n\" ] && [ -d \"$b.tmp\" ] || mkdir -p -m 700 \"$n\" \"$b.tmp\" 2>/dev/null; \
         {{ [ -L \"$n/{attempt}.builds\" ] || ln -s \"$b\" \"$n/{attempt}.builds\" || [ -L \"$n/{attempt}.builds\" ]; }} && \
           true >>\"$n/{attempt}.$$.${{20:-0}}\" || {{ \
           echo \"greenroom: cannot record in $n what to clean after this job\" >&2; exit 97; }}; \
         [ ! -d \"$b.tmp\" ] || {{ TMPDIR=\"$b.tmp\"; export TMPDIR; }}; \
         GREENROOM_TRACE=/{mark}/; export GREENROOM_TRACE; "
    )
}

/// The same for a stage of no job, which an administrator's logs can tell from those of jobs: shows that a trace can be left,
/// and leaves none.
pub(super) fn probe_prelude(mark: Option<&Mark>) -> String {
    let Some(mark) = mark else { return ": check; ".to_owned() };
    let mark = mark.as_str();
    format!(
        "n=\"$HOME/.greenroom/{mark}\"; {{ [ -d \"$n\" ] || mkdir -p -m 700 \"$n\"; }} && \
         ln -sf / \"$n/.probe.$$\" && rm -f \"$n/.probe.$$\" || {{ \
           echo \"greenroom: cannot record in $n what to clean after a job\" >&2; exit 97; }}; "
    )
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::process::{Command, Output};

    use greenroom_core::ids::{AttemptName, InstanceId, OwnerId, PoolName};
    use greenroom_testkit::shells::shells;

    use super::*;

    /// Leaves the trace of one stage; `path`: where the shell finds programs.
    fn leave(sh: &[&str], home: &Path, path: &str) -> Output {
        let trace = Trace {
            mark: Mark::new(&OwnerId::new("owner"), &PoolName::new("pool"), &InstanceId::new("host")),
            attempt: AttemptName::new("x1"),
            builds_dir: home.join("it's/builds/x1").display().to_string(),
        };
        let script = format!("{}echo $$ $TMPDIR $GREENROOM_TRACE", prelude(Some(&trace)));
        let program = std::env::split_paths(&std::env::var_os("PATH").unwrap())
            .map(|dir| dir.join(sh[0]))
            .find(|program| program.exists());
        Command::new(program.unwrap())
            .args(&sh[1..])
            .args(["-c", &script])
            .env("HOME", home)
            .env("PATH", path)
            .output()
            .unwrap()
    }

    #[test]
    fn only_the_first_stage_starts_programs_for_its_trace() {
        for sh in shells() {
            let home = tempfile::tempdir().unwrap();
            let own = std::env::var("PATH").unwrap();
            let outputs = [leave(sh, home.path(), &own), leave(sh, home.path(), "/nowhere")];
            let notes = home.path().join(".greenroom/owner.pool.host");
            for output in outputs {
                assert!(output.status.success() && output.stderr.is_empty(), "{sh:?}: {output:?}");
                let said = String::from_utf8(output.stdout).unwrap();
                let (session, rest) = said.trim().split_once(' ').unwrap();
                let builds = home.path().join("it's/builds/x1").display().to_string();
                assert_eq!(rest, format!("{builds}.tmp /owner.pool.host/"), "{sh:?}");
                let prefix = format!("x1.{session}.");
                let noted = std::fs::read_dir(&notes).unwrap().flatten();
                let noted: Vec<String> = noted.map(|n| n.file_name().into_string().unwrap()).collect();
                let start = noted.iter().find_map(|name| name.strip_prefix(&prefix));
                assert!(start.is_some_and(|start| start.parse::<u64>().is_ok()), "{sh:?}: {noted:?}");
                assert_eq!(std::fs::read_link(notes.join("x1.builds")).unwrap(), Path::new(&builds));
            }
        }
    }

    #[test]
    fn a_stage_that_cannot_leave_its_trace_does_not_run() {
        for sh in shells() {
            let home = tempfile::tempdir().unwrap();
            std::fs::write(home.path().join(".greenroom"), "").unwrap();
            let output = leave(sh, home.path(), &std::env::var("PATH").unwrap());
            assert_eq!(output.status.code(), Some(97), "{sh:?}: {output:?}");
            assert!(String::from_utf8_lossy(&output.stderr).contains("greenroom: cannot record in "));
            assert!(output.stdout.is_empty());
        }
    }
}
