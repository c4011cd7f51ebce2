//! Finds the link of a free slot for a call ([`Links`]), starts one if there is none, and kills an unresponsive one.

use std::ffi::OsString;
use std::fmt;
use std::io::{self, Write as _};
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use futures_util::future::join_all;
use greenroom_core::endpoint::Endpoint;
use greenroom_core::ids::InstanceId;
use greenroom_core::metadata::MetadataAnswers;
use greenroom_system::process::{Children, allowed_variables, has_exited, start_detached};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use tokio::time::{Instant, sleep, timeout};

use super::super::{SshSettings, hop};
use super::process::COMMAND;
use super::protocol::{Envelope, LinkReply, LinkRequest, LinkSpec, LinkStream, PROTOCOL};
use super::slot::{Slot, slots};

/// A link accepts a request immediately; one that does not is unresponsive.
const FIRST_ANSWER: Duration = Duration::from_secs(3);
/// Limit from the start of a link to its first call.
const START_WITHIN: Duration = Duration::from_secs(5);
/// Polling interval while a link is exiting, or another call is starting one.
const POLL_INTERVAL: Duration = Duration::from_millis(5);
/// Limit for a killed link to let go of its slot.
const CLEAR_WITHIN: Duration = Duration::from_secs(1);
/// Limit for a link without work to exit after it was told to.
const END_WITHIN: Duration = Duration::from_millis(200);
/// Limit for a link to report what it has heard from a metadata service.
const METADATA_WITHIN: Duration = Duration::from_millis(500);
/// Concurrent jobs on an instance that use links; further jobs make connections of their own.
const MOST_SLOTS: u32 = 64;
/// Links that may die before their first reply.
const MOST_DEATHS: u32 = 3;

/// The environment variables that a link inherits: those that the resolver reads. One with a port-forward passes on more.
const ALLOWED: [&str; 4] = ["HOSTALIASES", "LOCALDOMAIN", "RES_OPTIONS", "TZ"];

/// The calling runner, and how links are started.
pub struct LinkSettings {
    /// The directory of this pool's links.
    pub dir: PathBuf,
    /// Makes a command that starts this program with none of this process's descriptors but the standard streams.
    pub program: Box<dyn Fn() -> io::Result<Command>>,
    /// A pidfd of the calling runner, if any.
    pub runner: Box<dyn Fn() -> Option<OwnedFd>>,
    /// The keeper's mailbox, to report that the runner has exited.
    pub mailbox: Option<PathBuf>,
}

impl fmt::Debug for LinkSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LinkSettings").field("dir", &self.dir).finish_non_exhaustive()
    }
}

/// The links of a pool's instances, as calls use them.
#[derive(Debug)]
pub(super) struct Links {
    settings: LinkSettings,
    /// Links that this process has started, to be reaped.
    children: Children,
}

/// An instance, and how a link connects to it.
#[derive(Debug, Clone, Copy)]
pub(super) struct LinkTarget<'a> {
    pub(super) id: &'a InstanceId,
    pub(super) at: &'a Endpoint,
    pub(super) ssh: &'a SshSettings,
    pub(super) within: Duration,
}

impl Links {
    pub(super) fn new(settings: LinkSettings) -> Self {
        Self { settings, children: Children::default() }
    }

