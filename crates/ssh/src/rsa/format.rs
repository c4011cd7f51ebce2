//! The three formats in which private RSA keys are written.

use base64ct::{Base64, Encoding as _};
use ring::rsa::{KeyPair, KeyPairComponents, PublicKeyComponents};
use russh::keys::PrivateKey;
use russh::keys::ssh_key::Mpint;
use russh::keys::ssh_key::private::{KeypairData, RsaKeypair};

use super::RsaKeyError;
use super::remainder::remainder;

const OPENSSH: &str = "OPENSSH PRIVATE KEY";
const PKCS1: &str = "RSA PRIVATE KEY";
const PKCS8: &str = "PRIVATE KEY";
/// In PKCS#8, the type of the key: rsaEncryption.
const RSA_ENCRYPTION: &[u8] = &[0x06, 0x09, 0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x01, 0x01];
/// The type stands within so many bytes.
const HEAD: usize = 32;

/// `None`: it is no RSA key, or has a passphrase.
pub(super) fn of(text: &str) -> Option<Result<KeyPair, RsaKeyError>> {
    if let Some(body) = body(text, PKCS1) {
        // OpenSSL's old way to encrypt has headers.
        if body.contains(':') {
            return None;
        }
        return Some(decoded(body).and_then(|der| Ok(KeyPair::from_der(&der)?)));
    }
    if let Some(body) = body(text, PKCS8) {
        let der = decoded(body).ok()?;
        let head = &der[..der.len().min(HEAD)];
        let is_rsa = head.windows(RSA_ENCRYPTION.len()).any(|part| part == RSA_ENCRYPTION);
        return is_rsa.then(|| Ok(KeyPair::from_pkcs8(&der)?));
    }
    body(text, OPENSSH)?;
    let key = PrivateKey::from_openssh(text.trim()).ok()?;
    let KeypairData::Rsa(numbers) = key.key_data() else { return None };
    Some(of_numbers(numbers))
}

/// What stands between the two marks.
fn body<'a>(text: &'a str, label: &str) -> Option<&'a str> {
    let (_, rest) = text.split_once(&format!("-----BEGIN {label}-----"))?;
    rest.split_once(&format!("-----END {label}-----")).map(|(body, _)| body)
}

fn decoded(body: &str) -> Result<Vec<u8>, RsaKeyError> {
    let compact: String = body.split_ascii_whitespace().collect();
    Base64::decode_vec(&compact).map_err(RsaKeyError::NotBase64)
}

/// OpenSSH's format lacks two of the eight numbers.
fn of_numbers(key: &RsaKeypair) -> Result<KeyPair, RsaKeyError> {
    fn bytes(number: &Mpint) -> Result<&[u8], RsaKeyError> {
        number.as_positive_bytes().ok_or(RsaKeyError::NegativeNumber)
    }
    let (public, private) = (key.public(), key.private());
    let (d, p, q) = (bytes(private.d())?, bytes(private.p())?, bytes(private.q())?);
    let (d_p, d_q) = (remainder(d, &one_less(p)), remainder(d, &one_less(q)));
    let components = KeyPairComponents {
        public_key: PublicKeyComponents { n: bytes(public.n())?, e: bytes(public.e())? },
        d,
        p,
        q,
        dP: without_zeros(&d_p),
        dQ: without_zeros(&d_q),
        qInv: bytes(private.iqmp())?,
    };
    Ok(KeyPair::from_components(&components)?)
}

/// Of an odd number.
fn one_less(prime: &[u8]) -> Vec<u8> {
    let mut number = prime.to_vec();
    if let Some(last) = number.last_mut() {
        *last &= !1;
    }
    number
}

fn without_zeros(number: &[u8]) -> &[u8] {
    let zeros = number.iter().take_while(|byte| **byte == 0).count();
    &number[zeros..]
}
