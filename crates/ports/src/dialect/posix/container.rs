//! Starts a container for a stage, and finds its processes.
//!
//! A container is started again for each stage. The engine's client, in the stage's session, only carries the streams:
//! the container's processes are children of its monitor, in a pid namespace of their own. Podman's monitor, conmon,
//! writes the number of the first one to a file, which outlives it. So the number counts only if that process's parent
//! is the monitor, whose arguments name the file. If its own arguments do so, it is still the runtime: killing that would
//! leave what the next start fails on. Docker's monitor, the shim, has the container's number in its arguments, and the
//! first process's in its working directory. It comes from the daemon, and outlives a client that is killed. While the
//! runtime's `exec.fifo` exists, the first process waits for the runtime's `start`: killing it would leave crun's, and with it
//! the daemon's call, waiting without end.

use std::time::Duration;

use greenroom_core::container::engine::{ContainerEngine, EnginePlace};
use greenroom_core::container::name::{ContainerName, EngineContainer};
use greenroom_core::shell_text::one_line;
use greenroom_core::text::quoted;

use crate::dialect::NOT_STARTED;

/// The parts of a stage's commands that differ between the engines.
struct EngineCommands {
    /// The end of the name of the engine's file, which has the number of the container's first process (`pid`) or of the
    /// container itself (`id`).
    file: &'static str,
    /// The file with the function `seek`; see `functions`.
    seek: &'static str,
    /// The file with commands before a start, with the lock.
    before: &'static str,
    /// The engine's client, before the container's name.
    start: &'static str,
    /// Ends the guard if the container has run and ended.
    over: &'static str,
    /// The file with the guard's last commands, once no client has the lock `$f`.
    after: &'static str,
}

const PODMAN: EngineCommands = EngineCommands {
    file: "pid",
    seek: include_str!("container/seek_podman.sh"),
    before: "rm -f \"$g\";",
    start: "podman start --attach --interactive --sig-proxy=false",
    over: "! read -r p <\"$g\" || live $p || exit;",
    after: "",
};

const DOCKER: EngineCommands = EngineCommands {
    file: "id",
    seek: include_str!("container/seek_docker.sh"),
    before: include_str!("container/before_docker.sh"),
    start: "docker start --attach --interactive",
    over: "",
    after: include_str!("container/after_docker.sh"),
};

fn commands(engine: ContainerEngine) -> &'static EngineCommands {
    match engine {
        ContainerEngine::Podman => &PODMAN,
        ContainerEngine::Docker => &DOCKER,
    }
}

/// The shell functions of `container/functions.sh`, for this container.
fn functions(container: &EngineContainer) -> String {
    let EngineCommands { file, seek, .. } = commands(container.engine);
    let dir = EnginePlace::of(&container.name).dir();
    let functions = one_line(include_str!("container/functions.sh"), &[("SEEK", &one_line(seek, &[]))]);
    format!("g=\"{dir}/{}.{file}\"; {functions} ", container.name)
}

/// The file that each client of the container and Podman's monitor lock, as a word of a shell.
fn lock(name: &ContainerName) -> String {
    format!("\"{}/{name}.lock\"", EnginePlace::of(name).dir())
}

/// The parts that a container adds to the command that stops its stage, `stop.sh`.
#[derive(Default)]
pub(super) struct Additions {
    pub(super) functions: String,
    /// Before a scan of all processes.
    pub(super) seek: &'static str,
    /// True for the process `p` if it is the container's. Another condition follows.
    pub(super) inside: &'static str,
    /// True for the process `p` if no signal reaches it. What sends the signal otherwise follows.
    pub(super) spared: &'static str,
    /// After a scan: whether the monitor lives.
    pub(super) monitor: &'static str,
    /// After the first scan.
    pub(super) late: &'static str,
}

/// The stage's session has only the engine's processes. They get no signal, because a start that is interrupted leaves
/// what the next one fails on, and end with the container. That has ended when its monitor has cleaned up. A container that
/// has not started when the stop begins has nothing to finish: it gets no TERM, but KILL. The container of the stage before may
/// still be ending then.
pub(super) fn additions(container: &EngineContainer) -> Additions {
    Additions {
        functions: functions(container),
        seek: "[ -n \"$c\" ] && [ -e /proc/$c/stat ] || { o=$c; seek; [ -z \"$o\" ] || [ -z \"$c\" ] || w=KILL; };",
        inside: "inside $p ||",
        spared: "! inside $p ||",
        monitor: "[ -z \"$m\" ] || ! live $m || n=0;",
        late: "[ -n \"$c\" ] || w=KILL;",
    }
}

/// Shell commands that go before a start: its limit.
pub(super) fn limit(within: Duration) -> String {
    format!("w={}; ", within.as_secs().max(1))
}

/// Watches a start: `container/guard.sh`.
fn guard(container: &EngineContainer) -> String {
    let EngineCommands { over, after, .. } = commands(container.engine);
    one_line(
        include_str!("container/guard.sh"),
        &[
            ("DIR", EnginePlace::of(&container.name).dir()),
            ("LOCK", &lock(&container.name)),
            ("FUNCTIONS", functions(container).trim_end()),
            ("NOT_STARTED", NOT_STARTED),
            ("OVER", over),
            ("AFTER", &one_line(after, &[])),
        ],
    )
}

/// A command that starts the container and attaches to it. Before it: `limit`.
///
/// A stage ends before the engine's client, and a link may die while a container waits for it. The client would attach to
/// a container that still runs. So the client and Podman's monitor hold a lock until the engine knows that the container has
/// ended, and a start kills the container that it finds, if that is older.
pub(super) fn start(container: &EngineContainer) -> String {
    let (EngineCommands { before, start, .. }, name) = (commands(container.engine), &container.name);
    let place = EnginePlace::of(name);
    let starts = one_line(
        include_str!("container/start.sh"),
        &[
            ("DIR", place.dir()),
            ("LOCK", &lock(name)),
            ("BEFORE", &one_line(before, &[])),
            ("GUARD", &quoted(&guard(container))),
            ("START", start),
            ("NAME", &name.to_string()),
        ],
    );
    let script = format!("{}{}{starts}", place.revives(), functions(container));
    let script = place.runs("q=$q s=$s w=$w; ", &script);
    format!("q=$PPID s=$$; : ${{w:=60}}; {script}")
}
