//! A state directory of its own, the configuration for it, and everything that runs there.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::time::{Duration, Instant};

use greenroom_core::event::{Change, Event};
use greenroom_core::ids::{AttemptName, InstanceId, PoolName};
use greenroom_core::instance::{Instance, Phase};
use greenroom_core::policy::Policy;
use greenroom_core::pool::PoolState;
use greenroom_manager::file_store::{self, FileStore};
use greenroom_ports::store::{Diagnosis, OperatorStore as _, Store as _};
use greenroom_testkit::gitlab_runner::attempt::Attempt;
use greenroom_testkit::gitlab_runner::job::Job;
use greenroom_testkit::gitlab_runner::process::LiveCall;
use greenroom_testkit::gitlab_runner::record::JobResult;
use greenroom_testkit::gitlab_runner::runner::Runner;
use greenroom_testkit::program;
use rustix::process::Signal;

use crate::driver;
use crate::processes::{self, Kind, Process, wait_for};
use crate::setting::Setting;

/// Time limit for anything in a place, even on a busy machine.
pub const SOON: Duration = Duration::from_mins(1);
/// The time after which nothing is running that lost its state directory; the promise is 5 s and a check.
const UNTIL_GONE: Duration = Duration::from_secs(20);

#[derive(Debug)]
pub struct Place {
    home: tempfile::TempDir,
    pub state_dir: PathBuf,
    pub config: PathBuf,
    pub setting: Setting,
}

/// `greenroom keep` in the foreground, as in a service; it ends with its test.
#[derive(Debug)]
pub struct Service {
    child: Child,
    log: PathBuf,
}

impl Service {
    /// The exit status of the service, if it has exited.
    pub fn ended(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().expect("a child of ours")
    }

    #[track_caller]
    pub fn wait(&mut self) -> ExitStatus {
        wait_for("the keeper's end", SOON, || self.ended())
    }

    pub fn log(&self) -> String {
        std::fs::read_to_string(&self.log).expect("its log")
    }

    /// Stops it; it must be running.
    #[track_caller]
    pub fn kill(mut self) {
        self.child.kill().expect("it lives");
        self.wait();
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        let _gone = self.child.kill();
        let _waited = self.child.wait();
    }
}

impl Place {
    pub(crate) fn new(setting: Setting) -> Self {
        let home = tempfile::Builder::new().prefix("greenroom-jobs-").tempdir().expect("a directory");
        let state_dir = home.path().join("state");
        let config = home.path().join("greenroom.toml");
        let place = Self { home, state_dir, config, setting };
        place.write_config(&place.setting.text(&place.state_dir));
        place
    }

    pub fn path(&self) -> &Path {
        self.home.path()
    }

    /// Replaces the configuration atomically.
    pub fn write_config(&self, text: &str) {
        let fresh = self.path().join("greenroom.toml.new");
        std::fs::write(&fresh, text).expect("the configuration can be written");
        std::fs::rename(&fresh, &self.config).expect("the configuration can be put in place");
    }

    /// Lowers `acquire_timeout` to a second, for all jobs that come from now on. A busy machine boots no instance in a second, so a
    /// test does this once it has the instances that it needs.
    #[track_caller]
    pub fn let_jobs_wait_a_second(&self) {
        self.write_config(&self.setting.clone().pool("acquire_timeout", "1s").text(&self.state_dir));
        self.reap();
        let is_second = |policy: &Policy| policy.timing.acquire_timeout == Duration::from_secs(1);
        wait_for("the new policy", SOON, || {
            self.state().policy.as_ref().filter(|policy| is_second(policy)).map(drop)
        });
    }

    /// A runner whose calls name the configuration. Its own directories are outside the state directory.
    pub fn runner(&self) -> Runner {
        self.runner_with(Path::new(driver()))
    }

    /// A runner that calls another driver.
    pub fn runner_with(&self, driver: &Path) -> Runner {
        let config = self.config.to_str().expect("temporary directories have plain names");
        let mut runner = Runner::new(driver, self.path()).with_global_args(&["--config", config]);
        runner.patience = self.setting.patience;
        runner
    }

    /// Plays a job to its end.
    pub fn run(&self, job: &Job) -> JobResult {
        self.runner().run(job)
    }

