//! One program on the instance, with its three streams on a channel. The server of pods has this file, too.

use std::io;
use std::mem::discriminant;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::ExitStatusExt;
use std::process::{ExitStatus, Stdio};
use std::sync::{Arc, Mutex, PoisonError};

use russh::server::{Handle, Msg};
use russh::{ChannelId, ChannelWriteHalf, Sig};
use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::process::{Child, ChildStdin};
use tokio::sync::oneshot;

use super::peer::Machine;
use super::spool::Spool;

/// Size of one read from a program, in bytes: a pipe's page run, and about the peer's packet.
const CHUNK: usize = 32 * 1024;

/// The channel of a running program, as the connection sees it. Dropped when the channel closes: the program loses
/// its streams and lives on, as under any SSH server.
#[derive(Debug)]
pub(super) struct Running {
    input: Arc<Spool>,
    /// `None` once the program has exited: its pid may be another process's.
    leader: Arc<Mutex<Option<Pid>>>,
    closed: oneshot::Sender<()>,
    /// Writes a line of the server's log.
    note: fn(&str),
}

/// The way from a program back to the peer.
pub(super) struct Back {
    pub(super) channel: ChannelId,
    pub(super) writer: ChannelWriteHalf<Msg>,
    pub(super) handle: Handle,
}

impl Running {
    /// Starts a command, or a shell that reads commands from its input.
    pub(super) fn start<M: Machine>(machine: &M, command: Option<&[u8]>, back: Back) -> io::Result<Self> {
        let mut shell = machine.shell();
        if let Some(command) = command {
            shell.arg("-c").arg(std::ffi::OsStr::from_bytes(command));
        }
        shell.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let child = shell.spawn()?;
        machine.started(child.id());
        let pid = child.id().and_then(|pid| i32::try_from(pid).ok()).and_then(Pid::from_raw);
        let input = Arc::new(Spool::new(machine.spool()));
        let leader = Arc::new(Mutex::new(pid));
        let (closed, gone) = oneshot::channel();
        tokio::spawn(attend::<M>(child, Arc::clone(&input), Arc::clone(&leader), back, gone));
        Ok(Self { input, leader, closed, note: M::note })
    }

    /// True if the program has exited and its channel was closed on this side.
    pub(super) fn has_ended(&self) -> bool {
        self.closed.is_closed()
    }

    /// Queues input for the program. If the disk is full, the program gets the part that fitted, then the end.
    pub(super) fn input(&self, bytes: &[u8]) {
        if let Err(error) = self.input.push(bytes) {
            (self.note)(&format!("cannot write the input: {error}"));
            self.input.finish();
        }
    }

    pub(super) fn end_of_input(&self) {
        self.input.finish();
    }

