//! Concurrent commits: nothing is lost, and no wait is endless.

use std::process::Stdio;
use std::time::{Duration, Instant};

use greenroom_manager::file_store::Options;
use greenroom_ports::store::{Store, StoreError};
use greenroom_testkit::faulty::said;

use super::helper::{clock, command, wait_for};
use super::support::{block_on, commit, eager, fill, open, request, requests, told};

/// `count` processes are released at the same moment; each commits once. Returns how long after that moment each was
/// done, in microseconds, in order.
fn stampede(dir: &std::path::Path, count: usize) -> Vec<u64> {
    let (gate, opener) = std::io::pipe().unwrap();
    let mut children: Vec<_> = (0..count)
        .map(|i| {
            let mut helper = command(&[], dir, &format!("gate p{i:03}"));
            helper.stdin(Stdio::from(gate.try_clone().unwrap())).spawn().unwrap()
        })
        .collect();
    for child in &mut children {
        wait_for(child, "ready");
    }
    let begun = clock();
    drop((gate, opener));
    let mut each = Vec::new();
    for child in children {
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        each.extend(said(&output.stdout).iter().filter_map(|s| Some(s.parse::<u64>().ok()? - begun)));
    }
    assert_eq!(each.len(), count);
    each.sort_unstable();
    each
}

#[test]
fn two_hundred_processes_commit_at_once_and_no_event_is_lost() {
    let home = tempfile::tempdir().unwrap();
    let store = open(home.path(), Options::default());
    let each = stampede(home.path(), 200);
    let state = block_on(store.load()).unwrap();
    let expected: Vec<String> = (0..200).map(|i| format!("p{i:03}")).collect();
    assert_eq!(requests(&state), expected);
    assert_eq!(state.revision, 200);
    let mut history = told(&store);
    history.sort_unstable();
    assert_eq!(history, expected);

    let (median, slowest) = (each[each.len() / 2], each[each.len() - 1]);
    println!("200 processes at once: median done after {median} µs, slowest after {slowest} µs");
    if std::env::var_os("GREENROOM_FIGURES").is_some() {
        assert!(slowest <= 1_000_000, "all commits within 1 s, the slowest took {slowest} µs");
        assert!(slowest <= 3 * median, "the slowest ({slowest} µs) at most 3 × the median ({median} µs)");
    }
}

#[test]
fn committing_while_the_keeper_compacts_loses_nothing() {
    let home = tempfile::tempdir().unwrap();
    let keeper = open(home.path(), eager());
    let children: Vec<_> =
        (0..30).map(|i| command(&[], home.path(), &format!("request c{i:02}")).spawn().unwrap()).collect();
    let reader = open(home.path(), eager());
    block_on(async {
        let deadline = Instant::now() + Duration::from_mins(1);
        let mut revision = 0;
        while revision < 30 {
            keeper.compact().await.unwrap();
            keeper.sync().await.unwrap();
            let now = reader.load().await.unwrap().revision;
            assert!(now >= revision, "the state went back from {revision} to {now}");
            revision = now;
            assert!(Instant::now() < deadline, "{revision} of 30 after a minute");
        }
    });
    for child in children {
        assert_eq!(said(&child.wait_with_output().unwrap().stdout), ["done"]);
    }
    let expected: Vec<String> = (0..30).map(|i| format!("c{i:02}")).collect();
    assert_eq!(requests(&block_on(open(home.path(), eager()).load()).unwrap()), expected);
    let mut history = told(&keeper);
    history.sort_unstable();
    assert_eq!(history, expected);
}

#[test]
fn two_keepers_that_compact_at_once_do_each_other_no_harm() {
    let home = tempfile::tempdir().unwrap();
    let (one, other) = (open(home.path(), eager()), open(home.path(), eager()));
    let writer = open(home.path(), eager());
    block_on(async {
        for i in 0..20 {
            let (a, b, c) = tokio::join!(
                one.compact(),
                other.compact(),
                commit(&writer, vec![request(&format!("r{i:02}"), i)])
            );
            a.and(b).unwrap();
            c.unwrap();
        }
    });
    assert_eq!(told(&one), (0..20).map(|i| format!("r{i:02}")).collect::<Vec<_>>());
    assert_eq!(block_on(other.load()).unwrap().revision, 20);
}

