//! The process that holds a template's memory and hands it to clones.
//!
//! It is the only process with the template's lock. It exits when no clone has used it for some minutes, or when its
//! directory is gone. The next machine starts another holder, which reads the memory from the disk.

use std::cell::RefCell;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::process::ExitCode;
use std::rc::Rc;
use std::time::Duration;

use fs_err as fs;
use greenroom_system::remove;
use tokio::io::AsyncWriteExt;
use tokio::net::{UnixListener, UnixStream};
use tokio::task::LocalSet;
use tokio::time::{Instant, sleep_until};

use super::build::Built;
use super::pull::{self, Pulled, pull};
use super::{DONE, Done, RAM, RECIPE, Recipe, Template, build, memory};
use crate::halt::halt_point;
use crate::instance_dir::InstanceDir;
use crate::qemu::process::descriptor;
use crate::qemu::process::machine::BootError;
use crate::qemu::process::supervise::restrain;
use crate::supervisor::{self, Signals, note};

/// The holder's socket, in the template's directory.
const SOCKET: &str = "holder";

/// How long the build of a template is not retried after a failure.
const RETRY_AFTER: Duration = Duration::from_mins(2);

/// The first byte of an answer: a descriptor comes with it, or a message.
pub(super) const LENT: u8 = b'+';
pub(super) const REFUSED: u8 = b'-';

/// `instance qemu template --dir DIR`.
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

/// A template that clones resume from.
struct Held {
    /// Sealed.
    memory: Rc<OwnedFd>,
    done: Done,
}

async fn hand_out(template: &Template, recipe: &Recipe, listener: &UnixListener) {
    let mut held = match held(template, recipe).await {
        Ok(held) => held,
        Err(problem) => return refuse(listener, &problem).await,
    };
    let users = Rc::new(RefCell::new(Users { count: 0, since: Instant::now(), kept: recipe.kept }));
    let mut pulling = None;
    loop {
        let idle = users.borrow().idle_until();
        let due = Instant::now() + held.done.is_due_in();
        tokio::select! {
            accepted = listener.accept() => {
                if let Ok((stream, _)) = accepted {
                    let (memory, token) = (Rc::clone(&held.memory), held.done.token.clone());
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
    held: Held,
    pulled: Result<Pulled, BootError>,
) -> Result<Held, String> {
    let Held { memory, done } = held;
    let done = match pulled {
        Ok(pulled) if pulled.replaces(&done) => return built(template, recipe, Some(pulled)).await,
        Ok(pulled) => pulled.noted(done),
        Err(problem) => {
            note(&format!("cannot pull images for the template: {problem}"));
            done.postponed(&problem.to_string())
        }
    };
    pull::discard(template);
    // CRASH: without this record, the next holder pulls again.
    if let Err(error) = template.dir.put(DONE, &done) {
        note(&format!("cannot record when images are to be pulled again: {error}"));
    }
    Ok(Held { memory, done })
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

async fn attend(stream: UnixStream, memory: Rc<OwnedFd>, token: String, users: Rc<RefCell<Users>>) {
    if !is_own(&stream) {
        return;
    }
    users.borrow_mut().change(1);
    let answer = [&[LENT][..], token.as_bytes()].concat();
    if descriptor::send(&stream, &answer, memory.as_fd()).await.is_ok() {
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

/// The template, which is built first if it does not exist.
async fn held(template: &Template, recipe: &Recipe) -> Result<Held, String> {
    // Of a holder that was killed.
    pull::discard(template);
    let done = template.done().map_err(|error| error.to_string())?;
    if let Some(done) = done {
        let ram = load(template, recipe).map_err(|error| format!("cannot read its memory: {error}"));
        return sealed(Built { ram: ram.inspect_err(no_template)?, done });
    }
    if let Err(error) = template.sweep(recipe) {
        note(&format!("cannot remove old templates: {error}"));
    }
    built(template, recipe, None).await
}

async fn built(template: &Template, recipe: &Recipe, pulled: Option<Pulled>) -> Result<Held, String> {
    let built = build::build(template, recipe, pulled).await.map_err(|error| error.to_string());
    sealed(built.inspect_err(no_template)?)
}

fn sealed(built: Built) -> Result<Held, String> {
    let Built { ram, done } = built;
    let sealed = memory::seal(&ram).map_err(|error| format!("cannot seal its memory: {error}"));
    sealed.inspect_err(no_template)?;
    Ok(Held { memory: Rc::new(ram), done })
}

fn no_template(problem: &String) {
    note(&format!("no template: {problem}"));
}

fn load(template: &Template, recipe: &Recipe) -> io::Result<OwnedFd> {
    let mut ram = File::from(memory::new(recipe.hardware.memory)?);
    memory::copy(fs::File::open(template.dir.file(RAM))?.file_mut(), &mut ram)?;
    Ok(ram.into())
}
