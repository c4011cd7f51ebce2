//! A pool's files: whether they are intact and readable, and their lock is available.

use greenroom_core::format::{OUTDATED_REMEDY, outdated};
use greenroom_core::ids::PoolName;
use greenroom_core::pool::PoolState;
use greenroom_ports::finding::Finding;
use greenroom_ports::store::{Diagnosis, OperatorStore, StoreError};

use super::code;
use crate::cli::ui::plural;

/// Takes the pool's lock, reads every record of state and history. Returns the state if it can be used.
pub(super) async fn check(store: &dyn OperatorStore, pool: &PoolName) -> (Option<PoolState>, Vec<Finding>) {
    let mut found = Vec::new();
    // Nothing is written, but the lock is taken as by a call.
    match store.transact(&mut |_| Vec::new()).await {
        Err(busy @ StoreError::Busy { .. }) => {
            // Each further check would wait for the lock again.
            return (None, vec![refused(pool, &busy)]);
        }
        // It may still be readable.
        Err(newer @ StoreError::Newer { .. }) => {
            return (store.load().await.ok(), vec![refused(pool, &newer)]);
        }
        Err(outdated @ StoreError::Outdated { .. }) => return (None, vec![refused(pool, &outdated)]),
        Ok(_) | Err(StoreError::Damaged { .. } | StoreError::Full { .. } | StoreError::Io { .. }) => {}
    }
    match store.verify().await {
        Ok(diagnosis) => found.extend(judge(pool, &diagnosis)),
        Err(error) => found.push(refused(pool, &error)),
    }
    (store.load().await.ok(), found)
}

fn judge(pool: &PoolName, diagnosis: &Diagnosis) -> Vec<Finding> {
    let mut found: Vec<Finding> = diagnosis.damage.iter().map(|damage| refused(pool, damage)).collect();
    if diagnosis.inapplicable_events > 0 {
        let events = plural(usize::try_from(diagnosis.inapplicable_events).unwrap_or(usize::MAX), "event");
        let what =
            format!("pool `{pool}`: {events} did not fit the recorded state, a bug that loses no data");
        found.push(
            code::STATE_INAPPLICABLE_EVENTS
                .found(what, "report it with the journal, which contains no secrets"),
        );
    }
    if diagnosis.torn_bytes > 0 {
        let what = format!(
            "pool `{pool}`: a write of {} bytes was cut short; the next writer moves it to a backup file",
            diagnosis.torn_bytes
        );
        found.push(code::STATE_TORN.noted(what));
    }
    if let Some(first) = diagnosis.history_damage.first() {
        let more = match diagnosis.history_damage.len() - 1 {
            0 => String::new(),
            more => format!(", and {} more", plural(more, "segment")),
        };
        let what = format!("pool `{pool}`: old events cannot be read: {first}{more}");
        let remedy = "ignore this: only `explain` and `history` are affected, until the events expire (`history_days`)";
        found.push(code::HISTORY_DAMAGED.found(what, remedy));
    }
    if let Some(first) = diagnosis.side_files.first() {
        let what = format!(
            "pool `{pool}`: {} of incomplete or damaged state, the first is `{}`",
            plural(diagnosis.side_files.len(), "backup file"),
            first.display()
        );
        found.push(code::STATE_BACKUP_FILES.found(what, "delete them when you no longer need them"));
    }
    found
}

