//! Calls, and the plugin's faults in them.

#![cfg(test)]

use std::time::{Duration, Instant};

use greenroom_backends::fleeting::group::{CallErrorKind, InstanceGroup as _, InstanceState};
use greenroom_backends::fleeting::plugin::Plugin;

use crate::fixture::{Place, failed, grown, listed};
use crate::platform::Platform;

fn texts(all: &[&str]) -> Vec<String> {
    all.iter().map(ToString::to_string).collect()
}

#[tokio::test]
async fn a_group_grows_is_reached_and_shrinks() {
    let place = Place::new();
    let plugin = place.plugin();
    assert_eq!(plugin.update().await, Ok(Vec::new()));
    let ids = grown(&plugin, 3).await;
    let info = plugin.connect_info(&ids[0]).await.unwrap();
    assert_eq!((info.internal_address.as_str(), info.port), ("127.0.0.1", Some(22)));
    assert_eq!((info.os.as_str(), info.external_address.as_str(), info.expires), ("linux", "", None));
    assert!(info.key.starts_with(b"-----BEGIN OPENSSH PRIVATE KEY-----") && info.password == "pw-hunter2");
    assert_eq!(plugin.heartbeat(&ids[0]).await, Ok(()));
    assert_eq!(plugin.suspend(&ids[..1]).await, Ok(ids[..1].to_vec()));
    let suspended = plugin.update().await.unwrap();
    assert_eq!(suspended.iter().filter(|seen| seen.state == InstanceState::Suspended).count(), 1);
    failed(plugin.heartbeat(&ids[0]).await, "not healthy");
    assert_eq!(plugin.resume(&ids[..1]).await, Ok(ids[..1].to_vec()));
    assert_eq!(plugin.decrease(&ids[1..]).await, Ok(ids[1..].to_vec()));
    listed(&plugin, InstanceState::Running, 1).await;
}

#[tokio::test]
async fn credentials_that_expire_say_when() {
    let place = Place::new();
    place.fault("expires", "600");
    let plugin = place.plugin();
    let ids = grown(&plugin, 1).await;
    let now = jiff::Timestamp::now().as_second();
    let expires = plugin.connect_info(&ids[0]).await.unwrap().expires.unwrap();
    assert!((now + 590..now + 700).contains(&expires), "{expires} at {now}");
}

#[tokio::test]
async fn a_platforms_machine_runs_when_it_listens() {
    let platform = Platform::new();
    platform.fault("boot_ms", "300");
    let place = Place::new();
    let mut settings = place.settings();
    settings.config["dir"] = platform.dir.path().to_str().into();
    settings.config["platform"] = true.into();
    let plugin = Plugin::new(settings);
    assert_eq!(plugin.increase(1).await, Ok(1));
    listed(&plugin, InstanceState::Creating, 1).await;
    let id = listed(&plugin, InstanceState::Running, 1).await.remove(0).id;
    let info = plugin.connect_info(&id).await.unwrap();
    let address = (info.internal_address.as_str(), info.port.unwrap());
    std::net::TcpStream::connect(address).unwrap();
    assert_eq!(plugin.decrease(std::slice::from_ref(&id)).await, Ok(vec![id]));
    listed(&plugin, InstanceState::Deleting, 0).await;
}

#[tokio::test]
async fn a_slow_call_is_no_failure_and_calls_beside_it_are_answered() {
    let place = Place::new();
    place.fault("increase-delay", "3500");
    let plugin = place.plugin();
    plugin.info().await.unwrap();
    let begun = Instant::now();
    let beside = async {
        let listed = plugin.update().await;
        (listed, begun.elapsed())
    };
    let (increased, (listed, took)) = tokio::join!(plugin.increase(1), beside);
    assert_eq!((increased, listed), (Ok(1), Ok(Vec::new())));
    assert!(took < Duration::from_millis(3500), "{took:?}");
}

#[tokio::test]
async fn an_answer_that_is_late_is_unknown_and_the_process_stays() {
    let place = Place::new();
    place.fault("increase-hang.once", "");
    let mut settings = place.settings();
    settings.deadlines.increase = Duration::from_secs(2);
    let plugin = Plugin::new(settings);
    plugin.info().await.unwrap();
    let process = place.processes();
    let error = failed(plugin.increase(1).await, "did not answer Increase within 2 s");
    assert_eq!(error.kind, CallErrorKind::Unknown);
    assert_eq!(plugin.update().await, Ok(Vec::new()));
    assert_eq!(place.processes(), process, "the plugin still serves other calls");
}

#[tokio::test]
async fn a_plugin_that_is_stopped_is_killed_and_started_again() {
    let place = Place::new();
    let mut settings = place.settings();
    settings.deadlines.update = Duration::from_secs(2);
    let plugin = Plugin::new(settings);
    plugin.info().await.unwrap();
    let process = place.process(crate::fixture::TEST_PLUGIN);
    let pid = rustix::process::Pid::from_raw(i32::try_from(process).unwrap()).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::STOP).unwrap();
    let error = failed(plugin.update().await, "did not answer Update");
    assert_eq!(error.kind, CallErrorKind::Unknown);
    assert_eq!(plugin.update().await, Ok(Vec::new()));
    assert_ne!(place.process(crate::fixture::TEST_PLUGIN), process);
}

