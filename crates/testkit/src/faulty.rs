//! Actions in a process of their own, in which each system call that writes fails in turn, or writes a part.
//!
//! The process is this test binary again. It prepares, says that it is ready, and acts when strace is attached: names of
//! temporary files are random, so a call is known by its count since then, not by its file.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::io::{BufRead as _, BufReader, IoSlice, Read as _, Write as _};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{PTracer, Resource, Rlimit, set_ptracer, setrlimit};
use tempfile::TempDir;

use crate::write_errors::{BEGIN, Call, END, TABLE, calls_in, ptrace_works};

const ORDER: &str = "GREENROOM_FAULTY_ACTION";
/// The largest size of a file that the process may write, in bytes. The write that exceeds it is a short one; the next
/// one fails, as on a disk that has become full in between.
const LARGEST: &str = "GREENROOM_FAULTY_LARGEST";
/// The system's text for a file that would be larger.
const TOO_LARGE: &str = "File too large";
/// The directory of an action, within a temporary one.
const PLACE: &str = "place";
/// An action that takes longer hangs.
const DEADLINE: Duration = Duration::from_mins(2);

/// An action of the code under test on files in a directory.
#[derive(Debug)]
pub struct Action {
    pub name: &'static str,
    /// Makes the files that exist before the action.
    pub prepare: fn(&Path),
    /// Gets everything ready, calls the function it is given, and acts.
    pub act: fn(&Path, &dyn Fn()) -> Result<(), String>,
    /// Checks what readers find afterwards, and that the action can be repeated.
    pub judge: fn(&Path, &Ended),
}

/// The end of an [`Action`] with a fault.
#[derive(Debug)]
pub struct Ended {
    /// True if it returned no error.
    pub is_done: bool,
    /// The system call that failed.
    call: String,
    /// A description of the fault, for messages.
    pub how: String,
}

impl Ended {
    /// Checks that a folder has no temporary files. A removal that failed may leave one.
    pub fn no_remains(&self, folder: &Path, is_temporary: impl Fn(&str) -> bool) {
        let mut left = listed(folder);
        left.retain(|name| is_temporary(name));
        assert!(left.is_empty() || self.call.starts_with("unlink"), "{}: {left:?} is left", self.how);
    }
}

/// The names of a folder's entries; none if the folder is missing.
pub fn listed(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let mut names: Vec<_> =
        entries.map(|entry| entry.file_name().into_string().expect("a plain name")).collect();
    names.sort();
    names
}

/// The process's part: runs the action that the environment names, if it names one.
#[expect(
    clippy::exit,
    reason = "the fault may meet whatever writes after the action, such as the test harness"
)]
pub fn act(actions: &[Action]) {
    let Ok(order) = std::env::var(ORDER) else { return };
    let (name, dir) = order.split_once('\t').expect("an action and its directory");
    let action = actions.iter().find(|action| action.name == name).expect("an action of that name");
    let begin = || {
        // Where only ancestors may trace, strace beside this process may do it too.
        let _allowed = set_ptracer(PTracer::Any);
        say("ready");
        std::io::stdin().read_line(&mut String::new()).expect("the word to begin");
        if let Some(largest) = std::env::var(LARGEST).ok().and_then(|text| text.parse().ok()) {
            let limit = Rlimit { current: Some(largest), maximum: None };
            setrlimit(Resource::Fsize, limit).expect("a limit");
        }
        let _mark = std::fs::metadata(BEGIN);
    };
    let done = (action.act)(Path::new(dir), &begin);
    let _mark = std::fs::metadata(END);
    say(&done.err().unwrap_or_else(|| "done".to_owned()));
    std::process::exit(0);
}

/// Prints a message by a system call that no row of the table has.
fn say(what: &str) {
    let line = format!("@@ {what}\n");
    let said = rustix::io::writev(rustix::stdio::stdout(), &[IoSlice::new(line.as_bytes())]);
    assert_eq!(said.ok(), Some(line.len()), "the test listens");
}

/// The helper's messages: the lines after `@@ `.
pub fn said(output: &[u8]) -> Vec<String> {
    let text = String::from_utf8_lossy(output);
    text.lines().filter_map(|l| l.split_once("@@ ")).map(|(_, said)| said.to_owned()).collect()
}

