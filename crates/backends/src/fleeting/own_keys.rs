//! Plugins that make a key for logins at each start, instead of using the pool's.
//!
//! `fleeting/POOL/own_key.json` says that the pool's plugin is one. `fleeting/POOL/start_keys/` has the key of each start whose
//! machines exist: the next start has another one. A machine is reached with the key of the start that made it.

use std::io;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use fs_err as fs;
use greenroom_core::failure::ErrorClass;
use greenroom_core::ids::InstanceId;
use greenroom_core::own_key::{OwnKey, OwnKeyCause};
use greenroom_core::time::Stamp;
use greenroom_ports::provider::ProviderError;
use serde::{Deserialize, Serialize};

use super::book::Book;
use super::book::entry::BookMachine;
use super::group::{ConnectInfo, GroupInfo, InstanceState, PluginStart};
use super::locate::PluginSource;
use super::login::{self, OwnLogin};
use super::provider::{Fleeting, KnownConnection};
use super::record::private;
use super::settings::Settings;

/// The time for which a machine has to deny the only known key before it counts as failed: some plugins bring a key late.
const LASTS: Duration = Duration::from_secs(20);

/// A plugin that has given another key than the pool's.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct KeyMaker {
    /// The plugin, as the table names it. Another one may use the pool's key.
    pub(super) plugin: String,
    /// The fingerprint of the pool's key, which the plugin got.
    pub(super) pool_key: String,
    /// The fingerprint of the key that it gave.
    pub(super) plugin_key: String,
    /// True if the plugin gave that key although it was started with static credentials.
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
    pub(super) fn new(plugin: &PluginSource, pool_key: &str, plugin_key: &str, ignores: bool) -> Self {
        let plugin = name(plugin);
        let pool_key = pool_key.to_owned();
        let plugin_key = plugin_key.to_owned();
        Self { plugin, pool_key, plugin_key, ignores, accepted: false, denied: false }
    }
}

fn name(plugin: &PluginSource) -> String {
    match plugin {
        PluginSource::Path(path) => path.display().to_string(),
        PluginSource::Bare(name, _) => name.clone(),
        PluginSource::Reference(reference) => reference.to_string(),
    }
}

impl OwnKeys {
    pub(super) fn new(dir: &Path) -> Self {
        Self { dir: dir.to_owned() }
    }

    /// The record of this plugin; `None`: it has given no key of its own.
    pub(super) fn maker(&self, plugin: &PluginSource) -> Option<KeyMaker> {
        let bytes = fs::read(self.dir.join("own_key.json")).ok()?;
        // A file that cannot be read is written again with the next key.
        let maker: KeyMaker = serde_json::from_slice(&bytes).ok()?;
        (maker.plugin == name(plugin)).then_some(maker)
    }

    fn set_maker(&self, maker: &KeyMaker) -> io::Result<()> {
        let fresh = self.dir.join("own_key.new");
        private(&fresh, &serde_json::to_vec(maker)?)?;
        fs::rename(fresh, self.dir.join("own_key.json"))
    }

