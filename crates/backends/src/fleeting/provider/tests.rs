//! A provider over a plugin in memory.

use futures_util::future::join_all;
use greenroom_core::endpoint::LoginKey;

use super::fake::{FakeSite, id, request};
use super::*;
use crate::fleeting::group::CallErrorKind;

fn class<T: std::fmt::Debug>(answer: Result<T, ProviderError>) -> ErrorClass {
    answer.unwrap_err().class().clone()
}

async fn listed_ids(provider: &Fleeting) -> Vec<String> {
    let listing = provider.list(&PoolName::new("linux")).await.unwrap();
    listing.instances.iter().map(|listed| listed.id.to_string()).collect()
}

#[tokio::test]
async fn launches_that_begin_together_are_one_call() {
    let site = FakeSite::new();
    let provider = site.provider("");
    let requests: Vec<_> = (1..=10).map(request).collect();
    let answers = join_all(requests.iter().map(|request| provider.launch(request))).await;
    assert!(answers.iter().all(Result::is_ok));
    assert_eq!(site.cloud.called("increase"), ["increase 10"]);
    assert_eq!(listed_ids(&provider).await.len(), 10);
    // A repeat makes nothing.
    provider.launch(&requests[3]).await.unwrap();
    assert_eq!(site.cloud.made.get(), 10);
}

#[tokio::test]
async fn a_restarted_keeper_knows_which_machine_is_which() {
    let site = FakeSite::new();
    let first = site.provider("");
    for number in [2, 1] {
        first.launch(&request(number)).await.unwrap();
    }
    let tags = |listing: &Listing| -> Vec<_> {
        listing.instances.iter().map(|l| (l.id.clone(), l.tags.clone(), l.detail.clone())).collect()
    };
    let pool = PoolName::new("linux");
    let before = tags(&first.list(&pool).await.unwrap());
    assert_eq!(before[0].2.as_deref(), Some("m2"), "the second launch");
    drop(first);
    let second = site.provider("");
    assert_eq!(tags(&second.list(&pool).await.unwrap()), before);
    second.launch(&request(1)).await.unwrap();
    assert_eq!(site.cloud.made.get(), 2);
}

#[tokio::test]
async fn a_launch_without_an_answer_is_the_same_launch_when_it_is_repeated() {
    for made in [0, 1] {
        let site = FakeSite::new();
        let provider = site.provider("");
        site.cloud.fail("increase", made, CallErrorKind::Unknown);
        assert_eq!(class(provider.launch(&request(1)).await), ErrorClass::Unknown);
        drop(provider);
        let restarted = site.provider("");
        let repeat = restarted.launch(&request(1)).await;
        if made == 1 {
            repeat.unwrap();
        } else {
            assert_eq!(class(repeat), ErrorClass::Unknown);
            site.pass(600);
            assert!(matches!(class(restarted.launch(&request(1)).await), ErrorClass::NoCapacity { .. }));
        }
        assert_eq!(site.cloud.called("increase").len(), 1, "one call, whatever it made");
    }
}

#[tokio::test]
async fn the_plugins_own_words_reach_the_launch_and_what_it_made_serves_one() {
    let site = FakeSite::new();
    let provider = site.provider("");
    site.cloud.fail("increase", 1, CallErrorKind::Refused);
    let one = request(1);
    let two = request(2);
    let (first, second) = tokio::join!(provider.launch(&one), provider.launch(&two));
    // Which one is the older launch is open: they began together.
    let mut answers = [first, second];
    answers.sort_by_key(Result::is_err);
    let [made, refused] = answers;
    made.unwrap();
    let error = refused.unwrap_err();
    assert_eq!(*error.class(), ErrorClass::Transient);
    assert!(error.to_string().contains("the cloud says no"), "{error}");
    // The machine of the second launch appears late: the engine sees it, with its tags.
    site.cloud.machines.borrow_mut().insert("late".to_owned(), InstanceState::Running);
    assert_eq!(listed_ids(&provider).await, ["linux-c0ffee-1", "linux-c0ffee-2"]);
    assert_eq!(site.cloud.made.get(), 1);
}

