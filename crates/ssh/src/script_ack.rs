//! Shows that a shell in a container reads the script.
//!
//! An image's entrypoint may ignore its arguments and exit with 0. So a line before the script prints a random mark,
//! which the shell puts together: a program that only repeats its input does not print it.
//!
//! The script follows only when the mark has come. An entrypoint, or a file that the shell reads first, such as that of
//! `BASH_ENV`, may read standard input. Without its beginning, a script would go on after a command that fails. Such a
//! container cannot be told from a slow entrypoint: the job's log says so, and the stage ends after a limit.

use std::borrow::Cow;
use std::fs::File;
use std::io::{self, Seek as _, Write as _};
use std::os::fd::BorrowedFd;
use std::os::unix::fs::FileExt as _;
use std::rc::Rc;
use std::time::Duration;

use async_trait::async_trait;
use greenroom_core::execution::{Shell, StageShell};
use greenroom_core::time::Pretty;
use greenroom_ports::connector::{ConnectError, Output, Reader, Stage, StageEnd, Stream};
use greenroom_ports::dialect::{ContainerMarks, GuestDialect};
use greenroom_ports::tail::Tail;
use rustix::fs::{MemfdFlags, memfd_create};
use tokio::sync::Notify;
use tokio::time::Instant;

use super::container_start_failure::{StartFailure, start_failure};
use super::marker_scan::{Marker, MarkerScan};
use super::remote::random_mark;
use super::stage::LocalError;

/// Bytes of a script that are searched at a time.
const CHUNK: usize = 64 << 10;
/// The part of the limit after which the job log names a shell that has not read its first line.
const NAMED_AFTER: u32 = 20;

/// True if a shell knows the quotes `$'…'`, as its line says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Escapes(bool);

impl Marker for Escapes {
    const LONGEST: usize = 1;

    fn parse(word: &[u8]) -> Option<Self> {
        match word {
            b"1" => Some(Self(true)),
            b"0" => Some(Self(false)),
            _ => None,
        }
    }
}

/// The mark of the lines that a shell in a container prints when it exits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ExitMark {
    pub(super) mark: String,
    /// Both streams of the script are one: there is one line.
    pub(super) joined: bool,
}

/// The status that a shell prints when it exits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct ExitStatus(u8);

impl Marker for ExitStatus {
    const LONGEST: usize = 3;

    fn parse(word: &[u8]) -> Option<Self> {
        std::str::from_utf8(word).ok()?.parse().ok().map(Self)
    }
}

/// The marks of the lines that a shell in a container prints.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ShellMarks {
    /// The mark of the line that says that the shell has read the first line of its input.
    pub(super) ready: String,
    pub(super) exit: ExitMark,
}

/// Waits until a shell in a container has read its first line.
#[derive(Debug)]
pub(super) struct AwaitedShell {
    scan: MarkerScan<Escapes>,
    stream: Stream,
    ready: Rc<Notify>,
    /// The moment at which the job's log names the wait.
    name_at: Option<Instant>,
}

impl AwaitedShell {
    /// `ready` is notified once.
    pub(super) fn new(
        ShellMarks { ready: mark, exit }: &ShellMarks,
        within: Duration,
        ready: Rc<Notify>,
    ) -> Self {
        let name_at = Some(Instant::now() + within / NAMED_AFTER);
        Self { scan: MarkerScan::new(mark), stream: exit.stream(), ready, name_at }
    }

    /// Looks for the shell's line in the output, in which it stays.
    pub(super) fn see(&mut self, stream: Stream, bytes: &[u8]) {
        if stream != self.stream || self.scan.has_begun() {
            return;
        }
        self.scan.feed(bytes);
        if self.scan.marker().is_some() {
            self.name_at = None;
            self.ready.notify_one();
        }
    }

    pub(super) fn name_at(&self) -> Option<Instant> {
        self.name_at
    }

    /// Writes to the job's log what is waited for.
    pub(super) async fn name(&mut self, output: &mut dyn Output) -> io::Result<()> {
        self.name_at = None;
        output.own_line(NOT_READ).await
    }
}

impl ExitMark {
    /// The stream that has the line by which the shell shows that it reads the script.
    fn stream(&self) -> Stream {
        if self.joined { Stream::Stdout } else { Stream::Stderr }
    }
}

