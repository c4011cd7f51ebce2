//! The way from the script's reports to the job log, and to what they mean in the end.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use greenroom_core::container::engine::ContainerEngine;
use greenroom_core::container::failure::{Blame, Cause, foreign};
use greenroom_core::container::name::Owner;
use greenroom_core::container::report::{ImageFacts, Lines, Part, Report, digest, unreached};
use greenroom_core::container::settings::PullPolicy;
use greenroom_core::container::spec::{ContainerJob, ContainerSpec};
use greenroom_core::images::{FoundImage, SeenImages};
use greenroom_core::text::clean_line;
use greenroom_core::time::Stamp;
use greenroom_core::unbegun::CheckKind;
use greenroom_ports::connector::{Output, StageEnd, Stream};
use greenroom_ports::tail::Tail;

use super::ContainerError;

/// The longest text of the script's own errors, in characters.
const LINE: usize = 300;

/// Images that one script may report as removed. The names come from the guest.
const MOST_REMOVED: usize = 200;

/// The job log shows a pull that goes on this often.
const EVERY: Duration = Duration::from_secs(10);

/// Progress of a job's containers, for the job log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ContainerProgress {
    /// A sentence about what the job asked for.
    Remark(String),
    /// `login`: where the credentials come from.
    Pulling {
        image: String,
        policy: PullPolicy,
        login: Option<&'static str>,
        again: bool,
    },
    /// A pull goes on. `bytes`: how much has come, as far as known.
    Received {
        image: String,
        bytes: Option<u64>,
        after: Duration,
    },
    /// A pull goes on, and its engine does not show how much has come.
    Pending {
        image: String,
        after: Duration,
    },
    /// `bytes`: its size on the instance.
    Pulled {
        image: String,
        digest: Option<String>,
        bytes: u64,
        after: Duration,
    },
    /// The instance has the image already.
    Present {
        image: String,
        digest: Option<String>,
    },
    /// An image that the host had was removed, because there was little room. `None`: no job has used it.
    Removed {
        image: String,
        unused: Option<Duration>,
    },
    /// One try failed; `why`: the engine's own text.
    PullFailed {
        image: String,
        why: String,
    },
    ServiceUp {
        service: String,
        after: Duration,
    },
    /// A service runs, and is still waited for.
    ServiceAwaited {
        service: String,
        waited: Duration,
    },
    ServiceExited {
        service: String,
        status: String,
        after: Duration,
    },
    /// A service runs, and none of its ports has answered.
    ServiceSilent {
        service: String,
        waited: Duration,
    },
    ServiceUnstarted {
        service: String,
        why: String,
    },
    /// One of the last lines that a service wrote.
    ServiceLog {
        service: String,
        line: String,
    },
    /// Output that a service writes while it runs, and the time of day.
    ServiceWrote {
        service: String,
        at: String,
        line: String,
    },
    /// A service has written more than is shown.
    ServiceSkipped {
        service: String,
        bytes: u64,
    },
}

/// A pull, or the start of a service.
struct Begun {
    at: Stamp,
    /// Time at which the job log last showed this.
    told: Stamp,
    bytes: Option<u64>,
}

impl Begun {
    fn new(now: Stamp) -> Self {
        Self { at: now, told: now, bytes: None }
    }
}

/// Reads the script's output while it comes.
pub(crate) struct Watcher<'a> {
    job: &'a ContainerJob,
    now: &'a dyn Fn() -> Stamp,
    tell: &'a mut dyn FnMut(ContainerProgress),
    lines: Lines,
    errors: Tail,
    /// The service of this number, or its pull.
    begun: BTreeMap<usize, Begun>,
    images: BTreeMap<usize, ImageFacts>,
    removed: Vec<Arc<str>>,
    /// Cause and text of the last failed try of a pull, by the pull's number.
    failed: BTreeMap<usize, (Cause, String)>,
    late: bool,
    done: bool,
    owner: Option<Owner>,
    /// The error that ends the preparation, whatever else is reported.
    fault: Option<ContainerError>,
}

