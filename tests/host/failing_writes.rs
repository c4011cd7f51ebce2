//! The files of attempts, reports and owners, with each error of the table in each of their writes.

use greenroom_core::time::Stamp;
use greenroom_testkit::faulty::{Action, Ended, act, listed, with_each_error};

use super::attempts::assignment;
use super::*;

const ACTIONS: [Action; 15] = [
    Action { name: "a new state directory", prepare: |_| (), act: open_state, judge: judge_owner },
    Action { name: "a new owner", prepare: opened, act: renew_owner, judge: judge_owner },
    Action { name: "a take-over", prepare: opened, act: take_over, judge: judge_owner },
    Action { name: "a generation", prepare: opened, act: begin_generation, judge: judge_generations },
    Action { name: "the keeper's lock", prepare: opened, act: lock_keeper, judge: judge_keeper },
    Action { name: "a keeper's mailbox", prepare: reported, act: wait_as_keeper, judge: judge_mailbox },
    Action { name: "the first report", prepare: opened, act: report, judge: judge_report },
    Action { name: "a report", prepare: reported, act: report, judge: judge_report },
    Action { name: "the first attempt", prepare: opened, act: begin_attempt, judge: judge_begun },
    Action { name: "an attempt's next call", prepare: begun, act: begin_attempt, judge: judge_begun },
    Action { name: "an assignment", prepare: assigned, act: assign, judge: judge_assigned },
    Action { name: "the mark of use", prepare: begun, act: mark_used, judge: judge_used },
    Action { name: "a cleanup", prepare: begun, act: close, judge: judge_closed },
    Action { name: "a cleanup without an attempt", prepare: opened, act: close, judge: judge_closed },
    Action { name: "the end of an attempt's files", prepare: closed, act: forget, judge: judge_forgotten },
];

fn block_on<T>(work: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(work)
}

fn state(dir: &Path) -> PathBuf {
    dir.join("state")
}

/// A host for which all that a killed call left is old.
fn later(dir: &Path) -> LocalHost {
    let times = Times { half_made_retention: Duration::ZERO, ..Times::default() };
    operator(&state(dir)).with_times(times)
}

fn no_remains(folder: &Path, ended: &Ended) {
    ended.no_remains(folder, |name| name.starts_with('.'));
}

/// Prepares a host, then acts with it.
fn with_host<T>(
    dir: &Path,
    begin: &dyn Fn(),
    work: impl AsyncFnOnce(&LocalHost) -> Result<T, HostError>,
) -> Result<(), String> {
    block_on(async {
        let host = operator(&state(dir));
        begin();
        let done = work(&host).await.map(drop).map_err(|error| error.to_string());
        drop(host);
        done
    })
}

fn opened(dir: &Path) {
    StateDir::open(&state(dir)).unwrap();
    block_on(operator(&state(dir)).begin_generation()).unwrap();
}

fn open_state(dir: &Path, begin: &dyn Fn()) -> Result<(), String> {
    begin();
    StateDir::open(&state(dir)).map(drop).map_err(|error| error.to_string())
}

fn renew_owner(dir: &Path, begin: &dyn Fn()) -> Result<(), String> {
    let state = StateDir::open(&state(dir)).unwrap();
    begin();
    state.new_owner().map(drop).map_err(|error| error.to_string())
}

fn take_over(dir: &Path, begin: &dyn Fn()) -> Result<(), String> {
    let state = StateDir::open(&state(dir)).unwrap();
    begin();
    state.take_over().map(drop).map_err(|error| error.to_string())
}

fn judge_owner(dir: &Path, ended: &Ended) {
    let how = &ended.how;
    let file = state(dir).join("owner");
    let found = StateDir::owner_at(&state(dir));
    assert_eq!(found.is_some(), file.exists(), "{how}: half a file");
    assert!(!ended.is_done || found.is_some(), "{how}");
    let opened = StateDir::open(&state(dir)).unwrap_or_else(|error| panic!("{how}: {error}"));
    let identity = block_on(operator(&state(dir)).identity()).unwrap();
    assert!(identity.moved.is_none() && found.is_none_or(|found| found == identity.owner), "{how}");
    let next = opened.new_owner().unwrap();
    assert_eq!(StateDir::owner_at(&state(dir)), Some(next), "{how}");
    no_remains(&state(dir), ended);
}

fn begin_generation(dir: &Path, begin: &dyn Fn()) -> Result<(), String> {
    with_host(dir, begin, async |host| host.begin_generation().await)
}

