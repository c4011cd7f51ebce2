//! The contract of `port::connector`.
//!
//! `guest`, `stopping`, `access` and `jump` run against OpenSSH's own server, which each test starts on a port of its
//! own, as any user. `hostile` runs against servers that misbehave. Needs `sshd`, `ssh-agent`, `ssh-keygen`, `bash` and
//! `busybox`.
//!
//! Without root, the guest's login shell is set by the `command="exec SHELL -c …"` of the one authorized key. The
//! account's own shell executes it in the same process, so it sees what a login shell would see.

#![expect(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on says where")]

mod access;
mod bench;
mod certificates;
mod guest;
mod hostile;
pub(crate) mod jump;
mod passwords;
#[path = "../../situations/contract/output.rs"]
mod situation_output;
#[path = "../../situations/contract/profiles.rs"]
mod situation_profiles;
pub(crate) mod sshd;
mod stopping;
pub(crate) mod support;
mod unbegun;
