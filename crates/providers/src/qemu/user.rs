//! The QEMU program, and the user that runs it.

use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::process::exec::Runner;
use super::settings::{Accel, Settings};

/// The users to search for if none is configured: first one for QEMU alone, then `nobody`.
const USERS: [&str; 2] = ["greenroom-vm", "nobody"];

const KVM: &str = "/dev/kvm";

const QEMU: &str = "qemu-system-x86_64";

/// Read and write permission of the group.
const GROUP_MAY: u32 = 0o060;

/// The configured QEMU and its user.
pub(super) fn runner(settings: &Settings) -> io::Result<Runner> {
    let qemu = match &settings.qemu {
        Some(named) => named.is_file().then(|| named.clone()).ok_or_else(|| missing(named)),
        None => {
            on_path(&std::env::var_os("PATH").unwrap_or_default()).ok_or_else(|| missing(Path::new(QEMU)))
        }
    }?;
    let is_root = rustix::process::geteuid().is_root();
    let identity = if is_root { Some(identity(settings)?) } else { None };
    Ok(Runner { qemu, identity })
}

/// The same QEMU under a user ID of one machine's own. Its group is the one that may use KVM, or the machine's own, too.
pub(super) fn under(runner: &Runner, uid: u32, accel: Accel) -> Runner {
    let kvm = if accel == Accel::Tcg { None } else { kvm_group(Path::new(KVM)) };
    Runner { identity: Some((uid, kvm.unwrap_or(uid))), ..runner.clone() }
}

/// True if other programs may run as QEMU's user, too.
pub(super) fn is_shared(settings: &Settings) -> bool {
    let users = std::fs::read_to_string("/etc/passwd").unwrap_or_default();
    let own = settings.user.as_deref().unwrap_or(USERS[0]);
    rustix::process::geteuid().is_root() && (own == USERS[1] || ids(&users, own).is_none())
}

fn missing(program: &Path) -> io::Error {
    let what = format!("{} is not installed: `apt-get install qemu-system-x86`", program.display());
    io::Error::new(io::ErrorKind::NotFound, what)
}

fn on_path(path: &std::ffi::OsStr) -> Option<PathBuf> {
    std::env::split_paths(path).map(|dir| dir.join(QEMU)).find(|program| program.is_file())
}

fn identity(settings: &Settings) -> io::Result<(u32, u32)> {
    let users = std::fs::read_to_string("/etc/passwd")?;
    let named = settings.user.as_deref();
    let found = match named {
        Some(name) => ids(&users, name),
        None => USERS.iter().find_map(|name| ids(&users, name)),
    };
    let unknown = || io::Error::other(format!("unknown user `{}`", named.unwrap_or(USERS[1])));
    let (uid, gid) = found.ok_or_else(unknown)?;
    if uid == 0 {
        return Err(io::Error::other(
            "`user` is root: a guest that escapes from QEMU would control the runner host",
        ));
    }
    // /dev/kvm belongs to a group, and a change of user keeps only the first of several groups.
    let kvm = if settings.accel == Accel::Tcg { None } else { kvm_group(Path::new(KVM)) };
    Ok((uid, kvm.unwrap_or(gid)))
}

fn kvm_group(device: &Path) -> Option<u32> {
    let found = std::fs::metadata(device).ok()?;
    (found.mode() & GROUP_MAY == GROUP_MAY && found.gid() != 0).then(|| found.gid())
}

/// User id and first group id of a user, from the text of /etc/passwd.
fn ids(users: &str, name: &str) -> Option<(u32, u32)> {
    let line = users.lines().find(|line| line.split(':').next() == Some(name))?;
    let mut fields = line.split(':').skip(2);
    Some((fields.next()?.parse().ok()?, fields.next()?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use greenroom_core::ids::PoolName;

    use super::*;

    #[test]
    fn a_user_has_a_number_and_a_group() {
        let users = "root:x:0:0:root:/:/bin/sh\nnobody:x:65534:65533:nobody:/:/bin/false\n";
        assert_eq!(ids(users, "nobody"), Some((65534, 65533)));
        assert_eq!(ids(users, "nobod"), None);
    }

    #[test]
    fn qemu_is_never_run_by_root() {
        let settings = Settings::read(&PoolName::new("linux"), &"user = \"root\"".parse().unwrap()).unwrap();
        assert!(identity(&settings).unwrap_err().to_string().contains("would control the runner host"));
        let settings =
            Settings::read(&PoolName::new("linux"), &"user = \"no-such-user\"".parse().unwrap()).unwrap();
        assert_eq!(identity(&settings).unwrap_err().to_string(), "unknown user `no-such-user`");
    }

    #[test]
    fn a_missing_qemu_is_named_with_what_installs_it() {
        assert_eq!(on_path(std::ffi::OsStr::new("/no/such/dir")), None);
        let settings =
            Settings::read(&PoolName::new("linux"), &"qemu = \"/no/such/qemu\"".parse().unwrap()).unwrap();
        let error = runner(&settings).unwrap_err().to_string();
        assert!(error.starts_with("/no/such/qemu is not installed: `apt-get install"), "{error}");
    }
}
