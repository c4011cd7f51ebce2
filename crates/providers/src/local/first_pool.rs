//! What `greenroom init` asks about a first pool of provider `local`.

use crate::first_pool::{Danger, FirstPool, Found, Given};

pub(super) const FIRST_POOL: FirstPool = FirstPool {
    name: "local",
    about: "processes here, to try it",
    comments: &[],
    look: |_| Box::new(Here { is_root: rustix::process::geteuid().is_root() }),
};

#[derive(Debug)]
struct Here {
    is_root: bool,
}

impl Found for Here {
    fn danger(&self, given: &Given<'_>) -> Option<Danger> {
        let danger = Danger {
            what: "jobs of provider `local` would run as root on this machine",
            key: "allow_root",
            otherwise: "name another provider",
        };
        (self.is_root && !given.has(danger.key)).then_some(danger)
    }

    fn spare(&self) -> u32 {
        1
    }
}
