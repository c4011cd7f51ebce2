//! The mailboxes this process has open, each bound as early as possible.
//!
//! A wake-up that was sent before its mailbox was bound is lost. Nothing depends on it, because every waiter polls the
//! state once a second. Early binding makes such losses rare.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use greenroom_core::ids::{AttemptName, PoolName};

use super::files;
use super::socket::{INBOX, Mailbox, STOP, WAKE};

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Address {
    Keeper(PoolName),
    Inbox(AttemptName),
    Stop(AttemptName),
}

/// A bound mailbox. Dropping it removes a name that only this call uses.
#[derive(Debug)]
pub(super) struct Bound {
    pub mailbox: Mailbox,
    own_file: Option<PathBuf>,
}

impl Drop for Bound {
    fn drop(&mut self) {
        if let Some(path) = &self.own_file {
            // CRASH: a file that stays behind is removed by the `cleanup` that finds no receiver.
            fs::remove_file(path).ok();
        }
    }
}

#[derive(Debug, Default)]
pub(super) struct Mailboxes {
    open: RefCell<BTreeMap<Address, Rc<Bound>>>,
}

impl Mailboxes {
    pub(super) fn get(&self, address: &Address) -> Option<Rc<Bound>> {
        self.open.borrow().get(address).cloned()
    }

    pub(super) fn bind_inbox(&self, name: &AttemptName, dir: &Path) -> io::Result<()> {
        self.bind(Address::Inbox(name.clone()), dir, INBOX, false)
    }

    /// Each call has a name of its own, so that `cleanup` finds all concurrent calls of an attempt.
    pub(super) fn bind_stop(&self, name: &AttemptName, dir: &Path) -> io::Result<()> {
        let address = Address::Stop(name.clone());
        if self.get(&address).is_some() {
            return Ok(());
        }
        self.bind(address, dir, &format!("{STOP}{}", files::random_hex(4)?), true)
    }

    pub(super) fn bind_keeper(&self, pool: &PoolName, dir: &Path) -> io::Result<()> {
        self.bind(Address::Keeper(pool.clone()), dir, WAKE, false)
    }

    fn bind(&self, address: Address, dir: &Path, name: &str, own: bool) -> io::Result<()> {
        let mailbox = Mailbox::bind(dir, name)?;
        let bound = Bound { mailbox, own_file: own.then(|| dir.join(name)) };
        self.open.borrow_mut().insert(address, Rc::new(bound));
        Ok(())
    }

    /// Closes the mailboxes of an attempt.
    pub(super) fn forget(&self, name: &AttemptName) {
        let mut open = self.open.borrow_mut();
        open.remove(&Address::Inbox(name.clone()));
        open.remove(&Address::Stop(name.clone()));
    }

    /// Closes all mailboxes of the keeper: another keeper may have bound them meanwhile.
    pub(super) fn forget_keepers(&self) {
        self.open.borrow_mut().retain(|address, _| !matches!(address, Address::Keeper(_)));
    }
}
