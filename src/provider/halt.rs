//! Places where a test holds a process up, to kill it or another one just there.
//!
//! Compiled to nothing without the feature `crash-points`.

/// Environment variables that whole families of processes see beside what they see anyway.
#[cfg(feature = "crash-points")]
pub const ORDERS: &[&str] = &[ORDER];
#[cfg(not(feature = "crash-points"))]
pub const ORDERS: &[&str] = &[];

/// The path of a file that has the name of a place.
#[cfg(feature = "crash-points")]
const ORDER: &str = "GREENROOM_HALT";

/// Stops this process (SIGSTOP) if `GREENROOM_HALT` is the path of a file with this name. It takes the file away before:
/// one process stops, once.
#[cfg(feature = "crash-points")]
pub fn halt_point(name: &str) {
    let Some(order) = std::env::var_os(ORDER).map(std::path::PathBuf::from) else { return };
    if order.file_name().is_some_and(|place| place == name) && std::fs::remove_file(&order).is_ok() {
        let stopped = rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::STOP);
        debug_assert!(stopped.is_ok(), "{stopped:?}");
    }
}

/// Without the feature there is nothing to do.
#[cfg(not(feature = "crash-points"))]
pub fn halt_point(_name: &str) {}
