//! RSA keys of logins: ring signs with them, in time that does not depend on the key.
//!
//! The SSH library's own RSA needs a crate that leaks the key through its timing (RUSTSEC-2023-0071).

mod format;
mod remainder;

use std::fmt;

use ring::error::KeyRejected;
use ring::rand::SystemRandom;
use ring::rsa::{KeyPair, PublicKeyComponents};
use ring::signature::{RSA_PKCS1_SHA256, RSA_PKCS1_SHA512};
use russh::keys::ssh_key::Mpint;
use russh::keys::ssh_key::public::{KeyData, RsaPublicKey};
use russh::keys::{HashAlg, PublicKey};

/// A private key of 2048 to 4096 bits.
pub struct RsaKey {
    pair: KeyPair,
    public: PublicKey,
}

/// Why Greenroom cannot log in with a private RSA key.
#[derive(Debug, thiserror::Error)]
pub enum RsaKeyError {
    #[error("the key's content is not Base64")]
    NotBase64(#[source] base64ct::Error),
    #[error("the key has a negative number")]
    NegativeNumber,
    #[error("the key has less than 2048 bits")]
    TooSmall,
    #[error("the key has more than 4096 bits")]
    TooLarge,
    #[error("the key's numbers are not accepted ({0})")]
    Rejected(KeyRejected),
    #[error("the key's public half is not valid")]
    PublicHalf(#[source] russh::keys::ssh_key::Error),
}

impl From<KeyRejected> for RsaKeyError {
    fn from(rejected: KeyRejected) -> Self {
        // ring has no other way to tell these two from the rest.
        match rejected.to_string().as_str() {
            "TooSmall" => Self::TooSmall,
            "TooLarge" => Self::TooLarge,
            _ => Self::Rejected(rejected),
        }
    }
}

/// Reads a private key in OpenSSH's format, PKCS#1 or PKCS#8, without a passphrase. `None`: it is of another type, or has a
/// passphrase.
pub fn read(text: &str) -> Option<Result<RsaKey, RsaKeyError>> {
    Some(format::of(text)?.and_then(RsaKey::of))
}

impl RsaKey {
    fn of(pair: KeyPair) -> Result<Self, RsaKeyError> {
        let PublicKeyComponents { n, e } = PublicKeyComponents::<Vec<u8>>::from(pair.public());
        let [n, e] = [n, e].map(|number| Mpint::from_positive_bytes(&number));
        let public = RsaPublicKey::new(e, n).map_err(RsaKeyError::PublicHalf)?;
        Ok(Self { pair, public: PublicKey::from(KeyData::Rsa(public)) })
    }

    pub fn public(&self) -> &PublicKey {
        &self.public
    }

    /// The signature of a message as a server reads it: the algorithm's name, then the number.
    pub fn sign(&self, hash: HashAlg, message: &[u8]) -> Option<Vec<u8>> {
        let (name, padding): (_, &dyn ring::signature::RsaEncoding) = match hash {
            HashAlg::Sha256 => ("rsa-sha2-256", &RSA_PKCS1_SHA256),
            HashAlg::Sha512 => ("rsa-sha2-512", &RSA_PKCS1_SHA512),
            _ => return None,
        };
        let mut number = vec![0; self.pair.public().modulus_len()];
        self.pair.sign(padding, &SystemRandom::new(), message, &mut number).ok()?;
        let mut signature = Vec::new();
        for part in [name.as_bytes(), &number] {
            signature.extend(u32::try_from(part.len()).ok()?.to_be_bytes());
            signature.extend(part);
        }
        Some(signature)
    }
}

/// The public half alone.
impl fmt::Debug for RsaKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("RsaKey").field(&self.public.fingerprint(HashAlg::Sha256)).finish()
    }
}

#[cfg(test)]
mod tests;
