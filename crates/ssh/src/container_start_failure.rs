//! The reason a container ended before a shell in it read the script, as far as the output tells.
//!
//! The container writes to the same streams, and an engine's text may mean its own programs. So a text decides nothing alone.

use greenroom_core::text::clean_line;
use greenroom_ports::connector::StageEnd;
use greenroom_ports::dialect::NOT_STARTED;

use super::script_ack::NOT_READ;

/// The cause of a container's end before a shell read the script, with its sentence.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum StartFailure {
    /// The image or its settings.
    ByJob(String),
    /// The engine or the guest, or the container. `if_ran`: the sentence if the container has run; `by_image`: and if the
    /// engine works.
    Unknown { why: String, if_ran: String, by_image: bool },
}

/// Podman's client exits with one of these for its own errors and for those of its runtime, and Docker's with 1.
const ENGINE: [u32; 3] = [125, 126, 127];
/// The beginnings of the Docker client's own errors.
const DOCKERS: [&str; 3] =
    ["Error response from daemon: ", "Cannot connect to the Docker daemon", "Error: No such container: "];
const NO_ENTRYPOINT: &str = "set `entrypoint: [\"\"]` for the image";
const REMEDY: &str =
    "set `entrypoint: [\"\"]` for the image, or correct the file of `BASH_ENV`, if that is set";
const LONGEST: usize = 400;

/// Judges the end of a container by its status, and by its output and the engine's.
pub(super) fn start_failure(end: &StageEnd, output: &str) -> StartFailure {
    let status = match end {
        StageEnd::Exited(status) => *status,
        // The client's own end: a signal in the container is a status of the client.
        StageEnd::Signalled(_) | StageEnd::Stopped | StageEnd::Impossible(_) => {
            let late = output.lines().rev().find(|line| line.contains(NOT_STARTED));
            let client = || format!("the engine's client ended with {end}");
            let why = late.map_or_else(client, |error| shown(error.trim_start_matches("Error: ")));
            return StartFailure::Unknown { why, if_ran: ended(end), by_image: false };
        }
    };
    if status == 0 {
        return StartFailure::ByJob(format!(
            "the image's entrypoint did not start a shell, or a file that the shell reads first ended it; {REMEDY}"
        ));
    }
    let no_client = |line: &str| {
        let lacks = |program: &str| line.contains(&format!("{program}: not found"));
        line.starts_with("sudo: ") || lacks("podman") || lacks("docker")
    };
    let said = |found: &dyn Fn(&str) -> bool| output.lines().rev().find(|line| found(line));
    let start = said(&|line| {
        (ENGINE.contains(&status) && line.starts_with("Error: "))
            || (status == 1 && DOCKERS.iter().any(|begin| line.starts_with(begin)))
            || line.contains("exec container process")
            || (line.starts_with("exec /") && line.contains(": "))
    });
    if let Some((line, fault)) = start.and_then(|line| Some((line, image_fault(line)?))) {
        return StartFailure::Unknown { why: shown(line), if_ran: fault, by_image: true };
    }
    let has_no_shell =
        matches!(status, 126 | 127) || said(&|line| line.contains("shell not found")).is_some();
    let if_ran = if has_no_shell && start.is_none() { NO_SHELL.to_owned() } else { ended(end) };
    let last = start
        .or_else(|| said(&no_client))
        .or_else(|| said(&|line| !line.trim().is_empty() && line != NOT_READ));
    let why = match last {
        Some(line) => shown(line),
        None => format!("the engine's client ended with {end}"),
    };
    StartFailure::Unknown { why, if_ran, by_image: false }
}

fn ended(end: &StageEnd) -> String {
    let who = "the image's entrypoint, or a file that its shell reads first,";
    format!("{who} ended with {end} before a shell read the script; {REMEDY}")
}

const NO_SHELL: &str = "the image has no shell: a job's image needs `bash` or `sh`";

