//! Stored launch specs, one file ([`LaunchLedgerEntry`]) for each instance that may exist.
//!
//! `launches/POOL/INSTANCE.json` is on disk before the launch call. A repeat after an unknown answer is then identical, even if
//! the configuration has changed. The file contains the instance's host key: private like `keys/`.
//!
//! A file also proves which machine its launch created. Tags do not prove it: a copy that a person makes in the cloud's console
//! bears them, too.

use std::cmp::Ordering;
use std::ffi::OsStr;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering as AtomicOrdering};
use std::time::{Duration, SystemTime};

use fs_err as fs;
use fs_err::os::unix::fs::OpenOptionsExt as _;
use greenroom_core::format::{FORMAT, OUTDATED_REMEDY, newer, outdated};
use greenroom_core::ids::{InstanceId, PoolName};
use greenroom_core::time::Stamp;
use greenroom_ports::provider::LaunchRequest;
use greenroom_system::threads::disk::BlockingPool;
use serde::de::{DeserializeOwned, IgnoredAny};
use serde::{Deserialize, Serialize};

use super::machine::{Machine, MachineId};

/// The extension of the file of an instance that is gone but had disks, and how long it is kept.
const GONE: &str = "gone";
const DISKS_RETENTION: Duration = Duration::from_hours(7 * 24);

/// The content of one instance's file in the [`LaunchLedger`].
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct LaunchLedgerEntry<S, Id> {
    /// The version of the format.
    pub(super) format: u32,
    pub(super) token: String,
    /// The public half, in OpenSSH form, which the instance must present.
    pub(super) host_key: String,
    /// The time when the launch was first requested.
    pub(super) requested_at: Stamp,
    /// The time when the last call for the launch ended, with or without an answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) answered_at: Option<Stamp>,
    /// True once the cloud has listed it as running.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(super) seen: bool,
    /// The launch spec; `None` once the cloud has confirmed the launch.
    pub(super) spec: Option<S>,
    /// The machine, once [`Api::create`](super::api::Api::create) has returned it.
    pub(super) made: Option<Id>,
    /// The machine's disks, once it runs; [`LaunchLedger::disks`] finds them after its end.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) disks: Vec<String>,
}

/// The directory of a pool's launch specs, each a [`LaunchLedgerEntry`].
#[derive(Debug)]
pub(super) struct LaunchLedger {
    dir: PathBuf,
    disk: BlockingPool,
}

impl<S, Id> LaunchLedgerEntry<S, Id> {
    pub(super) fn new(request: &LaunchRequest, spec: S, requested_at: Stamp) -> Self {
        let host_key = request.keys.host_key_public.trim().to_owned();
        Self {
            format: FORMAT,
            token: request.token.clone(),
            host_key,
            requested_at,
            answered_at: None,
            seen: false,
            spec: Some(spec),
            made: None,
            disks: Vec::new(),
        }
    }

    /// The last moment at which a call may have created it, as far as is known.
    fn last_try(&self) -> Stamp {
        self.answered_at.unwrap_or(self.requested_at)
    }

    /// The time since the last try, at least. By the boot clock: a try before a reboot counts from the boot.
    pub(super) fn age(&self, now: Stamp) -> Duration {
        now.since(self.last_try().seen_from(now))
    }
}

impl LaunchLedger {
    pub(super) fn new(state_dir: &Path, pool: &PoolName) -> Self {
        Self { dir: state_dir.join("launches").join(pool.as_str()), disk: BlockingPool::default() }
    }