    /// The plugin uses the pool's key.
    fn forget_maker(&self) -> io::Result<()> {
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
    fn of_start(&self, start: &str) -> Option<String> {
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

/// True if the next start is with static credentials: as the operator says, else if the plugin would make a key of its own.
pub(super) fn is_static(settings: &Settings, maker: Option<&KeyMaker>) -> bool {
    let by_default = || settings.user.is_some() && maker.is_some_and(|maker| !maker.ignores && !maker.denied);
    settings.static_credentials.unwrap_or_else(by_default)
}

/// The operators' notice about a plugin whose present start has a key of its own.
pub(super) fn own_key(
    settings: &Settings,
    maker: Option<&KeyMaker>,
    info: Option<&GroupInfo>,
) -> Option<OwnKey> {
    let maker = maker?;
    let info = info?;
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
    let pool_key = maker.pool_key.clone();
    let plugin_key = maker.plugin_key.clone();
    Some(OwnKey { pool_key, plugin_key, cause })
}

/// The denials of a machine since its last login.
#[derive(Debug, Clone)]
pub(super) struct Denials {
    since: Stamp,
    /// The next login is with the key of the present start, although the machine is of an earlier one.
    present_next: bool,
    /// The reason no login can succeed, to follow the machine's name in a sentence.
    lost: Option<String>,
}

/// The key of a login that a machine may deny; see [`Denials`].
#[derive(Debug, Clone, Default)]
pub(super) struct Offered {
    /// The plugin's start that gave the address.
    start: PluginStart,
    /// The machine is of an earlier start, whose key is known.
    has_earlier: bool,
    /// The login is with that key.
    is_earlier: bool,
    /// The fingerprint of the plugin's own key of the present start.
    plugin_key: Option<String>,
}

impl Fleeting {
    /// Notes the key that the plugin gives. Returns its answer with the key that fits the machine, and how that was chosen.
    pub(super) fn choose_login(
        &self,
        id: &InstanceId,
        machine: &BookMachine,
        info: &ConnectInfo,
        start: PluginStart,
        own: &OwnLogin,
    ) -> Result<(ConnectInfo, Offered), ProviderError> {
        let failed = |error: std::io::Error| {
            let why = format!("the plugin's key of logins cannot be stored: {error}");
            ProviderError::new(ErrorClass::Transient, why)
        };
        // Credentials that expire are made for this request.
        if own.is_password() || info.expires.is_some() || start.id.is_empty() {
            return Ok((info.clone(), Offered::default()));
        }
        let plugin_key = login::another_key(info, own);
        let text = plugin_key.as_ref().map_or_else(String::new, |_| login::text(info));
        self.own_keys.keep(&start.id, &text).map_err(failed)?;
        self.note_key(plugin_key.as_deref(), &start, own).map_err(failed)?;
        let earlier = self.earlier_key(machine, &start);
        let present_next = self.denials.borrow().get(id).is_some_and(|denials| denials.present_next);
        let has_earlier = earlier.is_some();
        let is_earlier = earlier.is_some() && !present_next;
        let mut info = info.clone();
        if let Some(key) = earlier.filter(|_| is_earlier) {
            info.key = if key.is_empty() { own.text.clone() } else { key }.into_bytes();
        }
        Ok((info, Offered { start, has_earlier, is_earlier, plugin_key }))
    }

    /// The key of the earlier start that made a machine, if it is known; empty: the pool's.
    fn earlier_key(&self, machine: &BookMachine, present: &PluginStart) -> Option<String> {
        let start = machine.made_by.as_ref().filter(|start| start.id != present.id)?;
        self.own_keys.of_start(&start.id).or_else(|| start.is_static.then(String::new))
    }

    /// Records whether the plugin makes keys. Its next start is then with static credentials, unless the operator forbids it.
    fn note_key(&self, key: Option<&str>, start: &PluginStart, own: &OwnLogin) -> std::io::Result<()> {
        let before = self.maker.borrow().clone();
        let Some(key) = key else {
            // A newer version of the plugin may use the pool's key.
            if before.is_some_and(|maker| maker.ignores || !start.is_static) {
                self.own_keys.forget_maker()?;
                self.maker.replace(None);
            }
            return Ok(());
        };
        let pool_key = own.fingerprint().unwrap_or_default();
        let mut maker = KeyMaker::new(&self.settings.plugin, &pool_key, key, start.is_static);
        if let Some(before) = &before {
            (maker.accepted, maker.denied) = (before.accepted, before.denied);
            // Without static credentials, it shows nothing about them.
            maker.ignores |= before.ignores;
        }
        if before.as_ref() != Some(&maker) {
            let pool = &self.pool;
            tracing::warn!(%pool, "the plugin gives the key {key} for logins instead of the pool's, {pool_key}");
            self.set_maker(maker)?;
        }
        self.restart_if_needed(start);
        Ok(())
    }

    fn set_maker(&self, maker: KeyMaker) -> std::io::Result<()> {
        self.own_keys.set_maker(&maker)?;
        self.maker.replace(Some(maker));
        Ok(())
    }

    /// Starts the plugin again if it was started with other credentials than it should have.
    fn restart_if_needed(&self, present: &PluginStart) {
        let is_refused = self.queue.info().is_some_and(|info| info.refusal.is_some());
        let wanted = is_static(&self.settings, self.maker.borrow().as_ref());
        if wanted != present.is_static && !is_refused {
            self.queue.restart_plugin();
        }
    }

    /// The operators' notice about the plugin's key.
    pub(super) fn own_key(&self) -> Option<OwnKey> {
        own_key(&self.settings, self.maker.borrow().as_ref(), self.queue.info().as_ref())
    }

    /// A login was tried with the last endpoint. After a denial: its cause, if it is the plugin's key.
    pub(super) fn note_login(&self, id: &InstanceId, denied: bool) -> Option<String> {
        let machine = self.queue.read(|book| book.machines().get(id).cloned())?;
        let offered = self.known.borrow().get(id).map(|known: &KnownConnection| known.offered.clone())?;
        if !denied {
            self.denials.borrow_mut().remove(id);
            self.note_accepted(&machine, &offered);
            return None;
        }
        let now = self.queue.now();
        let mut all = self.denials.borrow_mut();
        let denials =
            all.entry(id.clone()).or_insert_with(|| Denials { since: now, present_next: false, lost: None });
        if offered.has_earlier {
            // A plugin may also bring its present key to machines that it made before.
            denials.present_next = offered.is_earlier;
            self.known.borrow_mut().remove(id);
            return None;
        }
        let of_earlier = machine.made_by.as_ref().is_some_and(|start| {
            start.id != offered.start.id && !start.is_static && !offered.start.id.is_empty()
        });
        if !of_earlier || self.maker.borrow().is_none() {
            return None;
        }
        let cause = "the plugin gave it a key of its own at its launch, and no longer has that key since it started again";
        let now_gives = offered.plugin_key.map_or_else(String::new, |key| format!(" with the key {key}"));
        denials.lost = Some(format!("denies each login: {cause}{now_gives}"));
        Some(format!("{cause}{now_gives}"))
    }

    /// A machine of a start with static credentials has accepted the pool's key.
    fn note_accepted(&self, machine: &BookMachine, offered: &Offered) {
        let is_static = machine.made_by.as_ref().is_some_and(|start| start.is_static);
        let maker = self.maker.borrow().clone().filter(|maker| !maker.accepted);
        if let Some(maker) = maker.filter(|_| is_static && offered.plugin_key.is_none()) {
            self.set_maker(KeyMaker { accepted: true, denied: false, ..maker }).ok();
        }
    }

    /// A machine is to end. If it is of a start with static credentials by default and has denied the pool's key all the time,
    /// the plugin does not install that key: it starts without them from now on.
    pub(super) fn note_end(&self, id: &InstanceId) {
        let made_by = self.queue.read(|book| book.machines().get(id)?.made_by.clone());
        let (Some(start), Some(denials)) = (made_by, self.denials.borrow().get(id).cloned()) else { return };
        let lasted = self.queue.now().since(denials.since) >= LASTS;
        let maker = self.maker.borrow().clone().filter(|maker| !maker.accepted && !maker.denied);
        if let Some(maker) = maker
            && start.is_static
            && lasted
            && self.settings.static_credentials.is_none()
        {
            self.set_maker(KeyMaker { denied: true, ..maker }).ok();
            self.restart_if_needed(&start);
        }
    }

    /// Returns why a machine accepts no login any more, if that has lasted.
    pub(super) fn lost(&self, id: &InstanceId) -> Option<String> {
        let all = self.denials.borrow();
        let denials = all.get(id).filter(|denials| self.queue.now().since(denials.since) >= LASTS)?;
        denials.lost.clone()
    }

    /// Removes what is stored for machines that are gone.
    pub(super) fn sweep_keys(&self) {
        let present = self.queue.info().map(|info| info.start.id).unwrap_or_default();
        self.own_keys.sweep(|start| start == present || self.queue.read(|book| made_by(book, start)));
        let exists = |id: &InstanceId| self.queue.read(|book| book.machines().contains_key(id));
        self.denials.borrow_mut().retain(|id, _| exists(id));
    }

    /// Reads which key the plugin gives, for `doctor`, which stores nothing.
    pub(super) async fn examine_key(&self) {
        if self.maker.borrow().is_some() {
            return;
        }
        let running = self.queue.read(|book| {
            let all = book.machines().values();
            all.filter(|machine| machine.state == InstanceState::Running && machine.missed == 0)
                .map(|machine| machine.id.clone())
                .next()
        });
        let (Some(running), Ok(group), Some(group_info)) = (running, self.queue.group(), self.queue.info())
        else {
            return;
        };
        let (Ok(info), Ok(own)) =
            (group.connect_info(&running).await, Self::own_login(&self.settings, &self.logins))
        else {
            return;
        };
        if info.expires.is_none()
            && let Some(key) = login::another_key(&info, &own)
        {
            let pool_key = own.fingerprint().unwrap_or_default();
            let ignores = group_info.start.is_static;
            self.maker.replace(Some(KeyMaker::new(&self.settings.plugin, &pool_key, &key, ignores)));
        }
    }
}

/// True if a machine of a start exists or is expected.
fn made_by(book: &Book, start: &str) -> bool {
    let is_it = |made_by: &Option<PluginStart>| made_by.as_ref().is_some_and(|made_by| made_by.id == start);
    book.machines().values().any(|machine| is_it(&machine.made_by))
        || book.intents().iter().any(|intent| is_it(&intent.made_by))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use greenroom_core::ids::PoolName;

    use super::*;
    use crate::fleeting::group::PluginStart;

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
            let start = PluginStart { id: "a1".to_owned(), is_static };
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
        assert_eq!(keys.maker(&PluginSource::parse("aws:1").unwrap()), None);
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