/// The sentence for an error of an engine that works: every start of this image has it.
fn image_fault(error: &str) -> Option<String> {
    if error.contains("xec format error") {
        return Some("the image is for another processor architecture than the instance".to_owned());
    }
    if error.contains("unable to find user") || error.contains("unable to find group") {
        return Some(format!("the image lacks the job's user: {}", shown(error)));
    }
    let unfit =
        ["not found in $PATH", "ommand that was not found", "o such file or directory", "ermission denied"];
    if !unfit.iter().any(|text| error.contains(text)) || !of_program(error) {
        return None;
    }
    match program(error) {
        Some(program) if is_shell(program) => Some(NO_SHELL.to_owned()),
        Some(program) => {
            Some(format!("the image's entrypoint `{}` cannot be started; {NO_ENTRYPOINT}", shown(program)))
        }
        None => Some(format!("the image's entrypoint cannot be started; {NO_ENTRYPOINT}")),
    }
}

/// True if the error is about the program that the container starts, such as an entrypoint.
fn of_program(error: &str) -> bool {
    ["executable", "exec container process", "exec: ", "exec /"].iter().any(|text| error.contains(text))
}

/// The program that a runtime could not start: crun writes it in backquotes, runc in quotes.
fn program(error: &str) -> Option<&str> {
    let quoted = |mark: &str| error.split(mark).nth(1);
    let before_start = error.split_once("exec: \"").and_then(|(_, rest)| rest.split('"').next());
    let at_start = error.strip_prefix("exec ").and_then(|rest| rest.split(':').next());
    quoted("`").or(before_start).or(at_start)
}

fn is_shell(program: &str) -> bool {
    matches!(program.rsplit('/').next(), Some("sh" | "bash"))
}

