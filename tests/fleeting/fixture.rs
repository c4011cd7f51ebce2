//! A plugin of the tests in a directory of its own.

#![cfg(test)]

use std::fs;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::{Duration, Instant};

use greenroom_backends::fleeting::group::{CallError, InstanceGroup as _, InstanceState, SeenInstance};
use greenroom_backends::fleeting::locate::LocateError;
use greenroom_backends::fleeting::plugin::{ConnectorSettings, Deadlines, Pauses, Plugin, PluginSettings};
use greenroom_backends::program::environment::ProgramEnvironment;
use greenroom_core::ids::PoolName;
use serde_json::{Value, json};

pub const GREENROOM: &str = env!("CARGO_BIN_EXE_greenroom");
pub const TEST_PLUGIN: &str = env!("CARGO_BIN_EXE_fleeting-test-plugin");

/// The longest wait for an event that has to happen.
const WAIT: Duration = Duration::from_secs(30);

/// The directory of a plugin: machines, faults, sockets.
pub struct Place {
    pub dir: tempfile::TempDir,
}

impl Place {
    pub fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("faults")).unwrap();
        // The plugin reads it before it gets its configuration.
        fs::write(dir.path().join("where"), dir.path().to_str().unwrap()).unwrap();
        Self { dir }
    }

    pub fn path(&self) -> &Path {
        self.dir.path()
    }

    /// Makes the plugin do something wrong.
    pub fn fault(&self, name: &str, content: &str) {
        fs::write(self.path().join("faults").join(name), content).unwrap();
    }

    pub fn repair(&self, name: &str) {
        fs::remove_file(self.path().join("faults").join(name)).unwrap();
    }

    pub fn settings(&self) -> PluginSettings {
        settings(self.path())
    }

    pub fn plugin(&self) -> Plugin {
        Plugin::new(self.settings())
    }

    /// The directories of plugins' sockets.
    pub fn sockets(&self) -> Vec<PathBuf> {
        let entries = fs::read_dir(self.path().join("sockets")).into_iter().flatten().flatten();
        entries.map(|entry| entry.path()).collect()
    }

    /// The processes of plugins and their holders, and what they started.
    pub fn processes(&self) -> Vec<(u32, String)> {
        let mark = format!("PLUGIN_UNIX_SOCKET_DIR={}", self.path().display());
        let entries = fs::read_dir("/proc").unwrap().flatten();
        let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
        let of_place = pids.filter_map(|pid| {
            let environment = fs::read(format!("/proc/{pid}/environ")).ok()?;
            let is_ours = |variable: &[u8]| String::from_utf8_lossy(variable).starts_with(&mark);
            let ours = environment.split(|byte| *byte == 0).any(is_ours);
            // The holder has the variable of its plugin, too.
            let command = fs::read(format!("/proc/{pid}/cmdline")).ok()?;
            let command = String::from_utf8_lossy(&command).replace('\0', " ");
            let ours = ours || command.contains(&format!("{}/sockets", self.path().display()));
            (ours && !command.is_empty()).then_some((pid, command))
        });
        of_place.collect()
    }

    pub fn process(&self, command: &str) -> u32 {
        let all = self.processes();
        let (pid, _) =
            all.iter().find(|(_, line)| line.starts_with(command)).unwrap_or_else(|| panic!("{all:?}"));
        *pid
    }

    /// Waits until no process of a plugin is left, and no directory of a socket.
    pub async fn is_empty(&self) {
        let left = || (self.processes(), self.sockets());
        until(|| left().0.is_empty() && left().1.is_empty(), || format!("left over: {:?}", left())).await;
    }
}

/// The settings with which a plugin in this directory is started.
pub fn settings(dir: &Path) -> PluginSettings {
    let (environment, mut deadlines) = (environment(dir), Deadlines::default());
    deadlines.health = Duration::from_secs(2);
    PluginSettings {
        pool: PoolName::new("linux"),
        guard: GREENROOM.into(),
        program: at(TEST_PLUGIN),
        config: json!({ "dir": dir, "api_token": "tok-12345", "suspends": true, "whole": 2.0 }),
        connector: ConnectorSettings { password: "pw-hunter2".to_owned(), ..ConnectorSettings::default() },
        static_optional: false,
        environment,
        sockets: dir.join("sockets"),
        deadlines,
        pauses: Pauses { first: Duration::from_millis(200), ..Pauses::default() },
    }
}

fn environment(dir: &Path) -> ProgramEnvironment {
    // PLUGIN_CLIENT_CERT would make a plugin speak TLS.
    let secrets = ["TEST_PLUGIN_DIR", "PLUGIN_CLIENT_CERT"].map(|name| (name.to_owned(), dir.join("where")));
    ProgramEnvironment { named: Vec::new(), secrets: secrets.into() }
}

/// A program that is always in the same place.
pub fn at(path: impl Into<PathBuf>) -> Rc<dyn Fn() -> Result<PathBuf, LocateError>> {
    let path = path.into();
    Rc::new(move || Ok(path.clone()))
}

/// The settings with another configuration.
pub fn with_config(mut settings: PluginSettings, config: Value) -> PluginSettings {
    settings.config = config;
    settings
}

pub async fn until(mut happened: impl FnMut() -> bool, seen: impl Fn() -> String) {
    let begun = Instant::now();
    while !happened() {
        assert!(begun.elapsed() < WAIT, "{}", seen());
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// Waits until the plugin lists instances in these numbers of states.
pub async fn listed(plugin: &Plugin, state: InstanceState, count: usize) -> Vec<SeenInstance> {
    let begun = Instant::now();
    loop {
        let all = plugin.update().await.unwrap();
        if all.len() == count && all.iter().all(|seen| seen.state == state) {
            return all;
        }
        assert!(begun.elapsed() < WAIT, "{all:?}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// The ids of as many new instances.
pub async fn grown(plugin: &Plugin, count: u32) -> Vec<String> {
    assert_eq!(plugin.increase(count).await, Ok(count));
    listed(plugin, InstanceState::Running, count as usize).await.into_iter().map(|seen| seen.id).collect()
}

/// The failure of a call, whose message has to contain a text.
#[track_caller]
pub fn failed<T: std::fmt::Debug>(answer: Result<T, CallError>, text: &str) -> CallError {
    let error = answer.expect_err(text);
    assert!(error.message.contains(text), "{error:?}");
    error
}
