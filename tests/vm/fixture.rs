//! Machines of a state directory of their own, small ones, one test at a time.

#![cfg(test)]

use std::collections::BTreeSet;
use std::fs::Permissions;
use std::io::Write;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::rc::Rc;
use std::sync::MutexGuard;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use greenroom::provider::find;
use greenroom_core::endpoint::Endpoint;
use greenroom_core::ids::{InstanceId, PoolName};
use greenroom_harness::here::{HereAndNow, command_lines, kill, kill_all, make_keys, read_keys};
use greenroom_harness::provider::{Behaviour, Fixture, Part, gone, request, running, until};
use greenroom_ports::clock::Clock;
use greenroom_ports::provider::{InstanceKeys, Provider};
use greenroom_ports::setup::Pulls;
use greenroom_providers::registration::BuildContext;
use rustix::process::Signal;
use tempfile::TempDir;

use crate::images::{folder, turn};

const GREENROOM: &str = env!("CARGO_BIN_EXE_greenroom");

static POOLS: AtomicU32 = AtomicU32::new(0);

pub(crate) struct VmFixture {
    state: PathBuf,
    pool: PoolName,
    keys: InstanceKeys,
    /// Lines for every provider's table.
    table: String,
    program: PathBuf,
    /// The pulls by which templates get their images.
    pulls: Option<Rc<dyn Pulls>>,
    /// A directory for programs that QEMU's user has to reach.
    open: TempDir,
    own: Option<(TempDir, MutexGuard<'static, ()>)>,
}

impl VmFixture {
    pub(crate) fn new() -> Self {
        Self::with("")
    }

    pub(crate) fn with(table: &str) -> Self {
        let turn = turn();
        let state = tempfile::tempdir().unwrap();
        make_keys(state.path());
        // Part of every process's command line: nobody else's machines are taken for ours.
        let number = POOLS.fetch_add(1, Ordering::Relaxed);
        let pool = format!("t{}x{number}", std::process::id());
        let mut fixture = Self::borrowed(state.path(), &pool);
        table.clone_into(&mut fixture.table);
        fixture.own = Some((state, turn));
        fixture
    }

    /// This fixture, whose templates get images of containers.
    pub(crate) fn pulling(mut self, pulls: Rc<dyn Pulls>) -> Self {
        self.pulls = Some(pulls);
        self
    }

    /// One with a folder of images of its own in its state directory: the one image, and no template yet.
    #[cfg(feature = "crash-points")]
    pub(crate) fn with_own_images(table: &str) -> Self {
        let mut fixture = Self::with(table);
        let images = fixture.state.join("images");
        crate::images::link_into(&images);
        fixture.table = format!("images = {images:?}\n{table}");
        fixture
    }

    /// A fixture of another process, which is made to be killed: this one makes nothing and ends no process.
    pub(crate) fn borrowed(state: &Path, pool: &str) -> Self {
        let open = tempfile::tempdir().unwrap();
        std::fs::set_permissions(open.path(), Permissions::from_mode(0o755)).unwrap();
        let (keys, pool) = (read_keys(state), PoolName::new(pool));
        Self {
            state: state.to_owned(),
            pool,
            keys,
            table: String::new(),
            program: GREENROOM.into(),
            pulls: None,
            open,
            own: None,
        }
    }

    /// A fixture for machines whose QEMU starts our program: a checkout may lie in a home that is closed to its user.
    pub(crate) fn with_open_program(table: &str) -> Self {
        let mut fixture = Self::with(table);
        fixture.program = fixture.open.path().join("greenroom");
        std::fs::copy(GREENROOM, &fixture.program).unwrap();
        fixture
    }

    pub(crate) fn context(&self) -> BuildContext {
        BuildContext {
            pool: self.pool(),
            state_dir: self.state.clone(),
            program: self.program.clone(),
            containers: false,
            pulls: self.pulls.clone(),
            clock: self.clock(),
            host_keys: Rc::new(greenroom_ports::host_keys::Unconnected),
        }
    }

    /// A table with small machines; `more` replaces what this fixture says.
    pub(crate) fn table(&self, more: &str) -> toml::Table {
        let mut table = toml::Table::new();
        table.insert("images".to_owned(), folder().display().to_string().into());
        table.insert("memory".to_owned(), "256M".into());
        table.insert("template_retention".to_owned(), "2s".into());
        for text in [&self.table, more] {
            table.extend(text.parse::<toml::Table>().expect("a table"));
        }
        table
    }

