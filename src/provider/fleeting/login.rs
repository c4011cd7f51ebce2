//! The keys of logins: the pool's own, which plugins put on machines, and those that plugins give.

use std::io;
use std::path::{Path, PathBuf};

use fs_err as fs;
use russh::keys::key::safe_rng;
use russh::keys::ssh_key::LineEnding;
use russh::keys::{self, Algorithm, PrivateKey};

use super::group::ConnectInfo;
use super::record::private;
use crate::core::endpoint::LoginKey;
use crate::core::ids::InstanceId;

/// A pool's directory.
#[derive(Debug, Clone)]
pub struct Logins {
    dir: PathBuf,
}

/// The key that plugins get.
#[derive(Clone, PartialEq, Eq)]
pub struct PoolKey {
    pub path: PathBuf,
    pub text: String,
}

impl std::fmt::Debug for PoolKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PoolKey").field("path", &self.path).finish_non_exhaustive()
    }
}

impl Logins {
    pub fn new(dir: &Path) -> Self {
        Self { dir: dir.to_owned() }
    }

    /// The pool's own key, made once: machines that exist accept it, whichever process asks.
    pub fn pool_key(&self) -> io::Result<PoolKey> {
        let path = self.dir.join("login_key");
        if let Some(text) = read(&path)? {
            return Ok(PoolKey { path, text });
        }
        std::os::unix::fs::DirBuilderExt::mode(std::fs::DirBuilder::new().recursive(true), 0o700)
            .create(&self.dir)?;
        let key = PrivateKey::random(&mut safe_rng(), Algorithm::Ed25519).map_err(io::Error::other)?;
        let text = key.to_openssh(LineEnding::LF).map_err(io::Error::other)?;
        let fresh = self.dir.join(format!("login_key.{}.new", std::process::id()));
        private(&fresh, text.as_bytes())?;
        // RACE: another process may have been faster; its key stays.
        let linked = fs::hard_link(&fresh, &path);
        fs::remove_file(&fresh)?;
        match linked {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
            _ => fs::File::open(&self.dir)?.sync_all()?,
        }
        let text = read(&path)?.ok_or_else(|| io::Error::other("the key is gone"))?;
        Ok(PoolKey { path, text })
    }

    /// The login of an instance. A key of the plugin's is stored as long as the instance is.
    pub fn of(&self, instance: &InstanceId, info: &ConnectInfo, own: &PoolKey) -> Result<LoginKey, String> {
        let own_login = || LoginKey::File(own.path.clone());
        if info.key.is_empty() && info.password.is_empty() {
            return Ok(own_login());
        }
        if info.key.is_empty() {
            return Err("the plugin gives a password for the login, and Greenroom logs in with keys only: set up the \
                        image for a key, and name it with `key_file`"
                .to_owned());
        }
        let given = std::str::from_utf8(&info.key).map_err(|_| not_a_key("it is not a text"))?;
        if given.trim() == own.text.trim() {
            return Ok(own_login());
        }
        let key = usable(given)?;
        if usable(&own.text).is_ok_and(|own| own.key_data() == key.key_data()) {
            return Ok(own_login());
        }
        let path = self.file(instance);
        let stored = read(&path).ok().flatten();
        // A refreshed key takes the place of the earlier one: the recorded login stays the same.
        if stored.as_deref() != Some(given) {
            self.store(&path, given).map_err(|error| format!("the key cannot be stored: {error}"))?;
        }
        Ok(LoginKey::File(path))
    }

    fn store(&self, path: &Path, text: &str) -> io::Result<()> {
        let dir = self.dir.join("logins");
        std::os::unix::fs::DirBuilderExt::mode(std::fs::DirBuilder::new().recursive(true), 0o700)
            .create(&dir)?;
        let fresh = path.with_extension("new");
        private(&fresh, text.as_bytes())?;
        fs::rename(fresh, path)
    }

    /// Removes the key of an instance that is gone.
    pub fn discard(&self, instance: &InstanceId) {
        // CRASH: a key that stays is removed by `sweep`.
        fs::remove_file(self.file(instance)).ok();
    }

    /// Removes the keys of instances that do not exist.
    pub fn sweep(&self, exists: impl Fn(&InstanceId) -> bool) {
        for entry in fs::read_dir(self.dir.join("logins")).into_iter().flatten().flatten() {
            let name = entry.file_name();
            if name.to_str().is_none_or(|name| !exists(&InstanceId::new(name))) {
                fs::remove_file(entry.path()).ok();
            }
        }
    }

