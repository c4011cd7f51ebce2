//! Points at which a test stops a process, to kill it or another process there.
//!
//! Compiled to nothing without the feature `crash-points`.

/// Environment variables that long-lived processes inherit in addition to the usual ones.
#[cfg(feature = "crash-points")]
pub const VARIABLES: &[&str] = &[VARIABLE];
#[cfg(not(feature = "crash-points"))]
pub const VARIABLES: &[&str] = &[];

/// The variable with the path of a file that is named like a halt point.
#[cfg(feature = "crash-points")]
const VARIABLE: &str = "GREENROOM_HALT";

/// Stops this process (SIGSTOP) if `GREENROOM_HALT` is the path of a file with this name. Removes the file first, so
/// that one process stops, once.
#[cfg(feature = "crash-points")]
pub fn halt_point(name: &str) {
    let Some(file) = std::env::var_os(VARIABLE).map(std::path::PathBuf::from) else { return };
    if file.file_name().is_some_and(|file_name| file_name == name) && std::fs::remove_file(&file).is_ok() {
        let stopped = rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::STOP);
        debug_assert!(stopped.is_ok(), "{stopped:?}");
    }
}

/// Does nothing without the feature.
#[cfg(not(feature = "crash-points"))]
pub fn halt_point(_name: &str) {}
