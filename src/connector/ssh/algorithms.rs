//! Algorithms offered in a key exchange.

use std::borrow::Cow;
use std::sync::Arc;

use russh::client::Config;
use russh::keys::{Algorithm, EcdsaCurve, PublicKey};
use russh::{Preferred, SshId, cipher};

use super::SshSettings;
use crate::port::connector::ConnectError;

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

/// The kinds of host key that can be recorded, the best first.
pub(super) const HOST_KEYS: &[Algorithm] = &[
    Algorithm::Ed25519,
    Algorithm::Ecdsa { curve: EcdsaCurve::NistP256 },
    Algorithm::Ecdsa { curve: EcdsaCurve::NistP384 },
    Algorithm::Ecdsa { curve: EcdsaCurve::NistP521 },
];

/// Reads the recorded host key of an endpoint.
pub(super) fn recorded_key(text: &str, at: &str) -> Result<PublicKey, ConnectError> {
    let local = |what| ConnectError::Local { what };
    let key = PublicKey::from_openssh(text.trim()).map_err(|_| {
        local(format!("the host key recorded for {at} is not in OpenSSH format (`ssh-ed25519 AAAA…`)"))
    })?;
    match key.algorithm() {
        Algorithm::Ed25519 | Algorithm::Ecdsa { .. } => Ok(key),
        other => Err(local(format!(
            "the host key recorded for {at} is of type `{other}`, which is not supported: record the host's \
             ssh-ed25519 or ECDSA key"
        ))),
    }
}

/// A client that accepts host keys of these algorithms only: the recorded key's.
pub(super) fn config(settings: &SshSettings, host_keys: Vec<Algorithm>) -> Arc<Config> {
    let preferred = Preferred {
        key: Cow::Owned(host_keys),
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
    use super::*;

    const KEY: &str = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJdD7y3aLq454yWBdwLWbieU1ebz9/cu7/QEXn9OIeZJ";

    #[test]
    fn only_the_algorithm_of_the_recorded_key_is_offered() {
        let key = recorded_key(KEY, "host:22").unwrap();
        let config = config(&SshSettings::new("keys"), vec![key.algorithm()]);
        assert_eq!(config.preferred.key.as_ref(), [Algorithm::Ed25519]);
        assert!(config.preferred.host_key_certificates.is_empty());
        assert!(config.preferred.cipher.contains(&cipher::AES_128_GCM));
    }

    #[test]
    fn a_host_key_that_cannot_be_used_is_refused_with_what_to_do() {
        let text = recorded_key("nonsense", "host:22").unwrap_err().to_string();
        assert!(text.contains("host:22") && text.contains("OpenSSH form"), "{text}");
        let rsa = "ssh-rsa AAAAB3NzaC1yc2EAAAADAQABAAAAQQDJ0bMQ9cBmTZGXhkFMcc6DXNm4G3kmzEjDfR8tVNN9ZkJAY2nI\
                   k2mQmA7Tn0V3wZGcOrRgEhFIUOrpX8FQ8RVb";
        let text = recorded_key(rsa, "host:22").unwrap_err().to_string();
        assert!(text.contains("ssh-ed25519"), "{text}");
    }
}