/// The finding about a state that cannot be used. The store's message ([`StoreError`]) names the file and the line.
fn refused(pool: &PoolName, error: &StoreError) -> Finding {
    let what = format!("pool `{pool}`: {error}");
    match error {
        StoreError::Busy { .. } => code::STATE_LOCKED.found(
            what,
            "check that process: a call holds the lock for milliseconds, and the kernel \
             releases it when the process exits",
        ),
        StoreError::Damaged { .. } => {
            let remedy = "run `greenroom doctor --repair`, which keeps what is valid before the damage; running \
                 jobs continue meanwhile";
            code::STATE_DAMAGED.found(what, remedy)
        }
        StoreError::Newer { .. } => {
            code::STATE_NEWER.found(what, "install that version again; this one cannot change the pool")
        }
        StoreError::Outdated { file, found } => {
            code::STATE_OUTDATED.found(format!("pool `{pool}`: {}", outdated(file, *found)), OUTDATED_REMEDY)
        }
        StoreError::Full { .. } => code::STATE_UNREADABLE.found(what, "free space on its file system"),
        StoreError::Io { .. } => {
            code::STATE_UNREADABLE.found(what, "run doctor as the user that owns the state directory")
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::path::{Path, PathBuf};
    use std::rc::Rc;
    use std::time::Duration;

    use greenroom_core::event::Change;
    use greenroom_core::format::FORMAT;
    use greenroom_core::policy::Policy;

    use super::*;
    use crate::cli::context::{self, StoreOptions};
    use crate::cli::fixture::{EventFixture, at, id, pool};

    /// A pool with some history, in files.
    struct Bench {
        home: tempfile::TempDir,
        store: Rc<dyn OperatorStore>,
    }

    fn open(path: &Path) -> Rc<dyn OperatorStore> {
        let lock_timeout = Duration::from_millis(50);
        let options =
            StoreOptions { lock_timeout, compact_at: 1, compact_part: 0, ..StoreOptions::default() };
        context::open_stores(path, options).unwrap().store(&pool()).unwrap()
    }

    impl Bench {
        async fn new() -> Self {
            let home = tempfile::tempdir().unwrap();
            let store = open(home.path());
            let bench = Self { home, store };
            let mut story = EventFixture::of(Policy::default());
            for event in story.ready(1, 1.0).events.clone() {
                bench.store.transact(&mut |_| vec![event.clone()]).await.unwrap();
            }
            bench
        }

        fn file(&self, name: &str) -> PathBuf {
            self.home.path().join("pools/linux").join(name)
        }

        /// A second store, like another process: the first one trusts what it has already read.
        async fn check(&self) -> (Option<PoolState>, Vec<Finding>) {
            check(&*open(self.home.path()), &pool()).await
        }
    }

    /// Overwrites bytes in the middle of a file, or adds some to its end.
    fn spoil(path: &Path, middle: bool) {
        let mut bytes = std::fs::read(path).unwrap();
        if middle {
            let at = bytes.len() / 2;
            bytes[at] ^= 1;
        } else {
            bytes.extend_from_slice(b"{\"crc\":");
        }
        std::fs::write(path, bytes).unwrap();
    }

    async fn damaged() -> Bench {
        let bench = Bench::new().await;
        spoil(&bench.file("journal.jsonl"), true);
        bench
    }

    async fn torn() -> Bench {
        let bench = Bench::new().await;
        spoil(&bench.file("journal.jsonl"), false);
        bench
    }

    async fn newer() -> Bench {
        of_format(99).await
    }

    async fn before_release() -> Bench {
        of_format(1).await
    }

    async fn of_format(format: u32) -> Bench {
        let bench = Bench::new().await;
        let text = std::fs::read_to_string(bench.file("journal.jsonl")).unwrap();
        let (header, records) = text.split_once('\n').unwrap();
        let body = header[r#"{"crc":"12345678","#.len()..]
            .replace(&format!("\"format\":{FORMAT}"), &format!("\"format\":{format}"));
        let crc = crc32fast::hash(body.as_bytes());
        let newer = format!("{{\"crc\":\"{crc:08x}\",{body}\n{records}");
        std::fs::write(bench.file("journal.jsonl"), newer).unwrap();
        bench
    }

    async fn old_damage() -> Bench {
        let bench = Bench::new().await;
        bench.store.compact().await.unwrap();
        let segments: Vec<_> = std::fs::read_dir(bench.file("history")).unwrap().collect();
        spoil(&segments[0].as_ref().unwrap().path(), true);
        bench
    }

    async fn misfit() -> Bench {
        let bench = Bench::new().await;
        let unknown = Change::ListedAgain { instance: id(9) }.at(at(60.0));
        bench.store.transact(&mut |_| vec![unknown.clone()]).await.unwrap();
        bench
    }

    async fn repaired() -> Bench {
        let bench = damaged().await;
        let store = open(bench.home.path());
        store.repair().await.unwrap();
        bench
    }

    async fn held() -> (Bench, std::fs::File) {
        let bench = Bench::new().await;
        let lock = std::fs::File::open(bench.file("lock")).unwrap();
        lock.lock().unwrap();
        (bench, lock)
    }

    fn codes(found: &[Finding]) -> Vec<&'static str> {
        found.iter().map(|f| f.code).collect()
    }

    #[tokio::test]
    async fn sound_files_have_no_finding_and_give_the_state() {
        let bench = Bench::new().await;
        let (state, found) = bench.check().await;
        assert_eq!(found, []);
        assert!(state.unwrap().instance(&id(1)).is_some());
    }

    #[tokio::test]
    async fn damage_is_named_with_file_and_line_and_the_command_that_repairs_it() {
        let bench = damaged().await;
        let (state, found) = bench.check().await;
        assert!(state.is_none());
        assert_eq!(codes(&found), ["state-damaged"]);
        assert!(found[0].message.contains("journal.jsonl:"), "{}", found[0].message);
        assert!(found[0].remedy.as_ref().unwrap().contains("doctor --repair"));
    }

    #[tokio::test]
    async fn each_state_of_the_files_has_its_code() {
        assert_eq!(codes(&torn().await.check().await.1), ["state-torn"]);
        let (state, found) = newer().await.check().await;
        assert_eq!(codes(&found), ["state-newer"]);
        assert!(state.is_some(), "newer is readable");
        let (state, found) = before_release().await.check().await;
        assert_eq!(codes(&found), ["state-outdated"]);
        assert!(state.is_none(), "format 1 is not");
        assert_eq!(codes(&old_damage().await.check().await.1), ["history-damaged"]);
        assert_eq!(codes(&misfit().await.check().await.1), ["state-inapplicable-events"]);
        assert_eq!(codes(&repaired().await.check().await.1), ["state-backup-files"]);
    }

    #[tokio::test]
    async fn a_lock_that_stays_taken_is_an_error_that_names_the_holder() {
        let (bench, _lock) = held().await;
        let (_, found) = bench.check().await;
        assert_eq!(codes(&found), ["state-locked"]);
        assert!(found[0].message.contains(&std::process::id().to_string()), "{}", found[0].message);
    }

    /// One finding of each code.
    pub(in crate::cli::doctor) async fn provoked() -> Vec<Finding> {
        let (held, _lock) = held().await;
        let benches = [
            held,
            damaged().await,
            torn().await,
            newer().await,
            before_release().await,
            old_damage().await,
            misfit().await,
            repaired().await,
        ];
        let mut all = vec![refused(&pool(), &StoreError::Io { what: "cannot read".into() })];
        for bench in &benches {
            all.extend(bench.check().await.1);
        }
        all
    }
}