impl<'a> Watcher<'a> {
    pub(crate) fn new(
        job: &'a ContainerJob,
        now: &'a dyn Fn() -> Stamp,
        tell: &'a mut dyn FnMut(ContainerProgress),
    ) -> Self {
        Self {
            job,
            now,
            tell,
            lines: Lines::default(),
            errors: Tail::default(),
            begun: BTreeMap::new(),
            images: BTreeMap::new(),
            removed: Vec::new(),
            failed: BTreeMap::new(),
            late: false,
            done: false,
            owner: None,
            fault: None,
        }
    }

    /// The facts of the job's image and the container's user, or why there is no container.
    pub(super) fn outcome(mut self, end: &StageEnd) -> Result<(ImageFacts, Option<Owner>), ContainerError> {
        if let Some(fault) = self.fault {
            return Err(fault);
        }
        if self.done {
            // What an image says of itself may be anything.
            let unreadable = || {
                let image = &self.job.job.called;
                ContainerError::Impossible(format!(
                    "image `{image}` describes itself in a way that cannot be read"
                ))
            };
            return self.images.remove(&0).map(|facts| (facts, self.owner)).ok_or_else(unreadable);
        }
        if let Some(error) = self.pull_error() {
            return Err(error);
        }
        let errors = clean_line(self.errors.text().as_bytes(), LINE);
        let errors = if errors.is_empty() { "it gave no reason" } else { &errors };
        Err(ContainerError::Doubtful {
            kind: CheckKind::Engine,
            message: format!(
                "the instance could not prepare the job's containers: the script ended with {end} ({errors})"
            ),
        })
    }

    /// Number of entries that are held under names that the guest chose.
    #[cfg(test)]
    pub(super) fn held(&self) -> usize {
        self.begun.len() + self.images.len() + self.removed.len() + self.failed.len()
    }

    /// The instance's images, as the script reported them. Those of another platform are of use to few jobs.
    pub(crate) fn seen(&self) -> SeenImages {
        let found = self.images.iter().filter_map(|(number, facts)| {
            let spec = spec(self.job, *number).filter(|spec| spec.platform.is_none())?;
            Some(facts.found(&spec.image))
        });
        let mut all: Vec<FoundImage> = Vec::new();
        for found in found {
            if all.iter().all(|known| known.name != found.name) {
                all.push(found);
            }
        }
        SeenImages { found: all, removed: self.removed.clone() }
    }

    /// The facts of the only image of a script that only pulls, or why it did not come.
    pub(crate) fn pulled(self, end: &StageEnd) -> Result<ImageFacts, ContainerError> {
        self.outcome(end).map(|(facts, _)| facts)
    }

    /// The worst of the images that did not come: a job's own fault is found before the registry's.
    fn pull_error(&self) -> Option<ContainerError> {
        let limit = self.job.pull_timeout;
        let numbers = 0..=self.job.services.len();
        let absent = numbers.filter(|number| !self.images.contains_key(number));
        let errors = absent.filter_map(|number| {
            let wanted = spec(self.job, number)?;
            let (cause, text) = match self.failed.get(&number) {
                Some((cause, text)) if !self.late || !cause.may_pass() => (*cause, text.as_str()),
                _ if self.late => (Cause::Late, ""),
                _ => return None,
            };
            Some((cause, cause.of_pull(wanted, limit, text)))
        });
        let rank = |(cause, _): &(Cause, String)| match cause.blame() {
            Blame::Job => 0,
            Blame::Surroundings => 1,
        };
        errors.min_by_key(rank).map(|(cause, sentence)| error(cause, sentence))
    }