#[tokio::test]
async fn errors_of_the_plugin_are_refusals_in_its_own_words() {
    let place = Place::new();
    let plugin = place.plugin();
    let ids = grown(&plugin, 2).await;
    for method in ["update", "increase", "decrease", "connect-info", "heartbeat", "suspend", "resume"] {
        place.fault(&format!("{method}-error"), "quota of tok-12345\nis used up");
    }
    let why = "failed: quota of [hidden] is used up";
    for error in [
        failed(plugin.update().await, why),
        failed(plugin.increase(1).await, why),
        failed(plugin.decrease(&ids).await, why),
        failed(plugin.connect_info(&ids[0]).await, why),
        failed(plugin.heartbeat(&ids[0]).await, why),
        failed(plugin.suspend(&ids).await, why),
        failed(plugin.resume(&ids).await, why),
    ] {
        assert_eq!(error.kind, CallErrorKind::Refused, "{error:?}");
    }
}

#[tokio::test]
async fn a_part_that_was_done_is_known_where_the_plugin_says_it() {
    let place = Place::new();
    let plugin = place.plugin();
    place.fault("increase-part.once", "1");
    let error = failed(plugin.increase(3).await, "no capacity for the rest");
    assert_eq!(error.kind, CallErrorKind::Refused);
    let mut ids: Vec<String> =
        listed(&plugin, InstanceState::Running, 1).await.into_iter().map(|seen| seen.id).collect();
    plugin.increase(2).await.unwrap();
    ids = listed(&plugin, InstanceState::Running, ids.len() + 2)
        .await
        .into_iter()
        .map(|seen| seen.id)
        .collect();
    place.fault("suspend-part", "1");
    assert_eq!(plugin.suspend(&ids).await, Ok(ids[..1].to_vec()));
    place.fault("resume-part", "0");
    failed(plugin.resume(&ids[..1]).await, "the rest did not change");
    place.fault("decrease-part", "2");
    failed(plugin.decrease(&ids).await, "the rest is protected");
    assert_eq!(plugin.update().await.unwrap().len(), 1);
}

#[tokio::test]
async fn wrong_counts_and_foreign_ids_are_cut() {
    let place = Place::new();
    let plugin = place.plugin();
    place.fault("increase-answer", "7");
    assert_eq!(plugin.increase(2).await, Ok(2));
    place.fault("increase-answer", "0");
    assert_eq!(plugin.increase(1).await, Ok(0));
    let ids: Vec<String> = plugin.update().await.unwrap().into_iter().map(|seen| seen.id).collect();
    place.fault("decrease-answer", "i-foreign");
    assert_eq!(plugin.decrease(&ids[..2]).await, Ok(ids[..2].to_vec()));
    assert_eq!(plugin.decrease(&texts(&["i-gone"])).await, Ok(Vec::new()));
}

#[tokio::test]
async fn a_list_that_breaks_off_is_an_error() {
    let place = Place::new();
    let plugin = place.plugin();
    grown(&plugin, 3).await;
    place.fault("update-broken", "2");
    assert_eq!(failed(plugin.update().await, "the list broke off").kind, CallErrorKind::Refused);
}

#[tokio::test]
async fn strange_lists_are_read_or_refused() {
    let place = Place::new();
    let plugin = place.plugin();
    let ids = grown(&plugin, 2).await;
    place.fault("update-twice", "");
    listed(&plugin, InstanceState::Running, 2).await;
    place.fault("update-state", "99");
    listed(&plugin, InstanceState::Unknown(99), 2).await;
    place.repair("update-state");
    place.fault("update-hides", &ids[0]);
    assert_eq!(listed(&plugin, InstanceState::Running, 1).await[0].id, ids[1]);
    for id in ["", "a\u{7}b", &"x".repeat(2000)] {
        place.fault("update-adds", id);
        failed(plugin.update().await, "an instance with the unusable id");
    }
}

#[tokio::test]
async fn credentials_of_an_unlisted_instance_are_never_asked_for() {
    let place = Place::new();
    let plugin = place.plugin();
    let ids = grown(&plugin, 1).await;
    let process = place.processes();
    failed(plugin.connect_info("i-unknown").await, "does not have the instance `i-unknown`");
    place.fault("update-hides", "");
    assert_eq!(plugin.update().await, Ok(Vec::new()));
    failed(plugin.connect_info(&ids[0]).await, "does not have the instance");
    assert_eq!(place.processes(), process, "the plugin would have crashed");
}

#[tokio::test]
async fn older_plugins_lack_calls() {
    let place = Place::new();
    let plugin = place.plugin();
    let ids = grown(&plugin, 1).await;
    place.fault("heartbeat-unimplemented", "");
    assert_eq!(plugin.heartbeat(&ids[0]).await, Ok(()));
    place.fault("suspend-unimplemented", "");
    assert_eq!(failed(plugin.suspend(&ids).await, "Suspend").kind, CallErrorKind::Unsupported);
    let mut settings = place.settings();
    settings.config["suspends"] = false.into();
    let error = failed(Plugin::new(settings).suspend(&ids).await, "cannot suspend");
    assert_eq!(error.kind, CallErrorKind::Unsupported);
}

#[tokio::test]
async fn a_crash_in_a_call_is_unknown_and_the_next_call_starts_the_plugin() {
    let place = Place::new();
    let plugin = place.plugin();
    plugin.info().await.unwrap();
    place.fault("done-increase-crash.once", "");
    let why = "exited with code 2 during Increase; the plugin's log ends: panic: assignment";
    assert_eq!(failed(plugin.increase(1).await, why).kind, CallErrorKind::Unknown);
    // What the crashed process made is there.
    let ids: Vec<String> =
        listed(&plugin, InstanceState::Running, 1).await.into_iter().map(|seen| seen.id).collect();
    place.fault("decrease-crash", "");
    failed(plugin.decrease(&ids).await, "during Decrease");
    let error = failed(plugin.update().await, "it is started again in");
    assert_eq!(error.kind, CallErrorKind::NotStarted, "the second crash in a row pauses");
}
