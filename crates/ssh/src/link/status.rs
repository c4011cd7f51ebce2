//! The links of a pool, as other processes see them: asked for their status, or counted without contacting them.

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::time::Duration;

use futures_util::stream::{self, StreamExt as _};
use greenroom_core::ids::InstanceId;
use greenroom_system::threads::flock::{self, Kind};
use tokio::time::timeout;

use super::super::keys::folder_name;
use super::protocol::{Envelope, Figures, LinkReply, LinkRequest, LinkStream};
use super::slot::{Slot, slots};

/// Links that are queried concurrently; each takes a descriptor or two.
const CONCURRENT: usize = 256;

/// A link that was found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FoundLink {
    /// The job slot of its instance that it serves, from 0.
    pub slot: u32,
    /// `None` if the link accepts no more calls, so that the kernel does not report its pid.
    pub pid: Option<u32>,
    pub answer: LinkStatus,
}

/// The status that a link reports.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LinkStatus {
    Figures(Figures),
    /// The link is of another version, or was told to exit. It exits when its stage has ended.
    Closing,
    /// No reply in time: the link is unresponsive.
    Unresponsive,
}

/// All links of a pool, as they were found.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Survey {
    by_folder: BTreeMap<String, Vec<FoundLink>>,
}

impl Survey {
    /// Queries every link below `dir` concurrently. A link that does not reply within `within` is silent. The survey is
    /// empty if `dir` cannot be read.
    pub async fn query(dir: &Path, within: Duration) -> Self {
        let folders = std::fs::read_dir(dir).into_iter().flatten().flatten();
        let each = folders.flat_map(|folder| {
            let name = folder.file_name().to_string_lossy().into_owned();
            slots(&folder.path()).into_iter().map(move |slot| (name.clone(), slot))
        });
        let queries = stream::iter(each).map(async |(name, slot)| (name, query_link(&slot, within).await));
        let answers: Vec<(String, Option<FoundLink>)> = queries.buffer_unordered(CONCURRENT).collect().await;
        Self::of_folders(answers.into_iter().filter_map(|(name, found)| Some((name, found?))))
    }

    fn of_folders(links: impl Iterator<Item = (String, FoundLink)>) -> Self {
        let mut by_folder: BTreeMap<String, Vec<FoundLink>> = BTreeMap::new();
        for (name, found) in links {
            by_folder.entry(name).or_default().push(found);
        }
        for links in by_folder.values_mut() {
            links.sort_by_key(|link| link.slot);
        }
        Self { by_folder }
    }

    /// The links of an instance, by slot.
    pub fn of(&self, id: &InstanceId) -> &[FoundLink] {
        self.by_folder.get(&folder_name(id)).map_or(&[], Vec::as_slice)
    }

    /// All links, each with its instance's name as its folder has it.
    pub fn all(&self) -> impl Iterator<Item = (&str, &FoundLink)> {
        self.by_folder.iter().flat_map(|(name, links)| links.iter().map(move |link| (name.as_str(), link)))
    }

    /// The links of instances other than these.
    pub fn of_others<'a>(&self, known: impl Iterator<Item = &'a InstanceId>) -> Vec<(&str, &FoundLink)> {
        let known: BTreeSet<String> = known.map(folder_name).collect();
        self.all().filter(|(name, _)| !known.contains(*name)).collect()
    }
}

/// A survey that found these links.
impl FromIterator<(InstanceId, FoundLink)> for Survey {
    fn from_iter<T: IntoIterator<Item = (InstanceId, FoundLink)>>(links: T) -> Self {
        Self::of_folders(links.into_iter().map(|(id, found)| (folder_name(&id), found)))
    }
}

/// Queries a link; `None` if there is none, or it has just exited.
async fn query_link(slot: &Slot, within: Duration) -> Option<FoundLink> {
    let found = |pid, answer| Some(FoundLink { slot: slot.number(), pid, answer });
    let stream = match slot.connect().await {
        Ok(stream) => stream?,
        // So many calls wait that the link's queue is full.
        Err(_) => return found(None, LinkStatus::Unresponsive),
    };
    let mut line = LinkStream::new(stream);
    let peer = line.peer().ok().and_then(|peer| peer.pid());
    let pid = peer.and_then(|pid| u32::try_from(pid).ok()).filter(|pid| *pid != 0);
    let request = Envelope::plain(LinkRequest::Show);
    let answer = async {
        line.send(&request, &[]).await.ok()?;
        line.receive::<LinkReply>().await.ok()?
    };
    match timeout(within, answer).await {
        Ok(Some(LinkReply::Shown(figures))) => found(pid, LinkStatus::Figures(figures)),
        Ok(Some(_)) => found(pid, LinkStatus::Closing),
        Ok(None) => None,
        Err(_) => found(pid, LinkStatus::Unresponsive),
    }
}