    /// `None` if the instance has no file.
    pub(super) fn read<S: DeserializeOwned, Id: DeserializeOwned>(
        &self,
        id: &InstanceId,
    ) -> io::Result<Option<LaunchLedgerEntry<S, Id>>> {
        let Some(path) = self.file(id) else { return Ok(None) };
        match fs::read(&path) {
            Ok(bytes) => parse(&path, &bytes).map(Some),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Syncs the file, so that a launch call made afterwards is recorded even after a power cut.
    pub(super) async fn write<S: Serialize, Id: Serialize>(
        &self,
        id: &InstanceId,
        entry: &LaunchLedgerEntry<S, Id>,
    ) -> io::Result<()> {
        let path = self
            .file(id)
            .ok_or_else(|| io::Error::other(format!("`{id}` is not an instance name of Greenroom's")))?;
        let bytes = serde_json::to_vec(entry)?;
        let dir = self.dir.clone();
        // Each write has a file of its own: two calls with the same token may write at the same time.
        let write = WRITES.fetch_add(1, AtomicOrdering::Relaxed);
        let fresh = path.with_extension(format!("{}-{write}.new", std::process::id()));
        let aside = fresh.clone();
        let put = move || {
            // On a full disk, the part that fitted goes.
            put(&dir, &fresh, &path, &bytes).inspect_err(|_| drop(fs::remove_file(&fresh)))
        };
        self.disk.run(&aside, put).await
    }

    /// True if the instance has a file.
    pub(super) fn contains(&self, id: &InstanceId) -> bool {
        self.file(id).is_some_and(|path| path.exists())
    }

    /// Removes the file of an instance that is gone. If it had disks, sets the file aside: a disk may have been left.
    pub(super) fn forget(&self, id: &InstanceId) {
        let Some(path) = self.file(id) else { return };
        // CRASH: a file that stays is swept.
        match fs::read(&path).and_then(|bytes| parse::<IgnoredAny, IgnoredAny>(&path, &bytes)) {
            Ok(entry) if entry.disks.is_empty() => drop(fs::remove_file(path)),
            // A file that cannot be read may name disks.
            _ => {
                let aside = path.with_extension(GONE);
                let kept =
                    fs::rename(path, &aside).and_then(|()| fs::File::options().append(true).open(&aside));
                // Its week begins now.
                kept.and_then(|file| file.file().set_modified(SystemTime::now())).ok();
            }
        }
    }

    /// The disks of an instance that exists, or that was forgotten recently.
    pub(super) fn disks(&self, id: &InstanceId) -> Vec<String> {
        let Some(path) = self.file(id) else { return Vec::new() };
        let bytes = fs::read(&path).or_else(|_| fs::read(path.with_extension(GONE)));
        let entry = bytes.and_then(|bytes| parse::<IgnoredAny, IgnoredAny>(&path, &bytes));
        entry.map_or(Vec::new(), |entry| entry.disks)
    }

    /// Removes launch specs older than `age` whose instance does not exist. CRASH: a process that was killed between the
    /// last answer and [`forget`](Self::forget) leaves one; a process that was killed while it wrote one leaves a `.new` file.
    pub(super) fn sweep(&self, exists: impl Fn(&InstanceId) -> bool, age: Duration, now: Stamp) {
        let Ok(entries) = fs::read_dir(&self.dir) else { return };
        for path in entries.flatten().map(|entry| entry.path()) {
            let id = path.file_stem().and_then(|stem| stem.to_str()).map(InstanceId::new);
            let is_old = |id: &InstanceId| match path.extension().and_then(OsStr::to_str) {
                // Another process may be writing it.
                Some("new") => unchanged_for(&path, age),
                Some(GONE) => unchanged_for(&path, DISKS_RETENTION),
                // A file that cannot be read is left to the operator: another version may have written it.
                _ => {
                    self.read::<IgnoredAny, IgnoredAny>(id).is_ok_and(|e| e.is_some_and(|e| e.age(now) > age))
                }
            };
            // A young file stays even without a machine: the cloud may not list it yet.
            if id.is_some_and(|id| !exists(&id) && is_old(&id)) {
                fs::remove_file(path).ok();
            }
        }
    }

    /// `None` unless the name has Greenroom's form: it becomes a file name.
    fn file(&self, id: &InstanceId) -> Option<PathBuf> {
        // An ID comes from the cloud's tags, too, which any user of the account can set.
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-';
        let valid = !id.as_str().is_empty() && id.as_str().bytes().all(plain);
        valid.then(|| self.dir.join(format!("{id}.json")))
    }
}

/// True if a file was last written longer than `age` ago. The wall clock decides about remains only.
fn unchanged_for(path: &Path, age: Duration) -> bool {
    let modified = fs::metadata(path).and_then(|known| known.modified());
    modified.is_ok_and(|then| then.elapsed().is_ok_and(|elapsed| elapsed > age))
}

/// Numbers the writes of this process.
static WRITES: AtomicU64 = AtomicU64::new(0);

/// Writes a file in one step, durably.
fn put(dir: &Path, fresh: &Path, path: &Path, bytes: &[u8]) -> io::Result<()> {
    std::os::unix::fs::DirBuilderExt::mode(std::fs::DirBuilder::new().recursive(true), 0o700).create(dir)?;
    let mut file = fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(fresh)?;
    io::Write::write_all(&mut file, bytes)?;
    // Content first, then the name, then the directory: after a power cut, the name leads to a whole file or to none.
    file.sync_all()?;
    fs::rename(fresh, path)?;
    fs::File::open(dir)?.sync_all()
}

/// A stored launch spec; an error if another version wrote it.
fn parse<S: DeserializeOwned, Id: DeserializeOwned>(
    path: &Path,
    bytes: &[u8],
) -> io::Result<LaunchLedgerEntry<S, Id>> {
    #[derive(Deserialize)]
    struct FormatVersion {
        #[serde(default = "before_release")]
        format: u32,
    }
    let FormatVersion { format } = serde_json::from_slice(bytes)?;
    let name = format!("`{}`", path.display());
    match format.cmp(&FORMAT) {
        Ordering::Equal => Ok(serde_json::from_slice(bytes)?),
        Ordering::Less => Err(io::Error::other(format!("{}: {OUTDATED_REMEDY}", outdated(&name, format)))),
        Ordering::Greater => Err(io::Error::other(newer(&name, format))),
    }
}

/// The format of launch specs without a number.
fn before_release() -> u32 {
    1
}

/// Attempts of a launch whose tokens are compared if its launch spec is gone.
const ATTEMPTS: u32 = 1000;

/// True if the launch spec names the machine, or if the machine shows the token of a launch of its instance.
/// `shown`: a token as machines show it.
pub(super) fn is_launched<S, Id: MachineId>(
    machine: &Machine<Id>,
    entry: Option<&LaunchLedgerEntry<S, Id>>,
    shown: impl Fn(&str) -> String,
) -> bool {
    match entry.and_then(|entry| entry.made.as_ref()) {
        Some(made) if *made == machine.handle => return true,
        // A name that was used again, or a copy in another place: the token was copied, too.
        Some(made) if made.name() == machine.handle.name() => return false,
        Some(_) | None => {}
    }
    let Some(token) = &machine.token else { return false };
    let is_token = |known: &str| shown(known) == *token;
    entry.is_some_and(|entry| is_token(&entry.token))
        // Tokens are computed from the instance's name, so Greenroom recognizes its machines even after the file is lost.
        || (1..=ATTEMPTS).any(|attempt| is_token(&machine.instance.token(attempt)))
}

#[cfg(test)]
pub(super) mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use greenroom_core::golden;
    use greenroom_core::time::{BootId, ManagerId};

    use super::*;
    use crate::cloud::machine::tests::machine;
    use crate::cloud::machine::{Handle, MachineState};

    pub(in crate::cloud) fn entry(token: &str) -> LaunchLedgerEntry<Vec<u8>, Handle> {
        LaunchLedgerEntry {
            format: FORMAT,
            token: token.to_owned(),
            host_key: "ssh-ed25519 AAAA".to_owned(),
            requested_at: Stamp { wall_ms: 1, manager: ManagerId(1), boot: BootId(2), uptime_ms: 3 },
            answered_at: None,
            seen: false,
            spec: Some(vec![1, 2]),
            made: None,
            disks: vec![],
        }
    }

    #[tokio::test]
    async fn a_launch_spec_is_read_as_it_was_written_and_by_its_owner_alone() {
        let state = tempfile::tempdir().unwrap();
        let ledger = LaunchLedger::new(state.path(), &PoolName::new("linux"));
        let id = InstanceId::new("linux-c0ffee-1");
        assert!(ledger.read::<Vec<u8>, Handle>(&id).unwrap().is_none());
        ledger.write(&id, &entry("a")).await.unwrap();
        ledger.write(&id, &entry("b")).await.unwrap();
        let read = ledger.read::<Vec<u8>, Handle>(&id).unwrap().unwrap();
        assert_eq!((read.token.as_str(), read.spec), ("b", Some(vec![1, 2])));
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode(&ledger.file(&id).unwrap()), 0o600);
        assert_eq!(mode(&ledger.dir), 0o700);
        ledger.forget(&id);
        ledger.forget(&id);
        assert!(ledger.read::<Vec<u8>, Handle>(&id).unwrap().is_none());
    }

