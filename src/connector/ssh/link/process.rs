//! The process of a link: how it begins, and what ends it.
//!
//! It ends with its connection, when it is told to, when its lock file is gone, when its guest keeps it busy though no
//! stage runs, and after SIGTERM or SIGQUIT: a running stage is always finished first. SIGHUP and SIGINT are a
//! terminal's and mean others.

use std::io::{self, Read as _, Write as _};
use std::process::ExitCode;
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use rustix::fs::Mode;
use rustix::process::{DumpableBehavior, Resource, Rlimit};
use tokio::net::UnixListener;
use tokio::signal::unix::{SignalKind, signal};

use super::super::Ssh;
use super::hub::Hub;
use super::message::LinkSpec;
use super::slot::{Slot, SlotLock};

/// Every so many questions to the server that is silent, we look whether our lock file is still the one that is named:
/// each time that it wakes, an idle link costs.
const LOOK_EVERY: u32 = 2;
/// The part of a processor that a link without a stage may use from one look to the next: one in so many. It needs a
/// hundredth of that: more is a guest that asks questions without end, or the like.
const IDLE_SHARE: u32 = 10;
/// How long calls that are being answered may take when all is over.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// The command line of a link, which is for us alone and has no help text.
pub const COMMAND: &str = "link";

/// The command `link`: reads its order from standard input and says one byte when it takes calls.
pub fn main() -> ExitCode {
    match begin() {
        Ok(()) => ExitCode::SUCCESS,
        // Nobody reads what it would say; whoever started it finds no link.
        Err(_) => ExitCode::FAILURE,
    }
}

fn begin() -> io::Result<()> {
    // Keys and a job's output pass through this memory.
    let none = Rlimit { current: Some(0), maximum: Some(0) };
    rustix::process::setrlimit(Resource::Core, none)?;
    rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable)?;
    // A leader of a session already: started by hand.
    let _own = rustix::process::setsid();
    let mut order = Vec::new();
    io::stdin().read_to_end(&mut order)?;
    let order: LinkSpec = serde_json::from_slice(&order)?;
    let slot = Slot::new(order.dir.clone(), order.slot);
    let Some(seat) = slot.seize()? else { return Ok(()) };
    // The socket is ours alone.
    rustix::process::umask(Mode::from_raw_mode(0o177));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(Box::pin(serve(&order, &seat)))
}

async fn serve(order: &LinkSpec, seat: &SlotLock) -> io::Result<()> {
    let mut signals = Signals::new()?;
    let listener = seat.listen()?;
    detach()?;
    let ssh = Ssh::new(order.settings.clone());
    let (hub, keeper) = Hub::new(order, seat);
    let serving = hub.serve(&ssh, keeper);
    tokio::pin!(serving);
    let minding = hub.mind_runner();
    tokio::pin!(minding);
    let mut calls = FuturesUnordered::new();
    let between = order.settings.keepalive * LOOK_EVERY;
    let mut look = tokio::time::interval(between);
    let mut thrift = Thrift::default();
    let mut serves = true;
    loop {
        tokio::select! {
            () = &mut serving, if serves => serves = false,
            () = &mut minding => {}
            Some(()) = calls.next() => {}
            () = hub.over() => break,
            call = accept(&listener) => calls.push(hub.converse(call)),
            () = signals.leave() => hub.leave(),
            _ = look.tick() => {
                if !seat.is_there() {
                    return Ok(());
                }
                if hub.is_busy() {
                    seat.keep_note_young();
                }
                if thrift.is_kept_busy(hub.stages.get(), between / IDLE_SHARE) && !hub.is_busy() {
                    hub.leave();
                }
            }
        }
    }
    seat.give_up();
    drop(listener);
    let last = async { while calls.next().await.is_some() {} };
    let _in_time = tokio::time::timeout(LAST_WORDS, last).await;
    Ok(())
}

/// The next call of our own user.
async fn accept(listener: &UnixListener) -> tokio::net::UnixStream {
    let own = rustix::process::geteuid().as_raw();
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                if stream.peer_cred().is_ok_and(|peer| peer.uid() == own || peer.uid() == 0) {
                    return stream;
                }
            }
            // No descriptors left: calls in the queue wait.
            Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
        }
    }
}

/// Tells whoever waits that calls are taken, and lets go of their streams.
fn detach() -> io::Result<()> {
    let null = std::fs::File::options().read(true).write(true).open("/dev/null")?;
    // They may have gone.
    let _told = io::stdout().write_all(b"+").and_then(|()| io::stdout().flush());
    rustix::stdio::dup2_stdin(&null)?;
    rustix::stdio::dup2_stdout(&null)?;
    rustix::stdio::dup2_stderr(&null)?;
    Ok(())
}

/// What the link has cost, from look to look.
#[derive(Default)]
struct Thrift {
    stages: u64,
    used: Duration,
}

impl Thrift {
    /// Did it use more than `allowed` since the last look, though there was no stage but a present one?
    fn is_kept_busy(&mut self, stages: u64, allowed: Duration) -> bool {
        let clock = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
        let used = Duration::try_from(clock).unwrap_or_default();
        let before = std::mem::replace(self, Self { stages, used });
        stages == before.stages && used.saturating_sub(before.used) > allowed
    }
}

/// A handler for each.
struct Signals {
    terminate: tokio::signal::unix::Signal,
    quit: tokio::signal::unix::Signal,
    _passed_over: [tokio::signal::unix::Signal; 2],
}

impl Signals {
    fn new() -> io::Result<Self> {
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            quit: signal(SignalKind::quit())?,
            _passed_over: [signal(SignalKind::hangup())?, signal(SignalKind::interrupt())?],
        })
    }

    async fn leave(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.quit.recv() => {}
        }
    }
}
