//! Starts a container for a stage, and finds its processes.
//!
//! A container is started again for each stage. The engine's client, in the stage's session, only carries the streams:
//! the container's processes are children of its monitor, in a pid namespace of their own. The engine writes the number
//! of the first one to a file, which outlives it. So the number counts only if that process's parent is the monitor,
//! whose arguments name the file.

use crate::core::container::name::ContainerName;
use crate::core::text::quoted;

/// Where the engine writes the number of a container's first process.
fn pid_file(name: &ContainerName) -> String {
    format!("/run/greenroom/{name}.pid")
}

/// Shell functions. `seek` sets `c` to the container's first process and `m` to its monitor; without that process, `c`
/// is empty. `inside PID` is true for the container's processes, `live PID` for all that are not zombies.
pub(super) fn functions(name: &ContainerName) -> String {
    format!(
        "g={}; c=; m=; \
         live() {{ x=; while read -r l; do x=$l; done </proc/$1/stat; set -- ${{x##*) }}; i=$2; \
           case $1 in \"\"|Z|X) return 1;; esac; }}; \
         seek() {{ c=; read -r c <$g; [ -n \"$c\" ] && live $c && grep -qs $g /proc/$i/cmdline && m=$i || c=; }}; \
         inside() {{ [ -n \"$c\" ] && [ /proc/$1/ns/pid -ef /proc/$c/ns/pid ]; }}; ",
        pid_file(name)
    )
}

/// A command that starts the container and attaches to it.
///
/// Its last run may still be ending, and the client would attach to that: a stage ends before its client, and the shell
/// that waited for a link ends after it.
pub(super) fn start(name: &ContainerName) -> String {
    let functions = functions(name);
    as_root(&format!(
        "{functions} h=/run/greenroom/{name}.client; \
         {{ seek; n=0; [ -z \"$c\" ] || kill -KILL $c; \
           q=; read -r q <$h; [ -n \"$q\" ] && grep -qs {name} /proc/$q/cmdline || q=; \
           while {{ [ -n \"$c\" ] && {{ live $c || live $m; }}; }} || {{ [ -n \"$q\" ] && live $q; }}; do \
             [ $((n += 1)) -lt 250 ] || {{ echo \"Error: the container still runs\" >&3; exit 125; }}; \
             sleep 0.02 || sleep 1; \
           done; echo $$ >$h; }} 3>&2 2>/dev/null; \
         exec podman start --attach --interactive --sig-proxy=false {name}"
    ))
}

/// A command that runs `script`, which does not return, as root.
pub(super) fn as_root(script: &str) -> String {
    format!("r={}; [ \"$(id -u)\" = 0 ] && eval \"$r\"; exec sudo -n /bin/sh -c \"$r\"", quoted(script))
}