/// The last line of a shell in a container, on each of its streams: when all have come, so has all output before them. The
/// engine's client ends only when the container has been cleaned up.
#[derive(Debug)]
pub(super) struct ExitLines {
    stdout: MarkerScan<ExitStatus>,
    /// `None`: standard output is the only stream.
    stderr: Option<MarkerScan<ExitStatus>>,
}

impl ExitLines {
    pub(super) fn new(ExitMark { mark, joined }: &ExitMark) -> Self {
        Self { stdout: MarkerScan::new(mark), stderr: (!joined).then(|| MarkerScan::new(mark)) }
    }

    /// Returns the part that is output.
    pub(super) fn feed<'a>(&mut self, stream: Stream, bytes: &'a [u8]) -> Cow<'a, [u8]> {
        match (stream, &mut self.stderr) {
            (Stream::Stdout, _) => self.stdout.feed(bytes),
            (Stream::Stderr, Some(stderr)) => stderr.feed(bytes),
            (Stream::Stderr, None) => bytes.into(),
        }
    }

    /// The status, once the shell has exited.
    pub(super) fn status(&self) -> Option<u32> {
        let ExitStatus(one) = self.stdout.marker()?;
        let other = match &self.stderr {
            Some(stderr) => stderr.marker()?.0,
            None => *one,
        };
        (*one == other).then_some(u32::from(*one))
    }

    /// Returns the bytes that are still held back when the output ends.
    pub(super) fn rest(&mut self) -> [(Stream, Vec<u8>); 2] {
        let stderr = self.stderr.as_mut().map(MarkerScan::rest).unwrap_or_default();
        [(Stream::Stdout, self.stdout.rest()), (Stream::Stderr, stderr)]
    }
}

/// The output of a stage, from which the shell's line is taken out.
pub(super) struct AcknowledgedOutput<'a> {
    output: &'a mut dyn Output,
    /// `None`: the script runs on the instance itself.
    container: Option<ContainerScript>,
}

struct ContainerScript {
    scan: MarkerScan<Escapes>,
    script: File,
    /// The offset in the stage's input at which the job's own text begins.
    begins_at: u64,
    marks: ShellMarks,
    /// The output before the line.
    before: Tail,
}

impl<'a> AcknowledgedOutput<'a> {
    /// Puts before a stage's script what it needs there.
    pub(super) fn new(
        stage: &mut Stage,
        dialect: &dyn GuestDialect,
        output: &'a mut dyn Output,
    ) -> Result<Self, ConnectError> {
        let mut before = String::new();
        let is_pwsh = matches!(&stage.reader, Reader::Shell(StageShell { shell: Shell::Pwsh, .. }));
        let mut marks = None;
        if let Reader::Container(_) = stage.reader {
            // No text has this character, so that the search for it costs next to nothing.
            let exit = format!("\u{1e}{}", random_mark("exit")?);
            let exit = ExitMark { mark: exit, joined: !stage.separate_stderr };
            let ready = random_mark("shell")?;
            // The first line: `stage` sends it alone.
            let shown = ContainerMarks { ready: &ready, exit: &exit.mark, joined: exit.joined };
            before.push_str(&dialect.first_line_in_container(&shown));
            marks = Some(ShellMarks { ready, exit });
        }
        if stage.open_umask && !is_pwsh {
            before.push_str(dialect.open_umask());
        }
        if before.is_empty() {
            return Ok(Self { output, container: None });
        }
        let cannot = LocalError::Copy;
        stage.script = prefixed(&before, &mut stage.script).map_err(cannot)?;
        let container = match marks {
            Some(marks) => {
                let script = stage.script.try_clone().map_err(cannot)?;
                Some(ContainerScript {
                    scan: MarkerScan::new(&marks.ready),
                    script,
                    begins_at: before.len() as u64,
                    marks,
                    before: Tail::default(),
                })
            }
            None => None,
        };
        Ok(Self { output, container })
    }

    /// The marks of the lines that the shell prints.
    pub(super) fn marks(&self) -> Option<ShellMarks> {
        self.container.as_ref().map(|container| container.marks.clone())
    }

