//! Keys and passwords of logins: the pool's own, which plugins put on machines, and those that plugins give.

use std::io;
use std::path::{Path, PathBuf};

use fs_err as fs;
use greenroom_core::endpoint::LoginKey;
use greenroom_core::ids::InstanceId;
use greenroom_ssh::rsa::{self, RsaKeyError};
use russh::keys::key::safe_rng;
use russh::keys::ssh_key::LineEnding;
use russh::keys::{self, Algorithm, HashAlg, PrivateKey};

use super::group::ConnectInfo;
use super::record::private;

/// Ends of the names of files, after the instance's name.
const KEY: &str = "";
const PASSWORD: &str = ".password";

/// The reason the key or the password of a pool's logins cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum OwnLoginError {
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error("{} has no password", .0.display())]
    NoPassword(PathBuf),
}

/// The reason an instance has no login.
#[derive(Debug, thiserror::Error)]
pub enum LoginError {
    #[error("the plugin gives a key for the login that Greenroom cannot read: it is not a text")]
    NotText,
    #[error("the plugin gives a key for the login that Greenroom cannot read: an RSA key")]
    Rsa(#[source] RsaKeyError),
    #[error("the plugin gives a key for the login that Greenroom cannot read: its type is `{0}`")]
    Algorithm(Algorithm),
    #[error("the plugin gives a key for the login that Greenroom cannot read")]
    Key(#[source] keys::Error),
    #[error("the {what} of the login cannot be stored")]
    Store {
        what: &'static str,
        #[source]
        cause: io::Error,
    },
}

/// A pool's directory.
#[derive(Debug, Clone)]
pub struct Logins {
    dir: PathBuf,
}

/// The login that plugins get: a private key or a password.
#[derive(Clone, PartialEq, Eq)]
pub struct OwnLogin {
    /// The key that names the file of the private key or the password.
    pub at: LoginKey,
    pub text: String,
}

impl std::fmt::Debug for OwnLogin {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("OwnLogin").field("at", &self.at).finish_non_exhaustive()
    }
}

impl OwnLogin {
    /// The operator's key.
    pub fn key_file(path: &Path) -> io::Result<Self> {
        Ok(Self { at: LoginKey::File(path.to_owned()), text: fs::read_to_string(path)? })
    }

    /// The operator's password.
    pub fn password_file(path: &Path) -> Result<Self, OwnLoginError> {
        let text = fs::read_to_string(path)?;
        let password = text.strip_suffix('\n').unwrap_or(&text);
        let password = password.strip_suffix('\r').unwrap_or(password);
        if password.is_empty() {
            return Err(OwnLoginError::NoPassword(path.to_owned()));
        }
        Ok(Self { at: LoginKey::Password(path.to_owned()), text: password.to_owned() })
    }

    /// The SHA-256 fingerprint of the key; `None`: it is a password, or cannot be read.
    pub fn fingerprint(&self) -> Option<String> {
        let key = usable(&self.text).ok().filter(|_| !self.is_password())?;
        Some(key.fingerprint(HashAlg::Sha256).to_string())
    }