    #[test]
    fn specs_of_format_2_are_read() {
        let made = Handle { name: "i-0123".to_owned(), zone: "us-east1-b".to_owned() };
        let done = LaunchLedgerEntry { spec: None, made: Some(made), ..entry("b") };
        let later = Stamp { uptime_ms: 900, ..entry("b").requested_at };
        let seen = LaunchLedgerEntry { answered_at: Some(later), seen: true, ..done.clone() };
        let disks = LaunchLedgerEntry { disks: vec!["vol-0abc".to_owned()], ..seen.clone() };
        golden::hold(golden::recorded!("launch-specs.jsonl"), &[entry("a"), done, seen, disks]);
    }

    #[tokio::test]
    async fn a_spec_of_another_version_is_refused_with_the_reason() {
        let state = tempfile::tempdir().unwrap();
        let ledger = LaunchLedger::new(state.path(), &PoolName::new("linux"));
        let id = InstanceId::new("linux-c0ffee-1");
        ledger.write(&id, &entry("a")).await.unwrap();
        let path = ledger.file(&id).unwrap();
        let text = fs::read_to_string(&path).unwrap();
        let marked = format!("\"format\":{FORMAT},");
        for (format, reason) in [("", "before the first release"), ("\"format\":3,", "a newer version")] {
            fs::write(&path, text.replacen(&marked, format, 1)).unwrap();
            let error = ledger.read::<Vec<u8>, Handle>(&id).unwrap_err().to_string();
            assert!(error.contains(reason), "{error}");
        }
    }

