//! The process of a link: its start, and the reasons why it exits.
//!
//! It exits with its connection, on request, when its lock file is gone, when its guest keeps it busy without a stage,
//! and after SIGTERM or SIGQUIT. A running stage is always finished first. SIGHUP and SIGINT come from a terminal and
//! are meant for other processes.

use std::io::{self, Read as _};
use std::process::ExitCode;
use std::rc::Rc;
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use greenroom_ports::clock::Clock;
use greenroom_system::process::{close_input, confirm_start, lead_session};
use rustix::fs::Mode;
use rustix::process::{DumpableBehavior, Resource, Rlimit};
use tokio::net::UnixListener;
use tokio::signal::unix::{SignalKind, signal};

use super::super::Ssh;
use super::hub::Hub;
use super::protocol::LinkSpec;
use super::slot::{Slot, SlotLock};

/// Keep-alive intervals between two self-checks of the lock file and of the CPU time. Not every interval, because each
/// wake-up of an idle link costs CPU time.
const CHECK_EVERY: u32 = 2;
/// The share of a processor, as a divisor, that a link without a stage may use between two self-checks. It needs a
/// hundredth; more means, for example, a guest that sends requests without end.
const IDLE_SHARE: u32 = 10;
/// Limit for calls that are being answered when the link exits.
const LAST_CALLS_WITHIN: Duration = Duration::from_secs(1);

/// The command line of a link, which is internal and has no help text.
pub const COMMAND: &str = "link";

/// The command `link`: reads its spec from standard input and writes one byte when it accepts calls.
pub fn main(clock: Rc<dyn Clock>) -> ExitCode {
    match begin(clock) {
        Ok(()) => ExitCode::SUCCESS,
        // A message would not be read; the call that started the link finds none.
        Err(_) => ExitCode::FAILURE,
    }
}

fn begin(clock: Rc<dyn Clock>) -> io::Result<()> {
    // Keys and a job's output pass through this memory.
    let none = Rlimit { current: Some(0), maximum: Some(0) };
    rustix::process::setrlimit(Resource::Core, none)?;
    rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable)?;
    lead_session()?;
    let mut spec = Vec::new();
    io::stdin().read_to_end(&mut spec)?;
    let spec: LinkSpec = serde_json::from_slice(&spec)?;
    let slot = Slot::new(spec.dir.clone(), spec.slot);
    let Some(slot_lock) = slot.seize(clock)? else { return Ok(()) };
    // Makes the socket private to this user.
    rustix::process::umask(Mode::from_raw_mode(0o177));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(Box::pin(serve(&spec, &slot_lock)))
}

async fn serve(spec: &LinkSpec, slot_lock: &SlotLock) -> io::Result<()> {
    let mut signals = Signals::new()?;
    let listener = slot_lock.listen()?;
    confirm_start()?;
    close_input()?;
    let ssh = Ssh::new(spec.settings.clone());
    let (hub, standby) = Hub::new(spec, slot_lock);
    let serving = hub.serve(&ssh, standby);
    tokio::pin!(serving);
    let supervising = hub.supervise_runner();
    tokio::pin!(supervising);
    let mut calls = FuturesUnordered::new();
    let between = spec.settings.keepalive * CHECK_EVERY;
    let mut self_check = tokio::time::interval(between);
    let mut cpu_use = CpuUse::default();
    let mut serves = true;
    loop {
        tokio::select! {
            () = &mut serving, if serves => serves = false,
            () = &mut supervising => {}
            Some(()) = calls.next() => {}
            () = hub.over() => break,
            call = accept(&listener) => calls.push(hub.converse(call)),
            () = signals.requested() => hub.close(),
            _ = self_check.tick() => {
                if !slot_lock.is_there() {
                    return Ok(());
                }
                if hub.is_busy() {
                    slot_lock.renew_record();
                }
                if cpu_use.is_kept_busy(hub.stages.get(), between / IDLE_SHARE) && !hub.is_busy() {
                    hub.close();
                }
            }
        }
    }
    slot_lock.release();
    drop(listener);
    let remaining = async { while calls.next().await.is_some() {} };
    let _in_time = tokio::time::timeout(LAST_CALLS_WITHIN, remaining).await;
    Ok(())
}

/// Accepts the next call of this user or of root.
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

/// CPU time of the link, from one self-check to the next.
#[derive(Default)]
struct CpuUse {
    stages: u64,
    used: Duration,
}

impl CpuUse {
    /// True if the link used more than `allowed` since the last self-check, although no stage began.
    fn is_kept_busy(&mut self, stages: u64, allowed: Duration) -> bool {
        let clock = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
        let used = Duration::try_from(clock).unwrap_or_default();
        let before = std::mem::replace(self, Self { stages, used });
        stages == before.stages && used.saturating_sub(before.used) > allowed
    }
}

/// One handler for each signal.
struct Signals {
    terminate: tokio::signal::unix::Signal,
    quit: tokio::signal::unix::Signal,
    _ignored: [tokio::signal::unix::Signal; 2],
}

impl Signals {
    fn new() -> io::Result<Self> {
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            quit: signal(SignalKind::quit())?,
            _ignored: [signal(SignalKind::hangup())?, signal(SignalKind::interrupt())?],
        })
    }

    async fn requested(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.quit.recv() => {}
        }
    }
}
