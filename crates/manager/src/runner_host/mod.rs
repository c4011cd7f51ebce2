//! The state directory on a real Linux machine.

mod attempt;
mod attempt_files;
mod attempt_notes;
mod clock;
mod files;
mod host;
mod keeper;
mod lease;
mod mailboxes;
mod observe;
mod orphans;
mod owner;
mod pool_files;
mod runner;
mod spawn;
mod state_dir;
mod wait;

pub use clock::{SystemClock, Times};
pub use files::{FileError, replace_alone, replace_told};
pub use host::{LocalHost, Role};
pub use keeper::KeeperStarts;
pub use pool_files::OnReport;
pub use spawn::{KeeperCommand, detach, detached_command};
pub use state_dir::{StateDir, StateDirError};
pub use wait::Signals;