    #[tokio::test]
    async fn disks_are_known_for_a_while_after_their_instance_is_gone() {
        let state = tempfile::tempdir().unwrap();
        let ledger = LaunchLedger::new(state.path(), &PoolName::new("linux"));
        let with = InstanceId::new("linux-a-1");
        let without = InstanceId::new("linux-a-2");
        ledger
            .write(&with, &LaunchLedgerEntry { disks: vec!["vol-1".to_owned()], ..entry("a") })
            .await
            .unwrap();
        ledger.write(&without, &entry("a")).await.unwrap();
        assert_eq!(ledger.disks(&with), ["vol-1"]);
        for id in [&with, &without] {
            ledger.forget(id);
            assert!(!ledger.contains(id));
        }
        ledger.sweep(|_| false, Duration::ZERO, entry("a").requested_at.plus(Duration::from_secs(1)));
        assert_eq!(ledger.disks(&with), ["vol-1"], "kept for a week");
        assert_eq!(fs::read_dir(&ledger.dir).unwrap().count(), 1);
    }

    #[tokio::test]
    async fn no_name_leaves_the_folder() {
        let state = tempfile::tempdir().unwrap();
        let ledger = LaunchLedger::new(state.path(), &PoolName::new("linux"));
        for name in ["", "..", "../up", "a/b", "a.b"] {
            assert!(ledger.write(&InstanceId::new(name), &entry("a")).await.is_err(), "{name}");
            assert!(ledger.read::<Vec<u8>, Handle>(&InstanceId::new(name)).unwrap().is_none(), "{name}");
        }
    }

