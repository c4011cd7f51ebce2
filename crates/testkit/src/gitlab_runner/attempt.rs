//! One prepare attempt: a temporary directory and its calls, by the played job or by hand.

use std::ffi::OsString;
use std::fs::{self, DirBuilder, Permissions};
use std::os::unix::fs::{DirBuilderExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::events::{Event, Shared};
use super::exit_code::{Failure, judge};
use super::job::{Job, RawResponse, response};
use super::play::{Cause, Scope};
use super::process::{self, LiveCall};
use super::record::{Call, CallRecord};
use super::runner::{Exec, Runner, Slot};
use super::{config_json, script, variables};

#[derive(Debug)]
pub struct Attempt {
    pub(super) build: Arc<Build>,
    pub number: usize,
    pub tmpdir: PathBuf,
    settled: Mutex<Settled>,
    by_hand: bool,
}

/// The result of this attempt's own config call.
#[derive(Debug, Default)]
struct Settled {
    job_env: Vec<(String, String)>,
    shell: Option<String>,
}

/// Makes a directory with an unused name, mode 0700, like Go's `os.MkdirTemp`.
fn make_temp_dir(parent: &Path, prefix: &str) -> PathBuf {
    loop {
        let mut random = [0_u8; 4];
        rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty())
            .expect("the kernel has numbers");
        let path = parent.join(format!("{prefix}{}", u32::from_le_bytes(random)));
        match DirBuilder::new().mode(0o700).create(&path) {
            Ok(()) => return path,
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
            Err(error) => panic!("making {}: {error}", path.display()),
        }
    }
}

fn write(path: &Path, content: &[u8], mode: u32) {
    fs::write(path, content).expect("a file in the attempt's directory can be written");
    fs::set_permissions(path, Permissions::from_mode(mode)).expect("its mode can be set");
}

impl Attempt {
    pub(super) fn new(build: Arc<Build>, number: usize) -> Self {
        let tmpdir = make_temp_dir(&build.runner.temp_dir, "custom-executor");
        let file = tmpdir.join("response.json");
        match &build.job.raw_response {
            None => {
                let response = response(&build.runner, &build.job);
                let bytes = serde_json::to_vec(&response).expect("a job can be written as JSON");
                write(&file, &bytes, 0o600);
            }
            Some(RawResponse::Bytes(bytes)) => write(&file, bytes, 0o600),
            Some(RawResponse::Missing) => {}
        }
        Self { build, number, tmpdir, settled: Mutex::default(), by_hand: false }
    }

    /// The whole environment of a call that would be made now.
    pub fn environment(&self) -> Vec<(OsString, OsString)> {
        let settled = self.settled.lock().unwrap_or_else(PoisonError::into_inner);
        let custom = variables::custom_env(&self.build, &self.build.places());
        let of_runner = &self.build.runner.environment;
        variables::environment_layers(of_runner, &self.tmpdir, &settled.job_env, &custom)
            .into_iter()
            .collect()
    }

    fn exec(&self, call: Call) -> Option<&Exec> {
        let runner = &self.build.runner;
        match call {
            Call::Config => runner.config.as_ref(),
            Call::Prepare => runner.prepare.as_ref(),
            Call::Run => Some(&runner.run),
            Call::Cleanup => runner.cleanup.as_ref(),
        }
    }

    fn code_file(&self) -> PathBuf {
        self.tmpdir.join("build_exit_code")
    }

