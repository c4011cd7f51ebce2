//! Serves the requests of a link's calls.

use std::time::Duration;

use greenroom_core::endpoint::Endpoint;
use greenroom_ports::connector::ConnectError;
use serde_json::Value;
use tokio::net::UnixStream;
use tokio::time::{Instant, sleep, timeout};

use super::super::passed;
use super::super::proof::{ExitMark, Marks};
use super::super::session::is_refusal;
use super::figures;
use super::hub::Hub;
use super::line::Line;
use super::message::{Ask, Interpreter, PROTOCOL, Reply, Request};
use super::shells::{Next, Program, REFUSED_AGAIN, REFUSED_FOR};
use super::stage::DESCRIPTORS;

/// A check ends this much after the connection's own limit.
const OVERLAP: Duration = Duration::from_millis(200);
/// Limit for a call's request, which calls send immediately.
const REQUEST_WITHIN: Duration = Duration::from_secs(2);

impl Hub<'_> {
    /// Serves one call, from its request to its end.
    pub(super) async fn converse(&self, stream: UnixStream) {
        let mut line = Line::new(stream);
        let received = timeout(REQUEST_WITHIN, line.receive::<Value>()).await;
        let Ok(Ok(Some(request))) = received else { return };
        // The only part of a request that every version understands.
        let protocol =
            request.get("protocol").and_then(Value::as_u64).and_then(|number| number.try_into().ok());
        let Some::<u32>(protocol) = protocol else { return };
        let request = match serde_json::from_value::<Request>(request) {
            Ok(request) if protocol == PROTOCOL => request,
            _ => return self.turn_away(&line).await,
        };
        // A call that has exited gets no reply.
        let _sent = match request.ask {
            Ask::End => {
                // No other link follows this one.
                let _noted = self.slot_lock.note(None);
                self.close();
                let sent = line.send(&Reply::Closing, &[]).await;
                self.over().await;
                sent
            }
            Ask::Metadata => line.send(&Reply::Metadata(self.heard.report()), &[]).await,
            Ask::Show => line.send(&Reply::Shown(figures::of(self).await), &[]).await,
            Ask::Check { at, .. } | Ask::Stage { at, .. } | Ask::Command { at, .. }
                if self.is_closing() || at != self.spec.at =>
            {
                return self.turn_away(&line).await;
            }
            Ask::Check { .. } | Ask::Stage { .. } | Ask::Command { .. } if self.is_busy() => {
                line.send(&Reply::Busy, &[]).await
            }
            Ask::Check { at, within, next } => {
                self.watch_runner(&mut line, request.wake, 0);
                self.answer_check(&line, &at, next, within).await
            }
            Ask::Stage {
                interpreter,
                start_within,
                stop_grace,
                followed,
                ahead,
                ready_mark,
                exit_mark,
                exit_joined: joined,
                ..
            } => {
                self.watch_runner(&mut line, request.wake, DESCRIPTORS);
                let next = Next { followed, ahead: ahead.map(Program::Interpreter) };
                let marks = ready_mark.zip(exit_mark);
                let marks = marks.map(|(ready, mark)| Marks { ready, exit: ExitMark { mark, joined } });
                let program = (Program::Interpreter(interpreter), next, marks);
                self.run_stage(line, program, start_within, stop_grace).await
            }
            Ask::Command { text, start_within, stop_grace, .. } => {
                let program = (Program::Command(text), Next::default(), None);
                self.run_stage(line, program, start_within, stop_grace).await
            }
        };
    }

    /// Refuses a call that needs another link, and makes room for that link as soon as possible.
    async fn turn_away(&self, line: &Line) {
        let reply = if self.is_busy() { Reply::Busy } else { Reply::Closing };
        self.close();
        let _sent = line.send(&reply, &[]).await;
    }

    async fn answer_check(
        &self,
        line: &Line,
        at: &Endpoint,
        next: Option<Interpreter>,
        within: Duration,
    ) -> std::io::Result<()> {
        line.send(&Reply::Accepted, &[]).await?;
        // The connection's own limit, which began at the same time, tells more.
        let answer = timeout(within + OVERLAP, self.check(at, next)).await.unwrap_or_else(|_| {
            // The next call gets a new connection.
            self.close();
            Err(self.late(within))
        });
        let reply = answer.map_or_else(Reply::Failed, |()| Reply::Answers);
        line.send(&reply, &[]).await
    }

    /// A standby shell shows that the guest can start processes; a ping shows that it responds now.
    async fn check(&self, at: &Endpoint, next: Option<Interpreter>) -> Result<(), ConnectError> {
        let session = self.session().await?;
        if let Some(next) = next {
            self.shells.start_early(Program::Interpreter(next));
        }
        let patience = Instant::now() + REFUSED_FOR;
        while !self.shells.settled().await {
            match session.brief("true").await {
                // A shell that has started meanwhile may have the only session.
                Err(error) if is_refusal(&error) && Instant::now() < patience => sleep(REFUSED_AGAIN).await,
                answer => return passed(session, &at.user, answer?),
            }
        }
        self.ping(session).await
    }
}
