//! The dialect of POSIX systems: Linux, macOS and others with `/bin/sh`, `sleep`, and either `/proc` or `pkill`.
//!
//! A stage runs as `exec /bin/sh -c 'echo MARK$$ >&2; exec bash'`, which every login shell understands. sshd starts each command in
//! a session of its own, so the number of a stage's first process is its session's number. A container's processes are in
//! none of it: they are found by the container's name. Together these are the [`StopHandle`].
//!
//! A login shell reads the profile, with its three streams at `/dev/null`: it takes nothing of a script, and prints nothing into a
//! job. `/bin/sh` takes its place and prints the environment between marks. The stage's shell is no login shell, so
//! `~/.bash_logout` does not run. Later stages of the job get that environment without a login shell: on standard input, because
//! other accounts can read the arguments of a process.
//!
//! On a host that other jobs use afterwards, a stage first leaves a trace for cleaning (`posix/trace.sh`):
//! * a symbolic link `~/.greenroom/MARK/ATTEMPT.builds` to the attempt's builds directory; only the first stage makes it
//! * its session, as an empty file `ATTEMPT.SESSION.START` beside the link
//! * the mark, in the environment of every process that it starts
//! * a separate directory for temporary files
//!
//! Link and file need no space on a full disk. A stage that cannot leave its trace does not run, because cleaning would miss it.

mod container;

use std::time::Duration;

use greenroom_core::container::engine::EnginePlace;
use greenroom_core::execution::{Shell, StageShell};
use greenroom_core::shell_text::one_line;
use greenroom_core::text::quoted;

use self::container::Additions;
use super::{ContainerMarks, GuestDialect, Profile, RootAccess, Start, StopHandle};
use crate::connector::{Mark, Reader, Trace};
use crate::setup::KEEP_CACHE;

/// POSIX systems.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Posix;

/// Commands that read the line of an environment and evaluate it. They read nothing after it.
const READ_ENVIRONMENT: &str = "IFS= read -r greenroom_login && eval \"$(printf %b \"$greenroom_login\")\"; \
                                unset greenroom_login; ";

/// A script from standard input.
const READ_SCRIPT: &str = "exec /bin/sh -s";

impl GuestDialect for Posix {
    fn quote(&self, text: &str) -> String {
        quoted(text)
    }

    fn command_line(&self, script: &str) -> String {
        format!("exec /bin/sh -c {}", quoted(script))
    }

    fn read_script(&self, arguments: &str) -> String {
        if arguments.is_empty() { READ_SCRIPT.to_owned() } else { format!("{READ_SCRIPT} -- {arguments}") }
    }