    fn read(&mut self, report: Report) {
        match report {
            Report::Pulling { number, policy, again } => self.pulling(number, policy, again),
            Report::Bytes { number, bytes } => {
                if let Some(begun) = self.begun.get_mut(&number) {
                    begun.bytes = Some(bytes);
                }
            }
            Report::Image { number, facts } if spec(self.job, number).is_some() => {
                self.there(number, &facts);
                self.images.insert(number, facts);
            }
            // A container that the job does not have.
            Report::Image { .. } => {}
            Report::PullFailed { number, policy, text } => self.pull_failed(number, policy, text),
            Report::Late => self.late = true,
            Report::Foreign { number, image, instance } => {
                if let Some(wanted) = spec(self.job, number) {
                    let sentence = foreign(wanted, &image, &instance);
                    self.fault.get_or_insert(ContainerError::Impossible(sentence));
                }
            }
            Report::Started { number } => {
                if spec(self.job, number).is_some() {
                    self.begun.insert(number, Begun::new((self.now)()));
                }
            }
            Report::Waiting { number } => {
                let waited = self.after(number);
                self.of_service(number, |service| ContainerProgress::ServiceAwaited { service, waited });
            }
            Report::Up { number } => {
                let after = self.after(number);
                self.of_service(number, |service| ContainerProgress::ServiceUp { service, after });
            }
            Report::Exited { number, status } => {
                let after = self.after(number);
                self.of_service(number, |service| ContainerProgress::ServiceExited {
                    service,
                    status,
                    after,
                });
            }
            Report::Silent { number } => {
                let waited = self.after(number);
                self.of_service(number, |service| ContainerProgress::ServiceSilent { service, waited });
            }
            // A warning: no container could start only if `Unsound` follows.
            Report::Unstarted { number, text } => {
                self.of_service(number, |service| ContainerProgress::ServiceUnstarted { service, why: text });
            }
            Report::Log { number, line } => {
                self.of_service(number, |service| ContainerProgress::ServiceLog { service, line });
            }
            Report::Wrote { number, at, line } => {
                self.of_service(number, |service| ContainerProgress::ServiceWrote { service, at, line });
            }
            Report::Skipped { number, bytes } => {
                self.of_service(number, |service| ContainerProgress::ServiceSkipped { service, bytes });
            }
            Report::Removed { image, unused } => {
                if self.removed.len() < MOST_REMOVED {
                    self.removed.push(image.as_str().into());
                    (self.tell)(ContainerProgress::Removed { image, unused });
                }
            }
            Report::Owner(owner) => self.owner = Some(owner),
            Report::Unreached(servers) => (self.tell)(ContainerProgress::Remark(unreached(&servers))),
            Report::Broken { part, text } => self.broken(part, &text),
            Report::Unsound { kind, text } => {
                let message = format!("the instance cannot run containers: {text}");
                self.fault = Some(ContainerError::Doubtful { kind, message });
            }
            Report::Done => self.done = true,
        }
    }

    /// An image is there, for all containers that shared its pull: said once for each name that the job gives it.
    fn there(&mut self, number: usize, facts: &ImageFacts) {
        let bytes = facts.bytes;
        let after = self.after(number);
        let came = self.begun.remove(&number).is_some();
        let Some(own) = spec(self.job, number) else { return };
        let sharing = || self.job.containers().enumerate().filter(|(_, other)| other.shares_pull(own));
        if sharing().next().is_some_and(|(first, _)| first != number) {
            return;
        }
        let mut names: Vec<String> = sharing().map(|(_, other)| other.called.clone()).collect();
        names.dedup();
        for image in names {
            let digest = facts.digest.as_deref().and_then(digest);
            (self.tell)(if came {
                ContainerProgress::Pulled { image, digest, bytes, after }
            } else {
                ContainerProgress::Present { image, digest }
            });
        }
    }

    fn pulling(&mut self, number: usize, policy: PullPolicy, again: bool) {
        if spec(self.job, number).is_none() {
            return;
        }
        let now = (self.now)();
        self.begun.entry(number).or_insert_with(|| Begun::new(now)).told = now;
        let login = spec(self.job, number).and_then(|spec| spec.login.as_ref()).map(|login| login.source);
        self.about(number, |image| ContainerProgress::Pulling { image, policy, login, again });
    }