    /// A keeper in the foreground.
    pub fn keep(&self) -> Service {
        self.keep_with(Path::new(driver()))
    }

    /// A keeper of another driver, in the foreground.
    pub fn keep_with(&self, driver: &Path) -> Service {
        let log = self.path().join(format!("service-{}.log", std::process::id()));
        let stderr = std::fs::File::create(&log).expect("a log");
        let mut command = self.command_of(driver, &["keep"]);
        command.stdout(Stdio::null()).stderr(stderr);
        Service { child: command.spawn().expect("the keeper starts"), log }
    }

    fn command(&self, arguments: &[&str]) -> Command {
        self.command_of(Path::new(driver()), arguments)
    }

    /// The driver with these plain words, as a shell reads it.
    pub fn command_line(&self, words: &[&str]) -> String {
        format!("{} --config {} {}", driver(), self.config.display(), words.join(" "))
    }

    fn command_of(&self, driver: &Path, arguments: &[&str]) -> Command {
        let mut command = program::command(driver, self.path());
        command.arg("--config").arg(&self.config).args(arguments).current_dir("/");
        command
    }

    /// Starts another `greenroom` command.
    pub fn start(&self, arguments: &[&str]) -> Child {
        self.command(arguments).spawn().expect("the driver starts")
    }

    /// Runs another `greenroom` command to its end.
    pub fn greenroom(&self, arguments: &[&str]) -> Output {
        self.greenroom_of(Path::new(driver()), arguments)
    }

    /// Runs a command of another driver to its end.
    pub fn greenroom_of(&self, driver: &Path, arguments: &[&str]) -> Output {
        self.command_of(driver, arguments).output().expect("the driver starts")
    }