#[tokio::test]
async fn a_launch_that_cannot_be_made_is_definite() {
    for (call, kind, expected) in [
        ("update", CallErrorKind::Unknown, ErrorClass::Transient),
        ("update", CallErrorKind::Configuration, ErrorClass::Invalid),
        ("increase", CallErrorKind::NotStarted, ErrorClass::Transient),
    ] {
        let site = FakeSite::new();
        let provider = site.provider("");
        site.cloud.fail(call, 0, kind);
        assert_eq!(class(provider.launch(&request(1)).await), expected);
        provider.launch(&request(1)).await.unwrap();
        assert_eq!(site.cloud.made.get(), 1);
    }
}

#[tokio::test]
async fn a_group_that_is_full_is_a_quota_and_foreign_machines_count() {
    let site = FakeSite::new();
    site.cloud.max_size.set(Some(2));
    site.cloud.machines.borrow_mut().insert("x".to_owned(), InstanceState::Running);
    let provider = site.provider("");
    provider.launch(&request(1)).await.unwrap();
    assert_eq!(class(provider.launch(&request(2)).await), ErrorClass::Quota);
    let listing = provider.list(&PoolName::new("linux")).await.unwrap();
    assert_eq!((listing.instances.len(), listing.copies.len()), (1, 1));
    assert_eq!(listing.copies[0].name, "x");
    drop(provider);
    let adopting = site.provider("adopt = true");
    adopting.launch(&request(3)).await.unwrap();
    assert_eq!(site.cloud.called("increase"), ["increase 1"]);
    assert_eq!(listed_ids(&adopting).await, ["linux-c0ffee-1", "linux-c0ffee-3"]);
}

#[tokio::test]
async fn an_accepted_launch_is_listed_until_its_machine_is_given_up() {
    let site = FakeSite::new();
    site.cloud.hide.set(true);
    let provider = site.provider("");
    provider.launch(&request(1)).await.unwrap();
    assert_eq!(listed_ids(&provider).await, ["linux-c0ffee-1"]);
    assert_eq!(class(provider.endpoint(&id(1)).await), ErrorClass::Transient);
    site.pass(600);
    assert_eq!(listed_ids(&provider).await, Vec::<String>::new());
    assert_eq!(class(provider.endpoint(&id(1)).await), ErrorClass::NotFound);
    assert_eq!(class(provider.terminate(&id(1)).await), ErrorClass::NotFound);
    // It appears after all, and is terminated like any other one.
    site.cloud.show();
    assert_eq!(listed_ids(&provider).await, ["linux-c0ffee-1"]);
    assert_eq!(provider.terminate(&id(1)).await.unwrap(), Termination::Requested);
    assert_eq!(site.cloud.called("decrease"), ["decrease m1"]);
}

#[tokio::test]
async fn terminations_share_a_call_and_are_repeated_after_a_minute() {
    let site = FakeSite::new();
    let provider = site.provider("");
    for number in 1..=3 {
        provider.launch(&request(number)).await.unwrap();
    }
    site.cloud.all(InstanceState::Running);
    provider.list(&PoolName::new("linux")).await.unwrap();
    let ids = [id(1), id(2)];
    site.cloud.fail("decrease", 0, CallErrorKind::Refused);
    let refused = join_all(ids.iter().map(|id| provider.terminate(id))).await;
    assert!(refused.iter().all(|answer| answer.as_ref().is_err_and(|e| e.to_string().contains("says no"))));
    let answers = join_all(ids.iter().map(|id| provider.terminate(id))).await;
    assert!(answers.iter().all(|answer| *answer.as_ref().unwrap() == Termination::Requested));
    assert_eq!(site.cloud.called("decrease"), ["decrease m1 m2", "decrease m1 m2"]);
    site.cloud.machines.borrow_mut().remove("m1");
    site.pass(3);
    assert_eq!(provider.terminate(&id(1)).await.unwrap(), Termination::Gone);
    assert_eq!(provider.terminate(&id(2)).await.unwrap(), Termination::Requested);
    // It still runs: the removal was lost.
    site.cloud.all(InstanceState::Running);
    site.pass(60);
    provider.terminate(&id(2)).await.unwrap();
    assert_eq!(site.cloud.called("decrease").len(), 3);
    assert_eq!(class(provider.terminate(&id(9)).await), ErrorClass::NotFound);
}

