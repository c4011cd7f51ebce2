//! Mailboxes for wake-ups: datagram sockets with names in the state directory.
//!
//! A mailbox is bound as early as possible. A wake-up that was sent before its mailbox was bound is lost. Nothing depends on
//! it, because every waiter polls the state once a second. Early binding makes such losses rare.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use greenroom_core::ids::{AttemptName, PoolName};
use greenroom_system::random_hex;
use greenroom_system::socket_dir::SocketDir;
use rustix::net::RecvFlags;

use super::files;

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
        self.bind(address, dir, &format!("{STOP}{}", random_hex(4)?), true)
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

/// The keeper's mailbox in a pool's directory.
pub(super) const WAKE: &str = "wake";
/// A waiting call's mailbox in its attempt's directory.
pub(super) const INBOX: &str = "inbox";
/// Prefix of the mailboxes in which calls of an attempt are told to stop; each call adds a name of its own.
pub(super) const STOP: &str = "run.";

/// A socket that receives wake-ups.
#[derive(Debug)]
pub(super) struct Mailbox {
    socket: tokio::net::UnixDatagram,
}

impl Mailbox {
    /// Binds `dir/name`, and replaces a socket that is already there.
    pub(super) fn bind(dir: &Path, name: &str) -> io::Result<Self> {
        let opened = SocketDir::open(dir)?;
        let fresh = files::beside(name)?;
        let socket = UnixDatagram::bind(opened.path(&fresh))?;
        socket.set_nonblocking(true)?;
        // RACE: a sender finds the old socket or the new one, never none; a dead socket's file needs no removal.
        let renamed = opened.rename(&fresh, name);
        if renamed.is_err() {
            opened.remove(&fresh).ok();
        }
        renamed?;
        Ok(Self { socket: tokio::net::UnixDatagram::from_std(socket)? })
    }

    /// Resolves when at least one wake-up has arrived, and takes all that are queued.
    pub(super) async fn wake_up(&self) -> io::Result<()> {
        if self.drain()? {
            return Ok(());
        }
        let mut byte = [0];
        self.socket.recv(&mut byte).await?;
        self.drain().map(|_| ())
    }

    fn drain(&self) -> io::Result<bool> {
        let mut any = false;
        let mut byte = [0_u8; 1];
        loop {
            match rustix::net::recv(&self.socket, &mut byte[..], RecvFlags::DONTWAIT) {
                Ok(_) => any = true,
                Err(rustix::io::Errno::INTR) => {}
                Err(rustix::io::Errno::AGAIN) => return Ok(any),
                Err(error) => return Err(error.into()),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use greenroom_system::socket_dir::{WakeUpSent, send_wake_up};

    use super::*;

    #[tokio::test]
    async fn a_hint_sent_before_the_wait_is_there_and_several_are_one() {
        let home = tempfile::tempdir().unwrap();
        let mailbox = Mailbox::bind(home.path(), "wake").unwrap();
        for _ in 0..500 {
            assert_eq!(send_wake_up(home.path(), "wake").unwrap(), WakeUpSent::Alive);
        }
        mailbox.wake_up().await.unwrap();
        let more = tokio::time::timeout(Duration::from_millis(30), mailbox.wake_up()).await;
        assert!(more.is_err(), "one hint stands for all");
    }

    #[tokio::test]
    async fn a_dead_sockets_file_is_nobody_and_is_bound_over() {
        let home = tempfile::tempdir().unwrap();
        assert_eq!(send_wake_up(home.path(), "wake").unwrap(), WakeUpSent::NoReceiver);
        drop(Mailbox::bind(home.path(), "wake").unwrap());
        assert!(home.path().join("wake").exists());
        assert_eq!(send_wake_up(home.path(), "wake").unwrap(), WakeUpSent::NoReceiver);
        let again = Mailbox::bind(home.path(), "wake").unwrap();
        assert_eq!(send_wake_up(home.path(), "wake").unwrap(), WakeUpSent::Alive);
        again.wake_up().await.unwrap();
    }

    #[tokio::test]
    async fn a_path_of_three_hundred_bytes_holds_a_socket() {
        let home = tempfile::tempdir().unwrap();
        let deep = home.path().join("d".repeat(150)).join("e".repeat(150));
        std::fs::create_dir_all(&deep).unwrap();
        let mailbox = Mailbox::bind(&deep, "inbox").unwrap();
        assert_eq!(send_wake_up(&deep, "inbox").unwrap(), WakeUpSent::Alive);
        mailbox.wake_up().await.unwrap();
    }

    #[tokio::test]
    async fn a_waiting_mailbox_wakes_within_milliseconds() {
        let home = tempfile::tempdir().unwrap();
        let mailbox = Mailbox::bind(home.path(), "wake").unwrap();
        let mut taken = Vec::new();
        for _ in 0..100 {
            let dir = home.path().to_owned();
            let sender = std::thread::spawn(move || {
                let sent = Instant::now();
                send_wake_up(&dir, "wake").unwrap();
                sent
            });
            mailbox.wake_up().await.unwrap();
            let woken = Instant::now();
            taken.push(woken.saturating_duration_since(sender.join().unwrap()));
        }
        taken.sort();
        println!("wake-up: median {:?}, worst of 100 {:?}", taken[50], taken[99]);
        assert!(taken[50] <= Duration::from_millis(5), "{taken:?}");
    }
}