    /// Starts a call, or none if `config.toml` names no executable for it.
    fn start(&self, call: Call, script: Option<(&Path, &str)>) -> Option<Result<LiveCall, Failure>> {
        let exec = self.exec(call)?;
        let environment = self.environment();
        let value = |key: &str| {
            let found = environment.iter().find(|(name, _)| name == key);
            found.map(|(_, value)| value.to_string_lossy().into_owned()).unwrap_or_default()
        };
        let tail: Vec<OsString> =
            script.into_iter().flat_map(|(path, stage)| [path.into(), stage.into()]).collect();
        let record = CallRecord {
            call,
            stage: script.map(|(_, stage)| stage.to_owned()),
            argv_tail: tail.iter().map(|argument| argument.to_string_lossy().into_owned()).collect(),
            attempt: self.number,
            tmpdir: self.tmpdir.clone(),
            pid: None,
            began: Duration::ZERO,
            exited: None,
            ended: None,
            exit: None,
            signals: Vec::new(),
            abandoned: false,
            ci_job_status: value("CUSTOM_ENV_CI_JOB_STATUS"),
            ci_project_dir: value("CUSTOM_ENV_CI_PROJECT_DIR"),
            stale_exit_code: fs::read(self.code_file()).ok(),
            stdout: Vec::new(),
            stderr: Vec::new(),
        };
        let mut command = Command::new(&exec.program);
        command.args(&exec.args).args(tail).env_clear().envs(environment).current_dir(&self.tmpdir);
        Some(process::spawn(&self.build.shared, command, record))
    }

    /// Writes a script where the runner does: a new directory for every call.
    pub fn write_script(&self, content: &[u8]) -> PathBuf {
        let path = make_temp_dir(&self.tmpdir, "script").join("script");
        write(&path, content, 0o700);
        path
    }

    /// Makes one call in a scope and maps its end; a call without an executable passes.
    pub(super) fn call(
        &self,
        call: Call,
        script: Option<(&Path, &str)>,
        scope: &Scope,
    ) -> Result<Option<CallRecord>, Failure> {
        let Some(live) = self.start(call, script) else { return Ok(None) };
        let live = live?;
        let runner = &self.build.runner;
        let limit = self.exec(call).filter(|_| call != Call::Run).map(|exec| exec.timeout);
        let scope = scope.within(limit, Cause::ExecTimeout);
        let exit = live.wait_in(&scope, runner.graceful_kill_timeout, runner.force_kill_timeout)?;
        judge(&exit, &self.code_file())?;
        Ok(Some(live.record()))
    }

    /// Makes the config call and applies its answer.
    pub(super) fn configure(&self, scope: &Scope) -> Result<(), Failure> {
        let record = self.call(Call::Config, None, scope)?;
        self.take_answer(&record.map(|record| record.stdout).unwrap_or_default())
    }

    fn take_answer(&self, stdout: &[u8]) -> Result<(), Failure> {
        let answer = config_json::parse(stdout).map_err(Failure::System)?;
        let runner = &self.build.runner;
        if let Some(name) = &answer.driver_name {
            let version = answer.driver_version.as_ref().map(|text| format!(" {text}")).unwrap_or_default();
            let line = format!("Using Custom executor with driver {name}{version}...");
            self.build.shared.emit(Event::Says(line));
        }
        if answer.hostname.is_some() {
            self.build.lock_places().hostname.clone_from(&answer.hostname);
        }
        let mut settled = self.settled.lock().unwrap_or_else(PoisonError::into_inner);
        settled.job_env.clone_from(&answer.job_env);
        settled.shell = answer.shell.filter(|shell| !shell.is_empty());
        match settled.shell.as_deref() {
            None | Some("bash" | "sh") => {}
            Some("pwsh" | "powershell") => panic!("this harness writes no PowerShell scripts"),
            Some(other) => return Err(Failure::System(format!("shell {other} not found"))),
        }
        let or_configured = |answered: Option<String>, configured: &Option<String>, key: &str| {
            let dir = answered.or_else(|| configured.clone()).filter(|dir| !dir.is_empty());
            dir.ok_or_else(|| Failure::Configuration(format!("the {key} is not configured")))
        };
        let builds_dir = or_configured(answer.builds_dir, &runner.builds_dir, "builds_dir")?;
        let cache_dir = or_configured(answer.cache_dir, &runner.cache_dir, "cache_dir")?;
        self.build.settle(&builds_dir, &cache_dir, answer.builds_dir_is_shared.unwrap_or(false));
        Ok(())
    }

