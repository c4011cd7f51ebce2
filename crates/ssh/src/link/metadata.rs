//! Listens to an instance's metadata service, by one small script that runs in the guest for as long as the link does.
//!
//! The service answers only the instance itself. Nothing depends on it: where it cannot be asked, there is silence. A job
//! may forge what the script prints, so that all of it is bounded and cleaned, and given up when it is absurd.

use std::cell::{Cell, RefCell};
use std::time::Duration;

use greenroom_core::metadata::{MetadataAnswers, MetadataService};
use greenroom_core::text::clean_line;
use russh::ChannelMsg;
use russh::client::Msg;
use tokio::sync::Notify;
use tokio::time::sleep;

use super::super::quote::shell;
use super::super::session::Session;

const SCRIPT: &str = include_str!("metadata.sh");
/// From the connection to the start of the script: the first stage starts meanwhile.
const DELAY: Duration = Duration::from_secs(2);
/// The pause after a script that was killed; doubled each time.
const PAUSE: Duration = Duration::from_mins(1);
/// How often the script may start.
const STARTS: u32 = 5;
/// The maximum length of a line.
const LINE: usize = 4 << 10;
/// Lines and bytes of a link's whole life. A service changes a few answers before an instance ends.
const LINES: u32 = 100;
const BYTES: usize = 64 << 10;
/// The maximum length of an answer, in characters.
const ANSWER: usize = 300;
/// A keeper that has not asked meanwhile is woken again, as often as this.
const REMINDER: Duration = Duration::from_secs(5);
const REMINDERS: u32 = 12;

/// What a link has heard from the metadata service.
#[derive(Default)]
pub(super) struct Heard {
    answers: RefCell<MetadataAnswers>,
    /// True if they have changed since they were last reported.
    is_news: Cell<bool>,
    changed: Notify,
}

/// Why a script's output ended.
#[derive(Debug, PartialEq, Eq)]
enum Over {
    /// The script was killed, or ended in another way that says nothing about the service.
    Broken,
    /// The service cannot be asked, the output is absurd, or the instance needs the session for something else.
    ForGood,
}

impl Heard {
    /// The latest answers.
    pub(super) fn report(&self) -> MetadataAnswers {
        self.is_news.set(false);
        self.answers.borrow().clone()
    }

    /// Listens for as long as the link runs, or there is something to listen to. `wake`: tells the keeper to ask.
    pub(super) async fn listen(&self, session: &Session<'_>, service: MetadataService, wake: &dyn Fn()) {
        tokio::join!(self.run_scripts(session, service), self.remind(wake, REMINDER));
    }

    async fn run_scripts(&self, session: &Session<'_>, service: MetadataService) {
        let mut output = ScriptOutput::new(service);
        let mut pause = PAUSE;
        sleep(DELAY).await;
        for _ in 0..STARTS {
            if self.run_script(session, service, &mut output).await == Over::ForGood {
                return;
            }
            output.begin_again();
            sleep(pause).await;
            pause *= 2;
        }
    }

    async fn run_script(
        &self,
        session: &Session<'_>,
        service: MetadataService,
        output: &mut ScriptOutput,
    ) -> Over {
        let Ok(mut channel) = session.channel().await else { return Over::ForGood };
        let over = tokio::select! {
            over = self.follow(&mut channel, service, output) => over,
            () = session.refuses() => Over::ForGood,
        };
        // The script ends with its input.
        let _sent = channel.close().await;
        over
    }

    async fn follow(
        &self,
        channel: &mut russh::Channel<Msg>,
        service: MetadataService,
        output: &mut ScriptOutput,
    ) -> Over {
        if channel.exec(true, command(service)).await.is_err() {
            return Over::ForGood;
        }
        while let Some(message) = channel.wait().await {
            match message {
                ChannelMsg::Data { data } => match output.take(&data) {
                    Ok(changes) => changes.into_iter().for_each(|(key, answer)| self.note(key, &answer)),
                    Err(over) => return over,
                },
                // The poll may outlive the shell that was killed, and goes on as long as it can.
                ChannelMsg::Failure => return Over::ForGood,
                ChannelMsg::Close => break,
                _ => {}
            }
        }
        Over::Broken
    }

    fn note(&self, key: &str, answer: &str) {
        let mut answers = self.answers.borrow_mut();
        let before = if answer.is_empty() {
            answers.remove(key)
        } else {
            answers.insert(key.to_owned(), answer.to_owned())
        };
        if before.unwrap_or_default() != answer {
            self.is_news.set(true);
            self.changed.notify_one();
        }
    }

    /// Wakes the keeper after each change, and again until it has asked: it may have asked just before.
    async fn remind(&self, wake: &dyn Fn(), every: Duration) {
        loop {
            self.changed.notified().await;
            for _ in 0..REMINDERS {
                if !self.is_news.get() {
                    break;
                }
                wake();
                sleep(every).await;
            }
        }
    }
}

/// The command line that runs the script, whatever the login shell is.
fn command(service: MetadataService) -> String {
    shell(&script(service))
}

fn script(service: MetadataService) -> String {
    let name = match service {
        MetadataService::AwsEc2 => "ec2",
        MetadataService::Gce => "compute-engine",
    };
    format!("service={name} keys='{}'\n{SCRIPT}", service.keys().join(" "))
}

/// Reads lines out of the scripts' output.
struct ScriptOutput {
    service: MetadataService,
    line: Vec<u8>,
    lines: u32,
    bytes: usize,
}

impl ScriptOutput {
    fn new(service: MetadataService) -> Self {
        Self { service, line: Vec::new(), lines: 0, bytes: 0 }
    }

    /// The changes in the lines that these bytes complete.
    fn take(&mut self, data: &[u8]) -> Result<Vec<(&'static str, String)>, Over> {
        self.bytes = self.bytes.saturating_add(data.len());
        if self.bytes > BYTES {
            return Err(Over::ForGood);
        }
        let mut changes = Vec::new();
        for byte in data {
            if *byte != b'\n' {
                self.line.push(*byte);
                if self.line.len() > LINE {
                    return Err(Over::ForGood);
                }
                continue;
            }
            self.lines += 1;
            let line = std::mem::take(&mut self.line);
            changes.push(self.change(&line).filter(|_| self.lines <= LINES).ok_or(Over::ForGood)?);
        }
        Ok(changes)
    }

    /// The key and the new answer of a line; `None`: the script gives up, or is another one.
    fn change(&self, line: &[u8]) -> Option<(&'static str, String)> {
        let at = line.iter().position(|byte| *byte == b' ')?;
        let number: usize = std::str::from_utf8(&line[..at]).ok()?.parse().ok()?;
        let key = self.service.keys().get(number.checked_sub(1)?)?;
        // Line breaks are spaces.
        let answer: Vec<u8> = line[at..].iter().map(|byte| if *byte == 1 { b' ' } else { *byte }).collect();
        Some((key, clean_line(&answer, ANSWER)))
    }

    /// Drops the beginning of a line.
    fn begin_again(&mut self) {
        self.line.clear();
    }
}

#[cfg(test)]
mod tests;
