//! The fixture of provider `local`, and its own promises.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::{Duration, Instant};

use greenroom::provider::find;
use greenroom_core::failure::ErrorClass;
use greenroom_core::ids::{InstanceId, PoolName};
use greenroom_harness::here::{HereAndNow, command_lines, kill, kill_all, make_keys, read_keys};
use greenroom_harness::provider::{Behaviour, Fixture};
use greenroom_ports::clock::Clock;
use greenroom_ports::provider::{InstanceKeys, Provider};
use greenroom_providers::registration::BuildContext;
use tempfile::TempDir;

mod faults;
mod processes;
mod ssh;

pub(crate) const GREENROOM: &str = env!("CARGO_BIN_EXE_greenroom");

enum State {
    Own(TempDir),
    Borrowed(PathBuf),
}

/// A state directory of its own, with the keys of one client and one host.
pub(crate) struct LocalFixture {
    state: State,
    keys: InstanceKeys,
    /// Lines for every provider's table.
    table: String,
}

impl LocalFixture {
    pub(crate) fn new() -> Self {
        Self::with("")
    }

    pub(crate) fn with(table: &str) -> Self {
        let state = tempfile::tempdir().unwrap();
        make_keys(state.path());
        Self { keys: read_keys(state.path()), state: State::Own(state), table: table.to_owned() }
    }

    /// The fixture of another process, which a test kills: nothing is created here.
    pub(crate) fn borrowed(state: &Path) -> Self {
        Self { keys: read_keys(state), state: State::Borrowed(state.to_owned()), table: String::new() }
    }

    pub(crate) fn context(&self, program: &Path) -> BuildContext {
        BuildContext {
            pool: self.pool(),
            state_dir: self.state_dir().to_owned(),
            program: program.to_owned(),
            containers: false,
            pulls: None,
            clock: self.clock(),
            host_keys: Rc::new(greenroom_ports::host_keys::Unconnected),
        }
    }

    /// A provider whose clock is ahead.
    pub(crate) fn build_ahead(&self, ahead: Duration) -> Rc<dyn Provider> {
        let clock = Rc::new(HereAndNow { ahead });
        let context = BuildContext { clock, ..self.context(Path::new(GREENROOM)) };
        (find("local").unwrap().build)(&context, &"allow_root = true".parse().unwrap()).unwrap()
    }

    pub(crate) fn build(&self, table: &str) -> Rc<dyn Provider> {
        self.build_with(table, Path::new(GREENROOM))
    }

    pub(crate) fn build_with(&self, table: &str, program: &Path) -> Rc<dyn Provider> {
        let text = format!("allow_root = true\n{}\n{table}", self.table);
        let table = text.parse().expect("a table");
        (find("local").unwrap().build)(&self.context(program), &table).expect("a table that builds")
    }

    pub(crate) fn client_key(&self) -> PathBuf {
        self.state_dir().join("client")
    }

    pub(crate) fn state_dir(&self) -> &Path {
        match &self.state {
            State::Own(dir) => dir.path(),
            State::Borrowed(path) => path,
        }
    }

    pub(crate) fn instance_dir(&self, id: &InstanceId) -> PathBuf {
        self.pool_dir().join(id.as_str())
    }

    pub(crate) fn pool_dir(&self) -> PathBuf {
        self.state_dir().join("instances").join(self.pool().as_str())
    }

    /// The process that serves an instance, by its command line.
    pub(crate) fn server(&self, id: &InstanceId) -> Option<u32> {
        let dir = self.instance_dir(id);
        self.servers().into_iter().find(|(_, path)| *path == dir).map(|(pid, _)| pid)
    }

    fn servers(&self) -> Vec<(u32, PathBuf)> {
        let mut found = Vec::new();
        for (pid, arguments) in command_lines() {
            let texts: Vec<&str> = arguments.iter().map(String::as_str).collect();
            if let [_, "instance", "serve", "--dir", dir] = texts.as_slice()
                && Path::new(dir).starts_with(self.state_dir())
            {
                found.push((pid, PathBuf::from(dir)));
            }
        }
        found
    }

