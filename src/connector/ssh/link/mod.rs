//! Links: processes that hold the connection of a job slot, so that a stage costs what its command costs.
//!
//! ```text
//! run ── request, script, pipes (SCM_RIGHTS) ──▶ link ══ SSH ══▶ instance: shell, started in advance
//!  ▲                                              │
//!  └───────────── output, through the pipes ──────┘
//! ```
//!
//! A link is a process of this program in a session of its own. It belongs to one job slot of one instance, and dies with
//! its connection. The descriptors of the runner never leave `run`: killing `run` always frees the runner. Nothing but this
//! folder knows of links; without one, whoever needs one starts it.

mod call;
mod figures;
mod hub;
mod line;
mod linked;
mod message;
pub mod process;
mod pump;
mod shells;
mod slot;
mod stage;
mod status;

pub use self::call::LinkSettings;
pub use self::linked::Linked;
pub use self::message::Figures;
pub use self::status::{Found, LinkStatus, Survey};