    /// One run stage with the runner's own script; `None` if the runner skips it.
    pub(super) fn stage(&self, stage: &str, scope: &Scope) -> Option<Result<(), Failure>> {
        if let Some(cause) = scope.ended() {
            return Some(Err(Failure::Ended(cause)));
        }
        let script = self.stage_script(stage)?;
        let path = self.write_script(script.as_bytes());
        let result = self.call(Call::Run, Some((&path, stage)), scope).map(drop);
        // Cancellation and timeout override the result of the interrupted call.
        let ended = scope.ended().filter(|_| result != Err(Failure::Gone));
        Some(ended.map_or(result, |cause| Err(Failure::Ended(cause))))
    }

    /// The script the runner would write for this stage of the job.
    pub fn stage_script(&self, stage: &str) -> Option<String> {
        let settled = self.settled.lock().unwrap_or_else(PoisonError::into_inner);
        let shell = settled.shell.clone().unwrap_or_else(|| "bash".into());
        drop(settled);
        script::body(&self.build, stage).map(|body| script::frame(&shell, &body))
    }

    /// Runs cleanup, whose failure is only a warning, and removes the temporary directory.
    pub(super) fn clean_up(&self) {
        let scope = Scope::detached(&self.build.shared);
        match self.call(Call::Cleanup, None, &scope) {
            Err(Failure::Gone) => return,
            Err(failure) => {
                let line = format!("WARNING: Cleanup script failed: {}", failure.message());
                self.build.shared.emit(Event::Logs(line.clone()));
                self.build.shared.emit(Event::Says(line));
            }
            Ok(_) => {}
        }
        self.remove_tmpdir();
    }

    /// Removes TMPDIR as the runner does after cleanup; a `run` that is still alive may write into the directory
    /// meanwhile.
    pub fn remove_tmpdir(&self) {
        drop(fs::remove_dir_all(&self.tmpdir));
    }
}

impl Drop for Attempt {
    /// Kills remaining calls if a test fails half-way.
    fn drop(&mut self) {
        if self.by_hand {
            let calls = self.build.shared.lock().calls.clone();
            calls.iter().filter(|call| call.attempt == self.number).for_each(CallRecord::kill_leftover);
        }
    }
}

/// Calls by hand. The `start_` functions do not wait.
impl Attempt {
    #[track_caller]
    fn start_by_hand(&self, call: Call, script: Option<(&Path, &str)>) -> LiveCall {
        let started = self.start(call, script).expect("the runner has an executable for this call");
        started.unwrap_or_else(|failure| panic!("the call was not made: {}", failure.message()))
    }

    #[track_caller]
    pub fn start_config(&self) -> LiveCall {
        self.start_by_hand(Call::Config, None)
    }

    #[track_caller]
    pub fn start_prepare(&self) -> LiveCall {
        self.start_by_hand(Call::Prepare, None)
    }

    /// `run` with a script of the test's own, written unchanged.
    #[track_caller]
    pub fn start_run(&self, stage: &str, script: &str) -> LiveCall {
        let path = self.write_script(script.as_bytes());
        self.start_by_hand(Call::Run, Some((&path, stage)))
    }

    #[track_caller]
    pub fn start_cleanup(&self) -> LiveCall {
        self.start_by_hand(Call::Cleanup, None)
    }

    /// Calls config and applies its answer, which every later call needs.
    #[track_caller]
    pub fn config(&self) -> CallRecord {
        let record = self.start_config().wait(self.build.runner.patience);
        if record.exit_code() == Some(0) {
            self.accept_config(&record);
        }
        record
    }

    /// Applies the answer of a config call that was started by hand.
    #[track_caller]
    pub fn accept_config(&self, record: &CallRecord) {
        let taken = self.take_answer(&record.stdout);
        taken.unwrap_or_else(|failure| panic!("the runner refuses this config: {}", failure.message()));
    }

    #[track_caller]
    pub fn prepare(&self) -> CallRecord {
        self.start_prepare().wait(self.build.runner.patience)
    }

    #[track_caller]
    pub fn run(&self, stage: &str, script: &str) -> CallRecord {
        self.start_run(stage, script).wait(self.build.runner.patience)
    }