    fn check(&self) -> &'static str {
        "true"
    }

    fn before(&self, reader: &Reader, trace: Option<&Trace>, container_start: Duration) -> String {
        let limit = match reader {
            Reader::Container(_) => container::limit(container_start),
            Reader::Shell(_) => String::new(),
        };
        leaves(trace) + &limit
    }

    fn before_probe(&self, mark: Option<&Mark>) -> String {
        let Some(mark) = mark else { return ": check; ".to_owned() };
        one_line(include_str!("posix/probe.sh"), &[("MARK", mark.as_str())]) + " "
    }

    fn start(&self, reader: &Reader, start: &Start<'_>) -> String {
        let Start { before, mark, profile } = *start;
        let StageShell { shell: kind, separate_stderr, .. } = match reader {
            Reader::Shell(shell) => *shell,
            Reader::Container(container) => {
                let start = container::start(container);
                return self.command_line(&format!("{before}echo {mark}$$.{container} >&2; {start}"));
            }
        };
        let program = match kind {
            Shell::Bash => "bash",
            Shell::Sh => "sh",
            Shell::Pwsh => {
                "pwsh -NoProfile -NoLogo -NonInteractive -InputFormat text -OutputFormat text \
                 -ExecutionPolicy Bypass -Command -"
            }
        };
        let joined = if separate_stderr { "" } else { " 2>&1" };
        let handle = format!("echo {mark}$$ >&2; ");
        let plain = || format!("{before}{handle}exec {program}{joined}");
        match profile {
            // After the handle, because a profile may start something else, which must not read it.
            Profile::Known => {
                self.command_line(&format!("{handle}{READ_ENVIRONMENT}{before}exec {program}{joined}"))
            }
            Profile::Unread => self.command_line(&plain()),
            Profile::Read { mark } => {
                // Each line of the environment's text is a command of `/bin/sh`.
                let report = format!(
                    "{{ echo {mark}; export -p; printf 'umask '; umask; printf 'ulimit -Sn '; ulimit -Sn; echo {mark}; }} >&2; "
                );
                let login = self.in_login_shell(kind, &format!("{report}{}", plain()));
                self.command_line(&format!("echo {mark} >&2; {login}"))
            }
        }
    }

    fn start_command(&self, text: &str, mark: &str) -> String {
        self.command_line(&format!("echo {mark}$$ >&2; {text}"))
    }

    /// What only repeats its input does not print the mark.
    fn first_line(&self, mark: &str, environment: &str) -> String {
        let (begin, rest) = mark.split_at(mark.len() / 2);
        format!("{environment}echo {begin}\"\"{rest}${{BASH_VERSION:+bash}}\n")
    }

    /// Changes neither `$?` nor a variable, and a trap of the script's own replaces its trap.
    fn first_line_in_container(&self, ContainerMarks { ready, exit, joined }: &ContainerMarks<'_>) -> String {
        let (begin, rest) = ready.split_at(ready.len() / 2);
        let echo = |known| format!("echo {begin}\"\"{rest}{known} >&2");
        // First of all, so that the mark and the status come on one stream, in this order.
        let (apart, join) =
            if *joined { (String::new(), "exec 2>&1; ") } else { (format!("echo \"{exit}$x\" >&2; "), "") };
        let exit = format!("x=$?; {apart}echo \"{exit}$x\" 2>/dev/null");
        format!("{join}case $'x' in x) {};; *) {};; esac; trap '{exit}' EXIT\n", echo('1'), echo('0'))
    }

    fn environment_line(&self, printed: &str) -> String {
        printed.replace('\\', "\\\\").replace('\n', "\\n") + "\n"
    }

    fn in_login_shell(&self, shell: Shell, command: &str) -> String {
        let program = match shell {
            Shell::Bash => "bash",
            Shell::Sh | Shell::Pwsh => "sh",
        };
        let after = format!("exec <&7 >&8 2>&9 7<&- 8>&- 9>&-; {}", self.command_line(command));
        format!("exec 7<&0 8>&1 9>&2 </dev/null >/dev/null 2>&1; exec {program} -l -c {}", quoted(&after))
    }

    fn open_umask(&self) -> &'static str {
        "umask 0000\n"
    }

    /// Time comes from the guest's own clock, in hundredths of a second.
    fn stop(&self, handle: &StopHandle, grace: Duration, killing: Duration) -> String {
        let StopHandle { session, container } = handle;
        let Additions { functions, seek, inside, spared, monitor, late } =
            container.as_ref().map(container::additions).unwrap_or_default();
        let kill_at = grace.as_millis() / 10;
        let over_at = (grace + killing).as_millis() / 10;
        let sweeps = one_line(
            include_str!("posix/stop.sh"),
            &[
                ("KILL_AT", &kill_at.to_string()),
                ("OVER_AT", &over_at.to_string()),
                ("SEEK", seek),
                ("INSIDE", inside),
                ("SPARED", spared),
                ("MONITOR", monitor),
                ("LATE", late),
            ],
        );
        let command = format!("exec 2>/dev/null; s={session}; {functions}{sweeps}");
        self.command_line(&match container {
            Some(container) => EnginePlace::of(&container.name).runs("", &command),
            None => command,
        })
    }

    fn holder(&self, handle: &StopHandle) -> String {
        let finds = one_line(include_str!("posix/holder.sh"), &[]);
        self.command_line(&format!("exec 2>/dev/null; s={}; {finds}", handle.session))
    }

    fn clean(&self, mark: &Mark, keeps_cache: bool) -> String {
        let mark = mark.as_str();
        self.read_script(&if keeps_cache { format!("{mark} {KEEP_CACHE}") } else { mark.to_owned() })
    }

    fn clean_as_root(&self, by: RootAccess<'_>, argument: &str) -> String {
        let RootAccess::Sudo { program, host } = by else { return self.read_script(argument) };
        let clean = format!(
            "cmp -s - {program} || {{ echo {program} is missing or differs: \
             install what greenroom doctor --clean-script {host} prints; exit 1; }}; exec sudo -n {program}"
        );
        if argument.is_empty() { clean } else { format!("{clean} {argument}") }
    }
}

/// Commands that leave the trace of a stage.
fn leaves(trace: Option<&Trace>) -> String {
    let Some(Trace { mark, attempt, builds_dir }) = trace else { return String::new() };
    let builds = quoted(builds_dir);
    let values = [("MARK", mark.as_str()), ("ATTEMPT", attempt.as_str()), ("BUILDS", builds.as_str())];
    one_line(include_str!("posix/trace.sh"), &values) + " "
}