    pub(crate) fn build(&self, more: &str) -> Rc<dyn Provider> {
        let table = self.table(more);
        (find("qemu").unwrap().build)(&self.context(), &table).expect("a table that builds")
    }

    /// Launches machine 1 and waits until it runs.
    pub(crate) async fn one(&self, more: &str) -> (Rc<dyn Provider>, Guest<'_>) {
        self.nth(1, more).await
    }

    pub(crate) async fn nth(&self, number: u32, more: &str) -> (Rc<dyn Provider>, Guest<'_>) {
        let provider = self.build(more);
        let id = request(self, number).instance;
        provider.launch(&request(self, number)).await.unwrap();
        let is_up = || self.instance_dir(&id).join("endpoint.json").exists();
        until("up", self.boot_deadline(), async || {
            let ended = std::fs::read_to_string(self.instance_dir(&id).join("ended.json"));
            assert!(ended.is_err(), "it did not come up: {ended:?}");
            is_up().then_some(())
        })
        .await;
        let endpoint = running(self, &*provider, &id).await;
        (provider, Guest { fixture: self, id, endpoint })
    }

    /// Keys for a QEMU that comes up late. Its user may not enter our state directory.
    fn slow_qemu(&self) -> String {
        let program = self.open.path().join("qemu");
        std::fs::write(&program, "#!/bin/sh\nsleep 3.2\nexec qemu-system-x86_64 \"$@\"\n").unwrap();
        std::fs::set_permissions(&program, Permissions::from_mode(0o755)).unwrap();
        format!("boot = \"direct\"\naccel = \"tcg\"\nqemu = \"{}\"", program.display())
    }

    /// The lines that this fixture adds to every table.
    pub(crate) fn own_table(&self) -> &str {
        &self.table
    }

    pub(crate) fn state_dir(&self) -> &Path {
        &self.state
    }

    pub(crate) fn instance_dir(&self, id: &InstanceId) -> PathBuf {
        self.pool_dir().join(id.as_str())
    }

    pub(crate) fn pool_dir(&self) -> PathBuf {
        self.state.join("instances").join(self.pool.as_str())
    }

    /// The supervisors of our machines, by their command lines.
    fn supervisors(&self) -> Vec<(u32, PathBuf)> {
        let all = command_lines().into_iter().filter_map(|(pid, arguments)| {
            let texts: Vec<&str> = arguments.iter().map(String::as_str).collect();
            match texts.as_slice() {
                [_, "instance", "qemu", "supervise", "--dir", dir] => Some((pid, PathBuf::from(dir))),
                _ => None,
            }
        });
        all.filter(|(_, dir)| dir.starts_with(&self.state)).collect()
    }

    pub(crate) fn supervisor(&self, id: &InstanceId) -> Option<u32> {
        let dir = self.instance_dir(id);
        self.supervisors().into_iter().find(|(_, path)| *path == dir).map(|(pid, _)| pid)
    }

    /// The QEMU of a machine, by its name: the pool in front of it is nobody else's.
    pub(crate) fn qemu(&self, id: &InstanceId) -> Option<u32> {
        assert!(id.as_str().starts_with(self.pool.as_str()));
        let is_named = |arguments: &[String]| {
            arguments.windows(2).any(|pair| pair[0] == "-name" && pair[1] == id.as_str())
        };
        let is_qemu = |arguments: &[String]| arguments[0].contains("qemu-system");
        command_lines()
            .into_iter()
            .find(|(_, arguments)| is_qemu(arguments) && is_named(arguments))
            .map(|(pid, _)| pid)
    }

    /// Every process that our state directory or pool is mentioned by.
    pub(crate) fn processes(&self) -> Vec<u32> {
        let state = self.state.to_str().unwrap();
        let mentions = |arguments: &[String]| {
            arguments.iter().any(|text| text.contains(state) || text.contains(self.pool.as_str()))
        };
        let own = std::process::id();
        let all = command_lines().into_iter();
        all.filter(|(pid, arguments)| *pid != own && mentions(arguments)).map(|(pid, _)| pid).collect()
    }
}

/// A machine that answers.
pub(crate) struct Guest<'a> {
    fixture: &'a VmFixture,
    pub(crate) id: InstanceId,
    pub(crate) endpoint: Endpoint,
}

