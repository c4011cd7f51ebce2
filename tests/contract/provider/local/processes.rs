//! The processes of local instances, and those that their jobs leave behind.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant, SystemTime};

use greenroom_core::failure::ErrorClass;
use greenroom_core::inventory::Status;
use greenroom_harness::here::kill;
use greenroom_harness::provider::{
    Fixture, class, gone, is_gone, leave_nothing, listed, request, running, status, until,
};
use greenroom_ports::provider::{LaunchRequest, Provider};
use rustix::process::Signal;

use super::LocalFixture;

/// Launches instance 1 and waits until it runs.
async fn one(fixture: &LocalFixture) -> (u32, std::rc::Rc<dyn Provider>) {
    let provider = fixture.build("");
    let request = request(fixture, 1);
    provider.launch(&request).await.unwrap();
    running(fixture, &*provider, &request.instance).await;
    (fixture.server(&request.instance).expect("a process"), provider)
}

/// Starts processes on the instance that try to stay: in the session's background, in a session of their own, and
/// without the environment that names the instance. Returns when all three exist.
async fn stubborn(fixture: &LocalFixture) -> BTreeSet<u32> {
    let id = request(fixture, 1).instance;
    let endpoint = fixture.build("").endpoint(&id).await.unwrap();
    let command = "sleep 601 & setsid sleep 602 & env -i sleep 603 & wait";
    let mut ssh = Command::new("ssh");
    ssh.args(["-F", "none", "-T", "-o", "BatchMode=yes", "-o", "StrictHostKeyChecking=no", "-o"]);
    ssh.args(["UserKnownHostsFile=/dev/null", "-p", &endpoint.port.to_string(), "-l", &endpoint.user, "-i"]);
    ssh.arg(fixture.client_key()).args([&endpoint.address, command]);
    let mut client = ssh.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let pids = until("three sleepers", Duration::from_secs(20), async || {
        let pids = sleepers(fixture);
        (pids.len() == 3).then_some(pids)
    })
    .await;
    client.kill().unwrap();
    client.wait().unwrap();
    assert_eq!(sleepers(fixture), pids, "they outlive their connection");
    pids
}

/// The sleeping processes, found by working directory: that also finds the process that cleared its environment.
fn sleepers(fixture: &LocalFixture) -> BTreeSet<u32> {
    let work = fixture.instance_dir(&request(fixture, 1).instance).join("work");
    let work = work.canonicalize().unwrap_or(work);
    let is_sleep = |pid: &u32| {
        let comm = std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
        comm.trim() == "sleep" && cwd(*pid).is_some_and(|cwd| cwd.starts_with(&work))
    };
    greenroom_harness::here::command_lines().into_iter().map(|(pid, _)| pid).filter(is_sleep).collect()
}

fn cwd(pid: u32) -> Option<PathBuf> {
    std::fs::read_link(format!("/proc/{pid}/cwd")).ok()
}

fn alive(pids: &BTreeSet<u32>) -> Vec<u32> {
    let state = |pid: &u32| std::fs::read_to_string(format!("/proc/{pid}/stat")).ok();
    let lives = |pid: &&u32| state(pid).is_some_and(|stat| !stat.contains(") Z "));
    pids.iter().filter(lives).copied().collect()
}

#[tokio::test]
async fn an_instance_is_on_its_own_and_knows_nothing_of_its_parent() {
    let fixture = LocalFixture::new();
    let (pid, _) = one(&fixture).await;
    let read = |file: &str| std::fs::read(format!("/proc/{pid}/{file}")).unwrap();
    let environ = String::from_utf8(read("environ")).unwrap();
    let names: Vec<&str> = environ.split_terminator('\0').filter_map(|one| one.split('=').next()).collect();
    assert!(super::has_something_to_hide(), "the test judges nothing");
    assert!(
        names.iter().all(|name| ["PATH", "LANG", "LC_ALL", "LC_CTYPE", "TZ"].contains(name)),
        "{names:?}"
    );
    let stat = String::from_utf8(read("stat")).unwrap();
    let session = stat.rsplit_once(") ").unwrap().1.split(' ').nth(3).unwrap();
    assert_eq!(session, pid.to_string(), "it leads no session of its own");
    assert_eq!(cwd(pid), Some(PathBuf::from("/")));
    let stream = |fd: u32| std::fs::read_link(format!("/proc/{pid}/fd/{fd}")).unwrap();
    assert_eq!((stream(0), stream(1)), (PathBuf::from("/dev/null"), PathBuf::from("/dev/null")));
    assert!(stream(2).ends_with("console.log"));
    leave_nothing(&fixture).await;
}

#[tokio::test]
async fn terminate_ends_everything_that_runs_there() {
    let fixture = LocalFixture::new();
    let (_, provider) = one(&fixture).await;
    let pids = stubborn(&fixture).await;
    gone(&fixture, &*provider, &request(&fixture, 1).instance).await;
    assert_eq!(alive(&pids), Vec::<u32>::new(), "left running");
    leave_nothing(&fixture).await;
}