    pub fn is_password(&self) -> bool {
        matches!(self.at, LoginKey::Password(_))
    }
}

impl Logins {
    pub fn new(dir: &Path) -> Self {
        Self { dir: dir.to_owned() }
    }

    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// The pool's own key, made once: machines that exist accept it, whichever process asks.
    pub fn pool_key(&self) -> io::Result<OwnLogin> {
        let path = self.dir.join("login_key");
        if let Some(text) = read(&path)? {
            return Ok(OwnLogin { at: LoginKey::File(path), text });
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
        Ok(OwnLogin { at: LoginKey::File(path), text })
    }

    /// The login of an instance: the plugin's key, else its password, else the pool's own login. A secret of the plugin's is
    /// stored as long as the instance is.
    pub fn of(
        &self,
        instance: &InstanceId,
        info: &ConnectInfo,
        own: &OwnLogin,
    ) -> Result<LoginKey, LoginError> {
        if !info.key.is_empty() {
            return self.of_key(instance, &info.key, own);
        }
        if info.password.is_empty() || (own.is_password() && info.password == own.text) {
            return Ok(own.at.clone());
        }
        let path = self.file(instance, PASSWORD);
        // One line break at the end does not count.
        self.keep(&path, &format!("{}\n", info.password))
            .map_err(|cause| LoginError::Store { what: "password", cause })?;
        Ok(LoginKey::Password(path))
    }

    fn of_key(&self, instance: &InstanceId, given: &[u8], own: &OwnLogin) -> Result<LoginKey, LoginError> {
        let given = std::str::from_utf8(given).map_err(|_| LoginError::NotText)?;
        if given.trim() == own.text.trim() {
            return Ok(own.at.clone());
        }
        let key = usable(given)?;
        if !own.is_password() && usable(&own.text).is_ok_and(|own| own.key_data() == key.key_data()) {
            return Ok(own.at.clone());
        }
        let path = self.file(instance, KEY);
        self.keep(&path, given).map_err(|cause| LoginError::Store { what: "key", cause })?;
        Ok(LoginKey::File(path))
    }

    /// A refreshed secret takes the place of the earlier one: the recorded login stays the same.
    fn keep(&self, path: &Path, text: &str) -> io::Result<()> {
        if read(path).ok().flatten().as_deref() == Some(text) { Ok(()) } else { self.store(path, text) }
    }

    fn store(&self, path: &Path, text: &str) -> io::Result<()> {
        let dir = self.dir.join("logins");
        std::os::unix::fs::DirBuilderExt::mode(std::fs::DirBuilder::new().recursive(true), 0o700)
            .create(&dir)?;
        let fresh = path.with_extension("new");
        private(&fresh, text.as_bytes())?;
        fs::rename(fresh, path)
    }

    /// Removes the secrets of an instance that is gone.
    pub fn discard(&self, instance: &InstanceId) {
        // CRASH: a secret that stays is removed by `sweep`.
        for kind in [KEY, PASSWORD] {
            fs::remove_file(self.file(instance, kind)).ok();
        }
    }

    /// Removes the secrets of instances that do not exist.
    pub fn sweep(&self, exists: impl Fn(&InstanceId) -> bool) {
        for entry in fs::read_dir(self.dir.join("logins")).into_iter().flatten().flatten() {
            let name = entry.file_name();
            let instance = name.to_str().map(|name| name.strip_suffix(PASSWORD).unwrap_or(name));
            if instance.is_none_or(|name| !exists(&InstanceId::new(name))) {
                fs::remove_file(entry.path()).ok();
            }
        }
    }

    /// Instances have names that are safe as names of files: the pool's, and digits.
    fn file(&self, instance: &InstanceId, kind: &str) -> PathBuf {
        self.dir.join("logins").join(format!("{instance}{kind}"))
    }
}

/// The fingerprint of the plugin's key, if that is another one than the pool's, which the plugin got.
pub fn another_key(info: &ConnectInfo, own: &OwnLogin) -> Option<String> {
    let given = usable(&text(info)).ok()?;
    let own = usable(&own.text).ok().filter(|_| !own.is_password())?;
    (given.key_data() != own.key_data()).then(|| given.fingerprint(HashAlg::Sha256).to_string())
}

/// The plugin's key as a text.
pub fn text(info: &ConnectInfo) -> String {
    String::from_utf8_lossy(&info.key).into_owned()
}

fn read(path: &Path) -> io::Result<Option<String>> {
    match fs::read_to_string(path) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// The public half of a key that Greenroom can log in with.
fn usable(text: &str) -> Result<keys::PublicKey, LoginError> {
    if let Some(read) = rsa::read(text) {
        return read.map(|key| key.public().clone()).map_err(LoginError::Rsa);
    }
    let key = keys::decode_secret_key(text, None).map_err(LoginError::Key)?;
    match key.algorithm() {
        Algorithm::Ed25519 | Algorithm::Ecdsa { .. } => Ok(key.public_key().clone()),
        other => Err(LoginError::Algorithm(other)),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;
    use greenroom_core::text::with_causes;

    fn info(key: &[u8], password: &str) -> ConnectInfo {
        ConnectInfo {
            username: "ci".to_owned(),
            password: password.to_owned(),
            key: key.to_vec(),
            internal_address: "10.0.0.7".to_owned(),
            ..ConnectInfo::default()
        }
    }

    fn path(login: &OwnLogin) -> &Path {
        match &login.at {
            LoginKey::File(path) | LoginKey::Password(path) => path,
            LoginKey::Agent { .. } => panic!("{login:?}"),
        }
    }

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().permissions().mode() & 0o777
    }

    #[test]
    fn a_pool_has_one_key_for_ever() {
        let dir = tempfile::tempdir().unwrap();
        let logins = Logins::new(&dir.path().join("linux"));
        let key = logins.pool_key().unwrap();
        assert_eq!(logins.pool_key().unwrap(), key);
        assert_eq!(mode(path(&key)), 0o600);
        assert_eq!(fs::read_dir(dir.path().join("linux")).unwrap().count(), 1);
        let id = InstanceId::new("linux-c0ffee-1");
        let fingerprint = key.fingerprint().unwrap();
        assert!(fingerprint.starts_with("SHA256:"), "{fingerprint}");
        for (given, other) in
            [(info(b"", ""), None), (info(key.text.as_bytes(), ""), None), (info(b"no key", ""), None)]
        {
            assert_eq!(another_key(&given, &key), other);
        }
        let other = Logins::new(&dir.path().join("other")).pool_key().unwrap();
        assert_eq!(another_key(&info(other.text.as_bytes(), ""), &key), other.fingerprint());
        for given in [info(b"", ""), info(key.text.as_bytes(), ""), info(key.text.as_bytes(), "ignored")] {
            assert_eq!(logins.of(&id, &given, &key).unwrap(), key.at);
        }
    }

    #[test]
    fn a_plugins_secret_is_kept_with_its_instance_and_replaced_in_its_place() {
        let dir = tempfile::tempdir().unwrap();
        let logins = Logins::new(&dir.path().join("linux"));
        let own = logins.pool_key().unwrap();
        let others = [(); 2].map(|()| tempfile::tempdir().unwrap());
        let given = others.each_ref().map(|dir| Logins::new(dir.path()).pool_key().unwrap().text);
        let id = InstanceId::new("linux-c0ffee-1");
        let key_at = dir.path().join("linux/logins/linux-c0ffee-1");
        for key in &given {
            // The password beside a key is ignored, and not stored.
            let info = info(key.as_bytes(), "ignored");
            assert_eq!(logins.of(&id, &info, &own).unwrap(), LoginKey::File(key_at.clone()));
            assert_eq!(fs::read_to_string(&key_at).unwrap(), *key);
            assert_eq!(mode(&key_at), 0o600);
        }
        let password_at = dir.path().join("linux/logins/linux-c0ffee-1.password");
        assert!(!password_at.exists());
        for password in ["hunter2", "p w\n"] {
            let login = logins.of(&id, &info(b"", password), &own).unwrap();
            assert_eq!(login, LoginKey::Password(password_at.clone()));
            assert_eq!(fs::read_to_string(&password_at).unwrap(), format!("{password}\n"));
            assert_eq!(mode(&password_at), 0o600);
        }
        logins.sweep(|known| *known == id);
        assert!(key_at.exists() && password_at.exists());
        logins.sweep(|_| false);
        assert!(!key_at.exists() && !password_at.exists());
        logins.of(&id, &info(b"", "hunter2"), &own).unwrap();
        logins.discard(&id);
        assert!(!password_at.exists());
    }

    #[test]
    fn the_operators_password_is_used_from_its_place() {
        let dir = tempfile::tempdir().unwrap();
        let logins = Logins::new(&dir.path().join("linux"));
        let file = dir.path().join("password");
        fs::write(&file, "hunter2\n").unwrap();
        let own = OwnLogin::password_file(&file).unwrap();
        assert!(own.text == "hunter2" && !format!("{own:?}").contains("hunter2"));
        let id = InstanceId::new("linux-c0ffee-1");
        for given in [info(b"", ""), info(b"", "hunter2")] {
            assert_eq!(logins.of(&id, &given, &own).unwrap(), LoginKey::Password(file.clone()));
        }
        let key = Logins::new(&dir.path().join("other")).pool_key().unwrap();
        assert!(matches!(logins.of(&id, &info(key.text.as_bytes(), "hunter2"), &own), Ok(LoginKey::File(_))));
        fs::write(&file, "\n").unwrap();
        assert!(OwnLogin::password_file(&file).unwrap_err().to_string().contains("has no password"));
    }

    #[test]
    fn what_cannot_be_used_is_a_sentence() {
        let dir = tempfile::tempdir().unwrap();
        let logins = Logins::new(dir.path());
        let own = logins.pool_key().unwrap();
        let rsa = b"-----BEGIN RSA PRIVATE KEY-----\nMIIB\n-----END RSA PRIVATE KEY-----\n";
        for (given, expected) in [
            (info(rsa, ""), "an RSA key"),
            (info(b"hello", "hunter2"), "cannot read"),
            (info(b"\xff\xfe", ""), "it is not a text"),
        ] {
            let error = with_causes(&logins.of(&InstanceId::new("a"), &given, &own).unwrap_err());
            assert!(error.contains(expected) && !error.contains("hunter2"), "{error}");
        }
        assert!(!dir.path().join("logins").exists());
    }
}
