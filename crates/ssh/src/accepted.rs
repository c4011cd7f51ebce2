//! The host keys that an endpoint accepts: the recorded one, or each that a certificate authority has signed.

use std::net::IpAddr;
use std::time::{SystemTime, UNIX_EPOCH};

use greenroom_core::endpoint::AUTHORITY;
use greenroom_core::text::clean_line;
use greenroom_ports::connector::ConnectError;
use jiff::Timestamp;
use russh::keys::ssh_key::certificate::CertType;
use russh::keys::ssh_key::{self, Fingerprint};
use russh::keys::{Algorithm, Certificate, HashAlg, PublicKey, PublicKeyOrCertificate};

/// The key or the certificate that a host has to present.
#[derive(Debug, Clone)]
pub(super) enum Accepted {
    Key(PublicKey),
    /// A certificate for the key that it proves to have.
    Certified(Authorities),
}

/// The certificate authorities of a host's key, and the names of that host.
#[derive(Debug, Clone)]
pub(super) struct Authorities {
    keys: Vec<PublicKey>,
    names: Vec<String>,
}

/// The reason a recorded host key or authority cannot be used in [`Accepted`].
#[derive(Debug, thiserror::Error)]
pub(super) enum RecordedKeyError {
    #[error("the {role} recorded for {at} is not in OpenSSH format (`ssh-ed25519 AAAA…`)")]
    Format { role: &'static str, at: String },
    #[error(
        "the {role} recorded for {at} is of type `{algorithm}`, which is not supported: record an ssh-ed25519 or ECDSA \
         key"
    )]
    Algorithm { role: &'static str, at: String, algorithm: Algorithm },
}

impl From<RecordedKeyError> for ConnectError {
    fn from(error: RecordedKeyError) -> Self {
        Self::Local { what: error.to_string() }
    }
}

/// A host has proven to have another key than an accepted one.
#[derive(Debug, thiserror::Error)]
pub(super) enum HostKeyMismatch {
    #[error("{presented}")]
    Key { presented: Fingerprint },
    #[error("{presented}, without a certificate")]
    NoCertificate { presented: Fingerprint },
    #[error("{presented} ({fault})")]
    Certificate {
        presented: Fingerprint,
        #[source]
        fault: Box<CertificateFault>,
    },
}

/// The reason a host certificate proves nothing.
#[derive(Debug, thiserror::Error)]
pub(super) enum CertificateFault {
    #[error("the certificate is one for users, not for hosts")]
    ForUsers,
    #[error("the certificate is signed by {0}")]
    OtherAuthority(Fingerprint),
    /// The time, in seconds since 1970; so is the next one.
    #[error("the certificate is valid only from {} on", moment(*.0))]
    NotYetValid(u64),
    #[error("the certificate expired at {}", moment(*.0))]
    Expired(u64),
    #[error("the certificate names no host")]
    NoName,
    #[error("the certificate is for {0}")]
    OtherName(String),
    #[error("the certificate has the critical option `{0}`, which Greenroom does not know")]
    CriticalOption(String),
    #[error("the certificate has a wrong signature")]
    Signature(#[source] ssh_key::Error),
}

impl Accepted {
    /// Reads the host key of an endpoint: a public key, or lines `@cert-authority NAME[,NAME…] KEY`.
    pub(super) fn read(text: &str, at: &str) -> Result<Self, RecordedKeyError> {
        let text = text.trim();
        if !text.starts_with(AUTHORITY) {
            return public_key(text, "host key", at).map(Self::Key);
        }
        let mut keys = Vec::new();
        let mut names = Vec::new();
        for line in text.lines() {
            let mut words = line.splitn(3, ' ').skip(1);
            let listed = words.next().unwrap_or_default();
            let key = words.next().unwrap_or_default();
            keys.push(public_key(key, "key of a certificate authority", at)?);
            names = listed.split(',').filter(|name| !name.is_empty()).map(ToOwned::to_owned).collect();
        }
        Ok(Self::Certified(Authorities { keys, names }))
    }

    /// Checks the key that a host has proven to have.
    pub(super) fn check(&self, found: &PublicKeyOrCertificate) -> Result<(), HostKeyMismatch> {
        let key = found.public_key();
        let presented = key.fingerprint(HashAlg::Sha256);
        match (self, found.certificate()) {
            (Self::Key(recorded), None) if recorded.key_data() == key.key_data() => Ok(()),
            (Self::Key(_), _) => Err(HostKeyMismatch::Key { presented }),
            (Self::Certified(_), None) => Err(HostKeyMismatch::NoCertificate { presented }),
            (Self::Certified(authorities), Some(certificate)) => {
                let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
                let check = authorities.check(certificate, now.as_secs());
                check.map_err(|fault| HostKeyMismatch::Certificate { presented, fault: Box::new(fault) })
            }
        }
    }

