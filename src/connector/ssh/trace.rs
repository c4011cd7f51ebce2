//! The trace of a stage, for cleaning a host that other jobs use afterwards.
//!
//! A stage first leaves:
//! * its session, as a symbolic link `~/.greenroom/MARK/ATTEMPT.SESSION.START` to the attempt's builds directory (a
//!   link needs no space on a full disk)
//! * the mark, in the environment of every process that it starts
//! * a separate directory for temporary files
//!
//! A stage that cannot leave its trace does not run, because cleaning would miss it.

use super::quote::quote;
use crate::port::connector::{Mark, Trace};

/// Shell commands for `/bin/sh`, to run before the interpreter takes its place.
pub(super) fn prelude(trace: Option<&Trace>) -> String {
    let Some(Trace { mark, attempt, builds_dir }) = trace else { return String::new() };
    let (mark, attempt, builds) = (mark.as_str(), attempt.as_str(), quote(builds_dir));
    format!(
        "n=\"$HOME/.greenroom/{mark}\"; b={builds}; set --; \
         [ -r /proc/$$/stat ] && read -r s </proc/$$/stat && set -- ${{s##*) }}; \
         {{ [ -d \"$n\" ] || mkdir -p -m 700 \"$n\"; }} && ln -sf \"$b\" \"$n/{attempt}.$$.${{20:-0}}\" || {{ \
           echo \"greenroom: cannot record in $n what to clean after this job\" >&2; exit 97; }}; \
         [ -d \"$b.tmp\" ] || mkdir -p -m 700 \"$b.tmp\" 2>/dev/null; \
         [ ! -d \"$b.tmp\" ] || {{ TMPDIR=\"$b.tmp\"; export TMPDIR; }}; \
         GREENROOM_TRACE=/{mark}/; export GREENROOM_TRACE; "
    )
}

/// The same for a stage of no job: shows that a trace can be left, and leaves none.
pub(super) fn probe_prelude(mark: Option<&Mark>) -> String {
    let Some(mark) = mark else { return String::new() };
    let mark = mark.as_str();
    format!(
        "n=\"$HOME/.greenroom/{mark}\"; {{ [ -d \"$n\" ] || mkdir -p -m 700 \"$n\"; }} && \
         ln -sf / \"$n/.probe.$$\" && rm -f \"$n/.probe.$$\" || {{ \
           echo \"greenroom: cannot record in $n what to clean after a job\" >&2; exit 97; }}; "
    )
}
