//! The contract of `port::attempts`.

use greenroom_testkit::pace::Pace;

use super::*;

#[tokio::test]
async fn an_attempt_goes_from_begin_to_forget() {
    let home = home();
    let host = operator(&home.path().join("state"));
    let begun = record(&host);
    let (lease, first) = host.begin_attempt(&name(), &begun).await.unwrap();
    assert_eq!(first, begun);
    let assignment = assignment();
    for now in [Some(&assignment), None, Some(&assignment)] {
        host.assign(&name(), now).await.unwrap();
        let (_call, found) = host.enter_attempt(&name()).await.unwrap().unwrap();
        assert_eq!(found.assignment.as_ref(), now);
    }
    drop(lease);
    let (run, found) = host.enter_attempt(&name()).await.unwrap().unwrap();
    assert_eq!(found.assignment.as_ref(), Some(&assignment));
    assert!(host.seize_attempt(&name()).await.unwrap().is_none(), "a call holds it");
    let open = seen(&host).await.unwrap();
    assert!(open.lease_held && !open.used && open.closed.is_none());
    assert_eq!(open.instance.as_ref(), Some(&assignment.instance));
    host.mark_used(&name()).await.unwrap();
    drop(run);
    let closing = host.close_attempt(&name(), End::CleanedUp).await.unwrap();
    assert_eq!((closing.used, closing.record.unwrap()), (true, found));
    drop(closing.lease);
    assert!(matches!(host.mark_used(&name()).await, Err(HostError::Closed { .. })));
    assert!(matches!(host.enter_attempt(&name()).await, Err(HostError::Closed { .. })));
    assert!(matches!(host.begin_attempt(&name(), &begun).await, Err(HostError::Closed { .. })));
    // A process that another test has just forked holds this test's descriptors until it executes its own program.
    let closed = until_seen(&host, "a free lease", |a| !a.lease_held).await;
    assert!(closed.closed.is_some() && closed.used);
    assert_eq!(seen(&host).await.unwrap(), closed, "a settled attempt stays as it is");
    host.forget_attempt(&name()).await.unwrap();
    assert!(seen(&host).await.is_none() && host.enter_attempt(&name()).await.unwrap().is_none());
    assert_eq!(fs::read_dir(home.path().join("state/attempts")).unwrap().count(), 0);
}

#[tokio::test]
async fn what_a_job_ordered_is_there_until_its_attempt_ends() {
    let home = home();
    let host = operator(&home.path().join("state"));
    let order = LaunchOrder {
        image: "ruby:3.3".to_owned(),
        of_offering: false,
        pull_policy: None,
        services: Vec::new(),
        dirs: Vec::new(),
    };
    let begun = AttemptRecord { order: Some(order.clone()), ..record(&host) };
    assert_eq!(host.order(&name()).await.unwrap(), None);
    let (lease, first) = host.begin_attempt(&name(), &begun).await.unwrap();
    assert_eq!(first, begun);
    assert_eq!(host.order(&name()).await.unwrap(), Some(order.clone()));
    // The attempt's record does not repeat it, and another `prepare` of the attempt changes nothing.
    let (again, found) = host.begin_attempt(&name(), &record(&host)).await.unwrap();
    assert_eq!(found.order, None);
    assert_eq!(host.order(&name()).await.unwrap(), Some(order));
    let job = fs::read_to_string(home.path().join("state/attempts").join(name().as_str()).join("job"));
    assert!(!job.unwrap().contains("ruby:3.3"));
    drop((lease, again));
    drop(host.close_attempt(&name(), End::CleanedUp).await.unwrap());
    assert_eq!(host.order(&name()).await.unwrap(), None);
}

#[tokio::test]
async fn a_cleanup_that_comes_first_keeps_the_prepare_out() {
    let home = home();
    let host = operator(&home.path().join("state"));
    let closing = host.close_attempt(&name(), End::CleanedUp).await.unwrap();
    assert!(closing.record.is_none() && !closing.used && !closing.calls_remain);
    assert_eq!(host.closed(&name()).await.unwrap().and_then(|closed| closed.how), Some(End::CleanedUp));
    let begun = host.begin_attempt(&name(), &record(&host)).await;
    assert!(matches!(begun, Err(HostError::Closed { .. })));
    assert!(host.attempts_of(&pool()).await.unwrap().is_empty(), "it belongs to no pool");
}

#[tokio::test]
async fn the_mark_keeps_its_first_reason_and_every_later_call_gets_it() {
    let home = home();
    let host = operator(&home.path().join("state"));
    let begun = record(&host);
    drop(host.begin_attempt(&name(), &begun).await.unwrap());
    assert_eq!(host.closed(&name()).await.unwrap(), None);
    drop(host.close_attempt(&name(), End::Superseded).await.unwrap());
    let closed = host.closed(&name()).await.unwrap().unwrap();
    assert_eq!(closed.how, Some(End::Superseded));
    drop(host.close_attempt(&name(), End::CleanedUp).await.unwrap());
    host.mark_closed(&name(), End::RunnerGone).await.unwrap();
    assert_eq!(host.closed(&name()).await.unwrap(), Some(closed));
    let reason = |refused: Option<HostError>| match refused {
        Some(HostError::Closed { closed, .. }) => Some(closed),
        _ => None,
    };
    assert_eq!(reason(host.begin_attempt(&name(), &begun).await.err()), Some(closed));
    assert_eq!(reason(host.enter_attempt(&name()).await.err()), Some(closed));
    assert_eq!(reason(host.mark_used(&name()).await.err()), Some(closed));
    assert_eq!(seen(&host).await.unwrap().closed, Some(closed));
}

