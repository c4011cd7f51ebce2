//! The guest program: boots a virtual machine from its initrd, is process 1 of a light one, and gives every clone an
//! identity of its own before its SSH server listens.
//!
//! One static binary, `std` only. What it does is decided by the name it is called by, as with `init` itself.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, Write as _};
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::Path;
use std::process::ExitCode;

mod agent;
mod boot;
mod identity;
mod protocol;
mod ssh;
mod sys;

/// The purpose of this call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Role {
    /// `/init` of the initrd.
    Boot,
    /// Process 1 of a light machine.
    Init,
    /// The conversation with the host.
    Agent,
    /// The process that becomes the SSH server when the machine has its identity.
    Ssh,
    PowerOff,
    Reboot,
}

impl Role {
    fn of(called: &[OsString], is_first: bool) -> Option<Self> {
        let path = Path::new(called.first()?);
        let name = path.file_name()?.to_str()?;
        let argument = called.get(1).and_then(|argument| argument.to_str());
        match (name, argument) {
            ("init", _) if is_first && path == Path::new("/init") => Some(Self::Boot),
            ("init", _) | (_, Some("init")) if is_first => Some(Self::Init),
            ("poweroff" | "halt", _) => Some(Self::PowerOff),
            ("reboot", _) => Some(Self::Reboot),
            (_, Some("agent")) => Some(Self::Agent),
            (_, Some("ssh")) => Some(Self::Ssh),
            _ => None,
        }
    }
}

fn main() -> ExitCode {
    let called: Vec<OsString> = std::env::args_os().collect();
    let outcome = match Role::of(&called, std::process::id() == 1) {
        Some(Role::Boot) => boot::boot(),
        Some(Role::Init) => boot::init(),
        Some(Role::Agent) => agent::agent(),
        Some(Role::Ssh) => agent::Image::read().and_then(|image| ssh::become_server(image.server)),
        Some(Role::PowerOff) => boot::signal_init(boot::POWER_OFF),
        Some(Role::Reboot) => boot::signal_init(boot::REBOOT),
        None => Err(io::Error::other("unknown program name or argument")),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            say(&format!("{error}"));
            ExitCode::FAILURE
        }
    }
}

/// A line on the console, or wherever standard error goes.
fn say(line: &str) {
    // A lost console cannot be reported anywhere.
    writeln!(io::stderr(), "greenroom-guest: {line}").ok();
}

/// An error that names what was being done.
fn naming(what: impl std::fmt::Display) -> impl FnOnce(io::Error) -> io::Error {
    move |error| io::Error::new(error.kind(), format!("{what}: {error}"))
}

/// Writes a file with exactly that mode, whatever was there before.
pub(crate) fn write_file(path: impl AsRef<Path>, mode: u32, text: impl AsRef<[u8]>) -> io::Result<()> {
    let path = path.as_ref();
    let put = || {
        let mut file: File =
            fs::OpenOptions::new().write(true).create(true).truncate(true).mode(mode).open(path)?;
        file.set_permissions(fs::Permissions::from_mode(mode))?;
        file.write_all(text.as_ref())
    };
    put().map_err(naming(path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn role(called: &[&str], is_first: bool) -> Option<Role> {
        let called: Vec<OsString> = called.iter().map(OsString::from).collect();
        Role::of(&called, is_first)
    }

    #[test]
    fn the_name_it_is_called_by_says_what_it_does() {
        assert_eq!(role(&["/init"], true), Some(Role::Boot));
        assert_eq!(role(&["/sbin/init"], true), Some(Role::Init));
        assert_eq!(role(&["/usr/lib/greenroom/greenroom-guest", "agent"], false), Some(Role::Agent));
        assert_eq!(role(&["/usr/lib/greenroom/greenroom-guest", "ssh"], false), Some(Role::Ssh));
        assert_eq!(role(&["poweroff"], false), Some(Role::PowerOff));
        assert_eq!(role(&["/usr/sbin/reboot", "-f"], false), Some(Role::Reboot));
        assert_eq!(role(&["init", "6"], false), None, "only process 1 is init");
        assert_eq!(role(&[], true), None);
    }
}
