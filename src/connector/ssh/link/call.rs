//! How a call finds the link of a free slot, starts one where there is none, and ends one that answers no more.

use std::cell::RefCell;
use std::fmt;
use std::io::{self, Write as _};
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use tokio::io::AsyncReadExt as _;
use tokio::net::unix::pipe;
use tokio::time::{Instant, sleep, timeout};

use super::super::SshSettings;
use super::line::Line;
use super::message::{Ask, LinkSpec, PROTOCOL, Reply, Request};
use super::process::COMMAND;
use super::slot::{Slot, slots};
use crate::core::endpoint::Endpoint;
use crate::core::ids::InstanceId;

/// A link says at once that it has heard; one that does not is wedged.
const FIRST_ANSWER: Duration = Duration::from_secs(3);
/// From starting a link to its first call.
const START_WITHIN: Duration = Duration::from_secs(5);
/// A link that is ending, or that somebody else is starting, is waited for.
const LOOK_AGAIN: Duration = Duration::from_millis(5);
/// Until a link that was told to end has done so, if nothing holds it up.
const END_WITHIN: Duration = Duration::from_millis(200);
/// Jobs at once on an instance; more of them make connections of their own.
const MOST_SLOTS: u32 = 64;
/// Links that die in the middle of their first answer.
const MOST_DEATHS: u32 = 3;

/// All of our environment that a link gets to see: what the resolver reads.
const ALLOWED: [&str; 4] = ["HOSTALIASES", "LOCALDOMAIN", "RES_OPTIONS", "TZ"];

/// Who calls, and what links are made of.
pub struct LinkSettings {
    /// The directory of this pool's links.
    pub dir: PathBuf,
    /// Makes the command of our own program, with no descriptor of this process's in it but its standard streams.
    pub program: Box<dyn Fn() -> io::Result<Command>>,
    /// A pidfd of the runner that called us, if one did.
    pub runner: Box<dyn Fn() -> Option<OwnedFd>>,
    /// The keeper's mailbox: told when the runner is gone.
    pub mailbox: Option<PathBuf>,
}

impl fmt::Debug for LinkSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LinkSettings").field("dir", &self.dir).finish_non_exhaustive()
    }
}

/// The links of a pool's instances, from outside.
#[derive(Debug)]
pub(super) struct Links {
    settings: LinkSettings,
    /// Those that we have started, to be reaped.
    children: RefCell<Vec<Child>>,
}

/// Which instance, and how a link would get there.
#[derive(Debug, Clone, Copy)]
pub(super) struct Target<'a> {
    pub(super) id: &'a InstanceId,
    pub(super) at: &'a Endpoint,
    pub(super) ssh: &'a SshSettings,
    pub(super) within: Duration,
}

impl Links {
    pub(super) fn new(settings: LinkSettings) -> Self {
        Self { settings, children: RefCell::default() }
    }

