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
use greenroom_core::text::quoted;

/// The parts of a stage's commands that differ between the engines.
struct Dialect {
    /// The end of the name of the engine's file, which has the number of the container's first process (`pid`) or of the
    /// container itself (`id`).
    file: &'static str,
    /// Sets `c` and `m`: see `functions`. A monitor that is found stays in `m`.
    seek: &'static str,
    /// Before a start, with the lock.
    before: &'static str,
    /// The engine's client, before the container's name.
    start: &'static str,
    /// Ends the guard if the container has run and ended.
    over: &'static str,
    /// The guard's last commands, once no client has the lock `$f`.
    after: &'static str,
}

const PODMAN: Dialect = Dialect {
    file: "pid",
    seek: "c=; read -r c <\"$g\"; \
           [ -n \"$c\" ] && live $c && grep -qsF -- \"$g\" /proc/$i/cmdline && \
             ! grep -qsF -- \"$g\" /proc/$c/cmdline && m=$i || c=; ",
    before: "rm -f \"$g\"; ",
    start: "podman start --attach --interactive --sig-proxy=false",
    over: "! read -r p <\"$g\" || live $p || exit; ",
    after: "",
};

const DOCKER: Dialect = Dialect {
    file: "id",
    // A container's own process may have any arguments, but is in another namespace.
    seek: "c=; d=; read -r d <\"$g\"; [ -n \"$d\" ] || return 0; \
           for j in $(grep -ls -e $d /proc/[0-9]*/cmdline); do \
             j=${j#/proc/}; j=${j%/cmdline}; \
             [ /proc/$j/ns/pid -ef /proc/self/ns/pid ] && grep -qs containerd-shim /proc/$j/cmdline || continue; \
             c=; read -r c </proc/$j/cwd/init.pid; \
             [ -n \"$c\" ] && live $c && [ $i = $j ] && [ ! -e /run/docker/*/*/$d/exec.fifo ] || c=; \
             m=$j; [ -z \"$c\" ] || return 0; \
           done; ",
    // A client that was killed has left its container, and the engine attaches to one that still runs.
    before: "m=; { while seek; [ -n \"$m\" ] && live $m; do \
               [ -z \"$c\" ] || kill -KILL $c; \
               [ $((n += 1)) -lt 250 ] || { echo \"Error: the container still runs\" >&3; exit 125; }; \
               sleep 0.02 || sleep 1; \
             done; } 3>&2 2>/dev/null; ",
    start: "docker start --attach --interactive",
    over: "",
    after: "exec 8>>\"$f\"; flock -n 8 || exit; n=0; \
            while seek; [ -n \"$m\" ] && live $m && [ $((n += 1)) -lt 250 ]; do \
              [ -z \"$c\" ] || kill -KILL $c; sleep 0.02 || sleep 1; \
            done",
};

fn dialect(engine: ContainerEngine) -> &'static Dialect {
    match engine {
        ContainerEngine::Podman => &PODMAN,
        ContainerEngine::Docker => &DOCKER,
    }
}

/// Shell functions. `seek` sets `c` to the container's first process and `m` to its monitor; without that process, `c`
/// is empty. `inside PID` is true for the container's processes, `live PID` for all that are not zombies; it sets `i` to the
/// parent and `a` to the time of birth.
fn functions(container: &EngineContainer) -> String {
    let Dialect { file, seek, .. } = dialect(container.engine);
    let dir = EnginePlace::of(&container.name).dir();
    format!(
        "g=\"{dir}/{}.{file}\"; c=; m=; \
         live() {{ x=; while read -r l; do x=$l; done </proc/$1/stat; set -- ${{x##*) }}; i=$2; a=${{20}}; \
           case $1 in \"\"|Z|X) return 1;; esac; }}; \
         seek() {{ {seek}}}; \
         inside() {{ [ -n \"$c\" ] && [ /proc/$1/ns/pid -ef /proc/$c/ns/pid ]; }}; ",
        container.name
    )
}

/// The file that each client of the container and Podman's monitor lock, as a word of a shell.
fn lock(name: &ContainerName) -> String {
    format!("\"{}/{name}.lock\"", EnginePlace::of(name).dir())
}