#[test]
fn of_prepare_and_cleanup_one_always_sees_the_other() {
    let home = home();
    let root = home.path().join("state");
    let mut both = (0, 0);
    for round in 0..300 {
        let attempt = AttemptName::new(format!("custom-executor{round}"));
        let committed = Arc::new(AtomicBool::new(false));
        let barrier = Arc::new(Barrier::new(2));
        let (a, b, at) = (attempt.clone(), Arc::clone(&committed), Arc::clone(&barrier));
        let prepare = on_own_thread(&root, async move |host| {
            let record = record(&host);
            at.wait();
            let Ok((_lease, _)) = host.begin_attempt(&a, &record).await else { return true };
            b.store(true, Ordering::SeqCst);
            host.closed(&a).await.unwrap().is_some()
        });
        let cleanup = on_own_thread(&root, async move |host| {
            barrier.wait();
            let _closing = host.close_attempt(&attempt, End::CleanedUp).await.unwrap();
            committed.load(Ordering::SeqCst)
        });
        let (gave_back, released) = (prepare.join().unwrap(), cleanup.join().unwrap());
        assert!(gave_back || released, "round {round}: a grant that nobody gives back");
        both.0 += u32::from(gave_back);
        both.1 += u32::from(released);
    }
    println!("of 300: prepare saw the end {} times, cleanup saw the grant {} times", both.0, both.1);
}

#[test]
fn a_run_that_sends_is_never_called_unused() {
    let home = home();
    let root = home.path().join("state");
    let mut sent = 0;
    for round in 0..200 {
        let attempt = AttemptName::new(format!("custom-executor{round}"));
        let barrier = Arc::new(Barrier::new(2));
        let (a, at) = (attempt.clone(), Arc::clone(&barrier));
        let run = on_own_thread(&root, async move |host| {
            let (_lease, _) = host.begin_attempt(&a, &record(&host)).await.unwrap();
            at.wait();
            host.mark_used(&a).await.is_ok()
        });
        let cleanup = on_own_thread(&root, async move |host| {
            barrier.wait();
            host.close_attempt(&attempt, End::CleanedUp).await.unwrap().used
        });
        let (sends, used) = (run.join().unwrap(), cleanup.join().unwrap());
        assert!(!sends || used, "round {round}: sent, and given back as unused");
        sent += u32::from(sends);
    }
    println!("of 200: {sent} sent");
}

pub(super) fn assignment() -> Assignment {
    let endpoint = Endpoint {
        address: "192.0.2.7".into(),
        port: 22,
        user: "ci".into(),
        host_key: "ssh-ed25519 AAAA".into(),
        key: None,
        jump: None,
        forward: None,
        metadata: None,
    };
    Assignment {
        instance: InstanceId::new("linux-7f3a-1"),
        endpoint,
        is_static: false,
        timeouts: StageTimeouts::default(),
        unbegun: false,
        container: None,
    }
}

