//! The client side of an SSH session: its algorithms, and how it handles the instance's requests and the connection's end.

use std::borrow::Cow;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use greenroom_core::text::clean_line;
use russh::client::{ChannelOpenHandle, Config, DisconnectReason, Handler, Msg, Session};
use russh::keys::{Algorithm, EcdsaCurve, PublicKey, PublicKeyOrCertificate};
use russh::{Channel, Error, Preferred, SshId, cipher};
use tokio::sync::Notify;
use tokio::time::timeout;

use super::accepted::Accepted;
use super::{SshSettings, dial};

/// Interval at which waiting tasks check for the connection's end, in case they missed its notification.
const CHECK_INTERVAL: Duration = Duration::from_secs(30);

/// The reason, for messages, why a connection ended that another party has closed.
pub(super) const CLOSED: &str = "the instance closed the connection";

/// The facts that the session's task has learnt, for the tasks that wait for the session.
#[derive(Debug, Clone, Default)]
pub(super) struct Notes(Arc<Board>);

#[derive(Debug, Default)]
struct Board {
    learnt: Mutex<Learnt>,
    over: Notify,
}

#[derive(Debug, Default)]
struct Learnt {
    /// A host key that is not accepted.
    other_key: Option<PublicKey>,
    /// The key that the host presents instead of an accepted one, for messages.
    presented: Option<String>,
    ended: Option<String>,
}

impl Notes {
    fn learnt(&self) -> MutexGuard<'_, Learnt> {
        self.0.learnt.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn other_key(&self) -> Option<PublicKey> {
        self.learnt().other_key.clone()
    }

    /// The key that the host presents instead of an accepted one, for messages.
    pub(super) fn presented(&self) -> Option<String> {
        self.learnt().presented.clone()
    }

    pub(super) fn has_ended(&self) -> bool {
        self.learnt().ended.is_some()
    }

    /// Resolves at the connection's end, or after [`CHECK_INTERVAL`].
    pub(super) async fn ended_or_interval(&self) {
        let _elapsed = timeout(CHECK_INTERVAL, self.0.over.notified()).await;
    }

    /// Returns why the connection ended, for messages.
    pub(super) fn ended(&self) -> String {
        self.learnt().ended.clone().unwrap_or_else(|| "the connection ended without a reason".to_owned())
    }
}

/// The client side of one session.
#[derive(Debug)]
pub(super) struct Client {
    /// `None` accepts no host key, to learn which one the host presents.
    accepted: Option<Accepted>,
    notes: Notes,
    /// Limit of a connection's silence, for the message.
    silence: String,
}

impl Client {
    pub(super) fn new(accepted: Option<Accepted>, notes: Notes, silence: String) -> Self {
        Self { accepted, notes, silence }
    }
}

impl Handler for Client {
    type Error = Error;

    async fn check_server_key(&mut self, found: &PublicKeyOrCertificate) -> Result<bool, Error> {
        let presented = match self.accepted.as_ref().map(|accepted| accepted.check(found)) {
            Some(Ok(())) => return Ok(true),
            Some(Err(mismatch)) => Some(mismatch.to_string()),
            None => None,
        };
        let mut learnt = self.notes.learnt();
        learnt.other_key = Some(found.public_key());
        learnt.presented = presented;
        Ok(false)
    }

    async fn disconnected(&mut self, reason: DisconnectReason<Error>) -> Result<(), Error> {
        let ended = match &reason {
            DisconnectReason::ReceivedDisconnect(info) => match clean_line(info.message.as_bytes(), 120) {
                message if message.is_empty() => CLOSED.to_owned(),
                message => format!("{CLOSED} (`{message}`)"),
            },
            DisconnectReason::Error(Error::KeepaliveTimeout) => format!("no answer for {}", self.silence),
            DisconnectReason::Error(error) => explain(error),
        };
        self.notes.learnt().ended = Some(ended);
        self.notes.0.over.notify_waiters();
        Ok(())
    }

    // The instance has no reason to open a channel. Dropping the handle refuses it.

    async fn server_channel_open_session(
        &mut self,
        _: Channel<Msg>,
        _: ChannelOpenHandle,
        _: &mut Session,
    ) -> Result<(), Error> {
        Ok(())
    }

    async fn server_channel_open_forwarded_tcpip(
        &mut self,
        _: Channel<Msg>,
        _: &str,
        _: u32,
        _: &str,
        _: u32,
        _: ChannelOpenHandle,
        _: &mut Session,
    ) -> Result<(), Error> {
        Ok(())
    }

    async fn server_channel_open_forwarded_streamlocal(
        &mut self,
        _: Channel<Msg>,
        _: &str,
        _: ChannelOpenHandle,
        _: &mut Session,
    ) -> Result<(), Error> {
        Ok(())
    }

    async fn server_channel_open_agent_forward(
        &mut self,
        _: Channel<Msg>,
        _: ChannelOpenHandle,
        _: &mut Session,
    ) -> Result<(), Error> {
        Ok(())
    }

    async fn server_channel_open_direct_tcpip(
        &mut self,
        _: Channel<Msg>,
        _: &str,
        _: u32,
        _: &str,
        _: u32,
        _: ChannelOpenHandle,
        _: &mut Session,
    ) -> Result<(), Error> {
        Ok(())
    }