/// The parts that a container adds to the command that stops its stage.
#[derive(Default)]
pub(super) struct Additions {
    pub(super) functions: String,
    /// Before a scan of all processes.
    pub(super) seek: &'static str,
    /// True for the process `p` if it is the container's.
    pub(super) inside: &'static str,
    /// True for the process `p` if no signal reaches it.
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
        seek: "[ -n \"$c\" ] && [ -e /proc/$c/stat ] || { o=$c; seek; [ -z \"$o\" ] || [ -z \"$c\" ] || w=KILL; }; ",
        inside: " || inside $p",
        spared: " || ! inside $p",
        monitor: "[ -z \"$m\" ] || ! live $m || n=0; ",
        late: "[ -n \"$c\" ] || w=KILL; ",
    }
}

/// The message of the guard when it ends a start.
pub(super) const NOT_STARTED: &str = "the container engine did not start the container within";

/// Shell commands that go before a start: its limit.
pub(super) fn limit(within: Duration) -> String {
    format!("w={}; ", within.as_secs().max(1))
}

/// Watches a start. Until the container runs, its limit is `w` seconds; then the session, `s`, is ended with an error,
/// first of all the engine's client, `k`. Afterwards the container is ended if the connection's process, `q`, has gone: no
/// signal reaches the container from there. The guard ends with the lock, so that a stop can wait for it, too.
fn guard(container: &EngineContainer) -> String {
    let functions = functions(container);
    let lock = lock(&container.name);
    let Dialect { over, after, .. } = dialect(container.engine);
    let dir = EnginePlace::of(&container.name).dir();
    format!(
        "exec 3>&2 2>/dev/null; flock -w 1 \"{dir}\" true || exit; {functions} \
         now() {{ read -r t x </proc/uptime; t=${{t%.*}}; }}; now; b=$t; \
         while seek; [ -z \"$c\" ]; do \
           live $k || exit; \
           {over}\
           now; [ $((t - b)) -lt $w ] || {{ \
             echo \"Error: {NOT_STARTED} $w s\" >&3; kill -KILL $k; \
             for f in /proc/[0-9]*/stat; do \
               x=; while read -r l; do x=$l; done <\"$f\"; p=${{f#/proc/}}; set -- ${{x##*) }}; \
               p=${{p%/stat}}; [ \"$4\" != $s ] || [ $p = $$ ] || kill -KILL $p; \
             done; \
             exit; }}; \
           ! flock -w 0.2 {lock} true || exit; \
         done; \
         exec 3>&-; f={lock}; \
         until flock -w 2 \"$f\" true; do \
           live $q || {{ seek; [ -z \"$c\" ] || kill -KILL $c; exit; }}; \
         done; {after}"
    )
}

/// A command that starts the container and attaches to it. Before it: `limit`.
///
/// A stage ends before the engine's client, and a link may die while a container waits for it. The client would attach to
/// a container that still runs. So the client and Podman's monitor hold a lock until the engine knows that the container has
/// ended, and a start kills the container that it finds. Only an older one: a slow start whose stage was given up meanwhile
/// would kill the next stage's.
pub(super) fn start(container: &EngineContainer) -> String {
    let functions = functions(container);
    let guard = quoted(&guard(container));
    let (Dialect { before, start, .. }, name) = (dialect(container.engine), &container.name);
    let place = EnginePlace::of(name);
    let lock = lock(name);
    let dir = place.dir();
    let revive = place.revives();
    let script = place.runs(
        "q=$q s=$s w=$w; ",
        &format!(
            "{revive}{functions} [ -d \"{dir}\" ] || mkdir -p -m 700 \"{dir}\"; exec 9>>{lock}; n=0; \
         {{ live $$; o=$a; until flock -n 9; do \
             [ $((n % 10)) != 0 ] || {{ seek; [ -z \"$c\" ] || ! live $m || [ $a -ge $o ] || kill -KILL $c; }}; \
             [ $((n += 1)) -lt 250 ] || {{ echo \"Error: the container still runs\" >&3; exit 125; }}; \
             sleep 0.02 || sleep 1; \
           done; }} 3>&2 2>/dev/null; \
         {before}\
         k=$$ q=$q s=$s w=$w /bin/sh -c {guard} </dev/null >/dev/null 9>&- & \
         exec {start} {name}"
        ),
    );
    format!("q=$PPID s=$$; : ${{w:=60}}; {script}")
}