/// The inodes of all files with a lock of `flock`.
#[derive(Debug, Default)]
pub struct HeldLocks(BTreeSet<u64>);

impl HeldLocks {
    /// The locks that the kernel reports now; none if it does not report any.
    pub fn now() -> Self {
        Self::parse(&std::fs::read_to_string("/proc/locks").unwrap_or_default())
    }

    fn parse(text: &str) -> Self {
        let exclusive = flock::listed(text).filter(|lock| lock.kind == Kind::Exclusive);
        Self(exclusive.map(|lock| lock.inode).collect())
    }

    /// The number of open links below the directory of a pool's links. The kernel names file systems otherwise than `stat`
    /// does on some of them, so an inode alone identifies a lock.
    pub fn links(&self, dir: &Path) -> u64 {
        let entries = |dir: &Path| std::fs::read_dir(dir).into_iter().flatten().flatten();
        let is_lock = |entry: &std::fs::DirEntry| entry.path().extension().is_some_and(|name| name == "lock");
        let is_held =
            |entry: &std::fs::DirEntry| entry.metadata().is_ok_and(|found| self.0.contains(&found.ino()));
        let in_folder = |folder: std::fs::DirEntry| {
            entries(&folder.path()).filter(|entry| is_lock(entry) && is_held(entry)).count()
        };
        entries(dir).map(in_folder).map(|count| u64::try_from(count).unwrap_or(u64::MAX)).sum()
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{self, File};
    use std::os::unix::net::UnixListener;
    use std::time::{Duration, Instant};

    use super::*;

    const WITHIN: Duration = Duration::from_millis(300);

    /// A slot of an instance, with the socket of a link that does not reply.
    fn silent(links: &Path, id: &InstanceId, slot: u32) -> UnixListener {
        let dir = links.join(folder_name(id));
        std::fs::create_dir_all(&dir).unwrap();
        std::fs::write(dir.join(format!("{slot}.lock")), "").unwrap();
        UnixListener::bind(dir.join(format!("{slot}.sock"))).unwrap()
    }

    #[tokio::test]
    async fn the_silent_are_found_in_the_time_of_one_and_the_dead_are_not() {
        let home = tempfile::tempdir().unwrap();
        let ids: Vec<InstanceId> = (0..200).map(|number| InstanceId::new(format!("i-{number}"))).collect();
        let mut listeners: Vec<_> = ids.iter().map(|id| silent(home.path(), id, 0)).collect();
        drop(listeners.pop());
        listeners.push(silent(home.path(), &ids[0], 1));
        let begun = std::time::Instant::now();
        let seen = Survey::query(home.path(), WITHIN).await;
        assert!(begun.elapsed() < WITHIN * 5, "{:?}", begun.elapsed());
        let own = Some(std::process::id());
        let found = |slot| FoundLink { slot, pid: own, answer: LinkStatus::Unresponsive };
        assert_eq!(seen.of(&ids[0]), [found(0), found(1)]);
        assert_eq!(seen.of(&ids[7]), [found(0)]);
        assert_eq!(seen.of(&ids[199]), [], "its link is dead");
        assert_eq!(seen.of_others(ids.iter().skip(1)), [("i-0", &found(0)), ("i-0", &found(1))]);
        assert_eq!(seen.of_others(ids.iter()), []);
    }

    #[tokio::test]
    async fn a_pool_without_links_has_no_directory_for_them() {
        let seen = Survey::query(Path::new("/no/such/directory"), WITHIN).await;
        assert_eq!(seen, Survey::default());
    }

    #[test]
    fn the_lines_of_the_kernel_are_read() {
        let text = "1: FLOCK  ADVISORY  WRITE 4711 08:01:393232 0 EOF\n2: POSIX  ADVISORY  READ 1 08:01:77 128 128\n\
                    3: FLOCK  ADVISORY  READ 12 08:01:78 0 EOF\n3: -> FLOCK  ADVISORY  WRITE 13 08:01:79 0 EOF\nrubbish\n";
        assert_eq!(HeldLocks::parse(text).0, BTreeSet::from([393_232]));
    }

    #[test]
    fn a_link_counts_as_long_as_its_lock_is_held() {
        let home = tempfile::tempdir().unwrap();
        let dir = home.path().join("vm-1");
        fs::create_dir(&dir).unwrap();
        let held = File::create(dir.join("0.lock")).unwrap();
        File::create(dir.join("1.lock")).unwrap();
        held.lock().unwrap();
        assert_eq!(HeldLocks::now().links(home.path()), 1);
        drop(held);
        // RACE: a process that another test is starting has the lock, too, until it is a program.
        let until = Instant::now() + Duration::from_secs(10);
        while HeldLocks::now().links(home.path()) != 0 {
            assert!(Instant::now() < until, "the lock is held by nothing");
            std::thread::yield_now();
        }
        assert_eq!(HeldLocks::now().links(&home.path().join("none")), 0);
    }
}