fn judge_generations(dir: &Path, ended: &Ended) {
    let how = &ended.how;
    let host = operator(&state(dir));
    let known = block_on(host.identity()).unwrap().generations;
    // One that was written but not synced stays: no instance carries it.
    assert!((1..=2).contains(&known.len()) && (!ended.is_done || known.len() == 2), "{how}: {known:?}");
    let next = block_on(host.begin_generation()).unwrap_or_else(|error| panic!("{how}: {error}"));
    let now = block_on(host.identity()).unwrap().generations;
    assert!(now.is_superset(&known) && now.contains(&next) && now.len() == known.len() + 1, "{how}");
    no_remains(&state(dir), ended);
}

fn lock_keeper(dir: &Path, begin: &dyn Fn()) -> Result<(), String> {
    with_host(dir, begin, async |host| {
        let lock = host.lock_keeper(Duration::ZERO).await?;
        assert!(lock.is_some(), "no other process holds it");
        Ok(())
    })
}

fn judge_keeper(dir: &Path, ended: &Ended) {
    let host = operator(&state(dir));
    let lock = block_on(host.lock_keeper(Duration::ZERO)).unwrap();
    assert!(lock.is_some(), "{}", ended.how);
    no_remains(&state(dir), ended);
}

fn at(revision: u64) -> Report {
    Report::new(Stamp::from((1_781_524_800_000, 1, 7, 9)), revision)
}

fn reported(dir: &Path) {
    opened(dir);
    block_on(operator(&state(dir)).write_report(&pool(), &at(1))).unwrap();
}

fn report(dir: &Path, begin: &dyn Fn()) -> Result<(), String> {
    with_host(dir, begin, async |host| host.write_report(&pool(), &at(2)).await)
}

fn judge_report(dir: &Path, ended: &Ended) {
    let how = &ended.how;
    let host = operator(&state(dir));
    let read = || block_on(host.read_report(&pool())).unwrap_or_else(|error| panic!("{how}: {error}"));
    let found = read();
    assert!(found.as_ref().is_none_or(|found| *found == at(1) || *found == at(2)), "{how}: {found:?}");
    assert!(!ended.is_done || found == Some(at(2)), "{how}: {found:?}");
    block_on(host.write_report(&pool(), &at(3))).unwrap_or_else(|error| panic!("{how}: {error}"));
    assert_eq!(read(), Some(at(3)), "{how}");
    assert_eq!(listed(&state(dir).join("pools/linux")), ["report.json"], "{how}");
}

fn wait_as_keeper(dir: &Path, begin: &dyn Fn()) -> Result<(), String> {
    with_host(dir, begin, async |host| host.wait(MailboxName::Keeper(&pool()), Duration::ZERO).await)
}

fn judge_mailbox(dir: &Path, ended: &Ended) {
    let how = &ended.how;
    block_on(async {
        let host = operator(&state(dir));
        let mailbox = MailboxName::Keeper(&pool());
        assert_eq!(host.wait(mailbox, Duration::ZERO).await.unwrap(), WakeReason::Timeout, "{how}");
        host.wake_keeper(&pool()).await;
        let mailbox = MailboxName::Keeper(&pool());
        assert_eq!(host.wait(mailbox, DEADLINE).await.unwrap(), WakeReason::Message, "{how}");
    });
    assert_eq!(listed(&state(dir).join("pools/linux")), ["report.json", "wake"], "{how}");
}

fn begun(dir: &Path) {
    opened(dir);
    let host = operator(&state(dir));
    drop(block_on(host.begin_attempt(&name(), &record(&host))).unwrap());
}

fn begin_attempt(dir: &Path, begin: &dyn Fn()) -> Result<(), String> {
    with_host(dir, begin, async |host| host.begin_attempt(&name(), &record(host)).await)
}

/// The attempts after a pass in which everything is old.
fn after_a_pass(dir: &Path) -> Vec<String> {
    block_on(later(dir).attempts_of(&pool())).unwrap();
    listed(&state(dir).join("attempts"))
}

fn judge_begun(dir: &Path, ended: &Ended) {
    let how = &ended.how;
    block_on(async {
        let host = operator(&state(dir));
        let found = host.enter_attempt(&name()).await.unwrap_or_else(|error| panic!("{how}: {error}"));
        assert!(!ended.is_done || found.is_some(), "{how}");
        drop(found);
        let observed = seen(&host).await;
        assert!(observed.is_none_or(|seen| seen.unreadable.is_none() && seen.job.is_some()), "{how}");
        let again = host.begin_attempt(&name(), &record(&host)).await;
        let (_lease, record) = again.unwrap_or_else(|error| panic!("{how}: {error}"));
        assert_eq!(record.pool, pool(), "{how}");
    });
    assert_eq!(after_a_pass(dir), [name().as_str()], "{how}");
    no_remains(&state(dir).join("attempts").join(name().as_str()), ended);
}

