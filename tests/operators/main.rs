//! `pool status`, `pool leaks`, `explain` and `doctor`: the real binary on a real pool.

#![expect(clippy::unwrap_used, clippy::panic, reason = "tests fail by panicking, in helpers too")]

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use greenroom_testkit::pace::await_settled;
use greenroom_testkit::program;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

mod boot;
mod full_disk;
mod init;
mod leaks;
mod metrics;
mod notify;

const PROGRAM: &str = env!("CARGO_BIN_EXE_greenroom");
const DEADLINE: Duration = Duration::from_mins(1);

/// A configuration and a state directory of its own.
struct Home {
    dir: tempfile::TempDir,
    /// Holds the state directory, if it is not that of all tests.
    disk: Option<full_disk::SmallDisk>,
}

/// The result of a command.
#[derive(Debug)]
struct Said {
    code: i32,
    out: String,
    err: String,
}

impl Home {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let config = format!(
            "state_dir = \"{}\"\n[pool.linux]\nmax_instances = 2\nidle_count = 1\n[pool.linux.provider]\n\
             kind = \"local\"\nallow_root = true\n",
            dir.path().join("state").display()
        );
        let home = Self { dir, disk: None };
        fs::write(home.path("greenroom.toml"), config).unwrap();
        fs::set_permissions(home.path("greenroom.toml"), fs::Permissions::from_mode(0o600)).unwrap();
        home
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = match &self.disk {
            Some(disk) => disk.command(self.dir.path()),
            None => program::command(PROGRAM, self.dir.path()),
        };
        command.arg("--config").arg(self.path("greenroom.toml")).args(args).env("TZ", "UTC");
        command
    }

    fn run(&self, args: &[&str]) -> Said {
        let output = self.command(args).output().unwrap();
        Said {
            code: output.status.code().unwrap_or(-1),
            out: String::from_utf8(output.stdout).unwrap(),
            err: String::from_utf8(output.stderr).unwrap(),
        }
    }

    fn json(&self, args: &[&str]) -> Value {
        let said = self.run(args);
        serde_json::from_str(&said.out).unwrap_or_else(|e| panic!("{e}: {said:?}"))
    }

    fn doctor(&self, args: &[&str]) -> Said {
        let runner = self.path("no-such-config.toml").display().to_string();
        self.run(&[&["doctor", "--runner-config", &runner], args].concat())
    }

    /// A keeper of our own, to be ended by us; returns when the pool has its idle instance.
    fn keep(&self) -> Keeper<'_> {
        let log = fs::File::create(self.path("keep.log")).unwrap();
        let child = self.command(&["keep"]).stdout(Stdio::null()).stderr(log).spawn().unwrap();
        let keeper = Keeper { home: Some(self), child };
        self.until("an instance is ready", || self.ready().is_some());
        keeper
    }

    fn ready(&self) -> Option<String> {
        let status = self.json(&["pool", "status", "--json"]);
        let instances = status["pools"][0]["instances"].as_array().cloned().unwrap_or_default();
        let ready = instances.iter().find(|i| i["phase"] == "ready")?;
        Some(ready["instance"].as_str().unwrap().to_owned())
    }

    /// Ends what a keeper left.
    fn empty(&self) {
        let drained = self.run(&["pool", "drain", "--wait"]);
        assert_eq!(drained.code, 0, "{drained:?}");
    }

    fn until(&self, what: &str, mut is_so: impl FnMut() -> bool) {
        let begun = Instant::now();
        while !is_so() {
            let log = || fs::read_to_string(self.path("keep.log")).unwrap_or_default();
            assert!(begun.elapsed() < DEADLINE, "waited for: {what}\n{}", log());
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

/// Ends what it kept, whatever happens to the test.
struct Keeper<'a> {
    /// The home whose pool is emptied before the keeper ends.
    home: Option<&'a Home>,
    child: Child,
}

impl Drop for Home {
    fn drop(&mut self) {
        self.disk = None;
        await_settled(self.dir.path());
    }
}

impl Keeper<'_> {
    /// Ends it, and leaves what it kept.
    fn leave(mut self) {
        self.home = None;
    }
}