    fn pull_failed(&mut self, number: usize, policy: PullPolicy, text: String) {
        let Some(wanted) = spec(self.job, number) else { return };
        let cause = if policy == PullPolicy::Never { Cause::Absent } else { Cause::of(&text, &wanted.image) };
        self.begun.remove(&number);
        self.about(number, |image| ContainerProgress::PullFailed { image, why: text.clone() });
        // What a registry said explains more than that the image is not there.
        if cause != Cause::Absent || !self.failed.contains_key(&number) {
            self.failed.insert(number, (cause, text));
        }
    }

    /// Something failed, and the script found no fault of the engine. A text may quote the job, so it is not known who is to
    /// blame, unless the job's container was denied.
    fn broken(&mut self, part: Part, text: &str) {
        let wanted = &self.job.job;
        let doubtful =
            |kind, what: &str| ContainerError::Doubtful { kind, message: format!("{what}: {text}") };
        self.fault.get_or_insert_with(|| match part {
            Part::Engine => doubtful(CheckKind::Engine, "the instance cannot run containers"),
            Part::Network => {
                doubtful(CheckKind::Network, "the instance cannot connect containers by a network")
            }
            Part::Create => {
                let cause = Cause::of(text, &wanted.image);
                error(cause, cause.of_create(wanted, text))
            }
        });
    }

    /// Shows the pulls that the job log has not shown for a while. The script gives a sign of life each second.
    fn remind(&mut self) {
        let now = (self.now)();
        let images = &self.images;
        let due =
            |number: &usize, begun: &Begun| !images.contains_key(number) && now.since(begun.told) >= EVERY;
        let due: Vec<(usize, Option<u64>, Duration)> = self
            .begun
            .iter_mut()
            .filter(|(number, begun)| due(number, begun))
            .map(|(number, begun)| {
                begun.told = now;
                (*number, begun.bytes, now.since(begun.at))
            })
            .collect();
        let shows_bytes = self.job.engine == ContainerEngine::Podman;
        for (number, bytes, after) in due {
            self.about(number, |image| match bytes {
                None if !shows_bytes => ContainerProgress::Pending { image, after },
                bytes => ContainerProgress::Received { image, bytes, after },
            });
        }
    }

    fn after(&self, number: usize) -> Duration {
        self.begun.get(&number).map(|begun| (self.now)().since(begun.at)).unwrap_or_default()
    }

    fn about(&mut self, number: usize, event: impl FnOnce(String) -> ContainerProgress) {
        if let Some(spec) = spec(self.job, number) {
            (self.tell)(event(spec.called.clone()));
        }
    }

    fn of_service(&mut self, number: usize, event: impl FnOnce(String) -> ContainerProgress) {
        let service = number.checked_sub(1).and_then(|at| self.job.services.get(at));
        if let Some(name) = service.and_then(|service| service.names.first()) {
            (self.tell)(event(name.clone()));
        }
    }
}

fn spec(job: &ContainerJob, number: usize) -> Option<&ContainerSpec> {
    match number.checked_sub(1) {
        None => Some(&job.job),
        Some(at) => job.services.get(at).map(|service| &service.container),
    }
}

fn error(cause: Cause, sentence: String) -> ContainerError {
    match cause.blame() {
        Blame::Job => ContainerError::Impossible(sentence),
        Blame::Surroundings if cause.may_be_local() => ContainerError::Unreached(sentence),
        Blame::Surroundings => ContainerError::Unavailable(sentence),
    }
}

#[async_trait(?Send)]
impl Output for Watcher<'_> {
    async fn write(&mut self, stream: Stream, bytes: &[u8]) -> io::Result<()> {
        if stream == Stream::Stderr {
            return self.errors.write(stream, bytes).await;
        }
        let mut reports = Vec::new();
        self.lines.push(bytes, |line| reports.extend(Report::parse(line)));
        for report in reports {
            self.read(report);
        }
        self.remind();
        Ok(())
    }
}
