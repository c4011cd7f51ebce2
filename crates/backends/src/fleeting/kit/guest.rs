//! The instance itself: its address, its SSH server, its host key, the login.

use std::time::{Duration, Instant};

use greenroom_core::endpoint::Endpoint;
use greenroom_core::failure::ErrorClass;
use greenroom_core::ids::InstanceId;
use greenroom_ports::connector::ConnectError;
use greenroom_providers::conformance::verdict::{CheckVerdict, Judged, failed, poll, skipped};

use super::Kit;
use crate::fleeting::group::{CallErrorKind, ConnectInfo, InstanceGroup as _};
use crate::fleeting::login;
use crate::fleeting::reach::{self, ReachError};
use greenroom_core::text::with_causes;

/// Limit of one login.
const LOGIN_WITHIN: Duration = Duration::from_secs(20);

/// Result of the last try of a login.
enum GuestLogin {
    /// The plugin does not say yet how the instance is reached.
    Unknown(String),
    /// Nothing answers there.
    Unreached(String),
    WrongKey(String),
    /// The SSH server answers with the right key.
    Denied(String),
    In,
}

impl Kit {
    /// Logs in to the first instance; true if that works.
    pub(super) async fn check_guest(&self, id: &str) -> bool {
        let begun = Instant::now();
        let earlier = |check: &str| skipped(format!("an earlier step failed, see `{check}`"));
        let [info, answers, key, login] = match self.tried(id).await {
            Err(verdict) => {
                [Err(verdict), earlier("connect-info"), earlier("connect-info"), earlier("connect-info")]
            }
            Ok(GuestLogin::Unknown(came)) => {
                [failed(came), earlier("connect-info"), earlier("connect-info"), earlier("connect-info")]
            }
            Ok(GuestLogin::Unreached(came)) => {
                [Ok(()), failed(came), earlier("endpoint-answers"), earlier("endpoint-answers")]
            }
            Ok(GuestLogin::WrongKey(came)) => [Ok(()), Ok(()), failed(came), earlier("host-key")],
            Ok(GuestLogin::Denied(came)) => [Ok(()), Ok(()), Ok(()), failed(came)],
            Ok(GuestLogin::In) => [Ok(()), Ok(()), Ok(()), Ok(())],
        };
        self.outcomes.record("connect-info", info, begun);
        // If a call has shown no key.
        self.outcomes.record("given-key", skipped("an earlier step failed, see `connect-info`"), begun);
        self.outcomes.record("endpoint-answers", answers, begun);
        self.outcomes.record("host-key", key, begun);
        let is_in = self.outcomes.record("login", login, begun);
        if !is_in {
            let why = "no login works, see `login`";
            self.outcomes.record("heartbeat", skipped(why), begun);
        }
        is_in
    }

    /// Logs in once more to an instance whose first login worked.
    pub(super) async fn logs_in(&self, id: &str) -> Judged {
        let is_known = self.host_keys.borrow().contains_key(id);
        if self.is_locked_out.get() {
            return skipped("no login works any more, see `restart-login`");
        }
        if !is_known {
            return skipped("no login worked before, see `login`");
        }
        match self.tried(id).await? {
            GuestLogin::In => Ok(()),
            GuestLogin::Unknown(came)
            | GuestLogin::Unreached(came)
            | GuestLogin::WrongKey(came)
            | GuestLogin::Denied(came) => failed(came),
        }
    }

    /// Tries until the login works or the time has passed.
    async fn tried(&self, id: &str) -> Judged<GuestLogin> {
        let mut last = None;
        let found = poll(self.limits.boot, async || {
            let tried = self.try_login(id).await?;
            if matches!(tried, GuestLogin::In) {
                return Ok(Some(tried));
            }
            last = Some(tried);
            Ok(None)
        });
        let found = found.await?;
        Ok(found.or(last).unwrap_or(GuestLogin::Unknown("nothing was tried".to_owned())))
    }

