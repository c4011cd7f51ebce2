//! The machine itself: its SSH server, its host key, the login, the console.

use std::time::{Duration, Instant};

use greenroom_core::endpoint::{Endpoint, certified};
use greenroom_core::time::Pretty;
use greenroom_ports::connector::{ConnectError, Connector};
use greenroom_ports::provider::LaunchRequest;
use greenroom_providers::conformance::verdict::{Judged, failed, poll, skipped};
use serde_json::json;

use super::{LaunchedMachine, LiveRun, POOLS};
use crate::external::kit::port::SSH;
use crate::external::kit::program::ProgramReply;
use crate::external::kit::{read, unusable};
use crate::external::protocol::NOT_FOUND;
use crate::external::protocol::answers::{ConsoleAnswer, EndpointAnswer, HostKeySource, ResourcesAnswer};

/// Limit of one login.
const LOGIN_WITHIN: Duration = Duration::from_secs(20);

/// Where a machine is, and the host key that the program reports.
#[derive(Debug, Clone)]
struct ReportedAddress {
    address: String,
    port: u16,
    host_key: Option<String>,
}

/// Result of the last try of a login.
enum LoginAttempt {
    /// No address so far, or nothing answers there.
    Unreached(String),
    WrongKey(String),
    /// The SSH server answers with the right key.
    Denied(String),
    In(Endpoint),
}

/// True if the login works.
pub(super) async fn is_reached(
    connector: &dyn Connector,
    launch: &LaunchRequest,
    at: &Endpoint,
    within: Duration,
) -> bool {
    connector.check(&launch.instance, at, within).await.is_ok()
}