    /// Runs another `greenroom` command, which must succeed; returns its output.
    #[track_caller]
    pub fn order(&self, arguments: &[&str]) -> String {
        let output = self.greenroom(arguments);
        let out = String::from_utf8_lossy(&output.stdout);
        let err = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "greenroom {arguments:?}: {}\n{out}{err}", output.status);
        out.into_owned()
    }

    fn block_on<T>(work: impl Future<Output = T>) -> T {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        runtime.expect("a runtime").block_on(work)
    }

    fn store(&self) -> FileStore {
        let dir = file_store::open_dir(&self.state_dir).expect("the state directory can be opened");
        dir.pool(&PoolName::new("pool"), file_store::Options::default())
            .expect("the pool's files can be opened")
    }

    /// The recorded state.
    pub fn state(&self) -> PoolState {
        Self::block_on(async { self.store().load().await }).expect("the state can be read")
    }

    /// Waits a while for what the keeper does after the last job: a link that starts while the directory is removed
    /// would make it anew.
    fn let_keeper_turn_over(&self) {
        let until = Instant::now() + Duration::from_secs(5);
        let pool = || {
            let dir = file_store::open_dir(&self.state_dir).ok()?;
            let store = dir.pool(&PoolName::new("pool"), file_store::Options::default()).ok()?;
            Self::block_on(async { store.load().await }).ok()
        };
        let is_busy =
            |i: &Instance| i.phase == Phase::Cleaning || (i.phase == Phase::Ready && i.awaits_recheck());
        while Instant::now() < until && pool().is_some_and(|pool| pool.instances.values().any(|i| is_busy(i)))
        {
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Verifies the store.
    pub fn verify(&self) -> Diagnosis {
        Self::block_on(async { self.store().verify().await }).expect("the state can be looked at")
    }

    /// Everything that was ever recorded, oldest first.
    pub fn events(&self) -> Vec<Event> {
        let history = Self::block_on(async { self.store().history().await });
        let recorded = history.expect("the history can be opened");
        recorded.map(|recorded| recorded.expect("the history can be read").event).collect()
    }

    /// The history and the resulting state, even while a keeper writes.
    #[track_caller]
    fn moment(&self) -> (Vec<Event>, PoolState) {
        wait_for("a moment without a commit", self.setting.patience, || {
            let before = self.state();
            let events = self.events();
            (before.revision == self.state().revision).then_some((events, before))
        })
    }

    /// Grants in the order they were made: job id and instance.
    pub fn grants(&self) -> Vec<(u64, InstanceId)> {
        let mut jobs = std::collections::BTreeMap::new();
        let mut grants = Vec::new();
        for event in self.events() {
            match event.change {
                Change::Requested { attempt, job, .. } => {
                    jobs.insert(attempt, job.key.id);
                }
                Change::Granted { attempt, instance } => grants.push((jobs[&attempt], instance)),
                _ => {}
            }
        }
        grants
    }

    pub fn processes(&self) -> Vec<Process> {
        processes::of(self.path())
    }

    pub fn of_kind(&self, kind: Kind) -> Vec<Process> {
        self.processes().into_iter().filter(|process| process.kind == kind).collect()
    }

    /// The processes that jobs have left on instances: everything but the one shell that waits for the next stage.
    pub fn left_by_jobs(&self) -> Vec<Process> {
        let mut left = self.of_kind(Kind::Guest);
        if let Some(waiting) = left.iter().position(|process| process.arguments == ["bash"]) {
            left.remove(waiting);
        }
        left
    }

    /// The server or supervisor of an instance, if it lives.
    pub fn server(&self, instance: &InstanceId) -> Option<Process> {
        let ending = format!("/{instance}");
        let mut servers = self.of_kind(Kind::Instance).into_iter();
        servers.find(|server| server.arguments.last().is_some_and(|dir| dir.ends_with(&ending)))
    }

    /// Instances that are ready and hold no job. One that is still to be checked after a job is not ready for the next one.
    pub fn idle(&self) -> Vec<InstanceId> {
        let state = self.state();
        let is_ready = |i: &Instance| i.phase == Phase::Ready && !i.awaits_recheck();
        let idle = state.instances.values().filter(|i| is_ready(i) && i.holders.is_empty());
        idle.map(|instance| instance.id.clone()).collect()
    }

    /// Runs a first job, which starts the keeper; then waits for this many idle instances.
    #[track_caller]
    pub fn warm_up(&self, idle: usize) -> Vec<InstanceId> {
        let attempt = self.prepared(1_000_000);
        assert_eq!(attempt.run("build_script", "true\n").exit_code(), Some(0));
        assert_eq!(attempt.cleanup().exit_code(), Some(0));
        attempt.remove_tmpdir();
        self.wait_until_settled(idle);
        self.idle()
    }

    /// An attempt that has its instance.
    #[track_caller]
    pub fn prepared(&self, id: u64) -> Attempt {
        self.prepared_as(&Job::new(id))
    }

    #[track_caller]
    pub fn prepared_as(&self, job: &Job) -> Attempt {
        let attempt = self.runner().attempt(job);
        let config = attempt.config();
        assert_eq!(config.exit_code(), Some(0), "{}", config.stderr_text());
        let prepare = attempt.prepare();
        assert_eq!(prepare.exit_code(), Some(0), "{}", prepare.stderr_text());
        attempt
    }

    /// Ends jobs whose `prepare` waits, then the one that they wait for, until nothing is left of them.
    #[track_caller]
    pub fn cancel(&self, waiting: Vec<(Attempt, LiveCall)>, held: &Attempt) {
        for (attempt, call) in waiting {
            attempt.cleanup();
            call.wait(SOON);
        }
        held.cleanup();
        self.wait_until_quiet();
    }

    /// The instance that an attempt holds.
    #[track_caller]
    pub fn instance_of(&self, attempt: &Attempt) -> InstanceId {
        let name = attempt.tmpdir.file_name().and_then(|name| name.to_str()).expect("a plain name");
        let state = self.state();
        let grant = state.granted.get(&AttemptName::new(name));
        grant.unwrap_or_else(|| panic!("{name} holds nothing: {state:#?}")).instance.clone()
    }

    /// One pass in the foreground, or of the keeper.
    #[track_caller]
    pub fn reap(&self) -> String {
        self.order(&["reap"])
    }

    /// Applies all recorded events: each one fits, no instance ever has more jobs than slots, and there are never more
    /// instances than the active policy allows. `grant` sees each grant beforehand.
    #[track_caller]
    pub fn replay(&self, mut grant: impl FnMut(&PoolState, &AttemptName)) -> PoolState {
        let (events, recorded) = self.moment();
        let mut state = PoolState::default();
        for event in events {
            if let Change::Granted { attempt, .. } = &event.change {
                grant(&state, attempt);
            }
            let applied = state.apply(&event);
            assert!(applied.is_ok(), "{applied:?}: {event:?}");
            for instance in state.instances.values() {
                assert!(instance.holders.len() <= instance.capacity as usize, "{instance:#?}");
            }
            let most = state.policy.as_ref().map_or(u32::MAX, |policy| policy.max_instances);
            assert!(state.alive() <= most, "{} instances: {event:?}", state.alive());
        }
        assert_eq!(state, recorded, "history and state agree");
        state
    }

    /// Waits until no job holds or waits for a slot, and exactly this many instances exist, all idle.
    #[track_caller]
    pub fn wait_until_settled(&self, idle: usize) {
        let quiet = |state: &PoolState| state.granted.is_empty() && state.waiting.is_empty();
        let until = Instant::now() + self.setting.patience;
        loop {
            let state = self.state();
            let servers = self.of_kind(Kind::Instance).len();
            if quiet(&state) && self.idle().len() == idle && state.instances.len() == idle && servers == idle
            {
                return;
            }
            assert!(
                Instant::now() < until,
                "not settled at {idle} idle instances: {servers} servers, {state:#?}\n{}",
                self.log()
            );
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Waits until this many instances are idle, whatever else happens.
    #[track_caller]
    pub fn wait_until_idle(&self, idle: usize) {
        wait_for("idle instances", self.setting.patience, || (self.idle().len() == idle).then_some(()));
    }

    /// Waits until no job waits and no call holds a slot.
    #[track_caller]
    pub fn wait_until_quiet(&self) {
        self.wait_until_quiet_but(0);
    }

    /// Waits until no job waits and calls hold this many slots.
    #[track_caller]
    pub fn wait_until_quiet_but(&self, held: usize) {
        wait_for("peace", self.setting.patience, || {
            let state = self.state();
            let slots: usize = state.instances.values().map(|instance| instance.holders.len()).sum();
            (state.waiting.is_empty() && slots == held).then_some(())
        });
    }

    /// No damage, no inapplicable event, no violated invariant at any moment.
    #[track_caller]
    pub fn expect_sound(&self) {
        let verdict = self.verify();
        assert!(verdict.damage.is_none() && verdict.inapplicable_events == 0, "{verdict:?}");
        assert!(verdict.history_damage.is_empty(), "{verdict:?}");
        self.replay(|_, _| {});
    }

    /// The end of the keeper's log, for messages of failed tests.
    pub fn log(&self) -> String {
        let text = std::fs::read_to_string(self.state_dir.join("keeper.log")).unwrap_or_default();
        let lines: Vec<&str> = text.lines().collect();
        lines[lines.len().saturating_sub(60)..].join("\n")
    }

    /// Removes the state directory and waits until nothing of it is running any more; returns what still is in the end.
    fn end(&self) -> Vec<Process> {
        let gone = self.path().join("gone");
        if std::fs::rename(&self.state_dir, &gone).is_ok() {
            drop(std::fs::remove_dir_all(&gone));
        }
        // They would notice by themselves (`keeper.rs` and the links' contract check that), but each test would wait
        // for it: 5 s for a keeper, 40 s for a link.
        for process in self.processes() {
            if matches!(process.kind, Kind::Keeper | Kind::Instance | Kind::Holder | Kind::Link) {
                process.signal(Signal::TERM);
            }
        }
        let until = Instant::now() + UNTIL_GONE;
        loop {
            let left = self.processes();
            if left.is_empty() || Instant::now() > until {
                return left;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let failed = std::thread::panicking();
        if failed {
            let running: Vec<_> = self.processes().iter().map(|p| (p.pid, p.arguments_text())).collect();
            eprintln!("keeper.log of the failed test:\n{}\nrunning: {running:#?}", self.log());
            let journal = self.state_dir.join("pools/pool/journal.jsonl");
            let journal = std::fs::read_to_string(journal).unwrap_or_default();
            let lines: Vec<&str> = journal.lines().collect();
            eprintln!("the journal's end:\n{}", lines[lines.len().saturating_sub(40)..].join("\n"));
        }
        if !failed {
            self.let_keeper_turn_over();
        }
        let left = self.end();
        for process in &left {
            process.kill9();
        }
        assert!(failed || left.is_empty(), "these outlived their state directory: {left:#?}");
    }
}