    /// Asks the link of the first slot that is free, which has accepted then. An error: there can be no link.
    pub(super) async fn call(
        &self,
        target: Target<'_>,
        ask: Ask,
        give: &[BorrowedFd<'_>],
    ) -> io::Result<Line> {
        let runner = (self.settings.runner)();
        let wake = self.settings.mailbox.clone().filter(|_| runner.is_some());
        let give: Vec<BorrowedFd<'_>> = give
            .iter()
            .copied()
            .chain(runner.as_ref().filter(|_| wake.is_some()).map(|fd| fd.as_fd()))
            .collect();
        let request = Request { protocol: PROTOCOL, ask, wake };
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
            // A link that dies meanwhile answers as little as one that has died.
            let _heard = line.say(&request, &give).await;
            match timeout(FIRST_ANSWER, line.hear::<Reply>()).await {
                Ok(Ok(Some(Reply::Accepted))) => return Ok(line),
                Ok(Ok(Some(Reply::Busy))) => number += 1,
                Ok(Ok(Some(Reply::Closing))) => drop(timeout(END_WITHIN, line.hear::<Reply>()).await),
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

    /// Has a link been here, and not ended in good order?
    pub(super) fn has_one(&self, id: &InstanceId) -> bool {
        Slot::new(self.dir(id), 0).has_socket()
    }

    /// Connects to the link of a slot, which is started if there is none.
    async fn reach(&self, target: Target<'_>, slot: &Slot, number: u32, until: Instant) -> io::Result<Line> {
        loop {
            if let Some(stream) = slot.connect().await? {
                return Ok(Line::new(stream));
            }
            let order = LinkSpec {
                instance: target.id.to_string(),
                at: target.at.clone(),
                settings: target.ssh.clone(),
                dir: self.dir(target.id),
                slot: number,
                within: target.within,
            };
            if !self.start(&order).await? {
                // RACE: another call has started one, or the one before is ending.
                if Instant::now() > until {
                    return Err(io::ErrorKind::TimedOut.into());
                }
                sleep(LOOK_AGAIN).await;
            }
        }
    }

    /// Starts a link; false if it ended before it took calls.
    async fn start(&self, order: &LinkSpec) -> io::Result<bool> {
        self.reap();
        let (hear, tell) = io::pipe()?;
        let mut command = (self.settings.program)()?;
        command.arg(COMMAND).env_clear().envs(environment()).current_dir("/");
        command.stdin(Stdio::piped()).stdout(OwnedFd::from(tell)).stderr(Stdio::null());
        let mut child = command.spawn()?;
        // Our copy of the pipe's end goes with it.
        drop(command);
        if let Some(mut stdin) = child.stdin.take() {
            // Shorter than a pipe is wide. A link that has died reads nothing.
            let _read = stdin.write_all(&serde_json::to_vec(order)?);
        }
        self.children.borrow_mut().push(child);
        let mut word = pipe::Receiver::from_owned_fd(OwnedFd::from(hear))?;
        match timeout(START_WITHIN, word.read(&mut [0])).await {
            Ok(read) => Ok(read? == 1),
            Err(_) => Err(io::Error::new(io::ErrorKind::TimedOut, "a link did not start in time")),
        }
    }

    fn reap(&self) {
        self.children.borrow_mut().retain_mut(|child| matches!(child.try_wait(), Ok(None)));
    }

    /// Tells the links of an instance to end, and waits for those that have nothing to do.
    pub(super) async fn end(&self, id: &InstanceId) {
        for slot in slots(&self.dir(id)) {
            if let Ok(Some(stream)) = slot.connect().await {
                let mut line = Line::new(stream);
                let request = Request::plain(Ask::End);
                let _heard = line.say(&request, &[]).await;
                match timeout(FIRST_ANSWER, line.hear::<Reply>()).await {
                    Ok(_) => drop(timeout(END_WITHIN, line.hear::<Reply>()).await),
                    Err(_) => kill(&line),
                }
            }
            slot.clear();
        }
        self.reap();
    }
}

fn environment() -> impl Iterator<Item = (&'static str, std::ffi::OsString)> {
    ALLOWED.into_iter().filter_map(|name| Some((name, std::env::var_os(name)?)))
}

/// Ends a link that answers no more, and waits until it is gone.
pub(super) fn kill(line: &Line) {
    let pid = line.peer().ok().and_then(|peer| peer.pid()).and_then(Pid::from_raw);
    let Some(link) = pid.and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok()) else { return };
    // RACE: a dead link's number may be another's by now. One whose end of the line is open was alive when we looked
    // it up.
    if line.is_over() {
        return;
    }
    if pidfd_send_signal(&link, Signal::KILL).is_ok() {
        // Its slot is free when it is gone, which takes no time worth a timer.
        let second = Timespec { tv_sec: 1, tv_nsec: 0 };
        let _gone = poll(&mut [PollFd::new(&link, PollFlags::IN)], Some(&second));
    }
}