#[tokio::test]
async fn the_key_of_the_first_connection_stays() {
    let site = FakeSite::new();
    let provider = site.provider("");
    provider.launch(&request(1)).await.unwrap();
    assert_eq!(class(provider.endpoint(&id(1)).await), ErrorClass::Transient, "it does not run yet");
    site.cloud.all(InstanceState::Running);
    site.cloud.presented.borrow_mut().clear();
    site.pass(3);
    assert_eq!(class(provider.endpoint(&id(1)).await), ErrorClass::Transient, "it presents no key yet");
    "ssh-ed25519 AAAAfirst".clone_into(&mut site.cloud.presented.borrow_mut());
    let first = provider.endpoint(&id(1)).await.unwrap();
    assert_eq!((first.address.as_str(), first.port, first.user.as_str()), ("10.0.0.7", 2222, "ci"));
    assert_eq!(first.host_key, "ssh-ed25519 AAAAfirst first-use:SHA256:21");
    assert!(
        matches!(first.key, Some(LoginKey::File(ref path)) if path.ends_with("fleeting/linux/login_key"))
    );
    "ssh-ed25519 AAAAother".clone_into(&mut site.cloud.presented.borrow_mut());
    assert_eq!(provider.endpoint(&id(1)).await.unwrap(), first);
    drop(provider);
    assert_eq!(site.provider("").endpoint(&id(1)).await.unwrap(), first, "after a restart, too");
}

#[tokio::test]
async fn credentials_are_refreshed_before_they_end() {
    let site = FakeSite::new();
    let provider = site.provider("");
    provider.launch(&request(1)).await.unwrap();
    site.cloud.all(InstanceState::Running);
    provider.list(&PoolName::new("linux")).await.unwrap();
    provider.endpoint(&id(1)).await.unwrap();
    provider.endpoint(&id(1)).await.unwrap();
    assert_eq!(site.cloud.called("connect_info").len(), 1);
    let mut info = site.cloud.connect_info_now().await;
    info.expires = Some(site.wall_seconds() + 1_000);
    site.cloud.info.replace(Some(info.clone()));
    site.pass(300);
    provider.endpoint(&id(1)).await.unwrap();
    let before = site.cloud.called("connect_info").len();
    site.pass(110);
    provider.endpoint(&id(1)).await.unwrap();
    assert_eq!(site.cloud.called("connect_info").len(), before + 1, "a quarter of an hour before");
    info.expires = Some(site.wall_seconds());
    site.cloud.info.replace(Some(info));
    assert!(provider.endpoint(&id(1)).await.unwrap_err().to_string().contains("have expired"));
}

#[tokio::test]
async fn what_greenroom_cannot_log_in_to_is_a_sentence() {
    for (change, expected) in [
        ((|info| "winrm".clone_into(&mut info.protocol)) as fn(&mut ConnectInfo), "connects with SSH only"),
        (|info| info.internal_address.clear(), "no address yet"),
        (|info| info.username.clear(), "set `user`"),
        (|info| info.key = b"hunter2".to_vec(), "cannot read"),
    ] {
        let site = FakeSite::new();
        let provider = site.provider("");
        provider.launch(&request(1)).await.unwrap();
        site.cloud.all(InstanceState::Running);
        provider.list(&PoolName::new("linux")).await.unwrap();
        let mut info = site.cloud.connect_info_now().await;
        change(&mut info);
        site.cloud.info.replace(Some(info));
        let error = provider.endpoint(&id(1)).await.unwrap_err().to_string();
        assert!(error.contains(expected) && !error.contains("hunter2"), "{error}");
    }
}

