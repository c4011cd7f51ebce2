//! The files of an attempt: `job`, `order` and `assignment`, and the marks `closed` and `used`.
//!
//! `job` and `order` are complete before the directory has its name, and never change. `assignment`, the instance that the job was
//! given, comes later, under an unused name: a rename over a file would make ext4 begin to write to the disk. A reader
//! never sees half of a file, unless the machine lost power.
//!
//! A mark is a file whose existence carries the information. It is created with O_EXCL and never removed. Its content is only
//! for operators, ages and messages.

use std::cmp::Ordering;
use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use greenroom_core::attempt::Closed;
use greenroom_core::format::{FORMAT, OUTDATED_REMEDY, newer, outdated};
use greenroom_core::ids::PoolName;
use greenroom_core::order::LaunchOrder;
use greenroom_core::time::Stamp;
use greenroom_ports::attempts::{Assignment, AttemptRecord};
use greenroom_ports::host_error::HostError;
use serde::{Deserialize, Serialize};

use super::files::{self, Durable, broken, cannot};
use super::lease::modified;
use super::runner::{Namespaces, ProcessId};

const JOB: &str = "job";
const ORDER: &str = "order";
const ASSIGNMENT: &str = "assignment";

/// Content of `job`: the port's record, and the data that shows whether the attempt is still running.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct JobFile {
    pub format: u32,
    pub record: AttemptRecord,
    pub origin: AttemptOrigin,
}

/// The origin of the attempt. Values that could not be determined are not checked later.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct AttemptOrigin {
    pub runner: Option<ProcessId>,
    pub tmpdir: Option<Tmpdir>,
    /// The namespaces in which both of the above are valid.
    pub namespaces: Option<Namespaces>,
}

/// The unique identity of a TMPDIR, whose path may name another directory later.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Tmpdir {
    pub path: PathBuf,
    pub device: u64,
    pub inode: u64,
    pub owner: u32,
}

impl Tmpdir {
    /// The directory at `path`; `None` if there is none, or its path is not valid UTF-8.
    pub(super) fn at(path: &Path) -> Option<Self> {
        path.to_str()?;
        let path = std::path::absolute(path).ok()?;
        let known = fs::symlink_metadata(&path).ok().filter(fs::Metadata::is_dir)?;
        Some(Self { path, device: known.dev(), inode: known.ino(), owner: known.uid() })
    }
}

/// The readable parts of an attempt's files `job` and `assignment`.
#[derive(Debug)]
pub(super) struct ReadableFiles {
    /// `None`: no `prepare` has created the file, or it cannot be read.
    pub job: Option<JobFile>,
    pub assignment: Option<Assignment>,
    /// The reason one of them cannot be read.
    pub problem: Option<HostError>,
}

impl JobFile {
    pub(super) fn new(record: AttemptRecord, origin: AttemptOrigin) -> Self {
        Self { format: FORMAT, record, origin }
    }

    /// Writes `dir/job`, before other processes can find the directory.
    pub(super) fn write(&self, dir: &Path) -> Result<(), HostError> {
        let path = dir.join(JOB);
        let text = encode(self, &path)?;
        files::write_new(&path, &text, Durable::No).map_err(|e| cannot("write", &path, e))
    }

    /// Reads `dir/job` and `dir/assignment`; `None` if no `prepare` has created the first.
    pub(super) fn read(dir: &Path) -> Result<Option<Self>, HostError> {
        let Some(mut job) = Self::read_job(&dir.join(JOB))? else { return Ok(None) };
        job.record.assignment = read_assignment(dir)?;
        Ok(Some(job))
    }

    /// Reads `dir/job` and `dir/assignment` for an observer: each file as far as possible, whatever happened to the other.
    pub(super) fn examine(dir: &Path) -> ReadableFiles {
        let (job, unread) = apart(Self::read_job(&dir.join(JOB)));
        let (assignment, unassigned) = apart(read_assignment(dir));
        ReadableFiles { job, assignment, problem: unread.or(unassigned) }
    }

    /// The pool in `dir/job`.
    pub(super) fn read_pool(dir: &Path) -> Result<Option<PoolName>, HostError> {
        Ok(Self::read_job(&dir.join(JOB))?.map(|job| job.record.pool))
    }

