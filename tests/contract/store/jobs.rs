//! The jobs that a store knows, and the index that files keep beside their history.

use std::path::{Path, PathBuf};

use greenroom_core::attempt::End;
use greenroom_core::event::{Change, Event};
use greenroom_core::history::{JobPhase, JobRecord, Period};
use greenroom_core::ids::{AttemptName, Generation, InstanceId, OfferingName};
use greenroom_core::instance::Release;
use greenroom_core::job_end::{JobEnd, JobResult};
use greenroom_core::start::Start;
use greenroom_manager::file_store::{FileStore, Options};
use greenroom_ports::store::{OperatorStore, Store as _};

use super::Pair;
use super::support::{at, block_on, commit, eager, file, open, request};

/// A job that waits for a boot, from `ms` on: launch, request, boot, grant, end.
fn booted(name: &str, ms: u64) -> [Vec<Event>; 3] {
    let (attempt, instance) = (AttemptName::new(name), InstanceId::new(format!("linux-3f9a-{ms}")));
    let launched = Change::LaunchIntended {
        instance: instance.clone(),
        generation: Generation::new("3f9a"),
        number: u32::try_from(ms).unwrap(),
        attempt: 1,
        capacity: 1,
        uses_left: Some(1),
        offering: Some(OfferingName::new("us-east1-b spot")),
        location: None,
        lifetime: None,
        ordered: None,
    };
    let end = JobEnd::new(JobResult::Failed, "`build_script` exited with status 1");
    let release = Release { how: End::CleanedUp, used: true, closing: false };
    [
        vec![request(name, ms), launched.at(at(ms))],
        vec![
            Change::BecameReady { instance: instance.clone() }.at(at(ms + 20_000)),
            Change::Granted { attempt: attempt.clone(), instance }.at(at(ms + 20_001)),
        ],
        vec![
            Change::JobEnded { attempt: attempt.clone(), end }.at(at(ms + 80_000)),
            Change::Released { attempt, release }.at(at(ms + 80_000)),
        ],
    ]
}

async fn jobs(store: &dyn OperatorStore) -> Vec<JobRecord> {
    let known = store.jobs(Period::ALL).await.unwrap();
    assert!(known.unreadable.is_empty(), "{:?}", known.unreadable);
    known.jobs
}

/// Part of the contract of each store: a job is told from its events, whichever transaction has them.
pub(super) async fn jobs_are_told_from_their_events((one, other): Pair) {
    let nothing = one.jobs(Period::ALL).await.unwrap();
    assert!(nothing.jobs.is_empty() && nothing.begins.is_none() && nothing.unreadable.is_empty());
    for events in booted("a", 1000).into_iter().chain(booted("b", 200_000)) {
        commit(&*one, events).await.unwrap();
        one.compact().await.unwrap();
    }
    commit(&*other, vec![request("c", 400_000)]).await.unwrap();
    let known = one.jobs(Period::ALL).await.unwrap();
    assert_eq!(known.begins, Some(at(1000)));
    let [a, _, c] = known.jobs.as_slice() else { panic!("{:?}", known.jobs) };
    assert_eq!((a.phase, a.start, a.waited.as_millis()), (JobPhase::Ended, Some(Start::Booted), 20_001));
    assert_eq!((a.instance.as_ref().unwrap().as_str(), a.attempts), ("linux-3f9a-1000", 1));
    assert_eq!(a.offering.as_ref().unwrap().as_str(), "us-east1-b spot");
    assert_eq!((a.lasted().unwrap().as_millis(), a.left), (59_999, Some(at(81_000))));
    assert_eq!(a.end.as_ref().unwrap().result, JobResult::Failed);
    assert_eq!((c.phase, c.instance.as_ref(), c.end.as_ref()), (JobPhase::Waiting, None, None));
    assert_eq!(jobs(&*other).await, known.jobs);
    let period = |since: u64, until: u64| Period { since_ms: at(since).wall_ms, until_ms: at(until).wall_ms };
    for (since, until, count) in [(0, 500, 0), (0, 1000, 1), (81_001, 199_999, 0), (81_000, 200_000, 2)] {
        assert_eq!(one.jobs(period(since, until)).await.unwrap().jobs.len(), count, "{since} {until}");
    }
    assert_eq!(one.jobs(period(300_000, 300_001)).await.unwrap().jobs.len(), 0);
    assert_eq!(one.jobs(period(400_000, 900_000)).await.unwrap().jobs, std::slice::from_ref(c));
}

/// Four kept segments, with jobs that begin in one and end in another.
fn lived_in(dir: &Path) -> FileStore {
    let store = open(dir, eager());
    block_on(async {
        for round in 0..4_u64 {
            let [asked, granted, ended] = booted(&format!("r{round}"), 1000 + round * 100_000);
            commit(&store, asked).await.unwrap();
            store.compact().await.unwrap();
            commit(&store, [granted, ended].concat()).await.unwrap();
        }
        store.compact().await.unwrap();
    });
    store
}

fn indexes(dir: &Path) -> Vec<PathBuf> {
    // The first compaction makes the directory.
    let entries = std::fs::read_dir(file(dir, "history")).into_iter().flatten();
    let mut found: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
    found.retain(|path| path.file_name().unwrap().to_str().unwrap().starts_with("jobs-"));
    found.sort();
    found
}

fn segment_of(index: &Path) -> PathBuf {
    let name = index.file_name().unwrap().to_str().unwrap();
    let range = name.strip_prefix("jobs-").unwrap().strip_suffix(".json").unwrap();
    index.with_file_name(format!("journal-{range}.jsonl"))
}