fn shown(text: &str) -> String {
    clean_line(text.as_bytes(), LONGEST)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The sentence if the job is to blame.
    fn job(end: &StageEnd, output: &str) -> String {
        match start_failure(end, output) {
            StartFailure::ByJob(why) => why,
            StartFailure::Unknown { if_ran, .. } => if_ran,
        }
    }

    /// The image explains an end only where others start: an engine that lacks a program of its own says the same.
    #[test]
    fn no_text_is_more_than_a_claim_about_the_image() {
        let shim = "Error response from daemon: failed to start shim: exec: \"containerd-shim-runc-v2\": executable file \
                    not found in $PATH: unknown\n";
        for output in [shim, "exec /bin/sh: exec format error\n"] {
            let found = start_failure(&StageEnd::Exited(1), output);
            assert!(matches!(found, StartFailure::Unknown { by_image: true, .. }), "{found:?}");
        }
    }

    /// Texts of Podman 4.3.1 and Docker 20.10 with crun 1.8.1 and runc 1.1.5.
    #[test]
    fn what_the_image_causes_has_its_sentence() {
        for (status, output, expected) in [
            (
                0,
                "sh -c if [ -x /bin/bash ]\n",
                "did not start a shell, or a file that the shell reads first ended it; set `entrypoint: [\"\"]`",
            ),
            (
                3,
                "Error: unknown command sh for tool\n",
                "ended with exit status 3 before a shell read the script",
            ),
            (137, "", "ended with exit status 137"),
            (125, "", "ended with exit status 125"),
            (127, "tool: applet not found\n", "has no shell"),
            (126, "", "has no shell"),
            (1, "shell not found\n", "has no shell"),
            (
                125,
                "Error: unable to start container 463bbcdd: crun: executable file `sh` not found in $PATH: No such file \
                 or directory: OCI runtime attempted to invoke a command that was not found\n",
                "has no shell",
            ),
            (
                125,
                "Error: unable to start container 672f12cc: crun: executable file `/bin/missing` not found in $PATH: No \
                 such file or directory: OCI runtime attempted to invoke a command that was not found\n",
                "entrypoint `/bin/missing` cannot be started",
            ),
            (
                125,
                "Error: unable to start container 765f96cb: crun: open executable: Permission denied: OCI permission \
                 denied\n",
                "entrypoint cannot be started",
            ),
            (
                1,
                "{\"msg\":\"exec container process (missing dynamic library?) `/bin/badinterp`: No such file or \
                 directory\",\"level\":\"error\"}\n",
                "entrypoint `/bin/badinterp` cannot be started",
            ),
            (
                1,
                "{\"msg\":\"exec container process `/bin/sh`: Exec format error\"}\n",
                "another processor architecture",
            ),
            (
                125,
                "Error: unable to start container \"a1b2\": runc: runc create failed: unable to start container process: \
                 exec: \"sh\": executable file not found in $PATH: OCI runtime attempted to invoke a command that was \
                 not found\n",
                "has no shell",
            ),
            (
                125,
                "Error: unable to start container a1bb: unable to find user nosuch: no matching entries in passwd file\n",
                "lacks the job's user",
            ),
            (
                1,
                "time=\"2026-11-25T14:56:56Z\" level=error msg=\"error waiting for container: context canceled\"\n\
                 Error response from daemon: failed to create shim task: OCI runtime create failed: executable file \
                 `/nope` not found in $PATH: No such file or directory: unknown\n",
                "entrypoint `/nope` cannot be started",
            ),
            (
                1,
                "Error response from daemon: failed to create shim task: OCI runtime create failed: runc create failed: \
                 unable to start container process: exec: \"sh\": executable file not found in $PATH: unknown\n",
                "has no shell",
            ),
            (
                1,
                "Error response from daemon: unable to find user nosuch: no matching entries in passwd file\n",
                "lacks the job's user",
            ),
            (1, "exec /bin/bad: no such file or directory\n", "entrypoint `/bin/bad` cannot be started"),
            (1, "exec /bin/sh: exec format error\n", "another processor architecture"),
            (1, "Error: unknown command sh for tool\n", "ended with exit status 1"),
            (
                5,
                "Error: the container engine did not start the container within 60 s\n",
                "ended with exit status 5",
            ),
        ] {
            let why = job(&StageEnd::Exited(status), output);
            assert!(why.contains(expected), "{output}: {why}");
        }
    }

    #[test]
    fn what_the_engine_or_the_guest_causes_is_not() {
        let exited = StageEnd::Exited;
        for (end, output) in [
            (exited(125), "Error: no container with name or ID \"x\" found: no such container\n"),
            (exited(125), "Error: unable to start container a1: mounting storage: no space left on device\n"),
            (exited(125), "Error: statfs /var/lib/containers: no such file or directory\n"),
            (exited(125), "Error: the container still runs\n"),
            (exited(126), "Error: unable to start container a1: OCI runtime error: crun: cannot mount\n"),
            (exited(1), "sudo: a password is required\n"),
            (exited(127), "/bin/sh: 1: exec: podman: not found\n"),
            (exited(127), "/bin/sh: 1: exec: docker: not found\n"),
            (exited(1), "Error: No such container: greenroom-a1\n"),
            (
                exited(1),
                "Cannot connect to the Docker daemon at unix:///var/run/docker.sock. Is it running?\n",
            ),
            (
                exited(1),
                "Error response from daemon: failed to create shim task: OCI runtime create failed: runc create failed: \
                 unable to apply cgroup configuration: no space left on device: unknown\n",
            ),
            (StageEnd::Signalled("KILL".to_owned()), ""),
            (
                StageEnd::Signalled("KILL".to_owned()),
                "Error: the container engine did not start the container within 60 s\n",
            ),
        ] {
            let StartFailure::Unknown { why, by_image: false, .. } = start_failure(&end, output) else {
                panic!("{output}")
            };
            assert!(output.is_empty() || output.contains(&why), "{output}: {why}");
        }
    }
}
