//! A template's memory, and the process that holds it and hands it to clones: the template's *holder*.
//!
//! The holder is the only process with the template's lock. It exits when no clone has used it for some minutes, or when its
//! directory is gone. The next machine starts another holder, which reads the memory from the disk.

use std::cell::RefCell;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::process::ExitCode;
use std::rc::Rc;
use std::time::Duration;

use fs_err as fs;
use greenroom_system::remove;
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use tokio::io::AsyncWriteExt;
use tokio::net::{UnixListener, UnixStream};
use tokio::task::LocalSet;
use tokio::time::{Instant, sleep_until};

use super::build::{self, FrozenMachine, PulledImages, pull};
use super::{DONE, RAM, RECIPE, Recipe, Template, TemplateRecord};
use crate::qemu::process::channel;
use crate::qemu::process::machine::BootError;
use crate::qemu::process::supervise::restrain;
use crate::supervised::instance_dir::InstanceDir;
use crate::supervised::supervisor::{self, Signals, failpoint, note};

/// The holder's socket, in the template's directory.
const SOCKET: &str = "holder";

/// The time for which the build of a template is not retried after a failure.
const RETRY_AFTER: Duration = Duration::from_mins(2);

/// The first byte of an answer: a descriptor comes with it, or a message.
pub(in crate::qemu::process) const LENT: u8 = b'+';
pub(in crate::qemu::process) const REFUSED: u8 = b'-';

/// `instance qemu template --dir DIR`: holds the template in a directory until it is no longer needed.
pub(in crate::qemu::process) fn hold(path: &Path) -> ExitCode {
    supervisor::detach();
    match begin(path) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            note(&format!("cannot hold the template: {error}"));
            ExitCode::FAILURE
        }
    }
}

fn begin(path: &Path) -> io::Result<()> {
    restrain()?;
    let template = Template { dir: InstanceDir::at(path) };
    let Some(lock) = template.dir.seize()? else {
        // Another process holds it: the clone requests the memory from that one.
        supervisor::answer();
        return Ok(());
    };
    failpoint("holder.seized");
    let Some(recipe) = template.dir.read(RECIPE)? else { return Ok(()) };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    LocalSet::new().block_on(&runtime, serve(&template, &recipe, &lock))
}

/// The socket's path, short enough for the kernel wherever the directory lies, with the descriptor that keeps it valid.
pub(in crate::qemu::process) fn socket(dir: &InstanceDir) -> io::Result<(PathBuf, OwnedFd)> {
    let folder = OwnedFd::from(fs::File::open(&dir.path)?.into_file());
    Ok((PathBuf::from(format!("/proc/self/fd/{}/{SOCKET}", folder.as_raw_fd())), folder))
}

async fn serve(template: &Template, recipe: &Recipe, lock: &fs::File) -> io::Result<()> {
    let mut signals = Signals::new()?;
    remove::tree(&template.dir.file(SOCKET))?;
    let (path, _folder) = socket(&template.dir)?;
    let listener = UnixListener::bind(path)?;
    failpoint("holder.listens");
    // Requests from here on wait for the answer.
    supervisor::answer();
    tokio::select! {
        end = signals.end(&template.dir, lock, || ()) => note(&format!("stopping: {end}")),
        () = hand_out(template, recipe, &listener) => note("stopping: the template is no longer needed"),
    }
    Ok(())
}

/// A template that clones resume from.
struct HeldTemplate {
    /// Sealed.
    memory: Rc<OwnedFd>,
    done: TemplateRecord,
}