#[tokio::test]
async fn a_password_logs_in_where_the_plugin_gives_no_key() {
    let site = FakeSite::new();
    let provider = site.provider("");
    provider.launch(&request(1)).await.unwrap();
    site.cloud.all(InstanceState::Running);
    provider.list(&PoolName::new("linux")).await.unwrap();
    let mut info = site.cloud.connect_info_now().await;
    "hunter2".clone_into(&mut info.password);
    site.cloud.info.replace(Some(info));
    let login = provider.endpoint(&id(1)).await.unwrap().key;
    let Some(LoginKey::Password(path)) = login else { panic!("{login:?}") };
    assert!(path.ends_with("fleeting/linux/logins/linux-c0ffee-1.password"), "{}", path.display());
    assert_eq!(fs_err::read_to_string(&path).unwrap(), "hunter2\n");
    site.cloud.machines.borrow_mut().clear();
    for _ in 0..7 {
        site.pass(3);
        provider.list(&PoolName::new("linux")).await.unwrap();
    }
    assert!(!path.exists(), "it goes with its instance");
}

#[tokio::test]
async fn instances_of_another_group_are_left_alone() {
    let site = FakeSite::new();
    let provider = site.provider("");
    provider.launch(&request(1)).await.unwrap();
    provider.list(&PoolName::new("linux")).await.unwrap();
    "group-2".clone_into(&mut site.cloud.group.borrow_mut());
    let machines = site.cloud.machines.take();
    for _ in 0..9 {
        let listing = provider.list(&PoolName::new("linux")).await.unwrap();
        assert_eq!(listing.location.unwrap().as_str(), "fleeting group group-2");
        assert!(listing.instances.is_empty());
    }
    assert_eq!(class(provider.terminate(&id(1)).await), ErrorClass::Transient);
    assert_eq!(class(provider.endpoint(&id(1)).await), ErrorClass::Transient);
    site.cloud.machines.replace(machines);
    "group-1".clone_into(&mut site.cloud.group.borrow_mut());
    assert_eq!(listed_ids(&provider).await, ["linux-c0ffee-1"]);
}

#[tokio::test]
async fn a_launch_dropped_anywhere_leaks_nothing() {
    for polls in 1..12 {
        let site = FakeSite::new();
        let provider = site.provider("");
        {
            let request = request(1);
            let mut launch = Box::pin(provider.launch(&request));
            for _ in 0..polls {
                if futures_util::poll!(launch.as_mut()).is_ready() {
                    break;
                }
                tokio::time::sleep(std::time::Duration::from_millis(1)).await;
            }
        }
        // Whatever the plugin has made is listed as this launch's.
        provider.list(&PoolName::new("linux")).await.unwrap();
        provider.list(&PoolName::new("linux")).await.unwrap();
        drop(provider);
        let next = site.provider("");
        let made = site.cloud.made.get() as usize;
        assert_eq!(listed_ids(&next).await.len(), made, "{polls} polls");
        next.launch(&request(1)).await.unwrap();
        assert_eq!(site.cloud.made.get(), 1);
    }
}

#[tokio::test]
async fn another_process_reads_the_record_and_writes_nothing() {
    let site = FakeSite::new();
    let provider = site.provider("");
    provider.launch(&request(1)).await.unwrap();
    provider.list(&PoolName::new("linux")).await.unwrap();
    // Another process has a queue of its own.
    let state = site.state.path().to_owned();
    let record = crate::fleeting::record::PoolRecord::new(&state, &PoolName::new("linux"));
    assert!(record.lock().unwrap().is_none());
    let before = record.read().unwrap();
    assert_eq!(before["group-1"].machines().len(), 1);
}

#[tokio::test]
async fn the_console_tells_what_the_plugin_showed() {
    let site = FakeSite::new();
    let provider = site.provider("");
    provider.launch(&request(1)).await.unwrap();
    provider.list(&PoolName::new("linux")).await.unwrap();
    site.pass(61);
    site.cloud.all(InstanceState::Running);
    provider.list(&PoolName::new("linux")).await.unwrap();
    let console = provider.console(&id(1)).await.unwrap();
    assert_eq!(console, "00:16:40 UTC requested\n00:16:40 UTC creating as m1\n00:17:41 UTC running\n");
    assert_eq!(class(provider.console(&id(7)).await), ErrorClass::NotFound);
}

fn status_of(listing: &Listing) -> Status {
    listing.instances[0].status
}

