//! Kill -9 at every system call, every crash point and every byte.

use std::collections::BTreeSet;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::Output;

use greenroom_core::pool::PoolState;
use greenroom_manager::file_store::Options;
use greenroom_ports::store::{OperatorStore as _, Store};
use greenroom_testkit::faulty::said;
use greenroom_testkit::write_errors::{Call, calls_in, ptrace_works};

use super::helper::{command, run};
use super::support::{block_on, commit, eager, file, fill, open, request, told};

/// A directory before the helper runs, and the helper's command.
pub(super) struct Scene {
    pub(super) name: &'static str,
    pub(super) order: &'static str,
    pub(super) prepare: fn(&Path),
    /// True if the state may contain the helper's request.
    pub(super) commits: bool,
}

pub(super) const SCENES: [Scene; 6] = [
    Scene { name: "the first commit of all", order: "request killed", prepare: |_| (), commits: true },
    Scene { name: "a commit", order: "request killed", prepare: lived_in, commits: true },
    Scene { name: "a commit that cuts a torn tail", order: "request killed", prepare: torn, commits: true },
    Scene { name: "the first compaction", order: "compact -", prepare: young, commits: false },
    Scene { name: "a compaction", order: "compact -", prepare: lived_in, commits: false },
    Scene { name: "a repair", order: "repair -", prepare: rotten, commits: false },
];

fn young(dir: &Path) {
    fill(&open(dir, eager()), "young", 3);
}

fn lived_in(dir: &Path) {
    for round in ["a", "b"] {
        let store = open(dir, eager());
        fill(&store, round, 3);
        block_on(store.compact()).unwrap();
    }
    fill(&open(dir, eager()), "c", 3);
}

fn torn(dir: &Path) {
    lived_in(dir);
    let path = file(dir, "journal.jsonl");
    let mut bytes = std::fs::read(&path).unwrap();
    bytes.extend_from_slice(b"{\"crc\":\"12345678\",\"n\":10,\"ev");
    std::fs::write(&path, bytes).unwrap();
}

fn rotten(dir: &Path) {
    lived_in(dir);
    let path = file(dir, "journal.jsonl");
    let mut bytes = std::fs::read(&path).unwrap();
    let second_record = bytes.iter().enumerate().filter(|(_, b)| **b == b'\n').nth(1).unwrap().0 + 1;
    bytes[second_record + 30] ^= 1;
    std::fs::write(&path, bytes).unwrap();
}

/// The state and the history that a scene must lead to, whenever the helper dies: before or after its commit.
pub(super) struct Expected {
    states: Vec<PoolState>,
    told: Vec<Vec<String>>,
}

impl Scene {
    pub(super) fn expected(&self) -> Expected {
        let home = tempfile::tempdir().unwrap();
        (self.prepare)(home.path());
        let mut expected = Expected { states: Vec::new(), told: Vec::new() };
        let mut note = || {
            let store = open(home.path(), eager());
            block_on(store.repair()).unwrap();
            expected.states.push(block_on(store.load()).unwrap());
            expected.told.push(told(&store));
            store
        };
        let store = note();
        if self.commits {
            block_on(commit(&store, vec![request("killed", 1)])).unwrap();
            note();
        }
        expected
    }

    /// Checks after the helper's end, however it came. Returns whether its request is in the state.
    pub(super) fn judge(&self, dir: &Path, expected: &Expected, how: &str) -> bool {
        let store = open(dir, eager());
        let where_ = format!("{}, {how}", self.name);
        block_on(async {
            store.repair().await.unwrap_or_else(|e| panic!("{where_}: {e}"));
            let state = store.load().await.unwrap_or_else(|e| panic!("{where_}: {e}"));
            let which = expected.states.iter().position(|s| *s == state);
            let which = which.unwrap_or_else(|| panic!("{where_}: {state:#?}"));
            assert_eq!(told(&store), expected.told[which], "{where_}");
            // The store keeps working, through commits, compactions and other processes.
            let next = commit(&store, vec![request("next", 2)]).await.unwrap().state;
            store.compact().await.unwrap();
            let last = commit(&store, vec![request("last", 3)]).await.unwrap().state;
            assert_eq!(last.revision, next.revision + 1, "{where_}");
            assert_eq!(open(dir, eager()).load().await.unwrap(), last, "{where_}");
            let history = [expected.told[which].clone(), vec!["next".to_owned(), "last".to_owned()]].concat();
            assert_eq!(told(&store), history, "{where_}");
            assert!(store.verify().await.unwrap().damage.is_none(), "{where_}");
            which > 0
        })
    }
}

/// System calls of one scene, between its marks.
pub(super) fn calls(scene: &Scene) -> Vec<Call> {
    let home = tempfile::tempdir().unwrap();
    let trace = home.path().join("trace");
    let dir = home.path().join("state");
    (scene.prepare)(&dir);
    let output = command(
        &["strace", "-f", "-y", "-qq", "-s", "256", "-o", trace.to_str().unwrap()],
        &dir,
        scene.order,
    )
    .output();
    assert_eq!(said(&output.unwrap().stdout), ["done"], "{}", scene.name);
    calls_in(&std::fs::read_to_string(&trace).unwrap(), &dir)
}

