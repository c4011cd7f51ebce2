//! Plugins that make a key for logins at each start, instead of using the pool's: what is stored of them, and how they start.
//!
//! `fleeting/POOL/own_key.json` says that the pool's plugin is one. `fleeting/POOL/start_keys/` has the key of each start whose
//! machines exist: the next start has another one.

use std::io;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

use fs_err as fs;
use greenroom_core::own_key::{OwnKey, OwnKeyCause};
use serde::{Deserialize, Serialize};

use super::group::GroupInfo;
use super::locate::Source;
use super::record::private;
use super::settings::Settings;

/// A plugin that has given another key than the pool's.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct KeyMaker {
    /// The plugin, as the table names it. Another one may use the pool's key.
    pub(super) plugin: String,
    /// The fingerprint of the pool's key, which the plugin got.
    pub(super) pool_key: String,
    /// The fingerprint of the key that it gave.
    pub(super) plugin_key: String,
    /// It gave that key although it was started with static credentials.
    #[serde(default)]
    pub(super) ignores: bool,
    /// An instance of a start with static credentials has accepted the pool's key.
    #[serde(default)]
    pub(super) accepted: bool,
    /// An instance of such a start has denied the pool's key until it was terminated, and none has accepted it.
    #[serde(default)]
    pub(super) denied: bool,
}

/// A pool's directory.
#[derive(Debug, Clone)]
pub(super) struct OwnKeys {
    dir: PathBuf,
}

impl KeyMaker {
    pub(super) fn new(plugin: &Source, pool_key: &str, plugin_key: &str, ignores: bool) -> Self {
        let (plugin, pool_key, plugin_key) = (name(plugin), pool_key.to_owned(), plugin_key.to_owned());
        Self { plugin, pool_key, plugin_key, ignores, accepted: false, denied: false }
    }
}

fn name(plugin: &Source) -> String {
    match plugin {
        Source::Path(path) => path.display().to_string(),
        Source::Bare(name, _) => name.clone(),
        Source::Reference(reference) => reference.to_string(),
    }
}

impl OwnKeys {
    pub(super) fn new(dir: &Path) -> Self {
        Self { dir: dir.to_owned() }
    }

    /// What is known of this plugin; `None`: it has given no key of its own.
    pub(super) fn maker(&self, plugin: &Source) -> Option<KeyMaker> {
        let bytes = fs::read(self.dir.join("own_key.json")).ok()?;
        // A file that cannot be read is written again with the next key.
        let maker: KeyMaker = serde_json::from_slice(&bytes).ok()?;
        (maker.plugin == name(plugin)).then_some(maker)
    }

    pub(super) fn set_maker(&self, maker: &KeyMaker) -> io::Result<()> {
        let fresh = self.dir.join("own_key.new");
        private(&fresh, &serde_json::to_vec(maker)?)?;
        fs::rename(fresh, self.dir.join("own_key.json"))
    }

    /// The plugin uses the pool's key.
    pub(super) fn forget_maker(&self) -> io::Result<()> {
        match fs::remove_file(self.dir.join("own_key.json")) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }

    /// Stores the key that a start gives; empty: the pool's.
    pub(super) fn keep(&self, start: &str, key: &str) -> io::Result<()> {
        let path = self.start(start);
        if self.of_start(start).as_deref() == Some(key) {
            return Ok(());
        }
        std::fs::DirBuilder::new().recursive(true).mode(0o700).create(self.dir.join("start_keys"))?;
        let fresh = path.with_extension("new");
        private(&fresh, key.as_bytes())?;
        fs::rename(fresh, path)
    }

    /// The key that a start gave; empty: the pool's. `None`: no call has shown it.
    pub(super) fn of_start(&self, start: &str) -> Option<String> {
        fs::read_to_string(self.start(start)).ok()
    }

    /// Removes the keys of starts whose machines are gone.
    pub(super) fn sweep(&self, is_needed: impl Fn(&str) -> bool) {
        for entry in fs::read_dir(self.dir.join("start_keys")).into_iter().flatten().flatten() {
            if !entry.file_name().to_str().is_some_and(&is_needed) {
                fs::remove_file(entry.path()).ok();
            }
        }
    }

    /// Starts are named by Greenroom: hexadecimal digits.
    fn start(&self, start: &str) -> PathBuf {
        self.dir.join("start_keys").join(start)
    }
}

/// Whether the next start is with static credentials: as the operator says, else if the plugin would make a key of its own.
pub(super) fn is_static(settings: &Settings, maker: Option<&KeyMaker>) -> bool {
    let by_default = || settings.user.is_some() && maker.is_some_and(|maker| !maker.ignores && !maker.denied);
    settings.static_credentials.unwrap_or_else(by_default)
}