    /// Interprets the end of the stage. `at`: the instance, for messages.
    pub(super) async fn end(
        self,
        at: String,
        end: Result<StageEnd, ConnectError>,
    ) -> Result<StageEnd, ConnectError> {
        let Self { output, container: Some(ContainerScript { mut scan, script, begins_at, marks, before }) } =
            self
        else {
            return end;
        };
        let end = end?;
        let cannot = LocalError::Output;
        output.write(marks.exit.stream(), &scan.rest()).await.map_err(cannot)?;
        match (scan.marker(), end) {
            (_, StageEnd::Stopped) => Ok(StageEnd::Stopped),
            (None, StageEnd::Impossible(why)) => Ok(StageEnd::Impossible(why)),
            (Some(Escapes(known)), end) => {
                let failed = end != StageEnd::Exited(0);
                if failed && !known && contains(&script, begins_at, b"$'").map_err(cannot)? {
                    output.own_line(NO_ESCAPES).await.map_err(cannot)?;
                }
                Ok(end)
            }
            (None, end) => match start_failure(&end, &before.text()) {
                StartFailure::ByJob(why) => Ok(StageEnd::Impossible(why)),
                StartFailure::Unknown { why, if_ran, by_image } => {
                    Err(ConnectError::NoContainer { at, why, if_ran, by_image })
                }
            },
        }
    }
}

/// Returns the message for the end of a stage whose script no shell has read in time.
pub(super) fn never_read(within: Duration) -> String {
    format!(
        "no shell in the container has read the first line of its input within {}: the image's entrypoint, or a file that the \
         shell reads first, such as that of `BASH_ENV`, reads standard input or holds back the output; set \
         `entrypoint: [\"\"]` for the image, or correct the file",
        Pretty(within)
    )
}

/// The job log's line about a container whose shell is waited for.
pub(super) const NOT_READ: &str = "greenroom: no shell in the container has read the first line of its input yet, and the \
     script waits: the image's entrypoint still works, or the entrypoint or a file that the shell reads first, such as that \
     of `BASH_ENV`, reads standard input or holds back the output";

const NO_ESCAPES: &str = "greenroom: the image's shell, such as dash, cannot read the quotes `$'…'` of this script; \
     set the variable FF_POSIXLY_CORRECT_ESCAPES to `true`, or use an image with bash";

#[async_trait(?Send)]
impl Output for AcknowledgedOutput<'_> {
    async fn write(&mut self, stream: Stream, bytes: &[u8]) -> io::Result<()> {
        let Some(ContainerScript { scan, marks, before, .. }) = &mut self.container else {
            return self.output.write(stream, bytes).await;
        };
        if scan.has_begun() {
            return self.output.write(stream, bytes).await;
        }
        let passed = if stream == marks.exit.stream() { scan.feed(bytes) } else { bytes.into() };
        before.write(stream, &passed).await?;
        self.output.write(stream, &passed).await
    }

    fn note_line(&mut self, is_open: bool) {
        self.output.note_line(is_open);
    }

    async fn own_line(&mut self, line: &str) -> io::Result<()> {
        self.output.own_line(line).await
    }

    async fn end_line(&mut self) -> io::Result<()> {
        self.output.end_line().await
    }

    /// The bytes before the line have to be seen.
    fn descriptor(&self, stream: Stream) -> Option<BorrowedFd<'_>> {
        let seen = self.container.as_ref().is_none_or(|container| container.scan.has_begun());
        self.output.descriptor(stream).filter(|_| seen)
    }
}

/// A file in no directory, with the text before the rest of a script.
fn prefixed(before: &str, script: &mut File) -> io::Result<File> {
    let mut file = File::from(memfd_create("greenroom-script", MemfdFlags::CLOEXEC)?);
    file.write_all(before.as_bytes())?;
    io::copy(script, &mut file)?;
    file.rewind()?;
    Ok(file)
}

