//! Processes that die: what the others see of them.

use greenroom_testkit::skipped::skipped;

use super::*;

#[tokio::test]
async fn kill_minus_nine_frees_the_lease_and_the_runner_is_still_there() {
    let home = home();
    fs::create_dir(home.path().join("custom-executor1")).unwrap();
    let mut call = start("call", home.path());
    call.hear_word(&format!("begun {}", call.pid()));
    let host = host(&home.path().join("state"), Role::Keeper);
    let held = seen(&host).await.unwrap();
    assert!(held.lease_held);
    assert_eq!((held.runner, held.tmpdir), (Presence::There, Presence::There));
    call.kill();
    let freed = seen(&host).await.unwrap();
    assert!(!freed.lease_held && freed.runner == Presence::There);
    fs::remove_dir(home.path().join("custom-executor1")).unwrap();
    assert_eq!(seen(&host).await.unwrap().tmpdir, Presence::Gone);
    let seized = host.seize_attempt(&name()).await.unwrap();
    assert!(seized.is_some());
    assert!(!seen(&host).await.unwrap().lease_held, "the keeper's own hold is no call");
}

async fn a_runners_death_is_noticed(role: &str) {
    let home = home();
    let tmpdir = home.path().join("custom-executor1");
    fs::create_dir_all(tmpdir.join("script1")).unwrap();
    fs::write(tmpdir.join("script1/script"), "secret").unwrap();
    fs::create_dir(home.path().join("treasure")).unwrap();
    fs::write(home.path().join("treasure/gold"), "keep").unwrap();
    std::os::unix::fs::symlink(home.path().join("treasure"), tmpdir.join("link")).unwrap();
    let mut runner = start(role, home.path());
    assert!(runner.hear().starts_with("begun "));
    let host = host(&home.path().join("state"), Role::Keeper);
    let alive = seen(&host).await.unwrap();
    assert!(alive.lease_held && alive.runner == Presence::There);
    host.remove_tmpdir(&name()).await.unwrap();
    assert!(tmpdir.exists(), "a living runner still needs it");
    runner.kill();
    runner.hear_word("RunnerGone");
    let gone = until_seen(&host, "a free lease and no runner", |a| !a.lease_held).await;
    assert_eq!((gone.runner, gone.tmpdir), (Presence::Gone, Presence::There));
    let _seized = host.seize_attempt(&name()).await.unwrap().unwrap();
    assert!(!host.mark_closed(&name(), End::RunnerGone).await.unwrap());
    host.remove_tmpdir(&name()).await.unwrap();
    assert!(!tmpdir.exists());
    assert_eq!(fs::read_to_string(home.path().join("treasure/gold")).unwrap(), "keep");
}

#[tokio::test]
async fn a_call_stops_by_itself_when_its_runner_dies() {
    a_runners_death_is_noticed("runner-of-call").await;
}

#[tokio::test]
async fn a_call_inside_a_script_knows_the_runner_behind_the_script() {
    a_runners_death_is_noticed("runner-of-wrapped-call").await;
}

#[tokio::test]
async fn from_another_namespace_the_lease_is_seen_and_nothing_else_is_judged() {
    for proc in ["--mount-proc", "--mount"] {
        seen_from_outside(proc).await;
    }
}

/// `--mount-proc`: as in a container. `--mount`: with the outer namespace's /proc, which names other processes.
async fn seen_from_outside(proc: &str) {
    let home = home();
    fs::create_dir(home.path().join("custom-executor1")).unwrap();
    let inner = child_command("call", home.path());
    let mut command = Command::new("unshare");
    command.args(["-r", "-p", "-f", "--kill-child", proc]).arg(inner.get_program()).args(inner.get_args());
    command.env(ROLE, "call").env(DIR, home.path()).stdin(Stdio::null());
    let mut call = Proc::start(command);
    let word = call.hear();
    if !word.starts_with("begun ") {
        skipped("user and process namespaces cannot be made (`unshare -r -p`)");
        return;
    }
    let host = host(&home.path().join("state"), Role::Keeper);
    let held = seen(&host).await.unwrap();
    assert!(held.lease_held);
    assert_eq!((held.runner, held.tmpdir), (Presence::Unknown, Presence::Unknown));
    call.kill();
    until_seen(&host, "a free lease", |a| !a.lease_held).await;
}

#[tokio::test]
async fn a_cleanup_beside_a_living_run_stops_it_and_knows_of_it() {
    let home = home();
    let root = home.path().join("state");
    let host = operator(&root);
    {
        let preparing = operator(&root);
        drop(preparing.begin_attempt(&name(), &record(&preparing)).await.unwrap());
    }
    let mut killed = start("run", home.path());
    killed.hear_word("entered");
    killed.kill();
    let mut command = child_command("run", home.path());
    command.stdin(Stdio::piped());
    let mut run = Proc::start(command);
    run.hear_word("entered");
    let closing = host.close_attempt(&name(), End::CleanedUp).await.unwrap();
    assert!(closing.calls_remain);
    run.hear_word("Message");
    assert!(host.close_attempt(&name(), End::CleanedUp).await.unwrap().calls_remain, "until it ends");
    drop(run.child.stdin.take());
    run.child.wait().unwrap();
    assert!(!host.close_attempt(&name(), End::CleanedUp).await.unwrap().calls_remain);
    let sockets = fs::read_dir(root.join("attempts/custom-executor1")).unwrap();
    let sockets: Vec<_> = sockets.map(|e| e.unwrap().file_name()).collect();
    assert!(!sockets.iter().any(|s| s.to_str().unwrap().starts_with("run.")), "{sockets:?}");
}