    /// The expected key or certificate, for messages.
    pub(super) fn expected(&self) -> String {
        match self {
            Self::Key(key) => key.fingerprint(HashAlg::Sha256).to_string(),
            Self::Certified(Authorities { keys, names }) => {
                let prints = keys.iter().map(|key| key.fingerprint(HashAlg::Sha256).to_string());
                let prints: Vec<_> = prints.collect();
                let names = clean_line(names.join(" or ").as_bytes(), 200);
                format!("one with a certificate for {names}, signed by {}", prints.join(" or "))
            }
        }
    }

    /// The kind of host key that is expected, for messages.
    pub(super) fn kind(&self) -> String {
        match self {
            Self::Key(key) => format!("of type {}", key.algorithm()),
            Self::Certified(_) => "with a certificate".to_owned(),
        }
    }
}

impl Authorities {
    /// Checks a certificate at a moment, in seconds since 1970.
    fn check(&self, certificate: &Certificate, now: u64) -> Result<(), CertificateFault> {
        if certificate.cert_type() != CertType::Host {
            return Err(CertificateFault::ForUsers);
        }
        let authority = certificate.signature_key();
        if !self.keys.iter().any(|key| key.key_data() == authority) {
            return Err(CertificateFault::OtherAuthority(authority.fingerprint(HashAlg::Sha256)));
        }
        if certificate.valid_after() > now {
            return Err(CertificateFault::NotYetValid(certificate.valid_after()));
        }
        if certificate.valid_before() <= now {
            return Err(CertificateFault::Expired(certificate.valid_before()));
        }
        let principals = certificate.valid_principals();
        if principals.is_empty() {
            return Err(CertificateFault::NoName);
        }
        if !principals.iter().any(|one| self.names.iter().any(|name| is_same_host(one, name))) {
            return Err(CertificateFault::OtherName(clean_line(principals.join(", ").as_bytes(), 200)));
        }
        if let Some(option) = certificate.critical_options().keys().next() {
            return Err(CertificateFault::CriticalOption(clean_line(option.as_bytes(), 60)));
        }
        // The signature, and once more the authority and the time.
        let prints: Vec<_> = self.keys.iter().map(|key| key.fingerprint(HashAlg::Sha256)).collect();
        certificate.validate_at(now, &prints).map_err(CertificateFault::Signature)
    }
}

/// True for the same address, or the same name in any case.
fn is_same_host(one: &str, other: &str) -> bool {
    let address = |text: &str| text.parse::<IpAddr>().ok();
    one.eq_ignore_ascii_case(other) || address(one).is_some_and(|one| address(other) == Some(one))
}

fn moment(seconds: u64) -> String {
    let known = i64::try_from(seconds).ok().and_then(|seconds| Timestamp::from_second(seconds).ok());
    known.map_or_else(|| format!("{seconds} s after 1970"), |known| known.to_string())
}

/// Reads a key of a kind that can be verified.
fn public_key(text: &str, role: &'static str, at: &str) -> Result<PublicKey, RecordedKeyError> {
    let key = PublicKey::from_openssh(text.trim())
        .map_err(|_| RecordedKeyError::Format { role, at: at.to_owned() })?;
    match key.algorithm() {
        Algorithm::Ed25519 | Algorithm::Ecdsa { .. } => Ok(key),
        algorithm => Err(RecordedKeyError::Algorithm { role, at: at.to_owned(), algorithm }),
    }
}

#[cfg(test)]
mod tests {
    use greenroom_core::endpoint::certified;
    use russh::keys::PrivateKey;
    use russh::keys::key::safe_rng;
    use russh::keys::ssh_key::certificate::Builder;

    use super::*;

    const KEY: &str = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJdD7y3aLq454yWBdwLWbieU1ebz9/cu7/QEXn9OIeZJ";
    const NOW: u64 = 1_800_000_000;

    fn made() -> PrivateKey {
        PrivateKey::random(&mut safe_rng(), Algorithm::Ed25519).unwrap()
    }

    /// A certificate for the host `m1`, valid for a minute around `NOW`, after a change.
    fn signed(by: &PrivateKey, change: impl Fn(&mut Builder)) -> Certificate {
        signed_as(CertType::Host, by, change)
    }