#[tokio::test]
async fn after_kill_9_of_the_instance_terminate_finds_what_it_left() {
    let fixture = LocalFixture::new();
    let (pid, provider) = one(&fixture).await;
    let pids = stubborn(&fixture).await;
    kill(pid, Signal::KILL);
    let request = request(&fixture, 1);
    until("seen as dead", Duration::from_secs(5), async || {
        let seen = status(&*provider, &fixture.pool(), &request.instance).await;
        (seen == Some(Status::Stopping)).then_some(())
    })
    .await;
    assert_eq!(alive(&pids).len(), 3, "nobody is left to find: the test judges nothing");
    gone(&fixture, &*provider, &request.instance).await;
    assert_eq!(alive(&pids), Vec::<u32>::new(), "left running");
    leave_nothing(&fixture).await;
}

#[tokio::test]
async fn hangup_interrupt_and_quit_change_nothing_and_term_is_a_power_cut() {
    let fixture = LocalFixture::new();
    let (pid, provider) = one(&fixture).await;
    let request = request(&fixture, 1);
    for signal in [Signal::HUP, Signal::INT, Signal::QUIT] {
        kill(pid, signal);
    }
    let pids = stubborn(&fixture).await;
    assert_eq!(fixture.server(&request.instance), Some(pid));
    kill(pid, Signal::TERM);
    until("dead", Duration::from_secs(10), async || fixture.living().is_empty().then_some(())).await;
    assert_eq!(alive(&pids), Vec::<u32>::new(), "left running");
    assert_eq!(status(&*provider, &fixture.pool(), &request.instance).await, Some(Status::Stopping));
    assert!(provider.console(&request.instance).await.unwrap().contains("stopping: killed by SIGTERM"));
    leave_nothing(&fixture).await;
}

#[tokio::test]
async fn a_deleted_state_directory_leaves_nothing_running() {
    let fixture = LocalFixture::new();
    let (_, _) = one(&fixture).await;
    let pids = stubborn(&fixture).await;
    std::fs::remove_dir_all(fixture.pool_dir()).unwrap();
    until("dead", Duration::from_secs(12), async || fixture.living().is_empty().then_some(())).await;
    assert_eq!(alive(&pids), Vec::<u32>::new(), "left running");
    leave_nothing(&fixture).await;
}

#[tokio::test]
async fn an_instance_that_does_not_listen_is_killed_in_the_end() {
    let fixture = LocalFixture::new();
    let (pid, provider) = one(&fixture).await;
    let id = request(&fixture, 1).instance;
    kill(pid, Signal::STOP);
    provider.terminate(&id).await.unwrap();
    provider.terminate(&id).await.unwrap();
    assert_eq!(fixture.server(&id), Some(pid), "killed at once, without a chance to clean up");
    gone(&fixture, &*fixture.build_ahead(Duration::from_secs(11)), &id).await;
    leave_nothing(&fixture).await;
}

