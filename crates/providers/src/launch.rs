//! Creates the directory of an instance that is a process on the runner host, and starts that process.

use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use async_trait::async_trait;
use fs_err as fs;
use greenroom_core::failure::ErrorClass;
use greenroom_core::text::hex;
use greenroom_ports::provider::{LaunchRequest, ProviderError};
use greenroom_system::remove;
use greenroom_system::threads::disk::Lane;
use greenroom_system::threads::flock::{self, Kind};
use tokio::io::AsyncReadExt;

use super::console;
use super::halt::{self, halt_point};
use super::instance_dir::{InstanceDir, Life, is_plain_name, make_private};

/// The only environment variables that Greenroom's long-lived processes inherit; never a job's variable.
const PASSED_ON: &[&str] = &["PATH", "LANG", "LC_ALL", "LC_CTYPE", "TZ"];

/// How long the instance's process may take to answer the launch. It answers before it does anything slow.
const ANSWER_WITHIN: Duration = Duration::from_secs(10);

/// Age at which the directories of interrupted launches are removed.
const ABANDONED_AFTER: Duration = Duration::from_mins(10);

/// The program that serves or removes an instance; the path of its directory is the last argument.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Server {
    /// Absolute, or searched for in `PATH`.
    pub program: PathBuf,
    pub arguments: Vec<OsString>,
}

/// How long a launch waits for another process's.
const LOCK_WITHIN: Duration = Duration::from_secs(10);

/// The provider's part in creating an instance.
#[async_trait(?Send)]
pub trait Recipe {
    /// Checks whether another instance may be created. Called under the pool's lock.
    async fn admit(&self) -> Result<Admitted, ProviderError>;
    /// Writes the content of the directory, including `spec.json`.
    fn write(&self, dir: &InstanceDir) -> io::Result<()>;
}

/// The permission to create an instance.
#[derive(Debug, Default)]
pub struct Admitted {
    /// The error that the launch returns although it is carried out.
    pub lost: Option<ProviderError>,
    /// Held until the next count includes the instance.
    pub lock: Option<File>,
}

/// The directory of a pool's instances, and the program that serves them.
#[derive(Debug)]
pub struct Launcher<'a> {
    pub pool_dir: &'a Path,
    pub server: &'a Server,
    pub disk: &'a Lane,
}

/// The result of creating the directory.
pub(super) struct Made {
    dir: InstanceDir,
    /// As `Admitted::lost`.
    lost: Option<ProviderError>,
    fresh: bool,
}

impl Launcher<'_> {
    pub async fn launch(&self, request: &LaunchRequest, recipe: &dyn Recipe) -> Result<(), ProviderError> {
        let made = self.make(request, recipe).await?;
        // CRASH: from here on the directory is listed, as starting. A launch with the same token starts its process;
        // without one, the instance is terminated because it does not come up.
        halt_point("launch.placed");
        let life = made.dir.life().map_err(|error| unknown(&error))?;
        if life == Life::HalfMade {
            start(self.server, &made.dir).await.map_err(|error| self.take_back(&made, &error))?;
        }
        made.lost.map_or(Ok(()), Err)
    }

    /// Everything up to the start of the instance's process.
    pub(super) async fn make(
        &self,
        request: &LaunchRequest,
        recipe: &dyn Recipe,
    ) -> Result<Made, ProviderError> {
        let name = request.instance.as_str();
        if !is_plain_name(name) {
            let message = format!("`{name}` is not a valid name for a directory");
            return Err(ProviderError::new(ErrorClass::Invalid, message));
        }
        let dir = InstanceDir::at(self.pool_dir.join(name));
        if is_there(&dir, request)? {
            return Ok(Made { dir, lost: None, fresh: false });
        }
        let refused = |error: io::Error| ProviderError::new(ErrorClass::Transient, error.to_string());
        make_private(self.pool_dir).map_err(refused)?;
        // The lock makes counting and creating one step for all processes; nothing slow happens under it.
        let _lock = locked(&self.pool_dir.join(".lock")).await?;
        halt_point("launch.locked");
        if is_there(&dir, request)? {
            return Ok(Made { dir, lost: None, fresh: false });
        }
        self.sweep();
        let Admitted { lost, lock: _counted } = recipe.admit().await?;
        self.put_in_place(&dir, recipe).map_err(refused)?;
        Ok(Made { dir, lost, fresh: true })
    }

    fn put_in_place(&self, dir: &InstanceDir, recipe: &dyn Recipe) -> io::Result<()> {
        let fresh = InstanceDir::at(self.pool_dir.join(format!(".new-{}", random()?)));
        let filled = recipe.write(&fresh);
        halt_point("launch.filled");
        // CRASH: a directory with a dot name is not an instance: nothing runs in it, and a later launch removes it.
        let placed = filled.and_then(|()| {
            // The rest of a removal that was interrupted after the spec, unless the removal is still running.
            if dir.holder()?.is_some() {
                return Err(io::Error::other(format!("{} is being removed", dir.path.display())));
            }
            self.set_aside(dir)?;
            fs::rename(&fresh.path, &dir.path)
        });
        if placed.is_err() {
            drop(remove::tree(&fresh.path));
        }
        placed
    }

    /// Makes room for a directory, however large the present one is.
    fn set_aside(&self, dir: &InstanceDir) -> io::Result<()> {
        let aside = self.pool_dir.join(format!(".new-{}", random()?));
        match fs::rename(&dir.path, &aside) {
            Ok(()) => self.discard(aside),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
        Ok(())
    }

    /// Begins to remove what interrupted launches left.
    fn sweep(&self) {
        let Ok(entries) = fs::read_dir(self.pool_dir) else { return };
        for entry in entries.flatten() {
            let is_new = entry.file_name().to_string_lossy().starts_with(".new-");
            let age =
                entry.metadata().and_then(|found| found.modified()).ok().and_then(|at| at.elapsed().ok());
            if is_new && age.is_some_and(|age| age > ABANDONED_AFTER) {
                self.discard(entry.path());
            }
        }
    }

    /// Begins to remove a directory. A failure does not fail the launch: a later one retries.
    fn discard(&self, path: PathBuf) {
        let disk = self.disk.clone();
        tokio::spawn(async move { disk.run(&path.clone(), move || remove::tree(&path)).await.ok() });
    }

    /// Removes the directory if its process could not be started and this launch created it.
    fn take_back(&self, made: &Made, error: &StartError) -> ProviderError {
        let program = self.server.program.display();
        match error {
            StartError::NotStarted(problem) if made.fresh && made.lost.is_none() => {
                drop(remove::tree(&made.dir.path));
                ProviderError::new(ErrorClass::Transient, format!("cannot start {program}: {problem}"))
            }
            StartError::NotStarted(problem) => {
                ProviderError::new(ErrorClass::Unknown, format!("cannot start {program}: {problem}"))
            }
            StartError::NoAnswer(problem) => ProviderError::new(ErrorClass::Unknown, problem.clone()),
        }
    }
}

