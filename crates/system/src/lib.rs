//! What Greenroom asks of the operating system, beside its ports.
//!
//! [`process`]: children that outlive a call, and processes that are watched. [`socket_dir`]: Unix sockets with names in a
//! directory. [`threads`]: work that may block, on a bounded number of threads. [`remove`] and [`replace`]: removal of whatever a
//! job left, and files that are replaced as a whole. [`names`]: host names, through the runner host's own `getent`.

pub mod names;
pub mod process;
pub mod remove;
pub mod replace;
pub mod socket_dir;
pub mod threads;