/// The faults of an [`Action`]: how many there were, and how many it reported.
#[derive(Debug, Default)]
pub struct Tally {
    pub tried: usize,
    pub reported: usize,
    /// The number of short writes among the faults.
    short: usize,
    /// The counts for each error, for the test's output.
    pub text: String,
}

/// Runs actions with each error of the table in each of their calls, where strace works. `helper` is the test that
/// calls `act`; `expect` judges an action's tally.
pub fn with_each_error(helper: &str, actions: &[Action], expect: impl Fn(&Action, &Tally)) {
    if !ptrace_works() {
        return;
    }
    let mut short = 0;
    for action in actions {
        let tally = tallied(helper, action);
        short += tally.short;
        expect(action, &tally);
    }
    assert!(short > 0, "no short write is reported");
}

fn tallied(helper: &str, action: &Action) -> Tally {
    let home = tempfile::tempdir().expect("a directory");
    let dir = home.path().join(PLACE);
    (action.prepare)(&dir);
    let ran = run(helper, action, &dir, &[]);
    assert_eq!(ran.said, "done", "{}: {}", action.name, ran.stderr);
    let calls = calls_in(&ran.trace, &dir);
    let mut tally = Tally::default();
    let mut text = Vec::new();
    for row in &TABLE {
        // Calls of two threads may have the same number: the fault meets the first of them.
        let places: BTreeMap<_, &Call> =
            row.places(&calls).map(|call| ((&call.name, call.nth), call)).collect();
        let mut tried = 0;
        let mut reported = 0;
        for ((name, nth), call) in places {
            let inject = format!("inject={name}:error={}:when={nth}", row.error);
            let how = format!("{}, {} of {name} {nth} on {:?}", action.name, row.error, call.files);
            let (home, ran) = run_until_met(helper, action, &["-e", &inject]);
            let dir = home.path().join(PLACE);
            assert!(ran.status.success() && !ran.said.is_empty(), "{how}: {}\n{}", ran.said, ran.stderr);
            assert!(ran.trace.contains("(INJECTED)"), "{how}: no such call\n{}", ran.trace);
            let is_done = ran.said == "done";
            assert!(is_done || row.is_told(&ran.said), "{how}: {}", ran.said);
            (action.judge)(&dir, &Ended { is_done, call: name.clone(), how });
            tried += 1;
            reported += usize::from(!is_done);
        }
        text.push(format!("{reported} of {tried} {}", row.error));
        tally.tried += tried;
        tally.reported += reported;
    }
    let sizes = sizes(&dir);
    for largest in &sizes {
        tally.short += usize::from(!with_short_write(helper, action, *largest));
    }
    text.push(format!("{} of {} short writes", tally.short, sizes.len()));
    tally.text = format!("{}: {} are reported", action.name, text.join(", "));
    tally
}

/// Sizes that a file may not exceed: one byte, and each file that an action has left, but for its last byte.
fn sizes(dir: &Path) -> BTreeSet<u64> {
    let mut sizes = BTreeSet::from([1]);
    for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
        match entry.metadata().expect("it was listed") {
            found if found.is_dir() => sizes.extend(self::sizes(&entry.path())),
            found if found.is_file() && found.len() > 1 => {
                sizes.insert(found.len() - 1);
            }
            _ => {}
        }
    }
    sizes
}

/// Runs an action in which no file may exceed a size. True if it reported no error.
fn with_short_write(helper: &str, action: &Action, largest: u64) -> bool {
    let how = format!("{}, at most {largest} bytes in a file", action.name);
    let home = tempfile::tempdir().expect("a directory");
    let dir = home.path().join(PLACE);
    (action.prepare)(&dir);
    let mut command = command(helper, action, &dir, &["sh", "-c", "trap '' XFSZ; exec \"$@\"", "sh"]);
    let mut child = command.env(LARGEST, largest.to_string()).spawn().expect("a shell starts");
    let mut out = BufReader::new(child.stdout.take().expect("it is piped"));
    wait_until_ready(&mut out);
    let ran = finish(action, child, out);
    assert!(ran.status.success() && !ran.said.is_empty(), "{how}: {}\n{}", ran.said, ran.stderr);
    let is_done = ran.said == "done";
    assert!(is_done || ran.said.contains(TOO_LARGE), "{how}: {}", ran.said);
    (action.judge)(&dir, &Ended { is_done, call: "write".to_owned(), how });
    is_done
}

