//! The state directory on a real Linux machine.

mod accounts;
mod attempt;
mod builds;
mod clock;
mod error;
mod files;
mod host;
mod job_file;
mod keeper;
mod keeper_command;
mod lease;
mod location;
mod mailboxes;
mod mark;
mod observe;
mod orphans;
mod owner;
mod owner_file;
mod process;
mod refusals;
mod replacement;
mod report;
mod runner;
mod signals;
mod socket;
mod spawn;
mod state_dir;
mod times;
mod wait;

pub use clock::SystemClock;
pub use host::{LocalHost, Role};
pub use keeper_command::KeeperCommand;
pub use signals::Signals;
pub use spawn::{detach, detached_command};
pub use state_dir::{StateDir, StateDirError};
pub use times::Times;