    fn signed_as(kind: CertType, by: &PrivateKey, change: impl Fn(&mut Builder)) -> Certificate {
        let key = made();
        let from = NOW - 30;
        let to = NOW + 30;
        let mut builder =
            Builder::new_with_random_nonce(&mut safe_rng(), key.public_key(), from, to).unwrap();
        builder.cert_type(kind).unwrap();
        change(&mut builder);
        builder.sign(by).unwrap()
    }

    fn is_for(name: &'static str) -> impl Fn(&mut Builder) {
        move |builder| {
            builder.valid_principal(name).unwrap();
        }
    }

    fn authorities(of: &[&PrivateKey]) -> Authorities {
        let keys: Vec<_> = of.iter().map(|key| key.public_key().to_openssh().unwrap()).collect();
        let Accepted::Certified(known) =
            Accepted::read(&certified(&["10.0.0.7", "M1"], &keys), "m1:22").unwrap()
        else {
            panic!("no authorities")
        };
        known
    }

    #[test]
    fn a_certificate_counts_while_it_is_valid_and_for_its_own_host() {
        let first = made();
        let second = made();
        let other = made();
        let known = authorities(&[&first, &second]);
        let plain = |builder: &mut Builder| {
            builder.valid_principal("m0").unwrap().valid_principal("m1").unwrap();
        };
        for by in [&first, &second] {
            known.check(&signed(by, plain), NOW).unwrap();
        }
        known.check(&signed(&first, is_for("10.0.0.7")), NOW).unwrap();
        let refused = |certificate: &Certificate, now| known.check(certificate, now).unwrap_err().to_string();
        let good = signed(&first, plain);
        assert!(refused(&good, NOW + 30).starts_with("the certificate expired at 2027-01-15T08:00:30Z"));
        assert!(
            refused(&good, NOW - 31).starts_with("the certificate is valid only from 2027-01-15T07:59:30Z")
        );
        assert!(refused(&signed(&other, plain), NOW).starts_with("the certificate is signed by SHA256:"));
        assert_eq!(
            refused(&signed_as(CertType::User, &first, plain), NOW),
            "the certificate is one for users, not for hosts"
        );
        let all = |b: &mut Builder| {
            b.all_principals_valid().unwrap();
        };
        assert_eq!(refused(&signed(&first, all), NOW), "the certificate names no host");
        let elsewhere = signed(&first, is_for("m10"));
        assert_eq!(refused(&elsewhere, NOW), "the certificate is for m10");
        let bound = |b: &mut Builder| {
            plain(b);
            b.critical_option("only-on", "mondays").unwrap();
        };
        let text = refused(&signed(&first, bound), NOW);
        assert!(text.starts_with("the certificate has the critical option `only-on`"), "{text}");
    }

    #[test]
    fn a_certificate_that_was_changed_after_its_signature_is_refused() {
        let authority = made();
        let mut bytes = signed(&authority, is_for("10.0.0.8")).to_bytes().unwrap();
        let at = bytes.windows(8).position(|name| name == b"10.0.0.8").unwrap();
        bytes[at + 7] = b'7';
        let forged = Certificate::from_bytes(&bytes).unwrap();
        let refused = authorities(&[&authority]).check(&forged, NOW).unwrap_err();
        assert_eq!(refused.to_string(), "the certificate has a wrong signature");
    }

    #[test]
    fn a_host_key_that_cannot_be_used_is_refused_with_what_to_do() {
        let refused = |text: &str| Accepted::read(text, "host:22").unwrap_err().to_string();
        let text = refused("nonsense");
        assert!(text.contains("host:22") && text.contains("OpenSSH form"), "{text}");
        let rsa = "ssh-rsa AAAAB3NzaC1yc2EAAAADAQABAAAAQQDJ0bMQ9cBmTZGXhkFMcc6DXNm4G3kmzEjDfR8tVNN9ZkJAY2nI\
                   k2mQmA7Tn0V3wZGcOrRgEhFIUOrpX8FQ8RVb";
        let text = refused(rsa);
        assert!(text.contains("ssh-ed25519"), "{text}");
        let text = refused(&certified(&["m1"], &[KEY, rsa].map(ToOwned::to_owned)));
        assert!(text.contains("certificate authority") && text.contains("ssh-rsa"), "{text}");
        assert!(refused("@cert-authority m1").contains("OpenSSH format"));
    }

    #[test]
    fn a_name_is_the_same_in_any_case_and_an_address_in_any_spelling() {
        assert!(is_same_host("M1.example", "m1.Example") && is_same_host("2001:db8::1", "2001:db8:0::1"));
        assert!(!is_same_host("m1", "m1.example") && !is_same_host("10.0.0.1", "10.0.0.10"));
    }
}