/// A file with its lock held.
pub async fn locked(path: &Path) -> Result<File, ProviderError> {
    let refused = |error: io::Error| {
        ProviderError::new(ErrorClass::Transient, format!("cannot lock {}: {error}", path.display()))
    };
    let file = fs::File::create(path).map_err(refused)?.into_file();
    let locked = flock::lock(file, Kind::Exclusive, LOCK_WITHIN).await.map_err(refused)?;
    locked.ok_or_else(|| refused(io::Error::other("another process holds it")))
}

/// True if the requested instance exists. One of the same name with another token is an error.
fn is_there(dir: &InstanceDir, request: &LaunchRequest) -> Result<bool, ProviderError> {
    match dir.launched().map_err(|error| unknown(&error))? {
        None => Ok(false),
        Some(launched) if launched.token == request.token => Ok(true),
        Some(launched) => {
            let message = format!("`{}` has been launched as `{}`", request.instance, launched.token);
            Err(ProviderError::new(ErrorClass::Invalid, message))
        }
    }
}

fn unknown(error: &io::Error) -> ProviderError {
    ProviderError::new(ErrorClass::Unknown, error.to_string())
}

/// The directories of a pool's instances, sorted by name; empty if the pool has none.
pub fn instances(pool_dir: &Path) -> io::Result<Vec<InstanceDir>> {
    let entries = match fs::read_dir(pool_dir) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    let mut found: Vec<PathBuf> = Vec::new();
    for entry in entries {
        let entry = entry?;
        if entry.file_name().to_str().is_some_and(is_plain_name) {
            found.push(entry.path());
        }
    }
    found.sort();
    Ok(found.into_iter().map(InstanceDir::at).collect())
}

/// Sixteen random hexadecimal digits.
pub fn random() -> io::Result<String> {
    let mut bytes = [0_u8; 8];
    rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())?;
    Ok(hex(&bytes))
}

/// The environment of Greenroom's long-lived processes.
pub fn passed_on() -> Vec<(&'static str, OsString)> {
    PASSED_ON
        .iter()
        .chain(halt::VARIABLES)
        .filter_map(|name| Some((*name, std::env::var_os(name)?)))
        .collect()
}

/// Why an instance's process does not serve.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    #[error("cannot be started: {0}")]
    NotStarted(io::Error),
    #[error("{0}")]
    NoAnswer(String),
}

/// Starts the process of a directory and waits for its answer.
pub async fn start(server: &Server, dir: &InstanceDir) -> Result<(), StartError> {
    let mut child = spawn(server, dir, Stdio::piped()).map_err(StartError::NotStarted)?;
    let mut answer = child.stdout.take().ok_or_else(|| StartError::NoAnswer("no pipe".to_owned()))?;
    halt_point("launch.started");
    // One byte, written when the lock is held and the record exists. Dropping the child here does not stop it: it is
    // detached, and the runtime waits for its exit.
    match tokio::time::timeout(ANSWER_WITHIN, answer.read_u8()).await {
        Ok(Ok(_)) => Ok(()),
        Ok(Err(_)) => {
            let output = console::tail(&dir.file("console.log")).unwrap_or_default();
            let last = output.lines().next_back().unwrap_or("no output");
            Err(StartError::NoAnswer(format!("the instance's process exited before it was ready: {last}")))
        }
        Err(_) => Err(StartError::NoAnswer(format!(
            "the instance's process did not respond within {} s",
            ANSWER_WITHIN.as_secs()
        ))),
    }
}

/// Starts the process that serves or removes an instance.
pub fn spawn(server: &Server, dir: &InstanceDir, answer: Stdio) -> io::Result<tokio::process::Child> {
    let console = fs::OpenOptions::new().create(true).append(true).open(dir.file("console.log"))?;
    let mut command = tokio::process::Command::new(&server.program);
    command.args(&server.arguments).arg(&dir.path);
    command.env_clear().envs(passed_on()).current_dir("/");
    command.stdin(Stdio::null()).stdout(answer).stderr(console.into_file());
    command.spawn()
}