    /// Signals the program's process group, as OpenSSH does.
    pub(super) fn signal(&self, signal: &Sig) {
        let leader = *self.leader.lock().unwrap_or_else(PoisonError::into_inner);
        let (Some(leader), Some(signal)) = (leader, number(signal)) else { return };
        if kill_process_group(leader, signal).is_err() {
            // The program has not created its session yet, or it now runs as another user, which is refused again.
            let _ = kill_process(leader, signal);
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.input.finish();
    }
}

async fn attend<M: Machine>(
    mut child: Child,
    input: Arc<Spool>,
    leader: Arc<Mutex<Option<Pid>>>,
    back: Back,
    gone: oneshot::Receiver<()>,
) {
    let (stdin, stdout, stderr) = (child.stdin.take(), child.stdout.take(), child.stderr.take());
    let feeding = tokio::spawn(feed(stdin, Arc::clone(&input)));
    let Back { channel, writer, handle } = &back;
    let whole = async {
        let status = async {
            let status = child.wait().await;
            *leader.lock().unwrap_or_else(PoisonError::into_inner) = None;
            // Immediately, as OpenSSH does: a background program may hold the streams for long.
            report::<M>(handle, *channel, status).await;
        };
        tokio::join!(status, pump(stdout, writer, None), pump(stderr, writer, Some(1)));
        drop(writer.eof().await);
        drop(writer.close().await);
    };
    tokio::select! {
        () = whole => {}
        // Closed by the peer, or the connection is gone.
        _ = gone => {}
    }
    feeding.abort();
    input.discard();
    // The program may outlive its channel; this task waits for it.
    drop(child.wait().await);
    *leader.lock().unwrap_or_else(PoisonError::into_inner) = None;
}

async fn feed(stdin: Option<ChildStdin>, input: Arc<Spool>) {
    let Some(mut stdin) = stdin else { return };
    while let Ok(Some(bytes)) = input.next().await {
        if stdin.write_all(&bytes).await.is_err() {
            // The program closed its input, which is not an error.
            break;
        }
    }
    input.discard();
}

/// Reads no faster than the peer's window allows, so a peer that does not read holds the program back.
async fn pump(from: Option<impl AsyncRead + Unpin>, to: &ChannelWriteHalf<Msg>, extended: Option<u32>) {
    let Some(mut from) = from else { return };
    loop {
        let mut bytes = Vec::with_capacity(CHUNK);
        match from.read_buf(&mut bytes).await {
            Ok(0) | Err(_) => return,
            Ok(_) => {}
        }
        let sent = match extended {
            None => to.data_bytes(bytes).await,
            Some(code) => to.extended_data_bytes(code, bytes).await,
        };
        if sent.is_err() {
            return;
        }
    }
}

async fn report<M: Machine>(handle: &Handle, channel: ChannelId, status: io::Result<ExitStatus>) {
    // An error means that the connection is gone, so there is no peer to report to.
    let _ = match status {
        Ok(status) => match (status.code(), status.signal()) {
            (Some(code), _) => handle.exit_status_request(channel, code.unsigned_abs()).await,
            (None, Some(signal)) => {
                let message = format!("killed by signal {signal}");
                let (name, core) = (name(signal), status.core_dumped());
                handle.exit_signal_request(channel, name, core, message, String::new()).await
            }
            (None, None) => Ok(()),
        },
        Err(error) => {
            M::note(&format!("cannot get a program's exit status: {error}"));
            Ok(())
        }
    };
}

/// Signals with a name in the protocol.
const SIGNALS: &[(Signal, Sig)] = &[
    (Signal::ABORT, Sig::ABRT),
    (Signal::ALARM, Sig::ALRM),
    (Signal::FPE, Sig::FPE),
    (Signal::HUP, Sig::HUP),
    (Signal::ILL, Sig::ILL),
    (Signal::INT, Sig::INT),
    (Signal::KILL, Sig::KILL),
    (Signal::PIPE, Sig::PIPE),
    (Signal::QUIT, Sig::QUIT),
    (Signal::SEGV, Sig::SEGV),
    (Signal::TERM, Sig::TERM),
    (Signal::USR1, Sig::USR1),
];

fn name(number: i32) -> Sig {
    let known = SIGNALS.iter().find(|(signal, _)| signal.as_raw() == number);
    known.map_or_else(|| Sig::Custom(format!("{number}@linux")), |(_, name)| name.clone())
}

fn number(name: &Sig) -> Option<Signal> {
    match name {
        Sig::Custom(name) if name == "USR2" => Some(Signal::USR2),
        Sig::Custom(_) => None,
        known => {
            let same = |name: &Sig| discriminant(name) == discriminant(known);
            SIGNALS.iter().find(|(_, name)| same(name)).map(|(signal, _)| *signal)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_signal_has_one_name_both_ways() {
        for (signal, sig) in SIGNALS {
            assert_eq!(discriminant(&name(signal.as_raw())), discriminant(sig));
            assert_eq!(number(sig), Some(*signal));
        }
        assert!(matches!(name(31), Sig::Custom(text) if text == "31@linux"));
        assert_eq!(number(&Sig::Custom("NONSENSE".to_owned())), None);
    }
}