    #[test]
    fn an_age_comes_from_the_boot_clock_whatever_the_wall_clock_does() {
        const DAY_MS: i64 = 86_400_000;
        let answered = Stamp { uptime_ms: 50_000, ..entry("a").requested_at };
        let entry = LaunchLedgerEntry { answered_at: Some(answered), ..entry("a") };
        for (boot, wall_ms, uptime_ms, age_ms) in [
            (2, DAY_MS, 51_000, 1_000),
            (2, -DAY_MS, 51_000, 1_000),
            (2, 0, 40_000, 0),
            // After a reboot: since the boot, at least.
            (7, DAY_MS, 3_000, 3_000),
            (7, -DAY_MS, 3_000, 3_000),
            (7, -DAY_MS, 90_000, 90_000),
        ] {
            let now = Stamp { wall_ms, boot: BootId(boot), uptime_ms, ..answered };
            assert_eq!(entry.age(now), Duration::from_millis(age_ms), "{now:?}");
        }
    }

    #[tokio::test]
    async fn only_old_specs_without_an_instance_are_swept() {
        const HOUR: Duration = Duration::from_hours(1);
        let state = tempfile::tempdir().unwrap();
        let ledger = LaunchLedger::new(state.path(), &PoolName::new("linux"));
        let ids = ["linux-a-1", "linux-a-2", "linux-a-3"].map(InstanceId::new);
        let [living, _, newer] = &ids;
        for id in &ids {
            ledger.write(id, &entry("a")).await.unwrap();
        }
        let other_version = fs::read_to_string(ledger.file(newer).unwrap()).unwrap();
        fs::write(ledger.file(newer).unwrap(), other_version.replacen("\"format\":2", "\"format\":3", 1))
            .unwrap();
        let left = |now| {
            ledger.sweep(|id| id == living, HOUR, now);
            ids.each_ref().map(|id| ledger.contains(id))
        };
        let requested = entry("a").requested_at;
        let day_ahead = Stamp { wall_ms: 86_400_000, ..requested.plus(HOUR) };
        assert_eq!(left(day_ahead), [true, true, true], "it is young");
        let day_back = Stamp { wall_ms: -86_400_000, ..requested.plus(HOUR * 2) };
        assert_eq!(left(day_back), [true, false, true]);
    }

    #[test]
    fn a_launch_is_proven_by_its_token_or_by_its_answer_and_never_by_tags() {
        let shown = |token: &str| format!("owner {token}");
        let one = machine("x", MachineState::Running);
        let of_other = Machine { token: Some("owner y/1".to_owned()), ..one.clone() };
        let without = Machine { token: None, ..one.clone() };
        let late = Machine { token: Some("owner x/5000".to_owned()), ..one.clone() };
        let spec = entry("x/5000");
        let answered = LaunchLedgerEntry { made: Some(one.handle.clone()), ..entry("x/1") };
        let elsewhere = Handle { name: "i-other".to_owned(), zone: String::new() };
        let again = Handle { zone: "elsewhere".to_owned(), ..one.handle.clone() };
        let used_again = LaunchLedgerEntry { made: Some(again), ..entry("x/1") };
        let of_another = LaunchLedgerEntry { made: Some(elsewhere), ..entry("x/1") };
        for (machine, entry, launched) in [
            (&one, None, true),
            (&one, Some(&spec), true),
            (&of_other, None, false),
            (&without, None, false),
            (&of_other, Some(&spec), false),
            (&of_other, Some(&of_another), false),
            (&without, Some(&answered), true),
            (&one, Some(&used_again), false),
            (&late, None, false),
            (&late, Some(&spec), true),
        ] {
            assert_eq!(is_launched(machine, entry, shown), launched, "{machine:?} {entry:?}");
        }
    }
}

/// Writes of stored launch specs, with each error of the operating system.
#[cfg(test)]
mod failing_writes {
    use std::path::{Path, PathBuf};
    use std::time::Duration;