    /// Sends a request to the link of the first free slot, and returns when that link has accepted it. Fails if no link
    /// is available.
    pub(super) async fn call(
        &self,
        target: LinkTarget<'_>,
        ask: LinkRequest,
        give: &[BorrowedFd<'_>],
    ) -> io::Result<LinkStream> {
        let runner = (self.settings.runner)();
        let wake = self.settings.mailbox.clone().filter(|_| runner.is_some());
        let give: Vec<BorrowedFd<'_>> = give
            .iter()
            .copied()
            .chain(runner.as_ref().filter(|_| wake.is_some()).map(|fd| fd.as_fd()))
            .collect();
        let request = Envelope { protocol: PROTOCOL, ask, wake };
        let dir = self.dir(target.id);
        let until = Instant::now() + target.within;
        let mut deaths = 0;
        let mut number = 0;
        while number < MOST_SLOTS {
            if Instant::now() > until + FIRST_ANSWER {
                return Err(io::ErrorKind::TimedOut.into());
            }
            let slot = Slot::new(dir.clone(), number);
            let mut line = self.reach(target, &slot, number, until).await?;
            // A link that dies meanwhile does not reply, like one that has died.
            let _sent = line.send(&request, &give).await;
            match timeout(FIRST_ANSWER, line.receive::<LinkReply>()).await {
                Ok(Ok(Some(LinkReply::Accepted))) => return Ok(line),
                Ok(Ok(Some(LinkReply::Busy))) => number += 1,
                Ok(Ok(Some(LinkReply::Closing))) => {
                    drop(timeout(END_WITHIN, line.receive::<LinkReply>()).await);
                }
                Ok(_) => {
                    deaths += 1;
                    if deaths > MOST_DEATHS {
                        return Err(io::Error::other("each link exits as soon as it gets a request"));
                    }
                }
                Err(_) => kill(&line),
            }
        }
        Err(io::Error::other("too many jobs on one instance"))
    }

    fn dir(&self, id: &InstanceId) -> PathBuf {
        self.settings.dir.join(super::super::keys::folder_name(id))
    }

    /// True if the first slot has a socket: its link runs, or died without removing it.
    pub(super) fn has_one(&self, id: &InstanceId) -> bool {
        Slot::new(self.dir(id), 0).has_socket()
    }

    /// The answers that the links of an instance have received from its metadata service. Links that do not reply are left out: no call
    /// waits for this.
    pub(super) async fn metadata(&self, id: &InstanceId) -> MetadataAnswers {
        let ask = async |slot: Slot| {
            let mut line = LinkStream::new(slot.connect().await.ok()??);
            line.send(&Envelope::plain(LinkRequest::Metadata), &[]).await.ok()?;
            match line.receive::<LinkReply>().await {
                Ok(Some(LinkReply::Metadata(answers))) => Some(answers),
                _ => None,
            }
        };
        let asked = slots(&self.dir(id)).into_iter().map(|slot| timeout(METADATA_WITHIN, ask(slot)));
        join_all(asked).await.into_iter().filter_map(|answers| answers.ok()?).flatten().collect()
    }

    /// Connects to the link of a slot, and starts the link if there is none.
    async fn reach(
        &self,
        target: LinkTarget<'_>,
        slot: &Slot,
        number: u32,
        until: Instant,
    ) -> io::Result<LinkStream> {
        loop {
            if let Some(stream) = slot.connect().await? {
                return Ok(LinkStream::new(stream));
            }
            let spec = LinkSpec {
                instance: target.id.to_string(),
                at: target.at.clone(),
                settings: target.ssh.clone(),
                dir: self.dir(target.id),
                slot: number,
                within: target.within,
                wake: self.settings.mailbox.clone().filter(|_| target.at.metadata.is_some()),
            };
            if !self.start(&spec).await? {
                // RACE: another call has started a link, or the previous one is exiting.
                if Instant::now() > until {
                    return Err(io::ErrorKind::TimedOut.into());
                }
                sleep(POLL_INTERVAL).await;
            }
        }
    }

    /// Starts a link; false if it exited before it accepted calls.
    async fn start(&self, spec: &LinkSpec) -> io::Result<bool> {
        self.children.reap();
        let mut command = (self.settings.program)()?;
        command.arg(COMMAND).stdin(Stdio::piped());
        let (mut child, confirmation) = start_detached(command, environment(&spec.at))?;
        if let Some(mut stdin) = child.stdin.take() {
            // Fits into a pipe. A link that has died does not read it.
            let _read = stdin.write_all(&serde_json::to_vec(spec)?);
        }
        self.children.add(child);
        match timeout(START_WITHIN, confirmation.arrives()).await {
            Ok(confirmed) => confirmed,
            Err(_) => Err(io::Error::new(io::ErrorKind::TimedOut, "a link did not start in time")),
        }
    }

    /// Tells the links of an instance to exit, and waits for those without work.
    pub(super) async fn end(&self, id: &InstanceId) {
        for slot in slots(&self.dir(id)) {
            if let Ok(Some(stream)) = slot.connect().await {
                let mut line = LinkStream::new(stream);
                let request = Envelope::plain(LinkRequest::End);
                let _sent = line.send(&request, &[]).await;
                match timeout(FIRST_ANSWER, line.receive::<LinkReply>()).await {
                    Ok(_) => drop(timeout(END_WITHIN, line.receive::<LinkReply>()).await),
                    Err(_) => kill(&line),
                }
            }
            let begun = Instant::now();
            while !slot.clear() && begun.elapsed() < CLEAR_WITHIN {
                sleep(POLL_INTERVAL).await;
            }
        }
        self.children.reap();
    }
}

fn environment(at: &Endpoint) -> impl Iterator<Item = (&'static str, OsString)> {
    let of_forwards: &[_] = if at.forward.is_some() { &hop::ENVIRONMENT } else { &[] };
    allowed_variables(ALLOWED.iter().chain(of_forwards).copied())
}

/// Kills an unresponsive link, and waits until it has exited.
pub(super) fn kill(line: &LinkStream) {
    let pid = line.peer().ok().and_then(|peer| peer.pid()).and_then(Pid::from_raw);
    let Some(link) = pid.and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok()) else { return };
    // RACE: a dead link's pid may have been reused. If the link's end of the stream is still open, the link was alive
    // when its pid was read.
    if line.is_over() {
        return;
    }
    if pidfd_send_signal(&link, Signal::KILL).is_ok() {
        // Its slot is free when it has exited, which is fast enough to block for.
        has_exited(&link, Duration::from_secs(1));
    }
}