    /// `run` with the script the runner itself would write for this stage.
    #[track_caller]
    pub fn run_stage(&self, stage: &str) -> CallRecord {
        let script = self.stage_script(stage).expect("the job has this stage");
        self.run(stage, &script)
    }

    /// Cleanup without the removal of the directory, so that it can be called again.
    #[track_caller]
    pub fn cleanup(&self) -> CallRecord {
        self.start_cleanup().wait(self.build.runner.patience)
    }

    /// The runner's interpretation of the end of this call.
    #[track_caller]
    pub fn verdict(&self, record: &CallRecord) -> Result<(), Failure> {
        judge(record.exit.as_ref().expect("the call has ended"), &self.code_file())
    }

    /// The next attempt of the same job: new directory, same job.
    #[must_use]
    pub fn next(&self) -> Self {
        Self::by_hand(Arc::clone(&self.build), self.number + 1)
    }

    pub(super) fn by_hand(build: Arc<Build>, number: usize) -> Self {
        let mut attempt = Self::new(build, number);
        attempt.by_hand = true;
        attempt
    }
}

// State that all attempts of a job share.

/// Facts that are learnt during the job and kept across attempts.
#[derive(Debug, Clone)]
pub(super) struct Places {
    pub builds_dir: String,
    pub cache_dir: String,
    pub project_dir: String,
    pub job_status: String,
    pub hostname: Option<String>,
}

impl Places {
    pub(super) fn temp_project_dir(&self) -> String {
        format!("{}.tmp", self.project_dir)
    }
}

#[derive(Debug)]
pub(super) struct Build {
    pub runner: Runner,
    pub job: Job,
    pub shared: Arc<Shared>,
    pub(super) slot: Slot,
    places: Mutex<Places>,
    released: AtomicBool,
}

impl Build {
    pub(super) fn new(runner: &Runner, job: &Job, shared: Arc<Shared>) -> Self {
        let slot = runner.take_slot(&job.project_path);
        // Directories are empty until the first config call has answered.
        let places = Places {
            builds_dir: String::new(),
            cache_dir: String::new(),
            project_dir: String::new(),
            job_status: "running".into(),
            hostname: None,
        };
        Self {
            runner: runner.clone(),
            job: job.clone(),
            shared,
            slot,
            places: Mutex::new(places),
            released: AtomicBool::new(false),
        }
    }

    /// Releases the concurrency numbers once, before the final status is sent, so that the next job can have them.
    pub(super) fn release(&self) {
        if !self.released.swap(true, Ordering::Relaxed) {
            self.runner.give_slot_back(&self.slot);
        }
    }

    pub(super) fn places(&self) -> Places {
        self.lock_places().clone()
    }

    pub(super) fn lock_places(&self) -> MutexGuard<'_, Places> {
        self.places.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The project directory: two jobs of one project share it unless the driver reports `builds_dir_is_shared`.
    pub(super) fn settle(&self, builds_dir: &str, cache_dir: &str, is_shared: bool) {
        let path = self.job.clone_path.as_ref().unwrap_or(&self.job.project_path);
        let empty = match self.variable("GIT_STRATEGY").as_deref() {
            Some("empty") => "-empty",
            _ => "",
        };
        let infix = if is_shared {
            format!("{}/{}/", self.runner.short_token, self.slot.concurrent_project_id)
        } else {
            String::new()
        };
        let mut places = self.lock_places();
        places.builds_dir = builds_dir.into();
        places.project_dir = format!("{builds_dir}/{infix}{path}{empty}");
        places.cache_dir = format!("{cache_dir}/{path}");
    }

    /// A variable that the job itself sets; the last one wins.
    pub(super) fn variable(&self, key: &str) -> Option<String> {
        let found = self.job.variables.iter().rev().find(|variable| variable.key == key);
        found.map(|variable| variable.value.to_string_lossy().into_owned())
    }
}

impl Drop for Build {
    fn drop(&mut self) {
        self.release();
    }
}