    fn read_job(path: &Path) -> Result<Option<Self>, HostError> {
        #[derive(Deserialize)]
        struct Version {
            format: u32,
        }
        let Some(text) = text(path)? else { return Ok(None) };
        let damaged = |e| damaged(path, &e);
        let Version { format } = serde_json::from_slice(&text).map_err(damaged)?;
        let name = format!("`{}`", path.display());
        let refused = match format.cmp(&FORMAT) {
            Ordering::Equal => return serde_json::from_slice(&text).map(Some).map_err(damaged),
            Ordering::Less => format!("{}: {OUTDATED_REMEDY}", outdated(&name, format)),
            Ordering::Greater => newer(&name, format),
        };
        Err(HostError::Io { what: refused })
    }
}

/// Writes `dir/order`, before other processes can find the directory. Its variables may be secret.
pub(super) fn write_order(dir: &Path, order: &LaunchOrder) -> Result<(), HostError> {
    let path = dir.join(ORDER);
    let text = encode(order, &path)?;
    files::write_new(&path, &text, Durable::No).map_err(|e| cannot("write", &path, e))
}

/// Reads `dir/order`; `None` if there is none.
pub(super) fn read_order(dir: &Path) -> Result<Option<LaunchOrder>, HostError> {
    let path = dir.join(ORDER);
    let Some(text) = text(&path)? else { return Ok(None) };
    serde_json::from_slice(&text).map(Some).map_err(|e| damaged(&path, &e))
}

/// Removes `dir/order`: nothing is launched for an attempt that has ended, and its variables may be secret.
pub(super) fn discard_order(dir: &Path) {
    let path = dir.join(ORDER);
    if let Err(problem) = files::missing_is_none(fs::remove_file(&path)) {
        tracing::warn!("cannot remove `{}`: {problem}", path.display());
    }
}

/// Writes `dir/assignment` in one step.
pub(super) fn assign(dir: &Path, assignment: Option<&Assignment>) -> Result<(), HostError> {
    let path = dir.join(ASSIGNMENT);
    let text = encode(&assignment, &path)?;
    files::replace(dir, ASSIGNMENT, &text, Durable::No).map_err(|e| cannot("write", &path, e))
}

fn encode(what: &impl Serialize, path: &Path) -> Result<Vec<u8>, HostError> {
    serde_json::to_vec(what).map_err(|e| cannot("write", path, std::io::Error::from(e)))
}

fn read_assignment(dir: &Path) -> Result<Option<Assignment>, HostError> {
    let path = dir.join(ASSIGNMENT);
    let Some(text) = text(&path)? else { return Ok(None) };
    serde_json::from_slice(&text).map_err(|e| damaged(&path, &e))
}

fn apart<T>(read: Result<Option<T>, HostError>) -> (Option<T>, Option<HostError>) {
    match read {
        Ok(found) => (found, None),
        Err(problem) => (None, Some(problem)),
    }
}

fn text(path: &Path) -> Result<Option<Vec<u8>>, HostError> {
    files::read(path).map_err(|e| cannot("read", path, e))
}

fn damaged(path: &Path, problem: &serde_json::Error) -> HostError {
    broken(format_args!("`{}` is damaged: {problem}", path.display()))
}

pub(super) const CLOSED: &str = "closed";
pub(super) const USED: &str = "used";

/// Sets the mark `used`; a mark that is already set keeps its first time.
pub(super) fn set_used(dir: &Path, now: Stamp) -> io::Result<()> {
    set_mark(dir, USED, &serde_json::to_vec(&now)?)
}

/// Sets the mark `closed`; a mark that is already set keeps its first time and reason.
pub(super) fn set_closed(dir: &Path, closed: Closed) -> io::Result<()> {
    set_mark(dir, CLOSED, &serde_json::to_vec(&closed)?)
}

fn set_mark(dir: &Path, mark: &str, text: &[u8]) -> io::Result<()> {
    match files::create_new(&dir.join(mark)) {
        // CRASH: the mark exists without its text, as on a full disk.
        Ok(mut file) => {
            file.write_all(text).ok();
            Ok(())
        }
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        Err(error) => Err(error),
    }
}

pub(super) fn is_set(dir: &Path, mark: &str) -> io::Result<bool> {
    Ok(files::missing_is_none(fs::symlink_metadata(dir.join(mark)))?.is_some())
}

/// Returns when and why the mark `closed` was set; `None` if it is not.
///
/// RACE: a read between the mark's creation and its text returns no reason, and the file's time.
pub(super) fn closed(dir: &Path) -> io::Result<Option<Closed>> {
    let path = dir.join(CLOSED);
    let Some(text) = files::read(&path)? else { return Ok(None) };
    match serde_json::from_slice(&text) {
        Ok(closed) => Ok(Some(closed)),
        Err(_) => fs::metadata(&path).map(|known| Some(Closed { at: modified(&known), how: None })),
    }
}

