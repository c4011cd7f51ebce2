//! Which key logs in to a machine if the plugin makes a key at each start: that of the start which made the machine.

use std::time::Duration;

use greenroom_core::failure::ErrorClass;
use greenroom_core::ids::InstanceId;
use greenroom_core::own_key::OwnKey;
use greenroom_core::time::Stamp;
use greenroom_ports::provider::ProviderError;

use super::{Fleeting, Known};
use crate::fleeting::book::Book;
use crate::fleeting::book::entry::Machine;
use crate::fleeting::group::{ConnectInfo, Start, State};
use crate::fleeting::login::{self, OwnLogin};
use crate::fleeting::own_keys::{self, KeyMaker};

/// How long a machine has to deny the only key that is known before it counts as failed: some plugins bring a key late.
const LASTS: Duration = Duration::from_secs(20);

/// The denials of a machine since its last login.
#[derive(Debug, Clone)]
pub(in crate::fleeting) struct Denials {
    since: Stamp,
    /// The next login is with the key of the present start, although the machine is of an earlier one.
    present_next: bool,
    /// Why no login can succeed, to follow the machine's name in a sentence.
    lost: Option<String>,
}

/// Which key a login is with.
#[derive(Debug, Clone, Default)]
pub(super) struct Offered {
    /// The plugin's start that gave the address.
    start: Start,
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
        machine: &Machine,
        info: &ConnectInfo,
        start: Start,
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
        let (has_earlier, is_earlier) = (earlier.is_some(), earlier.is_some() && !present_next);
        let mut info = info.clone();
        if let Some(key) = earlier.filter(|_| is_earlier) {
            info.key = if key.is_empty() { own.text.clone() } else { key }.into_bytes();
        }
        Ok((info, Offered { start, has_earlier, is_earlier, plugin_key }))
    }

    /// The key of the earlier start that made a machine, if it is known; empty: the pool's.
    fn earlier_key(&self, machine: &Machine, present: &Start) -> Option<String> {
        let start = machine.made_by.as_ref().filter(|start| start.id != present.id)?;
        self.own_keys.of_start(&start.id).or_else(|| start.is_static.then(String::new))
    }

    /// Records whether the plugin makes keys. Its next start is then with static credentials, unless the operator forbids it.
    fn note_key(&self, key: Option<&str>, start: &Start, own: &OwnLogin) -> std::io::Result<()> {
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
    fn restart_if_needed(&self, present: &Start) {
        let is_refused = self.lane.info().is_some_and(|info| info.refusal.is_some());
        let wanted = own_keys::is_static(&self.settings, self.maker.borrow().as_ref());
        if wanted != present.is_static && !is_refused {
            self.lane.restart_plugin();
        }
    }

    /// What operators read about the plugin's key.
    pub(super) fn own_key(&self) -> Option<OwnKey> {
        own_keys::own_key(&self.settings, self.maker.borrow().as_ref(), self.lane.info().as_ref())
    }

    /// A login was tried with the last endpoint. After a denial: its cause, if it is the plugin's key.
    pub(super) fn note_login(&self, id: &InstanceId, denied: bool) -> Option<String> {
        let machine = self.lane.read(|book| book.machines().get(id).cloned())?;
        let offered = self.known.borrow().get(id).map(|known: &Known| known.offered.clone())?;
        if !denied {
            self.denials.borrow_mut().remove(id);
            self.note_accepted(&machine, &offered);
            return None;
        }
        let now = self.lane.now();
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
    fn note_accepted(&self, machine: &Machine, offered: &Offered) {
        let is_static = machine.made_by.as_ref().is_some_and(|start| start.is_static);
        let maker = self.maker.borrow().clone().filter(|maker| !maker.accepted);
        if let Some(maker) = maker.filter(|_| is_static && offered.plugin_key.is_none()) {
            self.set_maker(KeyMaker { accepted: true, denied: false, ..maker }).ok();
        }
    }

    /// A machine is to end. If it is of a start with static credentials by default and has denied the pool's key all the time,
    /// the plugin does not install that key: it starts without them from now on.
    pub(super) fn note_end(&self, id: &InstanceId) {
        let made_by = self.lane.read(|book| book.machines().get(id)?.made_by.clone());
        let (Some(start), Some(denials)) = (made_by, self.denials.borrow().get(id).cloned()) else { return };
        let lasted = self.lane.now().since(denials.since) >= LASTS;
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

    /// Why a machine accepts no login any more, if that has lasted.
    pub(super) fn lost(&self, id: &InstanceId) -> Option<String> {
        let all = self.denials.borrow();
        let denials = all.get(id).filter(|denials| self.lane.now().since(denials.since) >= LASTS)?;
        denials.lost.clone()
    }

    /// Removes what is stored for machines that are gone.
    pub(super) fn sweep_keys(&self) {
        let present = self.lane.info().map(|info| info.start.id).unwrap_or_default();
        self.own_keys.sweep(|start| start == present || self.lane.read(|book| made_by(book, start)));
        let exists = |id: &InstanceId| self.lane.read(|book| book.machines().contains_key(id));
        self.denials.borrow_mut().retain(|id, _| exists(id));
    }

    /// Reads which key the plugin gives, for `doctor`, which stores nothing.
    pub(super) async fn examine_key(&self) {
        if self.maker.borrow().is_some() {
            return;
        }
        let running = self.lane.read(|book| {
            let all = book.machines().values();
            all.filter(|machine| machine.state == State::Running && machine.missed == 0)
                .map(|machine| machine.id.clone())
                .next()
        });
        let (Some(running), Ok(group), Some(group_info)) = (running, self.lane.group(), self.lane.info())
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
    let is_it = |made_by: &Option<Start>| made_by.as_ref().is_some_and(|made_by| made_by.id == start);
    book.machines().values().any(|machine| is_it(&machine.made_by))
        || book.intents().iter().any(|intent| is_it(&intent.made_by))
}