/// True if a file contains `what` from the byte `at` on. It may begin in one piece and end in the next.
fn contains(file: &File, mut at: u64, what: &[u8]) -> io::Result<bool> {
    let mut piece = vec![0; CHUNK];
    loop {
        let size = file.read_at(&mut piece, at)?;
        if piece[..size].windows(what.len()).any(|window| window == what) {
            return Ok(true);
        }
        if size < what.len() {
            return Ok(false);
        }
        at += (size - (what.len() - 1)) as u64;
    }
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Output as Ended, Stdio};

    use greenroom_core::container::name::ContainerName;
    use greenroom_ports::dialect::Posix;
    use greenroom_testkit::shells::shells;

    use super::*;

    const MARK: &str = "greenroom-shell-0123456789abcdef-";
    const EXIT: &str = "\u{1e}greenroom-exit-";

    fn acknowledging(ready: &str, ExitMark { mark, joined }: &ExitMark) -> String {
        Posix.first_line_in_container(&ContainerMarks { ready, exit: mark, joined: *joined })
    }

    fn exit_mark(joined: bool) -> ExitMark {
        ExitMark { mark: EXIT.to_owned(), joined }
    }

    fn read_by(sh: &[&str], script: &str) -> Ended {
        let mut reading = Command::new(sh[0])
            .args(&sh[1..])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        reading.stdin.take().unwrap().write_all(script.as_bytes()).unwrap();
        reading.wait_with_output().unwrap()
    }

    #[test]
    fn each_shell_prints_the_mark_and_whether_it_knows_the_quotes() {
        for sh in shells() {
            let script = acknowledging(MARK, &exit_mark(false)) + "echo $? $-; set; exit 3\n";
            let plain = read_by(sh, "echo $? $-; set; exit 3\n");
            let ended = read_by(sh, &script);
            assert_eq!(ended.status.code(), Some(3), "{sh:?}");
            let known = read_by(sh, "case $'x' in x) exit 1;; esac; exit 0\n").status.code().unwrap();
            let said = String::from_utf8_lossy(&ended.stderr);
            assert_eq!(said, format!("{MARK}{known}\n{EXIT}3\n"), "{sh:?}");
            let stdout = ended.stdout.strip_suffix(format!("{EXIT}3\n").as_bytes()).unwrap();
            // Options and variables are those of a script without the line.
            let own = |text: &[u8]| {
                let text = String::from_utf8_lossy(text).into_owned();
                let changing =
                    |line: &&str| !["_=", "PPID=", "BASH", "SECONDS"].iter().any(|v| line.starts_with(v));
                text.lines().filter(changing).map(str::to_owned).collect::<Vec<_>>()
            };
            assert_eq!(own(stdout), own(&plain.stdout), "{sh:?}");
        }
        assert!(
            !acknowledging(MARK, &exit_mark(true)).contains(MARK),
            "what repeats its input does not print the mark"
        );
    }

    #[test]
    fn both_streams_of_a_script_are_one_unless_they_are_to_stay_apart() {
        for sh in shells() {
            for joined in [true, false] {
                let script = acknowledging(MARK, &exit_mark(joined)) + "echo a; echo b >&2; echo c; exit 3\n";
                let ended = read_by(sh, &script);
                let (out, err) =
                    (String::from_utf8_lossy(&ended.stdout), String::from_utf8_lossy(&ended.stderr));
                if joined {
                    let (first, rest) = out.split_once('\n').unwrap();
                    assert!(first.starts_with(MARK), "{sh:?}: {out}");
                    assert_eq!((rest, err.as_ref()), (format!("a\nb\nc\n{EXIT}3\n").as_str(), ""), "{sh:?}");
                } else {
                    assert_eq!(out, format!("a\nc\n{EXIT}3\n"), "{sh:?}");
                    assert!(err.ends_with(&format!("\nb\n{EXIT}3\n")), "{sh:?}: {err}");
                }
            }
        }
    }

    #[test]
    fn a_shell_prints_the_status_that_it_exits_with() {
        for sh in shells() {
            for (script, status) in [
                ("exit 7\n", 7),
                ("false\n", 1),
                ("set -e; false; true\n", 1),
                ("(exit 3); echo $?; (trap 'exit 5' EXIT); exit 130\n", 130),
                ("f() { return 4; }; f\n", 4),
                ("if then\n", 2),
            ] {
                for joined in [true, false] {
                    let exit = exit_mark(joined);
                    let ended = read_by(sh, &(acknowledging(MARK, &exit) + script));
                    let code = ended.status.code().unwrap();
                    let mut lines = ExitLines::new(&exit);
                    lines.feed(Stream::Stdout, &ended.stdout);
                    lines.feed(Stream::Stderr, &ended.stderr);
                    assert_eq!(lines.status(), u32::try_from(code).ok(), "{sh:?} {script}");
                    assert!(code == status || script.starts_with("if"), "{sh:?} {script}: {code}");
                }
            }
            for script in ["exec sh -c 'exit 7'\n", "trap 'echo own' EXIT; exit 7\n", "exec >&-; exit 7\n"] {
                let ended = read_by(sh, &(acknowledging(MARK, &exit_mark(false)) + script));
                assert_eq!(ended.status.code(), Some(7), "{sh:?} {script}");
                assert!(!ended.stdout.contains(&0x1e), "{sh:?} {script}");
            }
        }
    }

    fn stage(script: &str, reader: Reader, open_umask: bool) -> Stage {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(script.as_bytes()).unwrap();
        file.rewind().unwrap();
        let within = std::time::Duration::from_secs(1);
        Stage {
            reader,
            open_umask,
            separate_stderr: true,
            ahead: None,
            script: file,
            start_within: within,
            stop_grace: within,
            container_start: within,
            trace: None,
            last: false,
        }
    }

    fn in_container(script: &str) -> Stage {
        stage(script, Reader::Container(ContainerName::parse("c").unwrap().into()), false)
    }

    fn text(file: &mut File) -> String {
        io::read_to_string(file).unwrap()
    }

    #[test]
    fn only_what_a_stage_needs_comes_before_its_script() {
        let bash = || Reader::Shell(Shell::Bash.into());
        let pwsh = Reader::Shell(Shell::Pwsh.into());
        for (reader, open, expected) in
            [(bash(), false, "id\n"), (bash(), true, "umask 0000\nid\n"), (pwsh, true, "id\n")]
        {
            let mut stage = stage("id\n", reader, open);
            let mut sink = Tail::default();
            AcknowledgedOutput::new(&mut stage, &Posix, &mut sink).unwrap();
            assert_eq!(text(&mut stage.script), expected);
        }
    }

    /// The end of a stage whose container prints this to standard error, and the output.
    async fn ended(
        script: &str,
        say: impl Fn(&str) -> String,
        end: StageEnd,
    ) -> (Result<StageEnd, ConnectError>, String) {
        let mut stage = in_container(script);
        let mut sink = Tail::default();
        let mut acknowledged = AcknowledgedOutput::new(&mut stage, &Posix, &mut sink).unwrap();
        let first = text(&mut stage.script);
        let first = first.strip_suffix(script).unwrap();
        let mark = first.split("echo ").nth(1).unwrap().split("1 >&2").next().unwrap().replace("\"\"", "");
        for byte in say(&mark).as_bytes() {
            acknowledged.write(Stream::Stderr, &[*byte]).await.unwrap();
        }
        let end = acknowledged.end("here".to_owned(), Ok(end)).await;
        (end, sink.text())
    }

    #[tokio::test]
    async fn a_script_that_was_read_ends_with_its_own_status() {
        for status in [0, 1, 125, 126, 127, 255] {
            let say = |mark: &str| format!("Error: an entrypoint\n{mark}1\nfine\n");
            let (end, output) = ended("echo $'x'\n", say, StageEnd::Exited(status)).await;
            assert_eq!(end.unwrap(), StageEnd::Exited(status));
            assert_eq!(output, "Error: an entrypoint\nfine\n");
        }
    }

    #[tokio::test]
    async fn a_script_that_was_not_read_never_succeeds() {
        for said in ["", "hello", "greenroom-shell-", "case $'x' in x) echo greenroom"] {
            let (end, output) = ended("true\n", |_| said.to_owned(), StageEnd::Exited(0)).await;
            assert!(matches!(end.unwrap(), StageEnd::Impossible(_)), "{said}");
            assert_eq!(output, said);
        }
        let (end, _) = ended("true\n", |_| String::new(), StageEnd::Stopped).await;
        assert_eq!(end.unwrap(), StageEnd::Stopped);
        let lost = |_: &str| "Error: no such container".to_owned();
        let (end, _) = ended("true\n", lost, StageEnd::Exited(125)).await;
        assert!(matches!(end, Err(ConnectError::NoContainer { .. })), "{end:?}");
    }

    #[tokio::test]
    async fn a_shell_without_the_quotes_is_named_when_a_script_with_them_fails() {
        let far = format!("{}$'x'\n", "#".repeat(CHUNK - 1));
        for (script, known, status, named) in [
            ("echo $'x'\n", 0, 2, true),
            (&far, 0, 2, true),
            ("echo $'x'\n", 0, 0, false),
            ("echo $'x'\n", 1, 2, false),
            ("exit 2\n", 0, 2, false),
        ] {
            let say = |mark: &str| format!("{mark}{known}\n");
            let (end, output) = ended(script, say, StageEnd::Exited(status)).await;
            assert_eq!(end.unwrap(), StageEnd::Exited(status));
            assert_eq!(output.contains("FF_POSIXLY_CORRECT_ESCAPES"), named, "{output}");
        }
    }
}