fn instance(number: u32) -> Assignment {
    Assignment { instance: InstanceId::new(format!("linux-7f3a-{number}")), ..assignment() }
}

fn assigned(dir: &Path) {
    begun(dir);
    block_on(operator(&state(dir)).assign(&name(), Some(&instance(1)))).unwrap();
}

fn assign(dir: &Path, begin: &dyn Fn()) -> Result<(), String> {
    with_host(dir, begin, async |host| host.assign(&name(), Some(&instance(2))).await)
}

fn judge_assigned(dir: &Path, ended: &Ended) {
    let how = &ended.how;
    block_on(async {
        let host = operator(&state(dir));
        let read = async || host.enter_attempt(&name()).await.unwrap().unwrap().1.assignment;
        let found = read().await;
        assert!(found == Some(instance(2)) || (found == Some(instance(1)) && !ended.is_done), "{how}");
        host.assign(&name(), Some(&instance(3))).await.unwrap_or_else(|error| panic!("{how}: {error}"));
        assert_eq!(read().await, Some(instance(3)), "{how}");
    });
    no_remains(&state(dir).join("attempts").join(name().as_str()), ended);
}

fn mark_used(dir: &Path, begin: &dyn Fn()) -> Result<(), String> {
    with_host(dir, begin, async |host| host.mark_used(&name()).await)
}

fn judge_used(dir: &Path, ended: &Ended) {
    let how = &ended.how;
    block_on(async {
        let host = operator(&state(dir));
        assert!(!ended.is_done || seen(&host).await.unwrap().used, "{how}");
        host.mark_used(&name()).await.unwrap_or_else(|error| panic!("{how}: {error}"));
        assert!(seen(&host).await.unwrap().used, "{how}");
    });
    no_remains(&state(dir).join("attempts").join(name().as_str()), ended);
}

fn close(dir: &Path, begin: &dyn Fn()) -> Result<(), String> {
    with_host(dir, begin, async |host| host.close_attempt(&name(), End::CleanedUp).await)
}

fn judge_closed(dir: &Path, ended: &Ended) {
    let how = &ended.how;
    block_on(async {
        let host = operator(&state(dir));
        let closed = host.closed(&name()).await.unwrap_or_else(|error| panic!("{how}: {error}"));
        assert!(!ended.is_done || closed.is_some(), "{how}");
        // The file is the mark: its text may be missing, never wrong.
        assert!(closed.is_none_or(|closed| closed.how.is_none_or(|how| how == End::CleanedUp)), "{how}");
        let again = host.close_attempt(&name(), End::Superseded).await;
        drop(again.unwrap_or_else(|error| panic!("{how}: {error}")));
        let now = host.closed(&name()).await.unwrap();
        assert!(now.is_some() && (closed.is_none() || now == closed), "{how}: {now:?}");
        let refused = host.begin_attempt(&name(), &record(&host)).await;
        assert!(matches!(refused, Err(HostError::Closed { .. })), "{how}");
    });
    assert_eq!(after_a_pass(dir), [name().as_str()], "{how}");
    no_remains(&state(dir).join("attempts").join(name().as_str()), ended);
}

fn closed(dir: &Path) {
    begun(dir);
    drop(block_on(operator(&state(dir)).close_attempt(&name(), End::CleanedUp)).unwrap());
}

fn forget(dir: &Path, begin: &dyn Fn()) -> Result<(), String> {
    with_host(dir, begin, async |host| host.forget_attempt(&name()).await)
}

fn judge_forgotten(dir: &Path, ended: &Ended) {
    let how = &ended.how;
    block_on(async {
        let host = operator(&state(dir));
        let closed = host.closed(&name()).await.unwrap();
        assert!(closed.is_none() || !ended.is_done, "{how}");
        host.forget_attempt(&name()).await.unwrap_or_else(|error| panic!("{how}: {error}"));
    });
    assert_eq!(after_a_pass(dir), [""; 0], "{how}");
}

#[test]
#[ignore = "other tests start it in a process of its own"]
fn a_process_that_acts() {
    act(&ACTIONS);
}

#[test]
fn an_error_of_any_write_is_reported_and_leaves_the_old_file_or_the_new_one() {
    with_each_error("failing_writes::a_process_that_acts", &ACTIONS, |action, tally| {
        println!("{}", tally.text);
        // A short write is repeated, and what a job ordered is removed with a warning at most.
        assert!(tally.reported >= 2 && tally.reported * 2 + 1 >= tally.tried, "{}: {tally:?}", action.name);
    });
}