/// What operators read about a plugin whose present start has a key of its own.
pub(super) fn own_key(
    settings: &Settings,
    maker: Option<&KeyMaker>,
    info: Option<&GroupInfo>,
) -> Option<OwnKey> {
    let (maker, info) = (maker?, info?);
    let cause = match settings.static_credentials {
        _ if maker.ignores => OwnKeyCause::Ignored,
        Some(true) => return None,
        Some(false) => OwnKeyCause::ByOperator,
        None if settings.user.is_none() => OwnKeyCause::NoUser,
        None if maker.denied => OwnKeyCause::Denied,
        None => match &info.refusal {
            Some(message) => OwnKeyCause::Refused { message: message.clone() },
            None if info.start.is_static => return None,
            None => OwnKeyCause::Pending,
        },
    };
    let (pool_key, plugin_key) = (maker.pool_key.clone(), maker.plugin_key.clone());
    Some(OwnKey { pool_key, plugin_key, cause })
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use greenroom_core::ids::PoolName;

    use super::*;
    use crate::fleeting::group::Start;

    fn settings(keys: &str) -> Settings {
        let table = format!("plugin = \"/p\"\nhost_keys = \"first-use\"\n{keys}");
        Settings::read(&PoolName::new("linux"), &table.parse().unwrap()).unwrap()
    }

    fn maker(settings: &Settings) -> KeyMaker {
        KeyMaker::new(&settings.plugin, "SHA256:pool", "SHA256:own", false)
    }

    #[test]
    fn a_plugin_starts_with_static_credentials_if_it_makes_keys_unless_the_operator_decides() {
        for (keys, makes, ignores, denied, expected) in [
            ("user = \"ci\"", false, false, false, false),
            ("user = \"ci\"", true, false, false, true),
            ("", true, false, false, false),
            ("user = \"ci\"", true, true, false, false),
            ("user = \"ci\"", true, false, true, false),
            ("user = \"ci\"\nstatic_credentials = false", true, false, false, false),
            ("user = \"ci\"\nstatic_credentials = true", false, false, false, true),
            ("user = \"ci\"\nstatic_credentials = true", true, true, true, true),
        ] {
            let settings = settings(keys);
            let maker = makes.then(|| KeyMaker { ignores, denied, ..maker(&settings) });
            assert_eq!(is_static(&settings, maker.as_ref()), expected, "{keys} {makes} {ignores} {denied}");
        }
    }

    #[test]
    fn a_plugin_with_a_key_of_its_own_is_reported_with_the_cause() {
        let refused = || Some("no".to_owned());
        let message = "no".to_owned();
        for (keys, change, refusal, is_static, expected) in [
            ("user = \"ci\"", None, None, true, None),
            ("user = \"ci\"", None, None, false, Some(OwnKeyCause::Pending)),
            ("user = \"ci\"", None, refused(), false, Some(OwnKeyCause::Refused { message })),
            ("", None, None, false, Some(OwnKeyCause::NoUser)),
            ("user = \"ci\"\nstatic_credentials = false", None, None, false, Some(OwnKeyCause::ByOperator)),
            ("user = \"ci\"\nstatic_credentials = true", None, None, true, None),
            (
                "user = \"ci\"\nstatic_credentials = true",
                Some("ignores"),
                None,
                true,
                Some(OwnKeyCause::Ignored),
            ),
            ("user = \"ci\"", Some("denied"), None, false, Some(OwnKeyCause::Denied)),
        ] {
            let settings = settings(keys);
            let mut maker = maker(&settings);
            maker.ignores = change == Some("ignores");
            maker.denied = change == Some("denied");
            let start = Start { id: "a1".to_owned(), is_static };
            let info = GroupInfo {
                id: "g".to_owned(),
                max_size: None,
                version: String::new(),
                suspends: false,
                start,
                refusal,
            };
            let found = own_key(&settings, Some(&maker), Some(&info));
            assert_eq!(found.map(|own| own.cause), expected, "{keys}");
            assert_eq!(own_key(&settings, None, Some(&info)), None);
        }
    }

    #[test]
    fn what_is_known_belongs_to_one_plugin_and_is_for_the_keepers_account_alone() {
        let dir = tempfile::tempdir().unwrap();
        let keys = OwnKeys::new(dir.path());
        let settings = settings("");
        assert_eq!(keys.maker(&settings.plugin), None);
        keys.set_maker(&maker(&settings)).unwrap();
        assert_eq!(keys.maker(&settings.plugin), Some(maker(&settings)));
        assert_eq!(keys.maker(&Source::parse("aws:1").unwrap()), None);
        assert_eq!(keys.of_start("a1"), None);
        for key in ["secret", ""] {
            keys.keep("a1", key).unwrap();
            assert_eq!(keys.of_start("a1").as_deref(), Some(key));
        }
        keys.keep("b2", "secret").unwrap();
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        let stored = dir.path().join("start_keys");
        assert_eq!((mode(&stored), mode(&stored.join("b2"))), (0o700, 0o600));
        keys.sweep(|start| start == "b2");
        assert_eq!((keys.of_start("a1"), keys.of_start("b2").as_deref()), (None, Some("secret")));
    }
}
