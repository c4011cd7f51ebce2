//! Creates the directory of an instance that is a process on the runner host, and starts that process, where systemd runs
//! in a scope of its own.
//!
//! A process in the control group of the service that launched it is killed when that service stops. With a scope of
//! its own, a job survives a restart of the keeper and a graceful stop of the runner.

use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;
use std::time::Duration;

use async_trait::async_trait;
use fs_err as fs;
use greenroom_core::failure::ErrorClass;
use greenroom_core::text::hex;
use greenroom_ports::provider::{LaunchRequest, ProviderError};
use greenroom_system::remove;
use greenroom_system::threads::disk::BlockingPool;
use greenroom_system::threads::flock::{self, Kind};
use tokio::io::AsyncReadExt;

use super::instance_dir::{self, InstanceDir, Life, is_plain_name, make_private};
use super::supervisor::{self, failpoint};

/// The only environment variables that Greenroom's long-lived processes inherit; never a job's variable.
const PASSED_ON: &[&str] = &["PATH", "LANG", "LC_ALL", "LC_CTYPE", "TZ"];

/// The time limit for the instance's process to answer the launch. It answers before it does anything slow.
const ANSWER_WITHIN: Duration = Duration::from_secs(10);

/// Age at which the directories of interrupted launches are removed.
const ABANDONED_AFTER: Duration = Duration::from_mins(10);

/// The program that serves or removes an instance; the path of its directory is the last argument.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InstanceProgram {
    /// Absolute, or searched for in `PATH`.
    pub program: PathBuf,
    pub arguments: Vec<OsString>,
}

/// The time for which a launch waits for another process's.
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
    /// The lock of launches, held until the next count includes the instance.
    pub lock: Option<File>,
}

/// The directory of a pool's instances, and the program that serves them.
#[derive(Debug)]
pub struct Launcher<'a> {
    pub pool_dir: &'a Path,
    pub server: &'a InstanceProgram,
    pub disk: &'a BlockingPool,
}

/// The result of creating the directory.
pub(super) struct CreatedInstance {
    dir: InstanceDir,
    /// The error from [`Admitted::lost`].
    lost: Option<ProviderError>,
    fresh: bool,
}

impl Launcher<'_> {
    pub async fn launch(&self, request: &LaunchRequest, recipe: &dyn Recipe) -> Result<(), ProviderError> {
        let made = self.make(request, recipe).await?;
        // CRASH: from here on the directory is listed, as starting. A launch with the same token starts its process;
        // without one, the instance is terminated because it does not come up.
        failpoint("launch.placed");
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
    ) -> Result<CreatedInstance, ProviderError> {
        let name = request.instance.as_str();
        if !is_plain_name(name) {
            let message = format!("`{name}` is not a valid name for a directory");
            return Err(ProviderError::new(ErrorClass::Invalid, message));
        }
        let dir = InstanceDir::at(self.pool_dir.join(name));
        if is_there(&dir, request)? {
            return Ok(CreatedInstance { dir, lost: None, fresh: false });
        }
        let refused = |error: io::Error| ProviderError::new(ErrorClass::Transient, error.to_string());
        make_private(self.pool_dir).map_err(refused)?;
        // The lock makes counting and creating one step for all processes; nothing slow happens under it.
        let _lock = locked(&self.pool_dir.join(".lock")).await?;
        failpoint("launch.locked");
        if is_there(&dir, request)? {
            return Ok(CreatedInstance { dir, lost: None, fresh: false });
        }
        self.sweep();
        let Admitted { lost, lock: _counted } = recipe.admit().await?;
        self.put_in_place(&dir, recipe).map_err(refused)?;
        Ok(CreatedInstance { dir, lost, fresh: true })
    }

    fn put_in_place(&self, dir: &InstanceDir, recipe: &dyn Recipe) -> io::Result<()> {
        let fresh = InstanceDir::at(self.pool_dir.join(format!(".new-{}", random()?)));
        let filled = recipe.write(&fresh);
        failpoint("launch.filled");
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
    fn take_back(&self, made: &CreatedInstance, error: &StartError) -> ProviderError {
        let program = self.server.program.display();
        match error {
            StartError::NotStarted(problem) if made.fresh && made.lost.is_none() => {
                drop(remove::tree(&made.dir.path));
                ProviderError::new(ErrorClass::Transient, format!("cannot start {program}: {problem}"))
            }
            StartError::NotStarted(problem) => {
                ProviderError::new(ErrorClass::Unknown, format!("cannot start {program}: {problem}"))
            }
            StartError::NoPipe | StartError::Exited { .. } | StartError::Late => {
                ProviderError::new(ErrorClass::Unknown, error.to_string())
            }
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
        .chain(supervisor::FAILPOINT_VARIABLES)
        .filter_map(|name| Some((*name, std::env::var_os(name)?)))
        .collect()
}

/// The reason [`start`] gets no process that serves an instance.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    #[error("cannot be started: {0}")]
    NotStarted(#[source] io::Error),
    #[error("no pipe")]
    NoPipe,
    #[error("the instance's process exited before it was ready: {last_line}")]
    Exited { last_line: String },
    #[error("the instance's process did not respond within {} s", ANSWER_WITHIN.as_secs())]
    Late,
}

/// Starts the process of a directory and waits for its answer.
pub async fn start(server: &InstanceProgram, dir: &InstanceDir) -> Result<(), StartError> {
    let mut child = spawn(server, dir, Stdio::piped()).map_err(StartError::NotStarted)?;
    let mut answer = child.stdout.take().ok_or(StartError::NoPipe)?;
    failpoint("launch.started");
    // One byte, written when the lock is held and the record exists. Dropping the child here does not stop it: it is
    // detached, and the runtime waits for its exit.
    match tokio::time::timeout(ANSWER_WITHIN, answer.read_u8()).await {
        Ok(Ok(_)) => Ok(()),
        Ok(Err(_)) => {
            let output = instance_dir::console_tail(&dir.file("console.log")).unwrap_or_default();
            let last_line = output.lines().next_back().unwrap_or("no output").to_owned();
            Err(StartError::Exited { last_line })
        }
        Err(_) => Err(StartError::Late),
    }
}

/// Starts the process that serves or removes an instance.
pub fn spawn(
    server: &InstanceProgram,
    dir: &InstanceDir,
    answer: Stdio,
) -> io::Result<tokio::process::Child> {
    let console = fs::OpenOptions::new().create(true).append(true).open(dir.file("console.log"))?;
    let mut command = tokio::process::Command::new(&server.program);
    command.args(&server.arguments).arg(&dir.path);
    command.env_clear().envs(passed_on()).current_dir("/");
    command.stdin(Stdio::null()).stdout(answer).stderr(console.into_file());
    command.spawn()
}

/// Exists exactly where systemd manages the host.
const SYSTEMD: &str = "/run/systemd/system";

/// The description of a scope in `systemctl`.
const DESCRIPTION: &str = "--description=Greenroom instance";

/// The service manager that can create scopes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scopes {
    /// The host's systemd; this process is root.
    System,
    /// The user's systemd.
    User,
    /// None: instances stay in the control group of the process that launches them.
    None,
}

/// Checked once per process: a service manager does not appear or disappear meanwhile.
pub fn scopes() -> Scopes {
    static FOUND: OnceLock<Scopes> = OnceLock::new();
    *FOUND.get_or_init(|| {
        find_scopes(Path::new(SYSTEMD).is_dir(), rustix::process::geteuid().is_root(), makes_scope)
    })
}

fn find_scopes(systemd: bool, root: bool, works: impl Fn(Scopes) -> bool) -> Scopes {
    let wanted = if root { Scopes::System } else { Scopes::User };
    if systemd && works(wanted) { wanted } else { Scopes::None }
}

/// Creates a scope for a program that does nothing; true on success.
fn makes_scope(scopes: Scopes) -> bool {
    let mut command = Command::new("systemd-run");
    command.args(scope_arguments(scopes)).arg("true");
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}

fn scope_arguments(scopes: Scopes) -> Vec<&'static str> {
    let mut arguments = vec!["--scope", "--collect", "--quiet", DESCRIPTION];
    if scopes == Scopes::User {
        arguments.push("--user");
    }
    arguments.push("--");
    arguments
}

