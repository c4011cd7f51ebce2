//! GitLab's own dummy plugin, built from its Go module: Go's library serves what this suite's plugin serves.

#![cfg(test)]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;

use greenroom_backends::fleeting::group::{CallErrorKind, InstanceGroup as _, InstanceState};
use greenroom_backends::fleeting::plugin::{ConnectorSettings, Deadlines, Pauses, Plugin, PluginSettings};
use greenroom_backends::program::environment::ProgramEnvironment;
use greenroom_core::ids::PoolName;
use greenroom_testkit::skipped::skipped;
use serde_json::{Value, json};

use crate::fixture::{GREENROOM, Place, at, failed, listed};

/// The module that is built: with every call of the protocol.
const MODULE: &str = "module greenroom/dummy

go 1.26

require gitlab.com/gitlab-org/fleeting/fleeting v0.0.0-20260630131728-ef4ba33c8ab8

tool gitlab.com/gitlab-org/fleeting/fleeting/plugin/fleeting-plugin-dummy/cmd/fleeting-plugin-dummy
";
const PACKAGE: &str =
    "gitlab.com/gitlab-org/fleeting/fleeting/plugin/fleeting-plugin-dummy/cmd/fleeting-plugin-dummy";
const OLDEST_GO: (u32, u32) = (1, 26);

/// The plugin's program, built once; `None`: the test is skipped.
pub fn dummy() -> Option<PathBuf> {
    static BUILT: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    let built = BUILT.get_or_init(build);
    built.clone().map_err(skipped).ok()
}

fn build() -> Result<PathBuf, String> {
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join("fleeting-dummy");
    let program = dir.join("dummy");
    if program.exists() && fs::read_to_string(dir.join("built")).is_ok_and(|built| built == MODULE) {
        return Ok(program);
    }
    let version = go(Path::new("/"), &["env", "GOVERSION"]);
    let version = version.filter(|output| output.status.success());
    let version = version.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned());
    if !version.as_deref().is_some_and(is_new_enough) {
        return Err("Go 1.26 is missing, which GitLab's dummy plugin is built with".to_owned());
    }
    fs::create_dir_all(&dir).unwrap();
    fs::write(dir.join("go.mod"), MODULE).unwrap();
    let fetched = go(&dir, &["mod", "tidy"]).unwrap();
    if !fetched.status.success() {
        return Err("the Go modules of GitLab's dummy plugin cannot be fetched".to_owned());
    }
    let built = go(&dir, &["build", "-trimpath", "-o", "dummy", PACKAGE]).unwrap();
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    fs::write(dir.join("built"), MODULE).unwrap();
    Ok(program)
}

/// Runs Go; `None`: there is none. Its caches stay in the folder of the build, and can be removed.
fn go(dir: &Path, arguments: &[&str]) -> Option<Output> {
    let caches = Path::new(env!("CARGO_TARGET_TMPDIR")).join("go");
    let mut go = Command::new("go");
    go.args(arguments).current_dir(dir);
    go.env("GOFLAGS", "-mod=mod -modcacherw -buildvcs=false")
        .env("GOTOOLCHAIN", "local")
        .env("GOWORK", "off");
    go.env("GOMODCACHE", caches.join("modules")).env("GOCACHE", caches.join("builds"));
    go.output().ok()
}

fn is_new_enough(version: &str) -> bool {
    let mut numbers =
        version.trim_start_matches("go").split('.').map_while(|number| number.parse::<u32>().ok());
    numbers.next().zip(numbers.next()).is_some_and(|found| found >= OLDEST_GO)
}

#[test]
fn versions_of_go_are_compared_as_numbers() {
    assert!(is_new_enough("go1.26.8") && is_new_enough("go1.100") && is_new_enough("go2.0"));
    assert!(!is_new_enough("go1.9.7") && !is_new_enough("go1.25.1") && !is_new_enough("devel"));
}

fn settings(place: &Place, program: PathBuf, config: Value) -> PluginSettings {
    PluginSettings {
        pool: PoolName::new("linux"),
        guard: GREENROOM.into(),
        program: at(program),
        config,
        connector: ConnectorSettings { username: "root".to_owned(), ..ConnectorSettings::default() },
        static_optional: false,
        environment: ProgramEnvironment::default(),
        sockets: place.path().join("sockets"),
        deadlines: Deadlines::default(),
        pauses: Pauses::default(),
    }
}

#[tokio::test]
async fn gitlabs_dummy_answers_every_call() {
    let Some(program) = dummy() else { return };
    let place = Place::new();
    let config = json!({ "MaxSize": 7.0, "ListenSSH": true, "Suspendable": true });
    let plugin = Plugin::new(settings(&place, program, config));
    let info = plugin.info().await.unwrap();
    assert_eq!((info.max_size, info.suspends), (Some(7), true));
    assert_eq!(plugin.increase(3).await, Ok(3));
    let ids: Vec<String> =
        listed(&plugin, InstanceState::Running, 3).await.into_iter().map(|seen| seen.id).collect();
    assert_eq!(plugin.heartbeat(&ids[0]).await, Ok(()));
    let info = plugin.connect_info(&ids[0]).await.unwrap();
    assert!(
        info.internal_address.contains("127.0.0.1") || info.external_address.contains("127.0.0.1"),
        "{info:?}"
    );
    assert_eq!(plugin.suspend(&ids[..1]).await, Ok(ids[..1].to_vec()));
    let states: Vec<InstanceState> =
        plugin.update().await.unwrap().into_iter().map(|seen| seen.state).collect();
    assert!(
        states.iter().any(|state| matches!(state, InstanceState::Suspending | InstanceState::Suspended)),
        "{states:?}"
    );
    assert_eq!(plugin.resume(&ids[..1]).await, Ok(ids[..1].to_vec()));
    assert_eq!(plugin.decrease(&ids[1..]).await, Ok(ids[1..].to_vec()));
    let left = plugin.update().await.unwrap();
    let gone = |state: InstanceState| matches!(state, InstanceState::Deleting | InstanceState::Deleted);
    assert_eq!(left.iter().filter(|seen| !gone(seen.state)).count(), 1, "{left:?}");
    plugin.close().await;
    place.is_empty().await;
}

#[tokio::test]
async fn gitlabs_dummy_refuses_a_configuration_that_go_cannot_decode() {
    let Some(program) = dummy() else { return };
    let place = Place::new();
    let plugin = Plugin::new(settings(&place, program, json!({ "MaxSize": "seven" })));
    let error = failed(plugin.info().await, "unmarshaling config:");
    assert_eq!(error.kind, CallErrorKind::Configuration);
    place.is_empty().await;
}

#[tokio::test]
async fn gitlabs_dummy_is_killed_in_a_call_and_starts_again() {
    let Some(program) = dummy() else { return };
    let place = Place::new();
    let name = program.to_str().unwrap().to_owned();
    let plugin = Plugin::new(settings(&place, program, Value::Null));
    assert_eq!(plugin.info().await.unwrap().max_size, Some(10_000));
    let pid = rustix::process::Pid::from_raw(i32::try_from(place.process(&name)).unwrap()).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
    let error = failed(plugin.increase(1).await, "was killed by signal 9");
    assert_eq!(error.kind, CallErrorKind::Unknown);
    assert_eq!(plugin.update().await, Ok(Vec::new()));
}
