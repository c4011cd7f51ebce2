//! RSA keys of logins: ring signs with them, in time that does not depend on the key.
//!
//! The SSH library's own RSA needs a crate that leaks the key through its timing (RUSTSEC-2023-0071).

use std::fmt;

use base64ct::{Base64, Encoding as _};
use ring::error::KeyRejected;
use ring::rand::SystemRandom;
use ring::rsa::{KeyPair, KeyPairComponents, PublicKeyComponents};
use ring::signature::{RSA_PKCS1_SHA256, RSA_PKCS1_SHA512};
use russh::keys::ssh_key::Mpint;
use russh::keys::ssh_key::private::{KeypairData, RsaKeypair};
use russh::keys::ssh_key::public::{KeyData, RsaPublicKey};
use russh::keys::{HashAlg, PrivateKey, PublicKey};

const OPENSSH: &str = "OPENSSH PRIVATE KEY";
const PKCS1: &str = "RSA PRIVATE KEY";
const PKCS8: &str = "PRIVATE KEY";
/// The type of an RSA key in PKCS#8: rsaEncryption.
const RSA_ENCRYPTION: &[u8] = &[0x06, 0x09, 0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x01, 0x01];
/// The type stands within so many bytes.
const HEAD: usize = 32;

/// A private key of 2048 to 4096 bits.
pub struct RsaKey {
    pair: KeyPair,
    public: PublicKey,
}

/// The reason Greenroom cannot log in with a private RSA key: [`read`] refuses it.
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
    Some(key_pair(text)?.and_then(RsaKey::of))
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

