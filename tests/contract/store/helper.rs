//! Processes of their own: this test binary again, with a command in its environment.

use std::io::{Read, Write};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use greenroom_manager::file_store::{FileStore, Options, open_dir};
use greenroom_ports::store::{OperatorStore as _, Store};
use greenroom_testkit::faulty::said;
use greenroom_testkit::write_errors::{BEGIN, END};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use super::support::{block_on, commit, eager, file, pool, request};

const ORDER: &str = "GREENROOM_STORE_HELPER";
const NAME: &str = "store::helper::a_process_of_its_own";

/// Arguments that make this binary a helper; the command is in the environment.
pub(super) fn command(launcher: &[&str], dir: &Path, order: &str) -> Command {
    let binary = std::env::current_exe().unwrap();
    let mut command = match launcher {
        [] => Command::new(&binary),
        [program, arguments @ ..] => {
            let mut command = Command::new(program);
            command.args(arguments).arg(&binary);
            command
        }
    };
    command.args(["--exact", NAME, "--ignored", "--nocapture", "--test-threads=1", "-q"]);
    command.env(ORDER, format!("{order} {}", dir.display())).env_remove("GREENROOM_CRASH");
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

pub(super) fn run(dir: &Path, order: &str) -> Output {
    command(&[], dir, order).output().unwrap()
}

/// Reads a child's output until it contains `what`.
pub(super) fn wait_for(child: &mut Child, what: &str) {
    let (mut heard, mut byte) = (Vec::new(), [0]);
    let out = child.stdout.as_mut().unwrap();
    while !said(&heard).iter().any(|s| s == what) {
        assert_eq!(
            out.read(&mut byte).unwrap(),
            1,
            "`{what}` was not said: {}",
            String::from_utf8_lossy(&heard)
        );
        heard.push(byte[0]);
    }
}

fn say(what: &str) {
    let mut out = std::io::stdout().lock();
    writeln!(out, "@@ {what}").unwrap();
    out.flush().unwrap();
}

#[test]
#[ignore = "a helper process of other tests"]
fn a_process_of_its_own() {
    let Ok(order) = std::env::var(ORDER) else { return };
    let mut words = order.splitn(3, ' ');
    let (what, argument, dir) = (words.next().unwrap(), words.next().unwrap(), words.next().unwrap());
    let dir = Path::new(dir);
    match what {
        "open" => match open_dir(dir) {
            Ok(state) => say(&state.warning().map_or_else(|| "fine".to_owned(), ToString::to_string)),
            Err(e) => say(&e.to_string()),
        },
        "request" => {
            report(dir, |store| async move { commit(&store, vec![request(argument, 1)]).await.map(drop) });
        }
        "compact" => report(dir, |store| async move { store.compact().await }),
        "sync" => report(dir, |store| async move { store.sync().await }),
        "repair" => report(dir, |store| async move { store.repair().await.map(drop) }),
        "load" => report(dir, |store| async move { store.load().await.map(drop) }),
        "gate" => gate(dir, argument),
        "hold" => hold(dir),
        "cut-short" => cut_short(dir),
        "fill-up" => fill_up(dir),
        "die-at" => die_at(dir, argument),
        other => panic!("unknown order `{other}`"),
    }
}

/// Runs one action between the marks and reports its result.
fn report<F: Future<Output = Result<(), greenroom_ports::store::StoreError>>>(
    dir: &Path,
    work: impl FnOnce(FileStore) -> F,
) {
    let store = match open_dir(dir).and_then(|state| state.pool(&pool(), eager())) {
        Ok(store) => store,
        Err(e) => return say(&e.to_string()),
    };
    let done = block_on(async {
        let _mark = std::fs::metadata(BEGIN);
        let done = work(store).await;
        let _mark = std::fs::metadata(END);
        done
    });
    say(&done.map_or_else(|e| e.to_string(), |()| "done".to_owned()));
}

/// Microseconds on a clock that all processes share.
pub(super) fn clock() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    now.tv_sec.unsigned_abs() * 1_000_000 + now.tv_nsec.unsigned_abs() / 1000
}