    async fn try_login(&self, id: &str) -> Judged<GuestLogin> {
        let info = self.port.plugin().connect_info(id).await;
        if let Err(error) = &info
            && error.kind == CallErrorKind::Refused
        {
            // Many plugins answer so until the instance has an address.
            return Ok(GuestLogin::Unknown(error.message.clone()));
        }
        let info = self.port.answer("ConnectInfo", info)?;
        let endpoint = match reach::endpoint(&self.settings, &info) {
            Ok(endpoint) => endpoint,
            Err(ReachError::NoAddress) => return Ok(GuestLogin::Unknown(format!("`{id}` has no address"))),
            Err(error) => return failed(error.to_string()),
        };
        self.check_key(&info);
        let (instance, endpoint) = self.with_login(id, &info, endpoint)?;
        let host_key = match self.host_key(id, &endpoint).await {
            Ok(host_key) => host_key,
            Err(tried) => return Ok(tried),
        };
        let endpoint = Endpoint { host_key: host_key.clone(), ..endpoint };
        Ok(match self.connector.check(&instance, &endpoint, LOGIN_WITHIN).await {
            Ok(()) => {
                self.remember(id, host_key);
                GuestLogin::In
            }
            Err(error @ ConnectError::HostKey { .. }) => GuestLogin::WrongKey(error.to_string()),
            Err(error @ ConnectError::Refused { .. }) => GuestLogin::Denied(error.to_string()),
            Err(error) => GuestLogin::Unreached(error.to_string()),
        })
    }

    /// Whether the plugin uses the key that it got. One that makes its own at each start can be used with care.
    fn check_key(&self, info: &ConnectInfo) {
        let pool_key = self.own.fingerprint();
        let judged = match (login::another_key(info, &self.own), pool_key) {
            (_, None) => skipped("the login is with a password"),
            (Some(_), _) if info.expires.is_some() => {
                skipped("the credentials expire, and were made for this login")
            }
            (Some(key), Some(pool_key)) => Err(CheckVerdict::Warned(format!(
                "it gives the key {key} instead of {pool_key}: if it makes one at each start, instances that boot meanwhile \
                 deny every login"
            ))),
            (None, Some(_)) => Ok(()),
        };
        self.outcomes.record("given-key", judged, Instant::now());
    }

    /// The endpoint with the key of the login, and a name for the instance.
    fn with_login(&self, id: &str, info: &ConnectInfo, endpoint: Endpoint) -> Judged<(InstanceId, Endpoint)> {
        if info.expires.is_some_and(|at| at <= jiff::Timestamp::now().as_second()) {
            return failed("the credentials have expired");
        }
        // The plugin's IDs are no names of files.
        let number = self.port.seen().iter().position(|known| known == id);
        let instance = InstanceId::new(format!("{}-{}", super::POOL, number.unwrap_or_default()));
        let key = self.logins.of(&instance, info, &self.own);
        let key = key.or_else(|error| failed(with_causes(&error)))?;
        Ok((instance, Endpoint { key: Some(key), ..endpoint }))
    }

    /// The key that the instance must present: that of the first login, or what `host_keys` says.
    async fn host_key(&self, id: &str, at: &Endpoint) -> Result<String, GuestLogin> {
        if let Some(certified) = self.trust.certified(id, &at.address) {
            return Ok(certified);
        }
        let first = self.host_keys.borrow().get(id).cloned();
        if let Some(first) = first {
            return Ok(first);
        }
        self.trust.establish(id, at).await.map_err(|error| match error.class() {
            ErrorClass::Denied => GuestLogin::WrongKey(error.to_string()),
            _ => GuestLogin::Unreached(error.to_string()),
        })
    }

    fn remember(&self, id: &str, host_key: String) {
        self.host_keys.borrow_mut().entry(id.to_owned()).or_insert(host_key);
    }
}