impl LiveRun<'_> {
    /// Logs in to the machine, and reads its console.
    pub(super) async fn check_guest(&self, first: &LaunchedMachine) {
        let begun = Instant::now();
        let tried = self.logged_in(first).await;
        let not_reached = || skipped("no SSH server answers, see `endpoint-answers`");
        let [answers, key, login] = match tried {
            Err(verdict) => [Err(verdict), not_reached(), not_reached()],
            Ok(LoginAttempt::Unreached(came)) => [failed(came), not_reached(), not_reached()],
            Ok(LoginAttempt::WrongKey(came)) => {
                [Ok(()), failed(came), skipped("the host key is wrong, see `host-key`")]
            }
            Ok(LoginAttempt::Denied(came)) => [Ok(()), Ok(()), failed(came)],
            Ok(LoginAttempt::In(endpoint)) => {
                *self.endpoint_of_first.borrow_mut() = Some(endpoint);
                [Ok(()), Ok(()), Ok(())]
            }
        };
        self.session.outcomes.record("endpoint-answers", answers, begun);
        self.session.outcomes.record("host-key", key, begun);
        self.session.outcomes.record("login", login, begun);
        self.session.outcomes.check("console", self.console(first)).await;
    }

    /// Tries until the login works or the time has passed.
    async fn logged_in(&self, first: &LaunchedMachine) -> Judged<LoginAttempt> {
        let mut last = None;
        let found = poll(self.options.boot_timeout, async || {
            let tried = self.try_login(first).await?;
            if matches!(tried, LoginAttempt::In(_)) {
                return Ok(Some(tried));
            }
            last = Some(tried);
            Ok(None)
        });
        let found = found.await?;
        Ok(found.or(last).unwrap_or(LoginAttempt::Unreached("the machine has no address".to_owned())))
    }

    async fn try_login(&self, first: &LaunchedMachine) -> Judged<LoginAttempt> {
        let Some(place) = self.place(first).await? else {
            let within = Pretty(self.options.boot_timeout);
            return Ok(LoginAttempt::Unreached(format!(
                "`{}` had no address within {within}",
                first.machine
            )));
        };
        let Some(host_key) = self.expected_key(first, &place).await? else {
            let machine = &first.machine;
            return Ok(LoginAttempt::WrongKey(format!(
                "neither list, `endpoint` nor console has a host key of `{machine}`"
            )));
        };
        let endpoint = Endpoint {
            address: place.address,
            port: place.port,
            user: self.options.user.clone(),
            host_key,
            key: None,
            jump: None,
            forward: None,
            metadata: None,
        };
        let checked = self.connector.check(&first.launch.instance, &endpoint, LOGIN_WITHIN).await;
        Ok(match checked {
            Ok(()) => LoginAttempt::In(endpoint),
            Err(error @ ConnectError::HostKey { .. }) => LoginAttempt::WrongKey(error.to_string()),
            Err(error @ ConnectError::Refused { .. }) => LoginAttempt::Denied(error.to_string()),
            Err(error) => LoginAttempt::Unreached(error.to_string()),
        })
    }

    /// Address and port, from the list or from `endpoint`.
    async fn place(&self, first: &LaunchedMachine) -> Judged<Option<ReportedAddress>> {
        let list = self.list(first.pool().as_str()).await?;
        let listed = list.machines.into_iter().find(|listed| listed.machine == first.machine.as_str());
        let from_list = listed.and_then(|listed| {
            let port = listed.port.unwrap_or(SSH);
            listed.address.map(|address| ReportedAddress { address, port, host_key: listed.host_key })
        });
        if from_list.is_some() || !self.port.known.verbs.contains("endpoint") {
            return Ok(from_list);
        }
        let fields = self.port.machine(&first.machine).fields();
        match self.session.call("endpoint", first.pool().as_str(), &fields).await {
            ProgramReply::Answer(answer) => {
                let EndpointAnswer { address, port, host_key } = read("endpoint", &answer)?;
                Ok(Some(ReportedAddress { address, port: port.unwrap_or(SSH), host_key }))
            }
            ProgramReply::Refused(refusal) if refusal.may_pass() || refusal.code == NOT_FOUND => Ok(None),
            ProgramReply::Refused(refusal) => failed(format!("`endpoint` was refused with {refusal}")),
            ProgramReply::Unusable(check, _) => Err(unusable("endpoint", check)),
        }
    }

    /// The host key that Greenroom would accept.
    async fn expected_key(&self, first: &LaunchedMachine, place: &ReportedAddress) -> Judged<Option<String>> {
        match self.port.known.host_key {
            HostKeySource::Launch => Ok(Some(first.launch.keys.host_key_public.trim().to_owned())),
            HostKeySource::Report => Ok(place.host_key.clone()),
            HostKeySource::Console => Ok(key_in(&self.console_text(first).await?)),
            HostKeySource::Operator => {
                skipped("the operator states the host key in the pool's table, which the kit does not read")
            }
            HostKeySource::Certificate if self.options.host_key_ca.is_empty() => {
                skipped("machines have certificates: name their authority with `--host-key-ca FILE`")
            }
            HostKeySource::Certificate => {
                let name = self.port.machine(&first.machine).name;
                Ok(Some(certified(&[&place.address, &name], &self.options.host_key_ca)))
            }
        }
    }

    async fn console_text(&self, first: &LaunchedMachine) -> Judged<String> {
        let fields = self.port.machine(&first.machine).fields();
        let answer = self.session.answer("console", first.pool().as_str(), &fields).await?;
        Ok(read::<ConsoleAnswer>("console", &answer)?.text)
    }

    async fn console(&self, first: &LaunchedMachine) -> Judged {
        if !self.port.known.verbs.contains("console") {
            return skipped("the program does not offer `console`");
        }
        self.subject().console(&first.launch, &first.machine).await
    }

    /// Checks the resources that belong to the machines.
    pub(super) async fn check_resources(&self) {
        self.session.outcomes.check("resources", self.resources()).await;
    }

    async fn resources(&self) -> Judged {
        if !self.port.known.verbs.contains("resources") {
            return skipped("the program does not offer `resources`");
        }
        let answer = self.session.answer("resources", POOLS[0], &json!({})).await?;
        let all: ResourcesAnswer = read("resources", &answer)?;
        let made = self.port.made.borrow();
        let known = |machine: &String| made.iter().any(|known| known.machine == *machine);
        match all.resources.iter().find(|one| one.machine.as_ref().is_some_and(|machine| !known(machine))) {
            Some(other) => failed(format!(
                "the {} `{}` is of a machine that the kit has not created",
                other.kind, other.id
            )),
            None if !all.complete => failed("`resources` answered `\"complete\": false`"),
            None => Ok(()),
        }
    }
}

/// The Ed25519 key on a console, as cloud-init writes it there.
fn key_in(console: &str) -> Option<String> {
    let words: Vec<&str> = console.split_whitespace().collect();
    let pair = words.windows(2).rfind(|pair| pair[0] == "ssh-ed25519" && pair[1].starts_with("AAAA"))?;
    Some(pair.join(" "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_host_key_is_found_on_a_console() {
        let console = "-----BEGIN SSH HOST KEY KEYS-----\r\necdsa-sha2-nistp256 AAAAE2 root@x\r\nssh-ed25519 AAAAC3 root@x\r\n-----END";
        assert_eq!(key_in(console).as_deref(), Some("ssh-ed25519 AAAAC3"));
        assert_eq!(key_in("ssh-ed25519 without"), None);
    }
}