#[tokio::test]
async fn an_instance_is_suspended_once_and_resumed_at_another_address() {
    let site = FakeSite::new();
    let provider = site.provider("");
    let pool = PoolName::new("linux");
    assert_eq!(provider.capabilities().suspends, Suspends::Unknown);
    site.cloud.suspends.set(true);
    provider.launch(&request(1)).await.unwrap();
    assert_eq!(provider.capabilities().suspends, Suspends::Yes);
    assert_eq!(class(provider.suspend(&id(1)).await), ErrorClass::Transient, "it does not run yet");
    site.cloud.all(InstanceState::Running);
    provider.list(&pool).await.unwrap();
    provider.endpoint(&id(1)).await.unwrap();
    provider.suspend(&id(1)).await.unwrap();
    assert_eq!(status_of(&provider.list(&pool).await.unwrap()), Status::Stopping);
    provider.suspend(&id(1)).await.unwrap();
    assert_eq!(site.cloud.called("suspend"), ["suspend m1"]);
    assert_eq!(class(provider.resume(&id(1)).await), ErrorClass::Transient, "still suspending");
    site.cloud.all(InstanceState::Suspended);
    assert_eq!(status_of(&provider.list(&pool).await.unwrap()), Status::Suspended);
    assert_eq!(class(provider.endpoint(&id(1)).await), ErrorClass::Transient);
    provider.resume(&id(1)).await.unwrap();
    assert_eq!(status_of(&provider.list(&pool).await.unwrap()), Status::Starting);
    provider.resume(&id(1)).await.unwrap();
    assert_eq!(site.cloud.called("resume"), ["resume m1"]);
    site.cloud.all(InstanceState::Running);
    let mut info = site.cloud.connect_info_now().await;
    "10.0.0.8:2222".clone_into(&mut info.internal_address);
    site.cloud.info.replace(Some(info));
    provider.list(&pool).await.unwrap();
    assert_eq!(provider.endpoint(&id(1)).await.unwrap().address, "10.0.0.8");
}

#[tokio::test]
async fn a_plugin_that_does_not_suspend_or_resume_has_its_words() {
    let site = FakeSite::new();
    let provider = site.provider("");
    let pool = PoolName::new("linux");
    provider.launch(&request(1)).await.unwrap();
    assert_eq!(provider.capabilities().suspends, Suspends::No);
    site.cloud.all(InstanceState::Running);
    provider.list(&pool).await.unwrap();
    for (left_out, kind, expected) in [
        (1, CallErrorKind::Refused, ErrorClass::Transient),
        (0, CallErrorKind::Refused, ErrorClass::Transient),
        (0, CallErrorKind::Unknown, ErrorClass::Transient),
        (0, CallErrorKind::Unsupported, ErrorClass::Invalid),
    ] {
        site.cloud.fail("suspend", left_out, kind);
        assert_eq!(class(provider.suspend(&id(1)).await), expected, "{kind:?}");
    }
    site.cloud.all(InstanceState::Suspended);
    provider.list(&pool).await.unwrap();
    site.cloud.fail("resume", 0, CallErrorKind::Refused);
    let refused = provider.resume(&id(1)).await.unwrap_err().to_string();
    assert!(refused.contains("the plugin did not resume an instance: the cloud says no"), "{refused}");
    assert_eq!(class(provider.suspend(&id(7)).await), ErrorClass::Transient, "nothing shows it");
}

#[tokio::test]
async fn the_plugins_own_check_is_of_running_instances() {
    let site = FakeSite::new();
    let provider = site.provider("");
    let pool = PoolName::new("linux");
    provider.launch(&request(1)).await.unwrap();
    assert_eq!(provider.heartbeat(&id(1)).await.unwrap(), None);
    assert_eq!(site.cloud.called("heartbeat").len(), 0, "it does not run yet");
    site.cloud.all(InstanceState::Running);
    provider.list(&pool).await.unwrap();
    assert_eq!(provider.heartbeat(&id(1)).await.unwrap(), None);
    site.cloud.fail("heartbeat", 0, CallErrorKind::Refused);
    let found = provider.heartbeat(&id(1)).await.unwrap();
    assert_eq!(found.as_deref(), Some("the plugin finds it unhealthy: the cloud says no"));
    site.cloud.fail("heartbeat", 0, CallErrorKind::Unknown);
    assert!(provider.heartbeat(&id(1)).await.is_err(), "that says nothing about the instance");
}
