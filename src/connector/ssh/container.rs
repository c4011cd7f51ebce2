//! Starts a container for a stage, and finds its processes.
//!
//! A container is started again for each stage. The engine's client, in the stage's session, only carries the streams:
//! the container's processes are children of its monitor, in a pid namespace of their own. The engine writes the number
//! of the first one to a file, which outlives it. So the number counts only if that process's parent is the monitor,
//! whose arguments name the file. If its own arguments do so, it is still the runtime: killing that would leave what the
//! next start fails on.

use crate::core::container::name::ContainerName;
use crate::core::text::quoted;

/// Where the engine writes the number of each container's first process, as `NAME.pid`.
const DIR: &str = "/run/greenroom";

/// Shell functions. `seek` sets `c` to the container's first process and `m` to its monitor; without that process, `c`
/// is empty. `inside PID` is true for the container's processes, `live PID` for all that are not zombies.
fn functions(name: &ContainerName) -> String {
    format!(
        "g={DIR}/{name}.pid; c=; m=; \
         live() {{ x=; while read -r l; do x=$l; done </proc/$1/stat; set -- ${{x##*) }}; i=$2; \
           case $1 in \"\"|Z|X) return 1;; esac; }}; \
         seek() {{ c=; read -r c <$g; \
           [ -n \"$c\" ] && live $c && grep -qs $g /proc/$i/cmdline && ! grep -qs $g /proc/$c/cmdline && m=$i || c=; }}; \
         inside() {{ [ -n \"$c\" ] && [ /proc/$1/ns/pid -ef /proc/$c/ns/pid ]; }}; "
    )
}

/// What a container adds to the command that stops its stage.
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
/// has not started when the stop begins has nothing to finish: it gets no TERM, but KILL.
pub(super) fn additions(name: &ContainerName) -> Additions {
    Additions {
        functions: functions(name),
        seek: "[ -n \"$c\" ] || seek; ",
        inside: " || inside $p",
        spared: " || ! inside $p",
        monitor: "[ -z \"$m\" ] || ! live $m || n=0; ",
        late: "[ -n \"$c\" ] || w=KILL; ",
    }
}

/// A command that starts the container and attaches to it.
///
/// A stage ends before the engine's client, and a link may die while a container waits for it. The client would attach to
/// a container that still runs. So the client and the monitor hold a lock until the engine knows that the container has
/// ended, and a start kills the container that it finds.
pub(super) fn start(name: &ContainerName) -> String {
    let functions = functions(name);
    as_root(&format!(
        "{functions} [ -d {DIR} ] || mkdir -p -m 700 {DIR}; exec 9>>{DIR}/{name}.lock; n=0; \
         {{ flock -n 9 || {{ \
             seek; [ -z \"$c\" ] || kill -KILL $c; \
             until flock -n 9; do \
               [ $((n += 1)) -lt 250 ] || {{ echo \"Error: the container still runs\" >&3; exit 125; }}; \
               sleep 0.02 || sleep 1; \
             done; }}; }} 3>&2 2>/dev/null; \
         exec podman start --attach --interactive --sig-proxy=false {name}"
    ))
}

/// A command that runs `script`, which does not return, as root.
pub(super) fn as_root(script: &str) -> String {
    format!("r={}; [ \"$(id -u)\" = 0 ] && eval \"$r\"; exec sudo -n /bin/sh -c \"$r\"", quoted(script))
}