/// Runs an action until its fault meets a call. Calls are counted by thread, and on a busy machine another thread may
/// make the call.
fn run_until_met(helper: &str, action: &Action, fault: &[&str]) -> (TempDir, Ran) {
    let mut tries = 0;
    loop {
        let home = tempfile::tempdir().expect("a directory");
        let dir = home.path().join(PLACE);
        (action.prepare)(&dir);
        let ran = run(helper, action, &dir, fault);
        tries += 1;
        if tries == 5 || ran.trace.contains("(INJECTED)") {
            return (home, ran);
        }
    }
}

/// The outputs, the trace and the exit status of the process of an [`Action`].
struct Ran {
    said: String,
    stderr: String,
    trace: String,
    status: ExitStatus,
}

fn run(helper: &str, action: &Action, dir: &Path, fault: &[&str]) -> Ran {
    let trace = dir.with_file_name("trace");
    let mut child = command(helper, action, dir, &[]).spawn().expect("this executable starts");
    let mut out = BufReader::new(child.stdout.take().expect("it is piped"));
    wait_until_ready(&mut out);
    let mut strace = Command::new("strace")
        .args(["-f", "-y", "-s", "256", "-o"])
        .arg(&trace)
        .args(fault)
        .args(["-p", &child.id().to_string()])
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("strace starts");
    wait_until("strace is attached", &mut child, |child| {
        assert!(strace.try_wait().expect("a child of ours").is_none(), "strace cannot attach");
        is_traced(child.id()).then_some(())
    });
    let ran = finish(action, child, out);
    strace.wait().expect("a child of ours");
    Ran { trace: std::fs::read_to_string(&trace).expect("the trace"), ..ran }
}

/// The process of an action, started by another program if there is one.
fn command(helper: &str, action: &Action, dir: &Path, starter: &[&str]) -> Command {
    let program = std::env::current_exe().expect("this executable has a path");
    let mut command = Command::new(starter.first().map_or(program.as_os_str(), OsStr::new));
    command.args(starter.iter().skip(1)).args((!starter.is_empty()).then_some(&program));
    command.args(["--exact", helper, "--ignored", "--nocapture", "--test-threads=1", "-q"]);
    command.env(ORDER, format!("{}\t{}", action.name, dir.display())).env_remove("GREENROOM_CRASH");
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// Lets the process act, and waits for its end.
fn finish(action: &Action, mut child: Child, mut out: BufReader<ChildStdout>) -> Ran {
    child.stdin.take().expect("it is piped").write_all(b"\n").expect("it reads");
    let status = wait_until(action.name, &mut child, |child| child.try_wait().expect("a child of ours"));
    let mut printed = Vec::new();
    let mut stderr = String::new();
    out.read_to_end(&mut printed).expect("its output");
    child.stderr.take().expect("it is piped").read_to_string(&mut stderr).expect("its errors");
    Ran { said: said(&printed).join("\n"), stderr, trace: String::new(), status }
}

fn wait_until_ready(out: &mut BufReader<ChildStdout>) {
    let mut line = String::new();
    while !line.ends_with("@@ ready\n") {
        assert!(out.read_line(&mut line).expect("its output") > 0, "it was never ready: {line}");
    }
}

/// Polls; kills the process and fails after a timeout.
fn wait_until<T>(what: &str, child: &mut Child, mut good: impl FnMut(&mut Child) -> Option<T>) -> T {
    let end = Instant::now() + DEADLINE;
    loop {
        if let Some(found) = good(child) {
            return found;
        }
        if Instant::now() >= end {
            child.kill().expect("it lives");
        }
        assert!(Instant::now() < end, "it hangs: {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// True if every thread of a process has a tracer.
fn is_traced(pid: u32) -> bool {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).expect("its threads");
    tasks.flatten().all(|task| {
        let status = std::fs::read_to_string(task.path().join("status")).unwrap_or_default();
        status.lines().any(|line| line.strip_prefix("TracerPid:").is_some_and(|pid| pid.trim() != "0"))
    })
}