impl Drop for Keeper<'_> {
    fn drop(&mut self) {
        if let Some(home) = self.home {
            home.run(&["pool", "drain", "--wait"]);
        }
        signal(&self.child, Signal::TERM);
        self.child.wait().unwrap();
    }
}

fn signal(child: &Child, signal: Signal) {
    kill_process(Pid::from_raw(child.id().cast_signed()).unwrap(), signal).unwrap();
}

fn ended(child: &mut Child) -> ExitStatus {
    ended_in_time(child).expect("the command does not end")
}

/// The exit status of a process; `None`: it still runs after the deadline.
fn ended_in_time(child: &mut Child) -> Option<ExitStatus> {
    let begun = Instant::now();
    loop {
        match child.try_wait().unwrap() {
            None if begun.elapsed() < DEADLINE => std::thread::sleep(Duration::from_millis(10)),
            status => return status,
        }
    }
}

#[test]
fn a_jobs_way_can_be_looked_at_from_all_sides() {
    let home = Home::new();
    let keeper = home.keep();
    let warm = home.ready().unwrap();
    let tried = home.run(&["try"]);
    assert_eq!(tried.code, 0, "{tried:?}");

    let status = home.run(&["pool", "status"]);
    assert_eq!(status.code, 0);
    assert!(status.out.starts_with("pool linux: "), "{status:?}");
    assert!(status.out.contains("\n  keeper: running, last pass "), "{status:?}");
    assert!(!status.out.contains('\u{1b}'), "a pipe gets no escapes: {status:?}");
    assert!(status.out.lines().all(|line| line.chars().count() <= 80), "{}", status.out);

    let pool = home.json(&["explain", "linux", "--json"]);
    assert_eq!(pool["explained"][0]["kind"], "pool");
    let story = home.json(&["explain", &warm, "--json"]);
    let job = story["explained"][0]["events"].as_array().unwrap().iter().find_map(|e| e["job"].as_u64());
    let job = job.unwrap().to_string();
    let told = home.run(&["explain", &job]);
    // Wherever lines are broken.
    let words = told.out.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(words.contains(&format!("job {job} got {warm} after ")), "{words}");
    assert!(words.contains("(warm, idle for "), "{words}");
    assert!(words.contains("it has served its last job"), "{words}");

    let examined = home.doctor(&["--json"]);
    assert_eq!(examined.code, 0, "{examined:?}");
    let examined: Value = serde_json::from_str(&examined.out).unwrap();
    let codes: Vec<&str> =
        examined["findings"].as_array().unwrap().iter().map(|f| f["code"].as_str().unwrap()).collect();
    for expected in ["local-no-isolation", "runner-config-unreadable"] {
        assert!(codes.contains(&expected), "{codes:?}");
    }
    assert!(
        !codes.iter().any(|code| code.starts_with("state-d") && *code != "state-dir-ephemeral"),
        "{codes:?}"
    );
    drop(keeper);
}

#[test]
fn a_keeper_that_was_called_for_a_directory_that_is_gone_makes_no_new_one() {
    let home = Home::new();
    let state = home.path("state");
    let state_dir = state.display().to_string();
    let late = home.run(&["keep", "--background", "--state-dir", &state_dir]);
    assert_eq!(late.code, 0, "{late:?}");
    assert!(!state.exists());
}

#[test]
fn a_watch_goes_on_until_it_is_interrupted() {
    let home = Home::new();
    let mut child = home.command(&["pool", "status", "--watch"]).stdout(Stdio::piped()).spawn().unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
    // The second block begins: it does look again.
    let heads = lines.filter(|line| line.starts_with("pool linux: ")).take(2).count();
    assert_eq!(heads, 2);
    // Its reader is gone by now: it ends by itself, and without an error.
    assert!(ended(&mut child).success());

    let mut child =
        home.command(&["pool", "status", "--watch", "--json"]).stdout(Stdio::piped()).spawn().unwrap();
    let mut out = BufReader::new(child.stdout.take().unwrap());
    let mut line = String::new();
    out.read_line(&mut line).unwrap();
    assert_eq!(serde_json::from_str::<Value>(&line).unwrap()["pools"][0]["pool"], "linux");
    signal(&child, Signal::INT);
    assert!(ended(&mut child).success());
}