    use greenroom_core::ids::{InstanceId, PoolName};
    use greenroom_testkit::faulty::{Action, Ended, act, listed, with_each_error};

    use super::tests::entry;
    use super::{LaunchLedger, LaunchLedgerEntry};
    use crate::cloud::machine::Handle;

    const ACTIONS: [Action; 3] = [
        Action { name: "the first spec of all", prepare: |_| (), act: write, judge: judge_spec },
        Action { name: "a spec", prepare: written, act: write, judge: judge_spec },
        Action { name: "a spec that is set aside", prepare: with_disks, act: forget, judge: judge_aside },
    ];

    fn id() -> InstanceId {
        InstanceId::new("linux-c0ffee-1")
    }

    fn ledger(dir: &Path) -> LaunchLedger {
        LaunchLedger::new(dir, &PoolName::new("linux"))
    }

    fn block_on<T>(work: impl Future<Output = T>) -> T {
        tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(work)
    }

    fn put(dir: &Path, entry: &LaunchLedgerEntry<Vec<u8>, Handle>) {
        block_on(ledger(dir).write(&id(), entry)).unwrap();
    }

    fn written(dir: &Path) {
        put(dir, &entry("a"));
    }

    fn with_disks(dir: &Path) {
        put(dir, &LaunchLedgerEntry { disks: vec!["vol-1".to_owned()], ..entry("a") });
    }

    fn write(dir: &Path, begin: &dyn Fn()) -> Result<(), String> {
        block_on(async {
            begin();
            ledger(dir).write(&id(), &entry("b")).await.map_err(|error| error.to_string())
        })
    }

    /// An action that reports nothing: a file that stays is swept.
    #[expect(clippy::unnecessary_wraps, reason = "all actions have one form")]
    fn forget(dir: &Path, begin: &dyn Fn()) -> Result<(), String> {
        begin();
        ledger(dir).forget(&id());
        Ok(())
    }

    fn token(dir: &Path, how: &str) -> Option<String> {
        let read =
            ledger(dir).read::<Vec<u8>, Handle>(&id()).unwrap_or_else(|error| panic!("{how}: {error}"));
        read.map(|entry| entry.token)
    }

    fn folder(dir: &Path) -> PathBuf {
        dir.join("launches/linux")
    }

    fn judge_spec(dir: &Path, ended: &Ended) {
        let how = &ended.how;
        let found = token(dir, how);
        assert!(found.as_ref().is_none_or(|token| ["a", "b"].contains(&token.as_str())), "{how}: {found:?}");
        assert!(!ended.is_done || found.as_deref() == Some("b"), "{how}: {found:?}");
        put(dir, &entry("c"));
        assert_eq!(token(dir, how).as_deref(), Some("c"), "{how}");
        ended.no_remains(&folder(dir), |name| name != "linux-c0ffee-1.json");
    }

    fn judge_aside(dir: &Path, ended: &Ended) {
        let how = &ended.how;
        // Its disks stay known, under the one name or the other.
        assert_eq!(ledger(dir).disks(&id()), ["vol-1"], "{how}");
        assert_eq!(listed(&folder(dir)).len(), 1, "{how}");
        let later = entry("a").requested_at.plus(Duration::from_secs(1));
        ledger(dir).sweep(|_| false, Duration::ZERO, later);
        assert!(!ledger(dir).contains(&id()), "{how}");
    }

    #[test]
    #[ignore = "another test starts it in a process of its own"]
    fn a_process_that_acts() {
        act(&ACTIONS);
    }

    #[test]
    fn an_error_of_any_write_of_a_launch_spec_is_reported_and_leaves_the_old_one_or_the_new_one() {
        with_each_error("cloud::ledger::failing_writes::a_process_that_acts", &ACTIONS, |action, tally| {
            println!("{}", tally.text);
            let reports = action.name != "a spec that is set aside";
            assert!(tally.tried >= 3, "{}: {tally:?}", action.name);
            assert!(tally.reported == if reports { tally.tried } else { 0 }, "{}: {tally:?}", action.name);
        });
    }
}