impl Guest<'_> {
    fn ssh(&self, command: &str) -> Command {
        let state = &self.fixture.state;
        let known = state.join(format!("known_hosts-{}", self.endpoint.port));
        let line = format!("[127.0.0.1]:{} {}\n", self.endpoint.port, self.endpoint.host_key);
        std::fs::File::create(&known).unwrap().write_all(line.as_bytes()).unwrap();
        let mut ssh = Command::new("ssh");
        ssh.args(["-F", "none", "-T", "-o", "BatchMode=yes", "-o", "StrictHostKeyChecking=yes", "-o"]);
        ssh.arg(format!("UserKnownHostsFile={}", known.display()));
        ssh.args(["-o", "ConnectTimeout=30", "-o", "ServerAliveInterval=20", "-p"]);
        ssh.arg(self.endpoint.port.to_string()).args(["-l", &self.endpoint.user, "-i"]);
        ssh.arg(state.join("client")).args([&self.endpoint.address, command]);
        ssh.stdin(Stdio::null());
        ssh
    }

    /// Runs a command in the guest, its host key checked strictly.
    pub(crate) fn run(&self, command: &str) -> Output {
        self.ssh(command).output().expect("ssh")
    }

    /// The output of a command that succeeds.
    pub(crate) fn says(&self, command: &str) -> String {
        let ran = self.run(command);
        let error = String::from_utf8_lossy(&ran.stderr);
        assert!(ran.status.success(), "{command}: {}: {error}", ran.status);
        String::from_utf8_lossy(&ran.stdout).trim_end().to_owned()
    }

    pub(crate) async fn gone(self, provider: &dyn Provider) {
        gone(self.fixture, provider, &self.id).await;
    }
}

impl Drop for VmFixture {
    fn drop(&mut self) {
        if self.own.is_none() {
            return;
        }
        // A test that failed leaves nobody behind either.
        kill_all(self.processes());
    }
}

impl Fixture for VmFixture {
    fn pool(&self) -> PoolName {
        self.pool.clone()
    }

    fn provider(&self, behaviour: &Behaviour) -> Option<Rc<dyn Provider>> {
        match behaviour {
            Behaviour::Good => Some(self.build("")),
            Behaviour::SlowBoot => Some(self.build(&self.slow_qemu())),
            // The machine fits, what QEMU needs beside it does not.
            Behaviour::Full => Some(self.build("memory_budget = \"256M\"")),
            Behaviour::Refuses(_) | Behaviour::LosesAnswer => None,
        }
    }

    fn lacks(&self, part: &Part) -> Option<&'static str> {
        match part {
            Part::Fault(Behaviour::Refuses(_)) => Some(
                "virtual machines are refused only while the memory budget is used up, which another case judges",
            ),
            Part::Fault(Behaviour::LosesAnswer) => Some(
                "a launch of a virtual machine starts a process on the runner host: its answer cannot be lost",
            ),
            Part::Fault(_) | Part::Break | Part::Banner | Part::OwnAddress => None,
        }
    }

    fn clock(&self) -> Rc<dyn Clock> {
        Rc::new(HereAndNow { ahead: Duration::ZERO })
    }

    fn keys(&self) -> InstanceKeys {
        self.keys.clone()
    }

    /// The first one builds the template; ten at once share the processors; on a busy machine, a cloud image took more than
    /// five minutes.
    fn boot_deadline(&self) -> Duration {
        Duration::from_mins(15)
    }

    fn break_instance(&self, id: &InstanceId) -> bool {
        kill(self.qemu(id).expect("it is running"), Signal::KILL);
        true
    }

    fn living(&self) -> BTreeSet<String> {
        let name = |dir: PathBuf| dir.file_name().unwrap().to_string_lossy().into_owned();
        let begun = Instant::now();
        loop {
            let supervisors = self.supervisors();
            let names: BTreeSet<String> = supervisors.iter().cloned().map(|(_, dir)| name(dir)).collect();
            if names.len() == supervisors.len() {
                return names;
            }
            // One that found the machine supervised is about to leave.
            assert!(begun.elapsed() < Duration::from_secs(3), "two supervise one machine: {supervisors:?}");
        }
    }

    fn remains(&self) -> Vec<String> {
        let mut remains: Vec<String> = self.processes().iter().map(|pid| format!("process {pid}")).collect();
        let Ok(entries) = std::fs::read_dir(self.pool_dir()) else { return remains };
        let names = entries.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned());
        remains.extend(names.filter(|name| name != ".lock"));
        remains
    }
}