#[tokio::test]
async fn a_damaged_file_is_the_trouble_of_its_attempt_alone() {
    let home = home();
    let root = home.path().join("state");
    let host = operator(&root);
    let other = AttemptName::new("custom-executor2");
    let (lease, _) = host.begin_attempt(&name(), &record(&host)).await.unwrap();
    let (_other, _) = host.begin_attempt(&other, &record(&host)).await.unwrap();
    let dir = root.join("attempts/custom-executor1");
    host.assign(&name(), Some(&assignment())).await.unwrap();
    let found = async |pool: &str| {
        let all = operator(&root).attempts_of(&PoolName::new(pool)).await.unwrap();
        all.into_iter().collect::<Vec<_>>()
    };
    // The pool is in the file that cannot be read: each pool sees the attempt.
    for (text, problem) in [("{\"for", "is damaged"), ("{\"format\":99}", "format 99")] {
        fs::write(dir.join("job"), text).unwrap();
        let all = found("linux").await;
        assert_eq!((all.len(), &all[1].0), (2, &other));
        assert!(all[1].1.job.is_some() && all[1].1.unreadable.is_none());
        let seen = &all[0].1;
        assert!(seen.unreadable.as_ref().unwrap().contains(problem), "{seen:?}");
        assert!(seen.job.is_none() && seen.lease_held && seen.closed.is_none(), "{seen:?}");
        assert_eq!(seen.instance, Some(assignment().instance), "its instance is still known");
        assert_eq!(found("another").await, all[..1]);
    }
    // A process that another test has just forked holds this test's descriptors until it executes its own program.
    let freed = async || {
        let end = Instant::now() + DEADLINE;
        loop {
            let all = found("linux").await;
            if !all[0].1.lease_held {
                break all;
            }
            assert!(Instant::now() < end, "the lease is not free: {all:?}");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    drop(lease);
    assert!(freed().await[0].1.closed.is_none(), "between two stages");
    let error = host.enter_attempt(&name()).await.unwrap_err().to_string();
    assert!(error.contains("format 99"), "the job log names the cause: {error}");
    let closing = host.close_attempt(&name(), End::CleanedUp).await.unwrap();
    assert!(closing.record.is_none());
    drop(closing);
    assert!(freed().await[0].1.closed.is_some());
}

#[tokio::test]
async fn an_attempt_whose_marks_cannot_be_examined_counts_as_in_use() {
    let home = home();
    let root = home.path().join("state");
    let host = operator(&root);
    drop(host.begin_attempt(&name(), &record(&host)).await.unwrap());
    let closed = root.join("attempts/custom-executor1/closed");
    fs::create_dir(&closed).unwrap();
    let seen = seen(&host).await.unwrap();
    assert!(seen.lease_held && seen.closed.is_none(), "{seen:?}");
    assert!(seen.unreadable.as_ref().unwrap().contains("examine"), "{seen:?}");
    fs::remove_dir(&closed).unwrap();
    assert!(self::seen(&host).await.unwrap().unreadable.is_none());
}

#[tokio::test]
async fn litter_of_killed_calls_goes_when_it_is_old_and_not_before() {
    let home = home();
    let root = home.path().join("state");
    let host = operator(&root);
    drop(host.close_attempt(&name(), End::CleanedUp).await.unwrap());
    let attempts = root.join("attempts");
    let half = attempts.join(".custom-executor2.0123abcd");
    fs::create_dir(&half).unwrap();
    fs::write(half.join("lease"), "").unwrap();
    host.attempts_of(&pool()).await.unwrap();
    assert!(half.exists());
    let ago = |dir: &Path, hours| {
        let then = std::time::SystemTime::now() - Duration::from_hours(hours);
        fs::File::open(dir).unwrap().set_modified(then).unwrap();
    };
    ago(&half, 2);
    ago(&attempts.join("custom-executor1"), 2);
    host.attempts_of(&pool()).await.unwrap();
    assert!(!half.exists() && attempts.join("custom-executor1").exists());
    ago(&attempts.join("custom-executor1"), 25);
    host.attempts_of(&pool()).await.unwrap();
    assert_eq!(fs::read_dir(&attempts).unwrap().count(), 0);
}

#[tokio::test]
async fn a_very_long_state_path_works_throughout() {
    let home = home();
    let root = home.path().join("x".repeat(120)).join("y".repeat(120)).join("state");
    assert!(root.as_os_str().len() > 250);
    let host = operator(&root);
    let (_lease, _) = host.begin_attempt(&name(), &record(&host)).await.unwrap();
    host.wake_attempt(&name()).await;
    assert_eq!(host.wait(MailboxName::Attempt(&name()), DEADLINE).await.unwrap(), WakeReason::Message);
    let _keeper = host.lock_keeper(Duration::ZERO).await.unwrap().unwrap();
    let timeout = host.wait(MailboxName::Keeper(&pool()), Duration::ZERO).await.unwrap();
    assert_eq!(timeout, WakeReason::Timeout);
    host.wake_keeper(&pool()).await;
    assert_eq!(host.wait(MailboxName::Keeper(&pool()), DEADLINE).await.unwrap(), WakeReason::Message);
    assert!(
        host.close_attempt(&name(), End::CleanedUp).await.unwrap().calls_remain,
        "the call that began it still lives"
    );
}

#[tokio::test]
async fn a_cleanup_and_a_pass_over_many_ended_attempts_cost_little() {
    let home = home();
    let root = home.path().join("state");
    let keeper = host(&root, Role::Keeper);
    let (mut taken, pace) = (Vec::new(), Pace::watch());
    for round in 0..400 {
        let attempt = AttemptName::new(format!("custom-executor{round}"));
        drop(keeper.begin_attempt(&attempt, &record(&keeper)).await.unwrap());
        let begun = Instant::now();
        let cleanup = operator(&root);
        drop(cleanup.close_attempt(&attempt, End::CleanedUp).await.unwrap());
        taken.push(begun.elapsed());
    }
    taken.sort();
    let first = Instant::now();
    assert_eq!(keeper.attempts_of(&pool()).await.unwrap().len(), 400);
    let first = first.elapsed();
    let again = Instant::now();
    assert_eq!(keeper.attempts_of(&pool()).await.unwrap().len(), 400);
    println!(
        "close_attempt: median {:?}; 400 ended: first look {first:?}, next {:?}",
        taken[200],
        again.elapsed()
    );
    let bound = pace.stretched(Duration::from_millis(3));
    assert!(taken[200] < bound, "at most {bound:?}: {taken:?}");
}
