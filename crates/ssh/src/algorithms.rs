//! Algorithms offered in a key exchange.

use std::borrow::Cow;
use std::sync::Arc;

use russh::client::Config;
use russh::keys::{Algorithm, EcdsaCurve};
use russh::{Preferred, SshId, cipher};

use super::SshSettings;
use super::accepted::Accepted;

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
pub(super) fn config(settings: &SshSettings, accepted: Option<&Accepted>) -> Arc<Config> {
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
            let config = config(&settings, Some(&Accepted::read(text, "host:22").unwrap()));
            let preferred = &config.preferred;
            assert!(preferred.cipher.contains(&cipher::AES_128_GCM));
            (preferred.key.to_vec(), preferred.host_key_certificates.to_vec())
        };
        assert_eq!(offered(KEY), (vec![Algorithm::Ed25519], vec![]));
        assert_eq!(offered(&certified(&["m1"], &[KEY.to_owned()])), (vec![], HOST_KEYS.to_vec()));
    }
}