    /// Instances have names that are safe as names of files: the pool's, and digits.
    fn file(&self, instance: &InstanceId) -> PathBuf {
        self.dir.join("logins").join(instance.as_str())
    }
}

fn read(path: &Path) -> io::Result<Option<String>> {
    match fs::read_to_string(path) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// The public half of a key that Greenroom can log in with.
fn usable(text: &str) -> Result<keys::PublicKey, String> {
    let rsa = || {
        "the plugin gives an RSA key for the login, which Greenroom cannot use: set `key_file` to an Ed25519 key that the \
         machines accept, with `static_credentials = true` if the plugin needs it"
            .to_owned()
    };
    match keys::decode_secret_key(text, None) {
        Ok(key) if matches!(key.algorithm(), Algorithm::Ed25519 | Algorithm::Ecdsa { .. }) => {
            Ok(key.public_key().clone())
        }
        Ok(key) if matches!(key.algorithm(), Algorithm::Rsa { .. }) => Err(rsa()),
        Ok(key) => Err(not_a_key(&format!("its type is `{}`", key.algorithm()))),
        Err(_) if text.contains("RSA PRIVATE KEY") => Err(rsa()),
        Err(keys::Error::UnsupportedKeyType { .. } | keys::Error::UnknownAlgorithm(_)) => Err(rsa()),
        Err(error) => Err(not_a_key(&error.to_string())),
    }
}

fn not_a_key(why: &str) -> String {
    format!("the plugin gives a key for the login that Greenroom cannot read: {why}")
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    fn info(key: &[u8], password: &str) -> ConnectInfo {
        ConnectInfo {
            username: "ci".to_owned(),
            password: password.to_owned(),
            key: key.to_vec(),
            internal_address: "10.0.0.7".to_owned(),
            ..ConnectInfo::default()
        }
    }

    #[test]
    fn a_pool_has_one_key_for_ever() {
        let dir = tempfile::tempdir().unwrap();
        let logins = Logins::new(&dir.path().join("linux"));
        let key = logins.pool_key().unwrap();
        assert_eq!(logins.pool_key().unwrap(), key);
        assert_eq!(fs::metadata(&key.path).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(fs::read_dir(dir.path().join("linux")).unwrap().count(), 1);
        let id = InstanceId::new("linux-c0ffee-1");
        for given in [info(b"", ""), info(key.text.as_bytes(), ""), info(key.text.as_bytes(), "ignored")] {
            assert_eq!(logins.of(&id, &given, &key), Ok(LoginKey::File(key.path.clone())));
        }
    }

    #[test]
    fn a_plugins_key_is_kept_with_its_instance_and_replaced_in_its_place() {
        let dir = tempfile::tempdir().unwrap();
        let logins = Logins::new(&dir.path().join("linux"));
        let own = logins.pool_key().unwrap();
        let others = [(); 2].map(|()| tempfile::tempdir().unwrap());
        let given = others.each_ref().map(|dir| Logins::new(dir.path()).pool_key().unwrap().text);
        let id = InstanceId::new("linux-c0ffee-1");
        let path = dir.path().join("linux/logins/linux-c0ffee-1");
        for key in &given {
            assert_eq!(logins.of(&id, &info(key.as_bytes(), ""), &own), Ok(LoginKey::File(path.clone())));
            assert_eq!(fs::read_to_string(&path).unwrap(), *key);
            assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        }
        logins.sweep(|known| *known == id);
        assert!(path.exists());
        logins.sweep(|_| false);
        assert!(!path.exists());
    }

    #[test]
    fn what_cannot_be_used_is_a_sentence_with_the_way_out() {
        let dir = tempfile::tempdir().unwrap();
        let logins = Logins::new(dir.path());
        let own = logins.pool_key().unwrap();
        let rsa = b"-----BEGIN RSA PRIVATE KEY-----\nMIIB\n-----END RSA PRIVATE KEY-----\n";
        for (given, expected) in [
            (info(rsa, ""), "an RSA key"),
            (info(b"", "hunter2"), "name it with `key_file`"),
            (info(b"hello", ""), "cannot read"),
            (info(b"\xff\xfe", ""), "it is not a text"),
        ] {
            let error = logins.of(&InstanceId::new("a"), &given, &own).unwrap_err();
            assert!(error.contains(expected) && !error.contains("hunter2"), "{error}");
        }
    }
}
