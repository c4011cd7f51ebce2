//! Errors that name the failed file operation.

use std::fmt::Display;
use std::io;
use std::path::Path;

use greenroom_ports::host_error::HostError;

/// `cannot WHAT PATH: WHY`, as an error of the port.
pub(super) fn cannot(what: &str, path: &Path, error: impl Into<io::Error>) -> HostError {
    HostError::Io { what: sentence(what, path, error) }
}

/// The same as text, for other error types and for logs.
pub(super) fn sentence(what: &str, path: &Path, error: impl Into<io::Error>) -> String {
    format!("cannot {what} `{}`: {}", path.display(), reason(&error.into()))
}

pub(super) fn io(what: impl Display) -> HostError {
    HostError::Io { what: what.to_string() }
}

/// Errors that an operator can fix get a text of their own, all others have the system's.
fn reason(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::StorageFull => "its file system is full".to_owned(),
        io::ErrorKind::QuotaExceeded => "the disk quota is exhausted".to_owned(),
        io::ErrorKind::ReadOnlyFilesystem => "its file system is read-only".to_owned(),
        io::ErrorKind::PermissionDenied => format!("not permitted to user {}", super::files::own_uid()),
        _ => error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_and_a_read_only_disk_are_named_as_such() {
        for (number, reason) in [(28, "its file system is full"), (30, "its file system is read-only")] {
            let error = sentence("write", Path::new("/x"), io::Error::from_raw_os_error(number));
            assert_eq!(error, format!("cannot write `/x`: {reason}"));
        }
    }
}