    async fn server_channel_open_direct_streamlocal(
        &mut self,
        _: Channel<Msg>,
        _: &str,
        _: ChannelOpenHandle,
        _: &mut Session,
    ) -> Result<(), Error> {
        Ok(())
    }

    async fn server_channel_open_x11(
        &mut self,
        _: Channel<Msg>,
        _: &str,
        _: u32,
        _: ChannelOpenHandle,
        _: &mut Session,
    ) -> Result<(), Error> {
        Ok(())
    }
}

/// russh's error as text for messages.
pub(super) fn explain(error: &Error) -> String {
    match error {
        Error::Disconnect | Error::HUP | Error::SendError | Error::RecvError => CLOSED.to_owned(),
        Error::IO(io) if io.kind() == std::io::ErrorKind::UnexpectedEof => CLOSED.to_owned(),
        Error::IO(io) => dial::plain(io),
        Error::Version => "the server does not speak SSH 2".to_owned(),
        Error::NoCommonAlgo { kind, theirs, .. } => {
            let kind = format!("{kind:?}").to_lowercase();
            format!(
                "no common {kind} algorithm (the server offers {})",
                clean_line(theirs.join(", ").as_bytes(), 200)
            )
        }
        other => {
            let message = clean_line(other.to_string().as_bytes(), 160);
            format!("the server violated the SSH protocol ({})", message.to_lowercase())
        }
    }
}

/// The receive window. A quarter of this size costs a third of the throughput; four times this size gains nothing.
const WINDOW: u32 = 2 << 20;
/// The largest accepted packet; every server splits its data accordingly.
const PACKET: u32 = 32 << 10;
/// Unread messages of a channel: at most 8 × 32 KiB, then the guest has to wait.
const WAITING_MESSAGES: usize = 8;

/// AES first if the processor supports it: half the CPU time of chacha20. russh itself does not offer aes128-gcm.
const WITH_AES: &[cipher::Name] = &[
    cipher::AES_128_GCM,
    cipher::AES_256_GCM,
    cipher::CHACHA20_POLY1305,
    cipher::AES_256_CTR,
    cipher::AES_128_CTR,
];
const WITHOUT_AES: &[cipher::Name] = &[
    cipher::CHACHA20_POLY1305,
    cipher::AES_128_GCM,
    cipher::AES_256_GCM,
    cipher::AES_256_CTR,
    cipher::AES_128_CTR,
];

/// The kinds of host key that can be verified, the best first.
const HOST_KEYS: &[Algorithm] = &[
    Algorithm::Ed25519,
    Algorithm::Ecdsa { curve: EcdsaCurve::NistP256 },
    Algorithm::Ecdsa { curve: EcdsaCurve::NistP384 },
    Algorithm::Ecdsa { curve: EcdsaCurve::NistP521 },
];

/// A client that accepts the host keys of an endpoint; `None`: a key of any kind.
pub(super) fn client_config(settings: &SshSettings, accepted: Option<&Accepted>) -> Arc<Config> {
    let (key, host_key_certificates) = match accepted {
        Some(Accepted::Key(key)) => (vec![key.algorithm()], Vec::new()),
        Some(Accepted::Certified(_)) => (Vec::new(), HOST_KEYS.to_vec()),
        None => (HOST_KEYS.to_vec(), Vec::new()),
    };
    let preferred = Preferred {
        key: Cow::Owned(key),
        host_key_certificates: Cow::Owned(host_key_certificates),
        cipher: Cow::Borrowed(if has_aes() { WITH_AES } else { WITHOUT_AES }),
        ..Preferred::DEFAULT
    };
    Arc::new(Config {
        client_id: SshId::Standard(Cow::Borrowed(concat!("SSH-2.0-greenroom_", env!("CARGO_PKG_VERSION")))),
        window_size: WINDOW,
        maximum_packet_size: PACKET,
        channel_buffer_size: WAITING_MESSAGES,
        preferred,
        keepalive_interval: Some(settings.keepalive),
        keepalive_max: usize::try_from(settings.keepalive_misses.max(1)).unwrap_or(usize::MAX),
        nodelay: true,
        ..Config::default()
    })
}

fn has_aes() -> bool {
    #[cfg(target_arch = "x86_64")]
    return std::arch::is_x86_feature_detected!("aes") && std::arch::is_x86_feature_detected!("pclmulqdq");
    #[cfg(target_arch = "aarch64")]
    return std::arch::is_aarch64_feature_detected!("aes");
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    false
}

#[cfg(test)]
mod tests {
    use greenroom_core::endpoint::certified;

    use super::*;

    const KEY: &str = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJdD7y3aLq454yWBdwLWbieU1ebz9/cu7/QEXn9OIeZJ";

    #[test]
    fn only_what_the_endpoint_accepts_is_offered() {
        let settings = SshSettings::new("keys");
        let offered = |text: &str| {
            let config = client_config(&settings, Some(&Accepted::read(text, "host:22").unwrap()));
            let preferred = &config.preferred;
            assert!(preferred.cipher.contains(&cipher::AES_128_GCM));
            (preferred.key.to_vec(), preferred.host_key_certificates.to_vec())
        };
        assert_eq!(offered(KEY), (vec![Algorithm::Ed25519], vec![]));
        assert_eq!(offered(&certified(&["m1"], &[KEY.to_owned()])), (vec![], HOST_KEYS.to_vec()));
    }
}