#[cfg(test)]
mod tests {
    use greenroom_core::attempt::End;
    use greenroom_core::container::engine::ContainerEngine;
    use greenroom_core::container::name::{ContainerName, JobContainer, Owner};
    use greenroom_core::endpoint::Endpoint;
    use greenroom_core::execution::{Execution, Shell, StageShell};
    use greenroom_core::golden;
    use greenroom_core::ids::{AttemptName, InstanceId, JobKey};
    use greenroom_core::job::JobFacts;
    use greenroom_core::time::{BootId, ManagerId, Stamp};
    use greenroom_ports::attempts::StageTimeouts;

    use super::*;

    #[test]
    fn a_torn_file_is_damaged_and_a_newer_one_is_not() {
        let home = tempfile::tempdir().unwrap();
        assert!(JobFile::read(home.path()).unwrap().is_none());
        for (text, damaged) in [
            ("", true),
            ("{\"format\":2", true),
            ("{\"format\":2}", true),
            ("{\"format\":3}", false),
            ("{\"format\":1}", false),
        ] {
            fs::write(home.path().join(JOB), text).unwrap();
            let error = JobFile::read(home.path()).unwrap_err().to_string();
            assert_eq!(error.contains("is damaged"), damaged, "{text}: {error}");
            let readable = JobFile::examine(home.path());
            assert_eq!((readable.job, readable.problem.unwrap().to_string()), (None, error));
        }
    }

    #[test]
    fn files_of_format_2_are_read() {
        let at = Stamp {
            wall_ms: 1_781_524_800_000,
            manager: ManagerId(1),
            boot: BootId(7),
            uptime_ms: 864_000_000,
        };
        let record = |builds_dir: Option<&str>| AttemptRecord {
            job: golden::job(),
            pool: PoolName::new("linux"),
            execution: Execution::Machine { shell: Shell::Bash.into() },
            builds_dir: builds_dir.map(str::to_owned),
            begun: at,
            assignment: None,
            order: None,
        };
        let origin = AttemptOrigin {
            runner: Some(ProcessId { pid: 4711, start: 99 }),
            tmpdir: Some(Tmpdir { path: "/tmp/custom-executor4711".into(), device: 1, inode: 2, owner: 3 }),
            namespaces: Some(Namespaces { mount: "mnt:[4]".to_owned(), pid: "pid:[5]".to_owned() }),
        };
        let unknown = AttemptOrigin { runner: None, tmpdir: None, namespaces: None };
        let contained =
            AttemptRecord { execution: Execution::Container { shell: Shell::Bash.into() }, ..record(None) };
        let shell = StageShell { shell: Shell::Sh, login_shell: true, separate_stderr: true };
        let login = AttemptRecord { execution: Execution::Machine { shell }, ..record(None) };
        let files = [
            JobFile::new(record(Some("/builds")), origin.clone()),
            JobFile::new(record(None), unknown),
            JobFile::new(contained, origin.clone()),
            JobFile::new(login, origin),
        ];
        golden::hold(golden::recorded!("jobs.jsonl"), &files);
        let endpoint: Endpoint = serde_json::from_str(
            r#"{"address":"192.0.2.7","port":22,"user":"ci","host_key":"ssh-ed25519 AAAA"}"#,
        )
        .unwrap();
        let assignment = Assignment {
            instance: InstanceId::new("linux-7f3a09c1-12"),
            endpoint,
            is_static: true,
            timeouts: StageTimeouts::default(),
            unbegun: false,
            container: None,
        };
        let later = Assignment { unbegun: true, ..assignment.clone() };
        let container = JobContainer {
            name: ContainerName::of(&AttemptName::new("a1")),
            engine: ContainerEngine::Podman,
            open_umask: true,
            starts_ahead: true,
            owner: None,
            shown_services: Vec::new(),
        };
        let docker = JobContainer { engine: ContainerEngine::Docker, ..container.clone() };
        let more = JobContainer {
            open_umask: false,
            owner: Some(Owner { user: 1000, group: 1001 }),
            shown_services: vec!["db".to_owned()],
            ..container.clone()
        };
        let contained = Assignment { container: Some(container), ..assignment.clone() };
        let owned = Assignment {
            container: Some(more),
            timeouts: StageTimeouts {
                container_start: std::time::Duration::from_secs(90),
                ..StageTimeouts::default()
            },
            ..assignment.clone()
        };
        let of_docker = Assignment { container: Some(docker), ..assignment.clone() };
        let assignments =
            [None, Some(assignment), Some(later), Some(contained), Some(owned), Some(of_docker)];
        golden::hold(golden::recorded!("assignments.jsonl"), &assignments);
    }

