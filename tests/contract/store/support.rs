//! Events, stores and processes that the store's tests share.

use std::future::Future;
use std::path::{Path, PathBuf};
use std::time::Duration;

use futures_util::FutureExt as _;
use greenroom_core::event::{Change, Event};
use greenroom_core::ids::{AttemptName, Generation, InstanceId, JobKey, PoolName, TrustDomain};
use greenroom_core::job::JobFacts;
use greenroom_core::pool::PoolState;
use greenroom_core::time::{BootId, ManagerId, Stamp};
use greenroom_manager::file_store::{FileStore, Options, open_dir};
use greenroom_ports::store::{Committed, OperatorStore as _, RecordedEvent, Store, StoreError};

pub(super) fn block_on<T>(work: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(work)
}

pub(super) fn pool() -> PoolName {
    PoolName::new("linux")
}

/// A store that compacts on every request.
pub(super) fn eager() -> Options {
    Options { compact_at: 1, compact_part: 0, ..Options::default() }
}

pub(super) fn open(dir: &Path, options: Options) -> FileStore {
    open_dir(dir).unwrap().pool(&pool(), options).unwrap()
}

/// A file of the pool.
pub(super) fn file(dir: &Path, name: &str) -> PathBuf {
    dir.join("pools/linux").join(name)
}

pub(super) fn at(ms: u64) -> Stamp {
    let wall_ms = 1_700_000_000_000 + i64::try_from(ms).unwrap();
    Stamp { wall_ms, manager: ManagerId(1), boot: BootId(7), uptime_ms: ms }
}

pub(super) fn request(name: &str, ms: u64) -> Event {
    // A job waits once, so each attempt here has a job of its own.
    let id = name.bytes().fold(7, |id: u64, byte| id.wrapping_mul(31).wrapping_add(u64::from(byte)));
    let key = JobKey::new("https://gitlab.example", id);
    let job = JobFacts {
        pipeline: Some(id % 1000),
        stage: JobFacts::text("test"),
        name: JobFacts::text(name),
        git_ref: JobFacts::text("main"),
        protected: ms.is_multiple_of(2),
        ..JobFacts::new(key, "group/project", Duration::from_hours(1))
    };
    let (attempt, domain) = (AttemptName::new(name), TrustDomain::new("group/project"));
    Change::Requested { attempt, job, domain, acquire_timeout: Duration::from_mins(30) }.at(at(ms))
}

pub(super) fn intend(name: &str, number: u32) -> Event {
    let (instance, generation) = (InstanceId::new(name), Generation::new("3f9a"));
    Change::LaunchIntended {
        instance,
        generation,
        number,
        attempt: 1,
        capacity: 1,
        uses_left: Some(1),
        offering: None,
        location: None,
        lifetime: None,
        ordered: None,
    }
    .at(at(u64::from(number)))
}

/// Names of the waiting attempts, sorted.
pub(super) fn requests(state: &PoolState) -> Vec<String> {
    let mut names: Vec<String> = state.waiting.values().map(|r| r.attempt.to_string()).collect();
    names.sort_unstable();
    names
}

pub(super) async fn commit(store: &dyn Store, events: Vec<Event>) -> Result<Committed, StoreError> {
    store.transact(&mut |_| events.clone()).await
}

/// Commits `count` requests named `PREFIX0`, `PREFIX1`, …, one transaction each.
pub(super) fn fill(store: &FileStore, prefix: &str, count: u64) -> PoolState {
    block_on(async {
        for i in 0..count {
            commit(store, vec![request(&format!("{prefix}{i}"), i)]).await.unwrap();
        }
        store.load().await.unwrap()
    })
}

/// The events that are still kept. Opening files waits for nothing.
pub(super) fn history(store: &FileStore) -> impl Iterator<Item = RecordedEvent> {
    store.history().now_or_never().unwrap().unwrap().map(Result::unwrap)
}

/// Attempt names in the history, in order.
pub(super) fn told(store: &FileStore) -> Vec<String> {
    history(store)
        .map(|recorded| match recorded.event.change {
            Change::Requested { attempt, .. } => attempt.to_string(),
            other => format!("{other:?}"),
        })
        .collect()
}
