//! Keys of instances, generated once.
//!
//! `DIR/INSTANCE/client_key` is the login key and `DIR/INSTANCE/host_key` the instance's host key: private keys in
//! OpenSSH format, mode 0600. The folder of an instance appears complete or not at all.

use std::fmt::Write as _;
use std::io::{self, ErrorKind, Write as _};
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};

use fs_err as fs;
use fs_err::os::unix::fs::OpenOptionsExt;
use greenroom_core::ids::InstanceId;
use greenroom_ports::connector::ConnectError;
use greenroom_system::random_hex;
use russh::keys::key::safe_rng;
use russh::keys::ssh_key::LineEnding;
use russh::keys::{Algorithm, PrivateKey, ssh_key};

const CLIENT: &str = "client_key";
const HOST: &str = "host_key";

/// The reason an instance's keys cannot be read or stored.
#[derive(Debug, thiserror::Error)]
pub(super) enum KeyStoreError {
    #[error("cannot store keys for `{instance}`: {source}")]
    Store { instance: InstanceId, source: io::Error },
    #[error("no key for instance `{instance}` in {}", .folder.display())]
    Missing { instance: InstanceId, folder: PathBuf },
    #[error(transparent)]
    Read(#[from] io::Error),
    #[error("{} is not a private key: {source}", .file.display())]
    NotAKey { file: PathBuf, source: ssh_key::Error },
    #[error("cannot write a key in OpenSSH format: {0}")]
    PublicKey(#[source] ssh_key::Error),
    #[error("cannot write a host key in OpenSSH format: {0}")]
    HostKey(#[source] ssh_key::Error),
}

impl From<KeyStoreError> for ConnectError {
    fn from(error: KeyStoreError) -> Self {
        Self::Local { what: error.to_string() }
    }
}

/// The folder of all keys.
#[derive(Debug, Clone)]
pub(super) struct KeyStore {
    dir: PathBuf,
}

/// The two keys of one instance.
#[derive(Debug)]
pub(super) struct Pair {
    client: PrivateKey,
    host: PrivateKey,
}

impl KeyStore {
    pub(super) fn new(dir: PathBuf) -> Self {
        Self { dir }
    }

    /// Reads the keys of an instance, or generates them.
    pub(super) fn obtain(&self, id: &InstanceId) -> Result<Pair, KeyStoreError> {
        let folder = self.folder(id);
        let failed = |source| KeyStoreError::Store { instance: id.clone(), source };
        if let Some(pair) = read_pair(&folder)? {
            // The call that made them may have failed, or be running still, before it synced the folder's name.
            self.sync().map_err(failed)?;
            return Ok(pair);
        }
        self.make(id).map_err(failed)?;
        // Read back instead of returned: if two calls generate keys concurrently, both must return the stored ones.
        read_pair(&folder)?.ok_or_else(|| missing(id, &folder))
    }

    /// The login key of an existing instance.
    pub(super) fn client_key(&self, id: &InstanceId) -> Result<PrivateKey, KeyStoreError> {
        let folder = self.folder(id);
        read(&folder.join(CLIENT))?.ok_or_else(|| missing(id, &folder))
    }

    /// Removes an instance's keys; missing keys are not an error.
    pub(super) fn discard(&self, id: &InstanceId) {
        let _gone = fs::remove_dir_all(self.folder(id));
        // CRASH: a process that was killed while generating keys leaves a folder that is never used.
        let unfinished = format!("{}.", folder_name(id));
        for entry in fs::read_dir(&self.dir).into_iter().flatten().flatten() {
            let name = entry.file_name();
            if name
                .to_str()
                .and_then(|n| n.strip_prefix(UNFINISHED))
                .is_some_and(|n| n.starts_with(&unfinished))
            {
                let _gone = fs::remove_dir_all(entry.path());
            }
        }
    }

    pub(super) fn folder(&self, id: &InstanceId) -> PathBuf {
        self.dir.join(folder_name(id))
    }

    fn make(&self, id: &InstanceId) -> io::Result<()> {
        private_dir(&self.dir)?;
        let unfinished = self.dir.join(format!("{UNFINISHED}{}.{}", folder_name(id), random_hex(8)?));
        // On a full disk, the part that fitted goes.
        self.fill(&unfinished, id).inspect_err(|_| drop(fs::remove_dir_all(&unfinished)))?;
        self.sync()
    }

    /// Puts two new keys into a folder and gives it its name.
    fn fill(&self, unfinished: &Path, id: &InstanceId) -> io::Result<()> {
        std::fs::DirBuilder::new().mode(0o700).create(unfinished)?;
        write(&unfinished.join(CLIENT), &fresh()?)?;
        write(&unfinished.join(HOST), &fresh()?)?;
        fs::File::open(unfinished)?.sync_all()?;
        // RACE: another process may have been faster. A rename never replaces a folder that has files in it.
        match fs::rename(unfinished, self.folder(id)) {
            Err(error) if matches!(error.kind(), ErrorKind::DirectoryNotEmpty | ErrorKind::AlreadyExists) => {
                fs::remove_dir_all(unfinished)
            }
            renamed => renamed,
        }
    }

    /// CRASH: an instance must never outlive its keys, so they are on disk before it is launched.
    fn sync(&self) -> io::Result<()> {
        fs::File::open(&self.dir)?.sync_all()
    }
}

const UNFINISHED: &str = ".new-";

impl Pair {
    pub(super) fn authorized_key(&self) -> Result<String, KeyStoreError> {
        public_text(&self.client)
    }

    pub(super) fn host_key(&self) -> Result<String, KeyStoreError> {
        Ok(self.host.to_openssh(LineEnding::LF).map_err(KeyStoreError::HostKey)?.to_string())
    }

    pub(super) fn host_key_public(&self) -> Result<String, KeyStoreError> {
        public_text(&self.host)
    }
}

/// The public half in OpenSSH format.
fn public_text(key: &PrivateKey) -> Result<String, KeyStoreError> {
    key.public_key().to_openssh().map_err(KeyStoreError::PublicKey)
}

fn missing(id: &InstanceId, folder: &Path) -> KeyStoreError {
    KeyStoreError::Missing { instance: id.clone(), folder: folder.to_owned() }
}

/// Names of launched instances are used unchanged. An operator's name for a host may contain anything; bytes that could
/// leave the folder or hide in it become `%XX`.
pub(super) fn folder_name(id: &InstanceId) -> String {
    let mut name = String::new();
    for (at, byte) in id.as_str().bytes().enumerate() {
        if byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_') || (byte == b'.' && at > 0) {
            name.push(char::from(byte));
        } else {
            write!(name, "%{byte:02X}").expect("writing to a String cannot fail");
        }
    }
    if name.is_empty() { "%".to_owned() } else { name }
}

fn private_dir(dir: &Path) -> io::Result<()> {
    std::fs::DirBuilder::new().mode(0o700).recursive(true).create(dir)?;
    let mode = fs::metadata(dir)?.permissions().mode();
    if mode & 0o077 != 0 {
        fs::set_permissions(dir, std::fs::Permissions::from_mode(0o700))?;
    }
    Ok(())
}

fn fresh() -> io::Result<PrivateKey> {
    PrivateKey::random(&mut safe_rng(), Algorithm::Ed25519).map_err(io::Error::other)
}

fn write(path: &Path, key: &PrivateKey) -> io::Result<()> {
    let text = key.to_openssh(LineEnding::LF).map_err(io::Error::other)?;
    let mut file = fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()
}

fn read_pair(folder: &Path) -> Result<Option<Pair>, KeyStoreError> {
    let client = read(&folder.join(CLIENT))?;
    let host = read(&folder.join(HOST))?;
    Ok(client.zip(host).map(|(client, host)| Pair { client, host }))
}

fn read(path: &Path) -> Result<Option<PrivateKey>, KeyStoreError> {
    let text = match fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    PrivateKey::from_openssh(&text)
        .map(Some)
        .map_err(|source| KeyStoreError::NotAKey { file: path.to_owned(), source })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn store() -> (tempfile::TempDir, KeyStore) {
        let dir = tempfile::tempdir().unwrap();
        let store = KeyStore::new(dir.path().join("keys"));
        (dir, store)
    }

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().permissions().mode() & 0o777
    }

    #[test]
    fn keys_are_made_once_and_only_the_owner_reads_them() {
        let (_dir, store) = store();
        let id = InstanceId::new("linux-3f9a-1");
        let first = store.obtain(&id).unwrap();
        let again = store.obtain(&id).unwrap();
        assert_eq!(first.authorized_key().unwrap(), again.authorized_key().unwrap());
        assert_eq!(first.host_key().unwrap(), again.host_key().unwrap());
        assert_ne!(first.authorized_key().unwrap(), first.host_key_public().unwrap());
        let folder = store.folder(&id);
        assert_eq!((mode(&store.dir), mode(&folder)), (0o700, 0o700));
        assert_eq!((mode(&folder.join(CLIENT)), mode(&folder.join(HOST))), (0o600, 0o600));
        assert!(first.host_key().unwrap().starts_with("-----BEGIN OPENSSH PRIVATE KEY-----\n"));
    }

    #[test]
    fn an_open_folder_is_closed_to_others() {
        let (_dir, store) = store();
        fs::create_dir(&store.dir).unwrap();
        fs::set_permissions(&store.dir, std::fs::Permissions::from_mode(0o755)).unwrap();
        store.obtain(&InstanceId::new("a")).unwrap();
        assert_eq!(mode(&store.dir), 0o700);
    }

    #[test]
    fn what_a_killed_process_left_half_made_is_neither_used_nor_kept() {
        let (_dir, store) = store();
        let id = InstanceId::new("a");
        fs::create_dir_all(store.dir.join(".new-a.00")).unwrap();
        fs::write(store.dir.join(".new-a.00").join(CLIENT), "half").unwrap();
        fs::create_dir_all(store.dir.join(".new-ab.00")).unwrap();
        store.obtain(&id).unwrap();
        store.discard(&id);
        let left: Vec<_> = fs::read_dir(&store.dir).unwrap().map(|e| e.unwrap().file_name()).collect();
        assert_eq!(left, [".new-ab.00"]);
        store.discard(&id);
    }

    #[test]
    fn two_that_make_them_at_once_get_the_same_keys() {
        let (_dir, store) = store();
        let id = InstanceId::new("a");
        let keys: Vec<String> = std::thread::scope(|s| {
            let threads: Vec<_> =
                (0..8).map(|_| s.spawn(|| store.obtain(&id).unwrap().authorized_key().unwrap())).collect();
            threads.into_iter().map(|t| t.join().unwrap()).collect()
        });
        assert!(keys.windows(2).all(|w| w[0] == w[1]));
        assert_eq!(fs::read_dir(&store.dir).unwrap().count(), 1);
    }

    #[test]
    fn no_name_leaves_the_folder() {
        for (id, name) in [
            ("linux-3f9a-12", "linux-3f9a-12"),
            ("../../etc", "%2E.%2F..%2Fetc"),
            (".", "%2E"),
            ("", "%"),
            ("build host", "build%20host"),
            (".new-a", "%2Enew-a"),
        ] {
            assert_eq!(folder_name(&InstanceId::new(id)), name);
        }
    }

    #[test]
    fn a_missing_or_broken_key_is_named_by_its_file() {
        let (_dir, store) = store();
        let id = InstanceId::new("a");
        let text = store.client_key(&id).unwrap_err().to_string();
        assert!(text.contains("`a`") && text.contains("keys/a"), "{text}");
        store.obtain(&id).unwrap();
        fs::write(store.folder(&id).join(CLIENT), "rubbish").unwrap();
        let text = store.client_key(&id).unwrap_err().to_string();
        assert!(text.contains("client_key is not a private key"), "{text}");
    }
}