    #[test]
    fn an_order_is_read_back_and_only_this_user_can_read_it() {
        use std::os::unix::fs::PermissionsExt;

        let home = tempfile::tempdir().unwrap();
        assert_eq!(read_order(home.path()).unwrap(), None);
        let service = greenroom_core::order::OrderService {
            name: "svc-0".to_owned(),
            image: "postgres:17".to_owned(),
            aliases: vec!["db".to_owned()],
            entrypoint: None,
            command: None,
            variables: vec![("POSTGRES_PASSWORD".to_owned(), "hunter2".to_owned())],
            pull_policy: None,
            port: Some(5432),
        };
        let order = LaunchOrder {
            image: "ruby:3.3".to_owned(),
            of_offering: false,
            pull_policy: None,
            services: vec![service],
            dirs: vec!["/builds".to_owned()],
        };
        write_order(home.path(), &order).unwrap();
        assert_eq!(read_order(home.path()).unwrap(), Some(order));
        let mode = fs::metadata(home.path().join(ORDER)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        fs::write(home.path().join(ORDER), "{\"image\":").unwrap();
        assert!(read_order(home.path()).unwrap_err().to_string().contains("is damaged"));
    }

    #[test]
    fn a_torn_assignment_is_damage_too() {
        let home = tempfile::tempdir().unwrap();
        let timeout = std::time::Duration::from_secs(1);
        let record = AttemptRecord {
            job: JobFacts::new(JobKey::new("gl", 1), "group/project", timeout),
            pool: PoolName::new("linux"),
            execution: Execution::Machine { shell: Shell::Bash.into() },
            builds_dir: None,
            begun: Stamp { wall_ms: 1, manager: ManagerId(1), boot: BootId(1), uptime_ms: 1 },
            assignment: None,
            order: None,
        };
        let origin = AttemptOrigin { runner: None, tmpdir: None, namespaces: None };
        JobFile::new(record, origin).write(home.path()).unwrap();
        assert_eq!(JobFile::read(home.path()).unwrap().unwrap().record.assignment, None);
        assign(home.path(), None).unwrap();
        assert_eq!(JobFile::read(home.path()).unwrap().unwrap().record.assignment, None);
        fs::write(home.path().join(ASSIGNMENT), "{\"instance\":").unwrap();
        assert!(JobFile::read(home.path()).unwrap_err().to_string().contains("is damaged"));
        let readable = JobFile::examine(home.path());
        assert!(readable.job.is_some() && readable.assignment.is_none() && readable.problem.is_some());
    }

    #[test]
    fn a_mark_keeps_its_first_time_and_reason_and_an_empty_one_counts_too() {
        let home = tempfile::tempdir().unwrap();
        let at = |uptime_ms| Stamp { wall_ms: 1, manager: ManagerId(1), boot: BootId(1), uptime_ms };
        assert_eq!(closed(home.path()).unwrap(), None);
        let first = Closed::new(at(5), End::Superseded);
        set_closed(home.path(), first).unwrap();
        set_closed(home.path(), Closed::new(at(9), End::CleanedUp)).unwrap();
        assert_eq!(closed(home.path()).unwrap(), Some(first));
        let whole = fs::read(home.path().join(CLOSED)).unwrap();
        for length in 0..whole.len() {
            fs::write(home.path().join(CLOSED), &whole[..length]).unwrap();
            let cut = closed(home.path()).unwrap().expect("the file is the mark");
            assert!(cut.how.is_none() && is_set(home.path(), CLOSED).unwrap(), "{length}: {cut:?}");
        }
        assert!(!is_set(home.path(), USED).unwrap());
        set_used(home.path(), at(5)).unwrap();
        assert!(is_set(home.path(), USED).unwrap());
    }

    #[test]
    fn marks_of_format_2_are_read() {
        let marks: Vec<Closed> = golden::ends()
            .map(Some)
            .into_iter()
            .chain([None])
            .map(|how| Closed {
                at: Stamp {
                    wall_ms: 1_781_524_800_000,
                    manager: ManagerId(1),
                    boot: BootId(7),
                    uptime_ms: 9,
                },
                how,
            })
            .collect();
        golden::hold(golden::recorded!("closed.jsonl"), &marks);
    }
}