#[tokio::test]
async fn a_burial_that_is_killed_again_and_again_is_finished_in_the_end() {
    let fixture = LocalFixture::new();
    let (_, provider) = one(&fixture).await;
    let id = request(&fixture, 1).instance;
    let work = fixture.instance_dir(&id).join("work");
    for number in 0..400 {
        std::fs::create_dir_all(work.join(format!("{number}/deep"))).unwrap();
        std::fs::write(work.join(format!("{number}/deep/file")), "x").unwrap();
    }
    for _ in 0..5 {
        if is_gone(&*provider, &id).await {
            break;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
        let pid =
            fixture.server(&id).and_then(|pid| rustix::process::Pid::from_raw(i32::try_from(pid).unwrap()));
        if let Some(pid) = pid {
            // It may have finished between the two lines.
            let _ = rustix::process::kill_process(pid, Signal::KILL);
        }
    }
    gone(&fixture, &*provider, &id).await;
    leave_nothing(&fixture).await;
}

#[tokio::test]
async fn asking_without_pause_during_a_burial_meets_only_the_ending_and_its_end() {
    let fixture = LocalFixture::new();
    let provider = fixture.build("");
    for number in 1..=30 {
        let request = request(&fixture, number);
        provider.launch(&request).await.unwrap();
        provider.terminate(&request.instance).await.unwrap();
        let begun = Instant::now();
        loop {
            let seen = status(&*provider, &fixture.pool(), &request.instance).await;
            assert!(matches!(seen, None | Some(Status::Stopping)), "{number}: {seen:?}");
            if is_gone(&*provider, &request.instance).await {
                break;
            }
            assert!(begun.elapsed() < Duration::from_secs(20), "{number} does not go");
        }
    }
    leave_nothing(&fixture).await;
}

#[tokio::test]
async fn a_half_made_instance_is_listed_with_tags_and_made_by_the_same_token() {
    let fixture = LocalFixture::new();
    let broken = fixture.build_with("", Path::new("/bin/false"));
    for number in [1, 2] {
        let request = request(&fixture, number);
        assert_eq!(class(broken.launch(&request).await), ErrorClass::Unknown);
        assert_eq!(class(broken.endpoint(&request.instance).await), ErrorClass::Transient);
    }
    let provider = fixture.build("");
    let seen = listed(&*provider, &fixture.pool()).await;
    assert_eq!(seen.len(), 2);
    for (number, half) in (1..).zip(&seen) {
        assert_eq!(
            (half.status, half.tags.as_ref()),
            (Status::Starting, Some(&request(&fixture, number).tags))
        );
    }
    let request = request(&fixture, 1);
    provider.launch(&request).await.unwrap();
    running(&fixture, &*provider, &request.instance).await;
    // The other one never had a process, and is forgotten all the same.
    leave_nothing(&fixture).await;
}

#[tokio::test]
async fn another_token_for_the_same_name_is_refused_for_good() {
    let fixture = LocalFixture::new();
    let (pid, provider) = one(&fixture).await;
    let first = request(&fixture, 1);
    let second = LaunchRequest { token: "another".to_owned(), ..first.clone() };
    let refused = provider.launch(&second).await.unwrap_err();
    assert_eq!(refused.class(), &ErrorClass::Invalid);
    assert!(refused.to_string().contains(&format!("has been launched as `{}`", first.token)), "{refused}");
    assert_eq!(fixture.server(&first.instance), Some(pid));
    leave_nothing(&fixture).await;
}

#[tokio::test]
async fn a_program_that_is_not_there_is_a_definite_failure() {
    let fixture = LocalFixture::new();
    let request = request(&fixture, 1);
    let failed = fixture.build_with("", Path::new("/no/such/greenroom")).launch(&request).await.unwrap_err();
    assert_eq!(failed.class(), &ErrorClass::Transient);
    assert!(failed.to_string().contains("cannot start /no/such/greenroom"), "{failed}");
    leave_nothing(&fixture).await;
}

/// The process that the next test kills. This is not a test by itself.
#[tokio::test]
#[ignore = "run by launches_killed_at_any_moment_leave_nothing_unseen"]
async fn launches_in_a_process_of_its_own() {
    let (Some(state), Some(number)) = (std::env::var_os("LAUNCH_IN"), std::env::var_os("LAUNCH_NUMBER"))
    else {
        return;
    };
    let fixture = LocalFixture::borrowed(Path::new(&state));
    let number = number.to_str().unwrap().parse().unwrap();
    fixture.build("").launch(&request(&fixture, number)).await.unwrap();
    std::mem::forget(fixture);
}

#[tokio::test]
async fn launches_killed_at_any_moment_leave_nothing_unseen() {
    let fixture = LocalFixture::new();
    let provider = fixture.build("");
    let this = "provider::local::processes::launches_in_a_process_of_its_own";
    for number in 1..=36_u32 {
        let mut launcher = Command::new(std::env::current_exe().unwrap());
        launcher.args(["--exact", "--ignored", this]).stdout(Stdio::null()).stderr(Stdio::null());
        launcher.env("LAUNCH_IN", fixture.state_dir()).env("LAUNCH_NUMBER", number.to_string());
        let mut launcher = launcher.spawn().unwrap();
        // The whole takes a few milliseconds: the kills are spread over it, finer than a timer could.
        let begun = Instant::now();
        while begun.elapsed() < Duration::from_micros(u64::from(number) * 150) {
            std::hint::spin_loop();
        }
        launcher.kill().unwrap();
        launcher.wait().unwrap();
        let seen: BTreeSet<String> =
            listed(&*provider, &fixture.pool()).await.iter().map(|one| one.id.to_string()).collect();
        let living = fixture.living();
        assert!(living.is_subset(&seen), "{living:?} live, {seen:?} are listed");
        let request = request(&fixture, number);
        provider.launch(&request).await.unwrap();
        running(&fixture, &*provider, &request.instance).await;
        assert_eq!(fixture.living().len(), 1);
        gone(&fixture, &*provider, &request.instance).await;
    }
    // An unfinished instance is removed once it is old.
    let litter = |fixture: &LocalFixture| {
        let names = std::fs::read_dir(fixture.pool_dir()).unwrap().flatten();
        names.filter(|entry| entry.file_name().to_string_lossy().starts_with(".new-")).collect::<Vec<_>>()
    };
    std::fs::create_dir_all(fixture.pool_dir().join(".new-cut-off/home")).unwrap();
    for entry in litter(&fixture) {
        let then = SystemTime::now() - Duration::from_hours(1);
        std::fs::File::open(entry.path()).unwrap().set_modified(then).unwrap();
    }
    provider.launch(&request(&fixture, 99)).await.unwrap();
    // Removal begins with the launch and does not hold it up.
    let removed = async || litter(&fixture).is_empty().then_some(());
    until("the remains are removed", Duration::from_secs(10), removed).await;
    leave_nothing(&fixture).await;
}