/// A full disk is the usual cause.
#[test]
fn a_report_that_cannot_be_written_holds_up_no_termination() {
    let home = Home::new();
    let keeper = home.keep();
    let report = home.path("state/pools/linux/report.json");
    home.until("nothing can take the report's place", || {
        // RACE: the keeper may write it once more.
        fs::remove_file(&report).ok();
        fs::create_dir_all(report.join("in the way")).is_ok()
    });
    let mut drain = home.command(&["pool", "drain", "--wait"]).stdout(Stdio::null()).spawn().unwrap();
    let status = ended_in_time(&mut drain);
    // Before a failure: the keeper is ended by draining its pool.
    fs::remove_dir_all(&report).unwrap();
    drop(keeper);
    drain.wait().unwrap();
    assert!(status.is_some_and(|status| status.success()), "not drained within {DEADLINE:?}");
    let log = fs::read_to_string(home.path("keep.log")).unwrap();
    assert!(log.contains("cannot write the report of this pass"), "{log}");
}

fn damage(state: &Path) {
    let journal = state.join("pools/linux/journal.jsonl");
    let text = fs::read_to_string(&journal).unwrap();
    assert!(text.contains("launch-answered"), "{text}");
    fs::write(&journal, text.replacen("launch-answered", "launch-ansWered", 1)).unwrap();
}

#[test]
fn damage_is_shown_explained_and_mended() {
    let home = Home::new();
    drop(home.keep());
    damage(&home.path("state"));

    let status = home.run(&["pool", "status"]);
    assert_eq!(status.code, 1);
    assert!(
        status.out.contains("its state cannot be read") && status.out.contains("greenroom doctor"),
        "{status:?}"
    );
    let status = home.run(&["pool", "status", "--json"]);
    assert_eq!(status.code, 1);
    assert!(status.out.contains("\"error\": "), "{status:?}");
    let told = home.run(&["explain", "linux"]);
    assert!(told.out.contains("  unreadable: "), "{told:?}");

    let found = home.doctor(&[]);
    assert_eq!(found.code, 1);
    assert!(found.out.starts_with("error [state-damaged]: "), "{found:?}");
    assert!(found.out.contains("`greenroom doctor --repair`"), "{found:?}");
    let mended = home.doctor(&["--repair"]);
    assert!(mended.out.starts_with("repaired: pool `linux`: "), "{mended:?}");
    assert!(!mended.out.contains("state-damaged"), "{mended:?}");
    assert_eq!(home.run(&["pool", "status"]).code, 0);
}

#[test]
fn unknown_names_are_answered_with_the_nearest_and_a_status_of_1_or_2() {
    let home = Home::new();
    let unknown = home.run(&["explain", "linus"]);
    assert_eq!((unknown.code, unknown.out.as_str()), (1, ""));
    assert!(unknown.err.contains("did you mean `linux`?"), "{unknown:?}");
    let no_pool = home.run(&["pool", "status", "linus"]);
    assert_eq!(no_pool.code, 2);
    assert_eq!(no_pool.err, "error: there is no pool `linus`\nhelp: did you mean `linux`?\n");
}

/// The keeper has the runner's response and the keys of its instances in memory.
#[test]
fn a_keeper_leaves_no_core_dump() {
    let home = Home::new();
    let keeper = home.keep();
    let limits = fs::read_to_string(format!("/proc/{}/limits", keeper.child.id())).unwrap();
    let core = limits.lines().find_map(|line| line.strip_prefix("Max core file size")).unwrap();
    let [soft, hard, _] = core.split_whitespace().collect::<Vec<_>>()[..] else { panic!("{limits}") };
    assert!(soft == "1" || hard == "0", "{limits}");
}
