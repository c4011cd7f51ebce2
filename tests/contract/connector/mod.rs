//! The contract of `port::connector`.
//!
//! `guest`, `stopping`, `access` and `jump` run against OpenSSH's own server, started by each test on a port of its own, by
//! root or by anybody. `hostile` runs against servers that misbehave. Needs `sshd`, `ssh-agent`, `ssh-keygen`, `bash`
//! and `busybox`.
//!
//! The guest's login shell is chosen without root by the `command="exec SHELL -c …"` of the one authorized key: the
//! account's own shell hands over to it in the same process, so it sees what a login shell would see.

#![expect(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on says where")]

mod access;
mod bench;
mod guest;
mod hostile;
mod jump;
pub(crate) mod sshd;
mod stopping;
pub(crate) mod support;
