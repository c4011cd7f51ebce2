//! The contract of `port::leadership` and of reports: the one keeper, and how it starts.

use super::*;

#[tokio::test]
async fn there_is_one_keeper_and_a_look_turns_no_starting_one_away() {
    let home = home();
    let root = home.path().join("state");
    let (one, two) = (host(&root, Role::Keeper), host(&root, Role::Keeper));
    assert!(!two.keeper_lives().await.unwrap());
    let lock = one.lock_keeper(Duration::ZERO).await.unwrap().unwrap();
    assert!(two.keeper_lives().await.unwrap());
    assert!(two.lock_keeper(Duration::from_millis(50)).await.unwrap().is_none());
    let waits = two.lock_keeper(DEADLINE);
    let goes = async {
        tokio::time::sleep(Duration::from_millis(50)).await;
        drop(lock);
    };
    let (taken, ()) = tokio::join!(waits, goes);
    drop(taken.unwrap().unwrap());
    let done = Arc::new(AtomicBool::new(false));
    let stop = Arc::clone(&done);
    let looker = on_own_thread(&root, async move |host| {
        while !stop.load(Ordering::Relaxed) {
            host.keeper_lives().await.unwrap();
        }
    });
    for _ in 0..200 {
        assert!(one.lock_keeper(DEADLINE).await.unwrap().is_some());
    }
    done.store(true, Ordering::Relaxed);
    looker.join().unwrap();
}

#[tokio::test]
async fn a_keeper_ends_when_its_state_directory_is_gone_and_does_not_bring_it_back() {
    let home = home();
    let root = home.path().join("state");
    let times = Times { self_check_interval: Duration::from_millis(20), ..Times::default() };
    let host = host(&root, Role::Keeper).with_times(times);
    let _lock = host.lock_keeper(Duration::ZERO).await.unwrap().unwrap();
    let (pool, other) = (pool(), PoolName::new("other"));
    assert_eq!(
        host.wait(MailboxName::Keeper(&pool), Duration::from_millis(60)).await.unwrap(),
        WakeReason::Timeout
    );
    fs::remove_dir_all(&root).unwrap();
    assert_eq!(host.wait(MailboxName::Keeper(&pool), DEADLINE).await.unwrap(), WakeReason::Evicted);
    assert_eq!(host.wait(MailboxName::Keeper(&other), DEADLINE).await.unwrap(), WakeReason::Evicted);
    let report = Report::new(host.now(), 1);
    assert!(host.write_report(&pool, &report).await.is_err());
    assert!(!root.exists());
    StateDir::open(&root).unwrap();
    assert_eq!(host.read_report(&pool).await.unwrap(), None);
    host.write_report(&pool, &report).await.unwrap();
    assert_eq!(host.read_report(&pool).await.unwrap(), Some(report));
    assert_eq!(
        host.wait(MailboxName::Keeper(&pool), DEADLINE).await.unwrap(),
        WakeReason::Evicted,
        "another directory"
    );
}

/// A host whose `start_keeper` starts `keeper_child`, with an environment as the runner makes it.
fn starter(home: &Path) -> LocalHost {
    let args = ["keeper_child", "--exact", "--ignored", "--nocapture"].map(OsString::from);
    let args = args.into_iter().chain([home.as_os_str().to_owned()]);
    let command = KeeperCommand::new(std::env::current_exe().unwrap(), args, || {
        let jobs =
            [("CUSTOM_ENV_CI_JOB_TOKEN", "x"), ("CI_JOB_ID", "7"), ("TMPDIR", "/tmp/custom-executor1")];
        std::env::vars_os().chain(jobs.map(|(name, value)| (name.into(), value.into()))).collect()
    });
    let state = StateDir::open(&home.join("state")).unwrap();
    LocalHost::open(state, Role::Operator, command, Signals::default_actions()).unwrap()
}

/// Starts a keeper and exits immediately, like `prepare`.
#[test]
#[ignore = "other tests start it in a process of its own"]
fn starter_child() {
    let Some(dir) = std::env::var_os(DIR) else { return };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async { starter(Path::new(&dir)).start_keeper().await.unwrap() });
}

