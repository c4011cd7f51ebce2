//! Terminations: of what does not exist, of one machine among others, once more, and of what another hand deleted.

use std::process::Stdio;
use std::time::{Duration, Instant};

use greenroom_core::time::Pretty;
use serde_json::json;

use super::lists::is_alive;
use super::{Live, Made, is_reached};
use crate::external::kit::cheap::no_machine;
use crate::external::kit::reply::Reply;
use crate::external::kit::session::{read, unusable};
use crate::external::protocol::answers::{Ended, TerminateAnswer};
use crate::external::protocol::exit::NOT_FOUND;
use crate::program::kit::check::{Judged, failed, skipped};
use crate::program::kit::poll::poll;

/// How long a login on a machine that is gone may take to fail.
const REACHED_WITHIN: Duration = Duration::from_secs(5);
/// Limit of the command that deletes a machine without the program.
const DELETED_WITHIN: Duration = Duration::from_mins(2);

/// What a termination achieved.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    Stopping,
    Gone,
    NotFound,
}

impl Live<'_> {
    /// The terminations of the first machine, while the others run.
    pub(super) async fn check_ends(&self, first: &Made, others: &[Made]) {
        self.session.outcomes.check("terminate-unknown-live", self.unknown(first)).await;
        let begun = Instant::now();
        let ended = self.end(first).await;
        let is_ended = ended.is_ok();
        self.session.outcomes.record("terminate", ended.map(drop), begun);
        self.session.outcomes.check("terminate-ends", self.really_ended(first, is_ended)).await;
        self.session.outcomes.check("terminate-repeated", self.repeated_end(first, is_ended)).await;
        self.session.outcomes.check("terminate-spares-others", self.spared(others)).await;
    }

    /// One call of `terminate`.
    pub(super) async fn terminate(&self, pool: &str, fields: &serde_json::Value) -> Judged<Step> {
        match self.session.call("terminate", pool, fields).await {
            Reply::Answer(answer) => Ok(match read::<TerminateAnswer>("terminate", &answer)?.state {
                Ended::Stopping => Step::Stopping,
                Ended::Gone => Step::Gone,
            }),
            Reply::Refused(refusal) if refusal.code == NOT_FOUND => Ok(Step::NotFound),
            Reply::Refused(refusal) if refusal.may_pass() => Ok(Step::Stopping),
            Reply::Refused(refusal) => failed(format!("`terminate` was refused with {refusal}")),
            Reply::Unusable(check, _) => Err(unusable("terminate", check)),
        }
    }

    /// Terminates a machine until it is gone.
    pub(super) async fn end(&self, made: &Made) -> Judged<Step> {
        self.forget(&made.machine);
        let fields = made.specimen.known(&made.machine).fields();
        let first = self.terminate(&made.specimen.pool, &fields).await?;
        if first == Step::NotFound {
            return failed(format!("`terminate` of `{}`, which runs, answered exit code 10", made.machine));
        }
        let gone = poll(self.options.end_timeout, async || {
            let step = self.terminate(&made.specimen.pool, &fields).await?;
            Ok((step != Step::Stopping).then_some(step))
        });
        let gone = if first == Step::Gone { Some(first) } else { gone.await? };
        gone.map_or_else(
            || {
                let within = Pretty(self.options.end_timeout);
                failed(format!("`{}` was not gone {within} after its termination", made.machine))
            },
            Ok,
        )
    }

    /// A machine ID that nothing has, while a machine runs.
    async fn unknown(&self, first: &Made) -> Judged {
        // Certainly not the ID of a machine that exists: other machines of the account must be safe.
        let name = format!("{}-greenroom-kit-none", first.machine);
        for machine in [no_machine(), json!({ "machine": name, "instance": name, "name": name })] {
            self.session.refused_as_unknown("terminate", &first.specimen.pool, &machine).await?;
        }
        match self.living(&first.specimen).await?.first() {
            Some(_) => Ok(()),
            None => failed(format!("`{}` no longer runs", first.machine)),
        }
    }

    async fn really_ended(&self, first: &Made, is_ended: bool) -> Judged {
        if !is_ended {
            return skipped("the machine is not gone, see `terminate`");
        }
        let list = self.list(&first.specimen.pool).await?;
        if list.machines.iter().any(|listed| listed.machine == first.machine && is_alive(listed)) {
            return failed(format!("a list has `{}` as running", first.machine));
        }
        let Some(endpoint) = self.endpoint_of_first.borrow().clone() else { return Ok(()) };
        if is_reached(self.connector, &first.specimen, &endpoint, REACHED_WITHIN).await {
            return failed(format!("`{}` still accepts the login at {}", first.machine, endpoint.place()));
        }
        Ok(())
    }

    async fn repeated_end(&self, first: &Made, is_ended: bool) -> Judged {
        if !is_ended {
            return skipped("the machine is not gone, see `terminate`");
        }
        let fields = first.specimen.known(&first.machine).fields();
        match self.terminate(&first.specimen.pool, &fields).await? {
            Step::Gone | Step::NotFound => Ok(()),
            Step::Stopping => failed("`terminate` answered `gone` first, and then `stopping`"),
        }
    }

    async fn spared(&self, others: &[Made]) -> Judged {
        if others.is_empty() {
            return skipped("no other machine runs");
        }
        for other in others {
            if self.living(&other.specimen).await?.is_empty() {
                return failed(format!("`{}` no longer runs", other.machine));
            }
        }
        Ok(())
    }

    /// A machine that the operator's own tool deletes.
    pub(super) async fn check_deleted_elsewhere(&self, made: Option<Made>) {
        self.session.outcomes.check("deleted-elsewhere", self.deleted_elsewhere(made)).await;
    }

    async fn deleted_elsewhere(&self, made: Option<Made>) -> Judged {
        let Some(program) = &self.options.delete_with else {
            return skipped("no command deletes a machine: name one with `--delete-with`");
        };
        let Some(made) = made else { return skipped("no machine is left for it") };
        self.forget(&made.machine);
        let mut command = tokio::process::Command::new(program);
        command
            .arg(&made.machine)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .kill_on_drop(true);
        let status = tokio::time::timeout(DELETED_WITHIN, command.status()).await;
        let name = program.display();
        match status {
            Ok(Ok(status)) if status.success() => {}
            Ok(Ok(status)) => return skipped(format!("`{name}` failed: {status}")),
            Ok(Err(error)) => return skipped(format!("`{name}` cannot be started: {error}")),
            Err(_) => return skipped(format!("`{name}` did not end within {}", Pretty(DELETED_WITHIN))),
        }
        let unlisted = poll(self.options.end_timeout, async || {
            let list = self.list(&made.specimen.pool).await?;
            let is_listed =
                list.machines.iter().any(|listed| listed.machine == made.machine && is_alive(listed));
            Ok((!is_listed).then_some(()))
        });
        if unlisted.await?.is_none() {
            return failed(format!("`{}` was deleted, and is still listed as running", made.machine));
        }
        let fields = made.specimen.known(&made.machine).fields();
        let gone = poll(self.options.end_timeout, async || {
            let step = self.terminate(&made.specimen.pool, &fields).await?;
            Ok((step != Step::Stopping).then_some(()))
        });
        match gone.await? {
            Some(()) => Ok(()),
            None => failed(format!(
                "`terminate` of `{}`, which was deleted, never answers `gone` or 10",
                made.machine
            )),
        }
    }
}