#[test]
fn a_lock_that_stays_taken_names_its_holder_and_is_not_taken_late() {
    let home = tempfile::tempdir().unwrap();
    let store = open(home.path(), Options { lock_timeout: Duration::from_millis(50), ..eager() });
    let before = fill(&store, "r", 3);
    let mut holder = command(&[], home.path(), "hold -").stdin(Stdio::piped()).spawn().unwrap();
    wait_for(&mut holder, "held");

    let error = block_on(commit(&store, vec![request("late", 9)])).unwrap_err();
    let StoreError::Busy { pool, holder: named, .. } = &error else { panic!("{error}") };
    assert_eq!(pool, "linux");
    assert!(named.contains(&holder.id().to_string()) && named.contains('`'), "{error}");
    assert_eq!(block_on(store.load()).unwrap(), before, "reading needs no lock");

    drop(holder.stdin.take());
    assert!(holder.wait().unwrap().success());
    // The thread that still waited gets the lock now and must release it immediately.
    let patient = open(home.path(), Options { lock_timeout: Duration::from_secs(30), ..eager() });
    assert_eq!(block_on(commit(&patient, vec![request("next", 10)])).unwrap().state.revision, 4);
}

#[test]
fn a_killed_holder_frees_the_lock_and_the_one_that_waits_goes_on() {
    let home = tempfile::tempdir().unwrap();
    let store = open(home.path(), Options { lock_timeout: Duration::from_secs(30), ..eager() });
    let mut holder = command(&[], home.path(), "hold -").stdin(Stdio::piped()).spawn().unwrap();
    wait_for(&mut holder, "held");
    let kill = std::thread::spawn(move || {
        holder.kill().unwrap();
        holder.wait().unwrap()
    });
    assert_eq!(block_on(commit(&store, vec![request("a", 1)])).unwrap().state.revision, 1);
    kill.join().unwrap();
}

#[test]
fn tasks_of_one_process_take_turns_too() {
    let home = tempfile::tempdir().unwrap();
    let store = open(home.path(), eager());
    block_on(async {
        let commits = (0..20).map(|i| {
            let store = &store;
            async move {
                let name = format!("t{i:02}");
                commit(store, vec![request(&name, i)]).await.unwrap();
                store.compact().await.unwrap();
            }
        });
        let mut running: Vec<_> = commits.map(Box::pin).collect();
        std::future::poll_fn(|cx| {
            running.retain_mut(|one| one.as_mut().poll(cx).is_pending());
            if running.is_empty() { std::task::Poll::Ready(()) } else { std::task::Poll::Pending }
        })
        .await;
    });
    assert_eq!(block_on(store.load()).unwrap().revision, 20);
    assert_eq!(told(&store).len(), 20);
}

#[test]
fn a_deleted_lock_file_is_made_anew_and_a_deleted_pool_is_an_error() {
    let home = tempfile::tempdir().unwrap();
    let store = open(home.path(), eager());
    fill(&store, "r", 2);
    std::fs::remove_file(super::support::file(home.path(), "lock")).unwrap();
    assert_eq!(block_on(commit(&store, vec![request("a", 1)])).unwrap().state.revision, 3);
    let lock = super::support::file(home.path(), "lock");
    for name in ["journal.jsonl", "lock"] {
        std::fs::remove_file(super::support::file(home.path(), name)).unwrap();
    }
    let error = block_on(store.load()).unwrap_err();
    assert!(matches!(error, StoreError::Damaged { .. }), "a state that was there is not empty: {error}");
    std::fs::remove_file(lock).unwrap();
    std::fs::remove_dir_all(home.path().join("pools")).unwrap();
    let error = block_on(store.load()).unwrap_err();
    assert!(error.to_string().ends_with("no longer exists"), "{error}");
    let error = block_on(commit(&store, vec![request("b", 1)])).unwrap_err();
    assert!(matches!(error, StoreError::Io { .. }), "{error}");
    assert!(!home.path().join("pools").exists(), "a deleted state directory stays deleted");
}