/// The reason there is no template to hand out.
#[derive(Debug, thiserror::Error)]
enum HoldError {
    #[error(transparent)]
    Build(#[from] BootError),
    #[error("cannot read its memory: {0}")]
    Load(#[source] io::Error),
    #[error("cannot seal its memory: {0}")]
    Seal(#[source] io::Error),
    #[error(transparent)]
    Io(#[from] io::Error),
}

async fn hand_out(template: &Template, recipe: &Recipe, listener: &UnixListener) {
    let mut held = match held(template, recipe).await {
        Ok(held) => held,
        Err(problem) => return refuse(listener, &problem).await,
    };
    let users = Rc::new(RefCell::new(CloneUsers { count: 0, since: Instant::now(), kept: recipe.kept }));
    let mut pulling = None;
    loop {
        let idle = users.borrow().idle_until();
        let due = Instant::now() + held.done.is_due_in();
        tokio::select! {
            accepted = listener.accept() => {
                if let Ok((stream, _)) = accepted {
                    let memory = Rc::clone(&held.memory);
                    let token = held.done.token.clone();
                    tokio::task::spawn_local(attend(stream, memory, token, Rc::clone(&users)));
                }
            }
            pulled = ended(&mut pulling) => {
                pulling = None;
                held = match renewed(template, recipe, held, pulled).await {
                    Ok(held) => held,
                    Err(problem) => return refuse(listener, &problem).await,
                };
            }
            () = sleep_until(due), if pulling.is_none() && recipe.pulls.is_some() => {
                pulling = recipe.pulls.as_ref().map(|pulls| Box::pin(pull(template, recipe, pulls)));
            }
            // A template whose images are being pulled is as good as used.
            () = sleep_until(idle), if pulling.is_none() => {
                if users.borrow().idle_until() <= Instant::now() {
                    return;
                }
            }
        }
    }
}

/// Waits for the guest that pulls, if there is one.
async fn ended<T>(pulling: &mut Option<Pin<Box<impl Future<Output = T>>>>) -> T {
    match pulling {
        Some(pulling) => pulling.await,
        None => std::future::pending().await,
    }
}

/// Builds the template anew if other images have come. Machines that need it meanwhile wait, as for the first one.
async fn renewed(
    template: &Template,
    recipe: &Recipe,
    held: HeldTemplate,
    pulled: Result<PulledImages, BootError>,
) -> Result<HeldTemplate, HoldError> {
    let HeldTemplate { memory, done } = held;
    let done = match pulled {
        Ok(pulled) if pulled.replaces(&done) => return built(template, recipe, Some(pulled)).await,
        Ok(pulled) => pulled.noted(done),
        Err(problem) => {
            note(&format!("cannot pull images for the template: {problem}"));
            done.postponed(&problem.to_string())
        }
    };
    build::discard_pulled(template);
    // CRASH: without this record, the next holder pulls again.
    if let Err(error) = template.dir.put(DONE, &done) {
        note(&format!("cannot record when images are to be pulled again: {error}"));
    }
    Ok(HeldTemplate { memory, done })
}

/// The clones that have requested the memory and still run.
#[derive(Debug)]
struct CloneUsers {
    count: u32,
    /// The time when the count changed last.
    since: Instant,
    /// The time for which the memory is kept after the last clone has ended.
    kept: Duration,
}

impl CloneUsers {
    /// Returns when to exit, if nothing changes; with users: when to check again.
    fn idle_until(&self) -> Instant {
        if self.count == 0 { self.since + self.kept } else { Instant::now() + self.kept }
    }

    fn change(&mut self, by: i32) {
        self.count = self.count.saturating_add_signed(by);
        self.since = Instant::now();
    }
}

async fn attend(stream: UnixStream, memory: Rc<OwnedFd>, token: String, users: Rc<RefCell<CloneUsers>>) {
    if !is_own(&stream) {
        return;
    }
    users.borrow_mut().change(1);
    let answer = [&[LENT][..], token.as_bytes()].concat();
    if channel::send_descriptor(&stream, &answer, memory.as_fd()).await.is_ok() {
        // The clone sends nothing more; the connection closes when the clone ends.
        drop(channel::receive_descriptor(&stream, &mut [0]).await);
    }
    users.borrow_mut().change(-1);
}

/// True if the peer runs as the same user. The socket's mode ensures that, too; this is an additional safeguard.
fn is_own(stream: &UnixStream) -> bool {
    let own = rustix::process::geteuid();
    rustix::net::sockopt::socket_peercred(stream.as_fd()).is_ok_and(|peer| peer.uid == own)
}

/// Answers all requests for a while with the problem.
async fn refuse(listener: &UnixListener, problem: &HoldError) {
    note(&format!("no template: {problem}"));
    let answer = format!("{}{problem}", char::from(REFUSED));
    let end = Instant::now() + RETRY_AFTER;
    while let Ok(Ok((mut stream, _))) = tokio::time::timeout_at(end, listener.accept()).await {
        drop(stream.write_all(answer.as_bytes()).await);
    }
}

/// The template, which is built first if it does not exist.
async fn held(template: &Template, recipe: &Recipe) -> Result<HeldTemplate, HoldError> {
    // Of a holder that was killed.
    build::discard_pulled(template);
    if let Some(done) = template.done()? {
        return sealed(FrozenMachine { ram: load(template, recipe).map_err(HoldError::Load)?, done });
    }
    if let Err(error) = template.sweep(recipe) {
        note(&format!("cannot remove old templates: {error}"));
    }
    built(template, recipe, None).await
}

async fn built(
    template: &Template,
    recipe: &Recipe,
    pulled: Option<PulledImages>,
) -> Result<HeldTemplate, HoldError> {
    sealed(build::build(template, recipe, pulled).await?)
}

fn sealed(built: FrozenMachine) -> Result<HeldTemplate, HoldError> {
    let FrozenMachine { ram, done } = built;
    seal(&ram).map_err(HoldError::Seal)?;
    Ok(HeldTemplate { memory: Rc::new(ram), done })
}

fn load(template: &Template, recipe: &Recipe) -> io::Result<OwnedFd> {
    let mut ram = File::from(new_memory(recipe.hardware.memory)?);
    copy_memory(fs::File::open(template.dir.file(RAM))?.file_mut(), &mut ram)?;
    Ok(ram.into())
}

/// Size of one step of a copy, in bytes.
const CHUNK: usize = 256 * 1024;

/// Creates an empty memory file that can be written and sealed.
pub(super) fn new_memory(bytes: u64) -> io::Result<OwnedFd> {
    let file = memfd_create("greenroom-template", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    ftruncate(&file, bytes)?;
    Ok(file)
}

/// Makes the file unchangeable for every process. Fails as long as a process has it mapped for writing.
pub(super) fn seal(file: &OwnedFd) -> io::Result<()> {
    let all = SealFlags::WRITE | SealFlags::GROW | SealFlags::SHRINK | SealFlags::SEAL;
    Ok(fcntl_add_seals(file, all)?)
}

/// Copies the data and keeps the holes and the length.
pub(super) fn copy_memory(from: &mut File, to: &mut File) -> io::Result<()> {
    let length = from.metadata()?.len();
    to.set_len(length)?;
    let mut at = 0;
    while let Some(begin) = seek(from, rustix::fs::SeekFrom::Data(at))? {
        let end = seek(from, rustix::fs::SeekFrom::Hole(begin))?.unwrap_or(length);
        from.seek(SeekFrom::Start(begin))?;
        to.seek(SeekFrom::Start(begin))?;
        copy_exactly(from, to, end - begin)?;
        at = end;
    }
    Ok(())
}

/// The position of the next data or hole; `None`: none follows.
fn seek(file: &File, to: rustix::fs::SeekFrom) -> io::Result<Option<u64>> {
    match rustix::fs::seek(file, to) {
        Ok(at) => Ok(Some(at)),
        Err(rustix::io::Errno::NXIO) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

fn copy_exactly(from: &mut File, to: &mut File, bytes: u64) -> io::Result<()> {
    let mut chunk = vec![0; CHUNK];
    let mut left = bytes;
    while left > 0 {
        let wanted = usize::try_from(left).unwrap_or(CHUNK).min(CHUNK);
        from.read_exact(&mut chunk[..wanted])?;
        // The guest has zeroed most of the memory that it once used: zeros become holes.
        if chunk[..wanted].iter().all(|byte| *byte == 0) {
            to.seek_relative(i64::try_from(wanted).unwrap_or_default())?;
        } else {
            to.write_all(&chunk[..wanted])?;
        }
        left -= wanted as u64;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use super::*;

    #[test]
    fn a_copy_is_the_same_with_its_holes_and_a_sealed_one_stays_as_it_is() {
        let mut guest = File::from(new_memory(64 << 20).unwrap());
        guest.seek(SeekFrom::Start(5 << 20)).unwrap();
        guest.write_all(b"in the middle").unwrap();
        let mut disk = tempfile::tempfile().unwrap();
        copy_memory(&mut guest, &mut disk).unwrap();
        let found = disk.metadata().unwrap();
        assert_eq!(found.len(), 64 << 20);
        assert!(found.blocks() * 512 < 2 << 20, "{} blocks", found.blocks());
        let mut back = File::from(new_memory(64 << 20).unwrap());
        copy_memory(&mut disk, &mut back).unwrap();
        let back = OwnedFd::from(back);
        seal(&back).unwrap();
        let mut back = File::from(back);
        back.seek(SeekFrom::Start(5 << 20)).unwrap();
        let mut text = [0; 13];
        back.read_exact(&mut text).unwrap();
        assert_eq!(&text, b"in the middle");
        assert!(back.write_all(b"no").is_err());
        assert!(back.set_len(1).is_err());
    }
}