/// The whole life of a background keeper that a call started, directly or inside a script.
async fn a_started_keeper_holds_nothing_of_its_starters(starting: &mut Command) {
    let home = home();
    let begun = Instant::now();
    let mut starting = starting
        .args(["leadership::starter_child", "--exact", "--ignored", "--nocapture"])
        .env(DIR, home.path())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .process_group(0)
        .spawn()
        .unwrap();
    // The runner reads both pipes to their end before it considers the call finished.
    let mut output = String::new();
    starting.stdout.take().unwrap().read_to_string(&mut output).unwrap();
    starting.stderr.take().unwrap().read_to_string(&mut output).unwrap();
    assert!(starting.wait().unwrap().success(), "{output}");
    say(format_args!("start_keeper and both pipes' ends: {:?}", begun.elapsed()));
    let host = operator(&home.path().join("state"));
    let facts = loop {
        if let Ok(facts) = fs::read_to_string(home.path().join("facts")) {
            break facts;
        }
        assert!(begun.elapsed() < DEADLINE, "no keeper");
        tokio::time::sleep(Duration::from_millis(5)).await;
    };
    assert!(host.keeper_lives().await.unwrap(), "it outlives its starter");
    let facts: Vec<&str> = facts.lines().collect();
    assert_eq!((facts[0], facts[2]), (facts[1], "/"), "it leads a session, in the root directory");
    for stream in 0..=2 {
        let target = fs::read_link(format!("/proc/{}/fd/{stream}", facts[0])).unwrap();
        assert_eq!(target, Path::new("/dev/null"), "descriptor {stream}");
    }
    let environment = fs::read(home.path().join("environ")).unwrap();
    let names: Vec<_> = environment.split(|b| *b == 0).filter(|v| !v.is_empty()).collect();
    for variable in &names {
        let name = String::from_utf8_lossy(variable.split(|b| *b == b'=').next().unwrap()).into_owned();
        let stranger =
            ["CUSTOM_ENV_", "CI_", "TMPDIR", "GREENROOM_", "CARGO"].iter().any(|p| name.starts_with(p));
        assert!(!stranger, "{name} got through");
    }
    assert!(names.iter().any(|v| v.starts_with(b"PATH=")));
    starter(home.path()).start_keeper().await.unwrap();
    assert_eq!(
        fs::read_to_string(home.path().join("facts")).unwrap().lines().next(),
        Some(facts[0]),
        "no second one"
    );
    let started = Instant::now();
    while !home.path().join("woken").exists() {
        host.wake_keeper(&pool()).await;
        assert!(started.elapsed() < DEADLINE, "it does not wake");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test]
async fn a_started_keeper_is_on_its_own() {
    let mut direct = Command::new(std::env::current_exe().unwrap());
    a_started_keeper_holds_nothing_of_its_starters(&mut direct).await;
}

#[tokio::test]
async fn a_script_that_copies_the_runners_pipes_does_not_hang_the_stage() {
    let mut script = Command::new("sh");
    script.args(["-c", "exec 3>&1 4>&2; \"$0\" \"$@\""]).arg(std::env::current_exe().unwrap());
    a_started_keeper_holds_nothing_of_its_starters(&mut script).await;
}

#[tokio::test]
async fn many_that_start_a_keeper_at_once_start_one() {
    let home = home();
    let (root, barrier) = (home.path().to_owned(), Arc::new(Barrier::new(12)));
    let starts: Vec<_> = (0..12)
        .map(|_| {
            let (root, barrier) = (root.clone(), Arc::clone(&barrier));
            on_own_thread(&home.path().join("state"), async move |_| {
                let starter = starter(&root);
                barrier.wait();
                let end = Instant::now() + DEADLINE;
                while !starter.keeper_lives().await.unwrap() {
                    starter.start_keeper().await.unwrap();
                    assert!(Instant::now() < end, "no keeper");
                }
            })
        })
        .collect();
    for start in starts {
        start.join().unwrap();
    }
    let host = operator(&home.path().join("state"));
    let end = Instant::now() + DEADLINE;
    while host.keeper_lives().await.unwrap() {
        host.wake_keeper(&pool()).await;
        assert!(Instant::now() < end, "it does not end");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let keepers = fs::read_dir(home.path()).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap());
    assert_eq!(keepers.filter(|name| name.starts_with("keeper-")).count(), 1);
}

#[tokio::test]
async fn a_program_that_never_becomes_a_keeper_is_reported() {
    let home = home();
    // The starter times out only for a keeper that starts and keeps running.
    let open = |program: &str, arg: &str, within: Duration| {
        // One each: a child that hangs keeps `spawn.lock`.
        let state = StateDir::open(&home.path().join(program.replace('/', "-"))).unwrap();
        let command = KeeperCommand::new(program, [arg], Vec::new);
        let times = Times { keeper_start_timeout: within, ..Times::default() };
        let host = LocalHost::open(state, Role::Operator, command, Signals::default_actions());
        host.unwrap().with_times(times)
    };
    for (program, arg, within, expected) in [
        ("/bin/true", "", DEADLINE, "exited before it became a keeper"),
        ("/bin/sleep", "1", Duration::from_millis(200), "did not become a keeper within 200 ms"),
        ("/nowhere/greenroom", "", DEADLINE, "cannot start `/nowhere/greenroom`"),
    ] {
        let error = open(program, arg, within).start_keeper().await.unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    }
}