/// `None`: it is no RSA key, or has a passphrase.
fn key_pair(text: &str) -> Option<Result<KeyPair, RsaKeyError>> {
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

/// The text between the two marks.
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
    let public = key.public();
    let private = key.private();
    let d = bytes(private.d())?;
    let p = bytes(private.p())?;
    let q = bytes(private.q())?;
    let d_p = remainder(d, &one_less(p));
    let d_q = remainder(d, &one_less(q));
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

/// An odd number, less one.
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

/// `value` modulo `modulus`, both with the most significant byte first; as long as the modulus.
fn remainder(value: &[u8], modulus: &[u8]) -> Vec<u8> {
    // One byte more, for the doubling.
    let divisor: Vec<u16> = std::iter::once(0).chain(modulus.iter().copied()).map(u16::from).collect();
    let mut rest = vec![0_u16; divisor.len()];
    let mut less = rest.clone();
    for byte in value {
        for shift in (0..8).rev() {
            double(&mut rest, u16::from(byte >> shift & 1));
            let borrow = subtract(&rest, &divisor, &mut less);
            // All bits set: the rest was the smaller one, and stays.
            let stays = borrow.wrapping_neg();
            for (digit, less) in rest.iter_mut().zip(&less) {
                *digit = (*digit & stays) | (less & !stays);
            }
        }
    }
    rest.iter().skip(1).map(|digit| digit.to_be_bytes()[1]).collect()
}

/// Twice a number, plus a bit. Each digit is one byte.
fn double(number: &mut [u16], bit: u16) {
    let mut carry = bit;
    for digit in number.iter_mut().rev() {
        let doubled = *digit << 1 | carry;
        *digit = doubled & 0xff;
        carry = doubled >> 8;
    }
}

/// The difference of two numbers of the same length; 1 if it is negative.
fn subtract(from: &[u16], what: &[u16], difference: &mut [u16]) -> u16 {
    let mut borrow = 0;
    for ((into, a), b) in difference.iter_mut().zip(from).zip(what).rev() {
        let digit = 0x100 + a - b - borrow;
        *into = digit & 0xff;
        borrow = 1 - (digit >> 8);
    }
    borrow
}

#[cfg(test)]
mod tests {
    // Keys of each format, made by OpenSSH and OpenSSL, and signatures that ring and OpenSSL verify.

    use std::path::Path;
    use std::process::Command;

    use proptest::prelude::*;
    use ring::signature::{RSA_PKCS1_2048_8192_SHA256, RSA_PKCS1_2048_8192_SHA512, UnparsedPublicKey};

    use super::*;

    fn made(dir: &Path, arguments: &[&str]) -> String {
        let path = dir.join(format!("key{}", arguments.concat()));
        let mut keygen = Command::new("ssh-keygen");
        keygen.args(["-q", "-N", "", "-t", "rsa", "-b", "2048"]).args(arguments).arg("-f").arg(&path);
        assert!(keygen.status().unwrap().success());
        std::fs::read_to_string(path).unwrap()
    }

    fn converted(dir: &Path, key: &str, arguments: &[&str]) -> String {
        let path = dir.join("in.pem");
        std::fs::write(&path, key).unwrap();
        let output = Command::new("openssl").args(arguments).arg("-in").arg(&path).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    }

    #[track_caller]
    fn good(text: &str) -> RsaKey {
        read(text).expect("an RSA key").unwrap_or_else(|why| panic!("{why}"))
    }

    /// A signature's two parts.
    fn parts(signature: &[u8]) -> (String, Vec<u8>) {
        let split = |bytes: &[u8]| {
            let (length, rest) = bytes.split_at(4);
            let length = u32::from_be_bytes(length.try_into().unwrap()) as usize;
            let (part, rest) = rest.split_at(length);
            (part.to_vec(), rest.to_vec())
        };
        let (name, rest) = split(signature);
        let (number, rest) = split(&rest);
        assert!(rest.is_empty());
        (String::from_utf8(name).unwrap(), number)
    }

    #[test]
    fn a_key_of_each_format_signs() {
        let dir = tempfile::tempdir().unwrap();
        let openssh = made(dir.path(), &[]);
        let pkcs1 = made(dir.path(), &["-m", "PEM"]);
        let pkcs8 = converted(dir.path(), &pkcs1, &["pkcs8", "-topk8", "-nocrypt"]);
        assert!(pkcs1.contains("BEGIN RSA PRIVATE KEY") && pkcs8.contains("BEGIN PRIVATE KEY"));
        assert_eq!(good(&pkcs1).public(), good(&pkcs8).public());
        for text in [&openssh, &pkcs1, &pkcs8, &pkcs1.replace('\n', "\r\n")] {
            let key = good(text);
            let public = key.pair.public().as_ref();
            let (name, number) = parts(&key.sign(HashAlg::Sha256, b"message").unwrap());
            assert_eq!(name, "rsa-sha2-256");
            UnparsedPublicKey::new(&RSA_PKCS1_2048_8192_SHA256, public).verify(b"message", &number).unwrap();
            let (name, number) = parts(&key.sign(HashAlg::Sha512, b"message").unwrap());
            assert_eq!(name, "rsa-sha2-512");
            UnparsedPublicKey::new(&RSA_PKCS1_2048_8192_SHA512, public).verify(b"message", &number).unwrap();
            assert!(!format!("{key:?}").contains("PRIVATE"));
        }
        let public = std::fs::read_to_string(dir.path().join("key.pub")).unwrap();
        let public = PublicKey::from_openssh(&public).unwrap();
        assert_eq!(good(&openssh).public().key_data(), public.key_data());
    }

    /// The bytes of a number in hexadecimal.
    fn bytes(hex: &str) -> Vec<u8> {
        let hex = if hex.len().is_multiple_of(2) { hex.to_owned() } else { format!("0{hex}") };
        (0..hex.len()).step_by(2).map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap()).collect()
    }

    #[test]
    fn the_smaller_prime_may_come_first() {
        // Go's library, which most plugins are written with, does not order them.
        let dir = tempfile::tempdir().unwrap();
        let pkcs1 = made(dir.path(), &["-m", "PEM"]);
        let parsed = converted(dir.path(), &pkcs1, &["asn1parse"]);
        let integers = parsed.lines().filter(|line| line.contains("INTEGER"));
        let numbers: Vec<&str> = integers.filter_map(|line| line.rsplit(':').next()).collect();
        let [_, modulus, exponent, d, p, q, d_p, d_q, _] = numbers.as_slice() else { panic!("{numbers:?}") };
        let program = "import sys; a, m = (int(x, 16) for x in sys.argv[1:]); print('%X' % pow(a, -1, m))";
        let Ok(inverse) = Command::new("python3").args(["-c", program, p, q]).output() else {
            return greenroom_testkit::skipped::skipped("Python is missing");
        };
        let inverse = String::from_utf8(inverse.stdout).unwrap();
        let components = KeyPairComponents {
            public_key: PublicKeyComponents { n: bytes(modulus), e: bytes(exponent) },
            d: bytes(d),
            p: bytes(q),
            q: bytes(p),
            dP: bytes(d_q),
            dQ: bytes(d_p),
            qInv: bytes(inverse.trim()),
        };
        let key = RsaKey::of(KeyPair::from_components(&components).unwrap()).unwrap();
        assert_eq!(key.public(), good(&pkcs1).public());
        let (_, number) = parts(&key.sign(HashAlg::Sha512, b"message").unwrap());
        let public = UnparsedPublicKey::new(&RSA_PKCS1_2048_8192_SHA512, key.pair.public().as_ref());
        public.verify(b"message", &number).unwrap();
    }

    #[test]
    fn other_keys_are_left_to_the_ssh_library_and_unusable_ones_are_explained() {
        let dir = tempfile::tempdir().unwrap();
        let kinds: [(&[&str], &str); 5] = [
            (&["-t", "ed25519"], "OPENSSH"),
            (&["-t", "ecdsa", "-m", "PKCS8"], "BEGIN PRIVATE"),
            (&["-t", "rsa", "-b", "2048", "-N", "secret"], "OPENSSH"),
            (&["-t", "rsa", "-b", "2048", "-N", "secret", "-m", "PEM"], "RSA PRIVATE KEY"),
            (&["-t", "rsa", "-b", "2048", "-N", "secret", "-m", "PKCS8"], "ENCRYPTED"),
        ];
        for (n, (arguments, text)) in kinds.into_iter().enumerate() {
            let path = dir.path().join(n.to_string());
            let mut keygen = Command::new("ssh-keygen");
            keygen.args(["-q", "-N", ""]).args(arguments).arg("-f").arg(&path);
            assert!(keygen.status().unwrap().success());
            let key = std::fs::read_to_string(path).unwrap();
            assert!(key.contains(text) && read(&key).is_none(), "{arguments:?}");
        }
        assert!(read("hello").is_none());
        let small = read(&made(dir.path(), &["-b", "1024"])).unwrap().unwrap_err();
        assert!(matches!(small, RsaKeyError::TooSmall), "{small}");
        let rubbish = "-----BEGIN RSA PRIVATE KEY-----\nMIIB\n-----END RSA PRIVATE KEY-----\n";
        assert!(matches!(read(rubbish), Some(Err(RsaKeyError::Rejected(_)))));
    }

    #[test]
    fn a_key_that_is_too_large_is_explained() {
        // Making such a key would take half a minute.
        let n = vec![0xff; 640];
        let e = vec![1, 0, 1];
        let one = vec![1];
        let components = KeyPairComponents {
            public_key: PublicKeyComponents { n, e },
            d: one.clone(),
            p: one.clone(),
            q: one.clone(),
            dP: one.clone(),
            dQ: one.clone(),
            qInv: one,
        };
        let rejected = KeyPair::from_components(&components).unwrap_err();
        assert!(matches!(RsaKeyError::from(rejected), RsaKeyError::TooLarge));
    }

    proptest! {
        #[test]
        fn it_is_what_the_processor_computes(value: u128, modulus in 1..=u64::MAX) {
            let found = remainder(&value.to_be_bytes(), &modulus.to_be_bytes());
            let expected = u64::try_from(value % u128::from(modulus)).unwrap();
            prop_assert_eq!(found, expected.to_be_bytes());
        }

        #[test]
        fn a_multiple_leaves_what_was_added(factor: u64, modulus in 1_u64.., rest: u64) {
            let rest = rest % modulus;
            let value = u128::from(factor) * u128::from(modulus) + u128::from(rest);
            prop_assert_eq!(remainder(&value.to_be_bytes(), &modulus.to_be_bytes()), rest.to_be_bytes());
        }
    }
}