/// Runs a scene in a new directory, with a fault that strace injects.
pub(super) fn injected(scene: &Scene, dir: &Path, fault: &[&str]) -> Output {
    (scene.prepare)(dir);
    let launcher = [&["strace", "-f", "-qq", "-o", "/dev/null"], fault].concat();
    command(&launcher, dir, scene.order).output().unwrap()
}

#[test]
fn a_process_killed_at_any_system_call_loses_nothing_and_leaves_nothing_half_done() {
    if !ptrace_works() {
        return;
    }
    for scene in &SCENES {
        let expected = scene.expected();
        let calls: BTreeSet<_> = calls(scene).into_iter().map(|call| (call.name, call.nth)).collect();
        let (mut killed, mut done) = (0, 0);
        for (name, nth) in &calls {
            let home = tempfile::tempdir().unwrap();
            let (trace, inject) = (format!("trace={name}"), format!("inject={name}:signal=KILL:when={nth}"));
            let output = injected(scene, home.path(), &["-e", &trace, "-e", &inject]);
            // strace dies of the signal its tracee died of.
            killed += usize::from(output.status.signal() == Some(9));
            done += usize::from(scene.judge(home.path(), &expected, &format!("killed at {name} {nth}")));
        }
        println!(
            "{}: killed by strace at {killed} of {} system calls, {done} had committed",
            scene.name,
            calls.len()
        );
        assert!(
            killed * 10 >= calls.len() * 8 && killed >= 10,
            "{}: {killed} of {}",
            scene.name,
            calls.len()
        );
        assert!(!scene.commits || (0 < done && done < calls.len()), "{}: {done} committed", scene.name);
    }
}

#[cfg(feature = "crash-points")]
#[test]
fn a_process_killed_at_any_crash_point_loses_nothing_and_leaves_nothing_half_done() {
    const POINTS: [&str; 15] = [
        "store.locked",
        "store.journal.opened",
        "store.cut.saved",
        "store.cut.done",
        "store.append.before",
        "store.append.after",
        "store.compact.snapshot-written",
        "store.compact.journal-written",
        "store.compact.locked",
        "store.compact.snapshot-renamed",
        "store.compact.segment-linked",
        "store.compact.journal-renamed",
        "store.repair.saved",
        "store.repair.snapshot-renamed",
        "store.repair.journal-renamed",
    ];
    let mut reached = BTreeSet::new();
    for scene in &SCENES {
        let expected = scene.expected();
        for point in POINTS {
            let home = tempfile::tempdir().unwrap();
            (scene.prepare)(home.path());
            let output =
                command(&[], home.path(), scene.order).env("GREENROOM_CRASH", point).output().unwrap();
            if output.status.signal() == Some(9) {
                reached.insert(point);
                scene.judge(home.path(), &expected, point);
            } else {
                assert_eq!(said(&output.stdout), ["done"], "{}, {point}", scene.name);
            }
        }
    }
    assert_eq!(
        reached.into_iter().collect::<Vec<_>>().len(),
        POINTS.len(),
        "every crash point lies on some way"
    );
    println!("killed at {} crash points in {} scenes", POINTS.len(), SCENES.len());
}

#[test]
fn a_process_killed_after_any_byte_of_a_record_leaves_a_tail_that_is_cut() {
    let home = tempfile::tempdir().unwrap();
    let store = open(home.path(), Options::default());
    let before = fill(&store, "r", 2);
    let size = std::fs::metadata(file(home.path(), "journal.jsonl")).unwrap().len();
    let mut torn = 0;
    // The kernel kills the helper when its record has reached the limit, so each length of a tail is a real one.
    for k in 0.. {
        let output = run(home.path(), &format!("die-at {}", size + k));
        if said(&output.stdout) == ["survived"] {
            break;
        }
        assert_eq!(output.status.signal(), Some(25), "{}", String::from_utf8_lossy(&output.stderr));
        // The helper first truncates what the previous one left, so lengths stay as they are.
        assert_eq!(std::fs::metadata(file(home.path(), "journal.jsonl")).unwrap().len(), size + k);
        assert_eq!(block_on(store.load()).unwrap(), before, "after {k} bytes");
        torn = k;
    }
    let state = block_on(store.load()).unwrap();
    assert_eq!(state.revision, before.revision + 2);
    println!("killed by SIGXFSZ after each of {torn} bytes of a record");
    assert!(torn > 400);
}

#[test]
fn a_write_cut_short_at_any_byte_is_an_error_and_leaves_the_journal_as_it_was() {
    let home = tempfile::tempdir().unwrap();
    let output = run(home.path(), "cut-short -");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
    println!("cut short by RLIMIT_FSIZE: {}", said(&output.stdout).join(", "));
    let state = block_on(open(home.path(), eager()).load()).unwrap();
    assert_eq!(super::support::requests(&state), ["first", "first-too", "second", "second-too"]);
}
