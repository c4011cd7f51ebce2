//! The process that holds a template's memory and hands it to clones.
//!
//! It is the only process with the template's lock. It exits when no clone has used it for some minutes, or when its
//! directory is gone. The next machine starts another holder, which reads the memory from the disk.

use std::cell::RefCell;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::rc::Rc;
use std::time::Duration;

use fs_err as fs;
use tokio::io::AsyncWriteExt;
use tokio::net::{UnixListener, UnixStream};
use tokio::task::LocalSet;
use tokio::time::{Instant, sleep_until};

use super::{DONE, RAM, RECIPE, Recipe, Template, build, memory};
use crate::provider::halt::halt_point;
use crate::provider::instance_dir::InstanceDir;
use crate::provider::qemu::process::descriptor;
use crate::provider::qemu::process::supervise::restrain;
use crate::provider::supervisor::{self, Signals, note};
use crate::remove;

/// The holder's socket, in the template's directory.
const SOCKET: &str = "holder";

/// How long the build of a template is not retried after a failure.
const RETRY_AFTER: Duration = Duration::from_mins(2);

/// The first byte of an answer: a descriptor comes with it, or a message.
pub(super) const LENT: u8 = b'+';
pub(super) const REFUSED: u8 = b'-';

/// `instance qemu template --dir DIR`.
pub(in crate::provider::qemu::process) fn hold(path: &Path) -> ExitCode {
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
    halt_point("holder.seized");
    let Some(recipe) = template.dir.read(RECIPE)? else { return Ok(()) };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    LocalSet::new().block_on(&runtime, serve(&template, &recipe, &lock))
}

/// The socket's path, short enough for the kernel wherever the directory lies, with the descriptor that keeps it valid.
pub(super) fn socket(dir: &InstanceDir) -> io::Result<(PathBuf, OwnedFd)> {
    let folder = OwnedFd::from(fs::File::open(&dir.path)?.into_file());
    Ok((PathBuf::from(format!("/proc/self/fd/{}/{SOCKET}", folder.as_raw_fd())), folder))
}

async fn serve(template: &Template, recipe: &Recipe, lock: &fs::File) -> io::Result<()> {
    let mut signals = Signals::new()?;
    remove::tree(&template.dir.file(SOCKET))?;
    let (path, _folder) = socket(&template.dir)?;
    let listener = UnixListener::bind(path)?;
    halt_point("holder.listens");
    // Requests from here on wait for the answer.
    supervisor::answer();
    tokio::select! {
        end = signals.end(&template.dir, lock, || ()) => note(&format!("stopping: {end}")),
        () = hand_out(template, recipe, &listener) => note("stopping: the template is no longer needed"),
    }
    Ok(())
}

async fn hand_out(template: &Template, recipe: &Recipe, listener: &UnixListener) {
    let memory = match memory_of(template, recipe).await {
        Ok(memory) => memory,
        Err(problem) => {
            note(&format!("no template: {problem}"));
            return refuse(listener, &problem).await;
        }
    };
    let memory = Rc::new(memory);
    let users = Rc::new(RefCell::new(Users { count: 0, since: Instant::now(), kept: recipe.kept }));
    loop {
        let idle = users.borrow().idle_until();
        tokio::select! {
            accepted = listener.accept() => {
                if let Ok((stream, _)) = accepted {
                    tokio::task::spawn_local(attend(stream, Rc::clone(&memory), Rc::clone(&users)));
                }
            }
            () = sleep_until(idle) => {
                if users.borrow().idle_until() <= Instant::now() {
                    return;
                }
            }
        }
    }
}

/// The clones that have requested the memory and still run.
#[derive(Debug)]
struct Users {
    count: u32,
    /// When the count changed last.
    since: Instant,
    /// How long the memory is kept after the last clone has ended.
    kept: Duration,
}

impl Users {
    /// When to exit, if nothing changes; with users: when to check again.
    fn idle_until(&self) -> Instant {
        if self.count == 0 { self.since + self.kept } else { Instant::now() + self.kept }
    }

    fn change(&mut self, by: i32) {
        self.count = self.count.saturating_add_signed(by);
        self.since = Instant::now();
    }
}

async fn attend(stream: UnixStream, memory: Rc<OwnedFd>, users: Rc<RefCell<Users>>) {
    if !is_own(&stream) {
        return;
    }
    users.borrow_mut().change(1);
    if descriptor::send(&stream, &[LENT], memory.as_fd()).await.is_ok() {
        // The clone sends nothing more; the connection closes when the clone ends.
        drop(descriptor::receive(&stream, &mut [0]).await);
    }
    users.borrow_mut().change(-1);
}

/// True if the peer runs as the same user. The socket's mode ensures that, too; this is an additional safeguard.
fn is_own(stream: &UnixStream) -> bool {
    let own = rustix::process::geteuid();
    rustix::net::sockopt::socket_peercred(stream.as_fd()).is_ok_and(|peer| peer.uid == own)
}

/// Answers all requests for a while with the problem.
async fn refuse(listener: &UnixListener, problem: &str) {
    let answer = format!("{}{problem}", char::from(REFUSED));
    let end = Instant::now() + RETRY_AFTER;
    while let Ok(Ok((mut stream, _))) = tokio::time::timeout_at(end, listener.accept()).await {
        drop(stream.write_all(answer.as_bytes()).await);
    }
}

/// The sealed memory of the template, which is built first if it does not exist.
async fn memory_of(template: &Template, recipe: &Recipe) -> Result<OwnedFd, String> {
    let ram = if template.dir.has(DONE) {
        load(template, recipe).map_err(|error| format!("cannot read its memory: {error}"))?
    } else {
        let swept = template.sweep(recipe);
        if let Err(error) = swept {
            note(&format!("cannot remove old templates: {error}"));
        }
        build::build(template, recipe).await.map_err(|error| error.to_string())?
    };
    memory::seal(&ram).map_err(|error| format!("cannot seal its memory: {error}"))?;
    Ok(ram)
}

fn load(template: &Template, recipe: &Recipe) -> io::Result<OwnedFd> {
    let mut ram = File::from(memory::new(recipe.hardware.memory)?);
    memory::copy(fs::File::open(template.dir.file(RAM))?.file_mut(), &mut ram)?;
    Ok(ram.into())
}
