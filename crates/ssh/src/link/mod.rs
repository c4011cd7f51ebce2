//! Links: processes that hold the connection of a job slot, so that a stage needs no time to connect.
//!
//! ```text
//! run ── request, script, pipes (SCM_RIGHTS) ──▶ link ══ SSH ══▶ instance: shell, started in advance
//!  ▲                                              │
//!  └───────────── output, through the pipes ──────┘
//! ```
//!
//! A link is a process of this program in a session of its own. It belongs to one job slot of one instance and exits
//! with its connection. The runner's descriptors never leave `run`, so killing `run` always frees the runner. Links are
//! an implementation detail of this folder: a call that finds no link starts one.

mod call;
mod hub;
mod linked;
mod metadata;
pub mod process;
mod protocol;
mod requests;
mod shells;
mod slot;
mod status;

pub use self::call::LinkSettings;
pub use self::linked::Linked;
pub use self::protocol::Figures;
pub use self::status::{FoundLink, HeldLocks, LinkStatus, Survey};