#[test]
fn an_index_is_written_with_its_segment_and_says_the_same() {
    let home = tempfile::tempdir().unwrap();
    let store = lived_in(home.path());
    let written = indexes(home.path());
    assert_eq!(written.len(), 5, "{written:?}");
    let by_index = block_on(jobs(&store));
    assert_eq!(by_index.len(), 4);
    for index in &written {
        std::fs::remove_file(index).unwrap();
    }
    assert_eq!(block_on(jobs(&store)), by_index);
    assert_eq!(indexes(home.path()), written, "the reader wrote what was missing");
    assert_eq!(block_on(jobs(&store)), by_index);
}

#[test]
fn an_index_that_is_damaged_or_belongs_to_something_else_is_rebuilt() {
    let home = tempfile::tempdir().unwrap();
    let store = lived_in(home.path());
    let (written, expected) = (indexes(home.path()), block_on(jobs(&store)));
    let sound = std::fs::read(&written[1]).unwrap();
    let text = String::from_utf8(sound.clone()).unwrap();
    let resealed = |from: &str, to: &str| {
        assert!(text.contains(from), "{from}");
        let body = text.trim_end().replacen(from, to, 1).split_off("{\"crc\":\"00000000\",".len());
        format!("{{\"crc\":\"{:08x}\",{body}\n", crc32fast::hash(body.as_bytes())).into_bytes()
    };
    let mut flipped = sound.clone();
    let middle = flipped.len() / 2;
    flipped[middle] ^= 1;
    let wrong = [
        Vec::new(),
        b"\0\0\0\0".to_vec(),
        sound[..sound.len() / 2].to_vec(),
        flipped,
        std::fs::read(&written[0]).unwrap(),
        resealed("\"version\":", "\"version\":9"),
        resealed("\"pool\":\"linux\"", "\"pool\":\"other\""),
        resealed("\"size\":", "\"size\":1"),
        resealed("\"part\":", "\"parts\":"),
    ];
    for content in wrong {
        std::fs::write(&written[1], &content).unwrap();
        assert_eq!(block_on(jobs(&store)), expected, "{:?}", String::from_utf8_lossy(&content));
        assert_eq!(std::fs::read(&written[1]).unwrap(), sound);
    }
    std::fs::remove_file(&written[1]).unwrap();
    std::fs::create_dir(&written[1]).unwrap();
    assert_eq!(block_on(jobs(&store)), expected, "one that cannot be written is done without");
}

#[test]
fn a_segment_that_has_changed_is_read_again_and_its_damage_reported_each_time() {
    let home = tempfile::tempdir().unwrap();
    let store = lived_in(home.path());
    let index = &indexes(home.path())[1];
    let segment = segment_of(index);
    let mut bytes = std::fs::read(&segment).unwrap();
    let second = bytes.iter().position(|byte| *byte == b'\n').unwrap() + 40;
    bytes[second] ^= 1;
    bytes.extend_from_slice(b"\n");
    std::fs::write(&segment, bytes).unwrap();
    let before = std::fs::read(index).unwrap();
    for _ in 0..2 {
        let known = block_on(store.jobs(Period::ALL)).unwrap();
        let problem = known.unreadable.first().expect("the damage is reported").to_string();
        assert!(problem.contains(segment.file_name().unwrap().to_str().unwrap()), "{problem}");
        assert_eq!(std::fs::read(index).unwrap(), before, "no index of damage is written");
    }
}

#[test]
fn an_index_goes_with_its_segment() {
    let home = tempfile::tempdir().unwrap();
    drop(lived_in(home.path()));
    let stranger = file(home.path(), "history/jobs-900-901.json");
    std::fs::write(&stranger, "{}\n").unwrap();
    let store = open(home.path(), Options { history_days: 0, ..eager() });
    block_on(async {
        commit(&store, vec![request("later", 900_000)]).await.unwrap();
        store.compact().await.unwrap();
    });
    let kept = indexes(home.path());
    assert!(!stranger.exists() && kept.len() < 5, "{kept:?}");
    for index in kept {
        assert!(segment_of(&index).exists(), "{index:?}");
    }
}

#[test]
fn jobs_are_told_while_another_process_writes_and_compacts() {
    let home = tempfile::tempdir().unwrap();
    let store = open(home.path(), eager());
    block_on(async { commit(&store, vec![request("first", 1)]).await.unwrap() });
    let path = home.path().to_owned();
    let writer = std::thread::spawn(move || {
        let store = open(&path, eager());
        for round in 0..30_u64 {
            let events = booted(&format!("w{round}"), 1000 + round * 100_000);
            block_on(async {
                for events in events {
                    commit(&store, events).await.unwrap();
                    store.compact().await.unwrap();
                }
            });
        }
    });
    let mut most = 0;
    while !writer.is_finished() {
        let known = block_on(jobs(&store));
        assert!(known.len() >= most, "{} of {most}", known.len());
        most = known.len();
        if let Some(index) = indexes(home.path()).first() {
            std::fs::remove_file(index).unwrap();
        }
    }
    writer.join().unwrap();
    let known = block_on(jobs(&store));
    assert_eq!(known.len(), 31);
    assert!(known.iter().skip(1).all(|job| job.phase == JobPhase::Ended && job.start == Some(Start::Booted)));
}

#[test]
fn without_a_readable_state_the_jobs_are_still_told() {
    let home = tempfile::tempdir().unwrap();
    let store = lived_in(home.path());
    let expected = block_on(jobs(&store));
    std::fs::write(file(home.path(), "snapshot.json"), "rubbish\n").unwrap();
    let known = block_on(open(home.path(), eager()).jobs(Period::ALL)).unwrap();
    assert_eq!(known.jobs, expected);
    assert_eq!(known.unreadable.len(), 1);
    assert!(block_on(store.load()).is_err());
}