/// Waits for the start signal, then commits once. Reports when it was done, by `clock`.
fn gate(dir: &Path, name: &str) {
    let store =
        super::support::open(dir, Options { lock_timeout: Duration::from_mins(2), ..Options::default() });
    block_on(async {
        say("ready");
        std::io::stdin().read_to_end(&mut Vec::new()).unwrap();
        commit(&store, vec![request(name, 1)]).await.unwrap();
        say(&clock().to_string());
    });
}

/// Holds the lock until its input ends.
fn hold(dir: &Path) {
    let store = super::support::open(dir, eager());
    block_on(async {
        let decide = &mut |_: &_| {
            say("held");
            std::io::stdin().read_to_end(&mut Vec::new()).unwrap();
            Vec::new()
        };
        store.transact(decide).await.unwrap();
    });
}

fn limit_file_size(bytes: Option<u64>) {
    let maximum = getrlimit(Resource::Fsize).maximum;
    setrlimit(Resource::Fsize, Rlimit { current: bytes, maximum }).unwrap();
}

fn journal_size(dir: &Path) -> u64 {
    std::fs::metadata(file(dir, "journal.jsonl")).map_or(0, |m| m.len())
}

/// The kernel takes only `k` bytes of a record, for every `k` in turn, and refuses the rest.
fn cut_short(dir: &Path) {
    block_on(async {
        let exceeded = tokio::signal::unix::SignalKind::from_raw(25); // SIGXFSZ would end the process
        let _survive = tokio::signal::unix::signal(exceeded).unwrap();
        let store = super::support::open(dir, Options::default());
        for first in [true, false] {
            let (name, before) = (if first { "first" } else { "second" }, journal_size(dir));
            let state = store.load().await.unwrap();
            for k in 0.. {
                limit_file_size(Some(before + k));
                let tried = commit(&store, vec![request(name, 1), request(&format!("{name}-too"), 2)]).await;
                limit_file_size(None);
                let Err(error) = tried else {
                    say(&format!("{name} fits {k}"));
                    break;
                };
                assert!(error.to_string().contains("cannot record a transaction in"), "{error}");
                assert_eq!(journal_size(dir), before, "{k} bytes of {name}");
                assert_eq!(store.load().await.unwrap(), state);
            }
        }
    });
}

/// The kernel kills the process when a file reaches the size.
fn die_at(dir: &Path, size: &str) {
    let store = super::support::open(dir, Options::default());
    limit_file_size(Some(size.parse().unwrap()));
    block_on(commit(&store, vec![request("torn", 5), request("torn-too", 6)])).unwrap();
    say("survived");
}

/// Commits on a small file system until it is full, then makes room.
fn fill_up(dir: &Path) {
    block_on(async {
        let store = super::support::open(dir, eager());
        let ballast = dir.join("ballast");
        commit(&store, vec![request("before", 1)]).await.unwrap();
        let _full = std::fs::write(&ballast, vec![0; 1 << 20]).unwrap_err();
        let mut before = store.load().await.unwrap();
        // Started pages still have room: a full disk can occur at any byte of a record.
        let error = loop {
            let name = format!("r{}", before.revision);
            match commit(&store, vec![request(&name, before.revision)]).await {
                Ok(done) => before = done.state,
                Err(error) => break error.to_string(),
            }
            let _full =
                std::fs::OpenOptions::new().append(true).open(&ballast).unwrap().write(&vec![0; 1 << 20]);
        };
        assert!(error.contains("No space left on device"), "{error}");
        let fresh = || super::support::open(dir, eager());
        assert_eq!(fresh().load().await.unwrap(), before);
        let error = store.compact().await.unwrap_err().to_string();
        assert!(error.contains("No space left on device"), "{error}");
        assert_eq!(fresh().load().await.unwrap(), before);
        let full_after = before.revision;

        std::fs::remove_file(&ballast).unwrap();
        let after = commit(&store, vec![request("room", 1)]).await.unwrap().state;
        store.compact().await.unwrap();
        assert_eq!(fresh().load().await.unwrap(), after);
        assert_eq!(after.revision, full_after + 1);
        assert!(store.verify().await.unwrap().damage.is_none());
        say(&format!("full after {full_after} records"));
    });
}
