//! Keeps secrets out of core dumps.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Forbids core dumps of this process and of the programs that it starts: they hold keys and the runner's response.
///
/// With a limit of 0, Linux would still hand the dump to a program such as `systemd-coredump`; 1 forbids that, too. A
/// job on the provider `local` can raise the limit again.
pub(super) fn forbid() {
    let maximum = getrlimit(Resource::Core).maximum;
    // A maximum of 0 is lower already.
    let _best_effort = setrlimit(Resource::Core, Rlimit { current: Some(1), maximum });
}