    /// Every process that has one of these instances in its environment or arguments.
    pub(crate) fn processes(&self) -> Vec<u32> {
        let here = self.state_dir().to_str().unwrap().as_bytes();
        let mentions = |bytes: &[u8]| bytes.windows(here.len()).any(|window| window == here);
        let own = std::process::id();
        let read = |pid: u32, file: &str| std::fs::read(format!("/proc/{pid}/{file}")).unwrap_or_default();
        let all = command_lines().into_iter().map(|(pid, _)| pid).filter(|pid| *pid != own);
        all.filter(|pid| mentions(&read(*pid, "environ")) || mentions(&read(*pid, "cmdline"))).collect()
    }
}

/// True if this process's environment contains what an instance must not see. Without that, its absence proves nothing.
pub(crate) fn has_something_to_hide() -> bool {
    let passed_on = ["PATH", "LANG", "LC_ALL", "LC_CTYPE", "TZ"];
    std::env::vars_os().any(|(name, _)| !passed_on.iter().any(|known| name == *known))
}

impl Drop for LocalFixture {
    fn drop(&mut self) {
        // A failed test leaves no processes behind either.
        kill_all(self.processes());
    }
}

impl Fixture for LocalFixture {
    fn pool(&self) -> PoolName {
        PoolName::new("rehearsal")
    }

    fn provider(&self, behaviour: &Behaviour) -> Option<Rc<dyn Provider>> {
        let fail = |class: &str| format!("fail_launch = {{ class = \"{class}\", first = 1 }}");
        let table = match behaviour {
            Behaviour::Good => String::new(),
            Behaviour::SlowBoot => "boot_delay = \"3100ms\"".to_owned(),
            Behaviour::Full => "no_capacity = 0".to_owned(),
            Behaviour::LosesAnswer => fail("unknown"),
            Behaviour::Refuses(class) => fail(match class {
                ErrorClass::NoCapacity { .. } => "no-capacity",
                ErrorClass::Quota => "quota",
                ErrorClass::Denied => "denied",
                ErrorClass::Invalid => "invalid",
                ErrorClass::Throttled { .. } => "throttled",
                ErrorClass::Transient => "transient",
                ErrorClass::NotFound | ErrorClass::Unknown | ErrorClass::Order { .. } => return None,
            }),
        };
        Some(self.build(&table))
    }

    fn clock(&self) -> Rc<dyn Clock> {
        Rc::new(HereAndNow { ahead: Duration::ZERO })
    }

    fn keys(&self) -> InstanceKeys {
        self.keys.clone()
    }

    fn boot_deadline(&self) -> Duration {
        Duration::from_secs(20)
    }

    fn break_instance(&self, id: &InstanceId) -> bool {
        kill(self.server(id).expect("it is running"), rustix::process::Signal::KILL);
        true
    }

    fn living(&self) -> BTreeSet<String> {
        let name = |dir: PathBuf| dir.file_name().unwrap().to_string_lossy().into_owned();
        let begun = Instant::now();
        loop {
            let servers = self.servers();
            let names: BTreeSet<String> = servers.iter().cloned().map(|(_, dir)| name(dir)).collect();
            if names.len() == servers.len() {
                return names;
            }
            // One that found the instance served is about to exit.
            assert!(
                begun.elapsed() < Duration::from_secs(3),
                "two processes serve one instance: {servers:?}"
            );
        }
    }

    fn remains(&self) -> Vec<String> {
        let mut remains: Vec<String> = self.processes().iter().map(|pid| format!("process {pid}")).collect();
        let Ok(entries) = std::fs::read_dir(self.pool_dir()) else { return remains };
        // The pool's own two files remain.
        let names = entries.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned());
        remains.extend(names.filter(|name| name != ".lock" && name != ".faults.json"));
        remains
    }
}

mod contract {
    use greenroom_harness::provider_contract;

    use super::LocalFixture;

    provider_contract!(LocalFixture::new());
}
