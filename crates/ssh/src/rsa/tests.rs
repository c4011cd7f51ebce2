//! Keys of each format, made by OpenSSH and OpenSSL, and signatures that ring and OpenSSL verify.

use std::path::Path;
use std::process::Command;

use ring::rsa::KeyPairComponents;
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
    let (n, e, one) = (vec![0xff; 640], vec![1, 0, 1], vec![1]);
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