/// The command that starts a program in a scope of its own, where one can be created; otherwise the program itself.
pub(super) fn in_scope(server: &InstanceProgram) -> InstanceProgram {
    scoped(server, scopes())
}

fn scoped(server: &InstanceProgram, scopes: Scopes) -> InstanceProgram {
    if scopes == Scopes::None {
        return server.clone();
    }
    let mut all: Vec<OsString> = Vec::new();
    if scopes == Scopes::User {
        // The address of the user's service manager, which is not among the inherited variables.
        let bus = std::env::var_os("XDG_RUNTIME_DIR").unwrap_or_default();
        all.push([OsString::from("XDG_RUNTIME_DIR="), bus].into_iter().collect());
        all.push("systemd-run".into());
    }
    all.extend(scope_arguments(scopes).into_iter().map(OsString::from));
    all.push(server.program.clone().into());
    all.extend(server.arguments.iter().cloned());
    let starter = if scopes == Scopes::User { "env" } else { "systemd-run" };
    InstanceProgram { program: starter.into(), arguments: all }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scope_is_used_only_where_one_was_made() {
        assert_eq!(find_scopes(true, true, |_| true), Scopes::System);
        assert_eq!(find_scopes(true, false, |scopes| scopes == Scopes::User), Scopes::User);
        assert_eq!(find_scopes(true, true, |_| false), Scopes::None);
        assert_eq!(find_scopes(false, true, |_| true), Scopes::None);
    }

    #[test]
    fn the_process_itself_is_the_last_of_the_command() {
        let own = ["instance", "serve", "--dir"].map(OsString::from);
        let server = InstanceProgram { program: "/bin/greenroom".into(), arguments: own.to_vec() };
        assert_eq!(scoped(&server, Scopes::None), server);
        let own = ["/bin/greenroom", "instance", "serve", "--dir"].map(OsString::from);
        for (scopes, starter) in [(Scopes::System, "systemd-run"), (Scopes::User, "env")] {
            let scoped = scoped(&server, scopes);
            assert_eq!(scoped.program, Path::new(starter));
            assert_eq!(scoped.arguments.contains(&"--user".into()), scopes == Scopes::User);
            assert!(scoped.arguments.ends_with(&own));
        }
    }
}
