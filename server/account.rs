//! The account that jobs run in, from the image's own files: a static program has no name service.

use std::ffi::OsString;
use std::io;
use std::path::PathBuf;

use rustix::process::{Gid, Uid, getgid, getuid};
use rustix::thread::{set_thread_groups, set_thread_res_gid, set_thread_res_uid};
use serde::{Deserialize, Serialize};

/// One line of `/etc/passwd`, and the groups of `/etc/group` that name it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Account {
    pub(crate) name: String,
    pub(crate) uid: u32,
    gid: u32,
    groups: Vec<u32>,
    pub(crate) home: PathBuf,
    pub(crate) shell: String,
}

impl Account {
    /// The user's account, if this process may become it. The error ends a sentence about the pod.
    pub(crate) fn of(user: &str) -> Result<Self, String> {
        let read = |path| std::fs::read_to_string(path).unwrap_or_default();
        let account = found(user, &read("/etc/passwd"), &read("/etc/group"));
        let uid = getuid().as_raw();
        match account {
            Some(account) if uid == 0 || uid == account.uid => Ok(account),
            Some(_) | None if uid != 0 => {
                Err(format!("the pod runs as user id {uid}, which is not the user {user} of the pool"))
            }
            _ => Err(format!(
                "the image has no user {user} in /etc/passwd: add it to the image, or set `user` of the pool"
            )),
        }
    }

    /// The account that this process has, which the image's files need not know.
    pub(crate) fn own() -> Self {
        let read = |path| std::fs::read_to_string(path).unwrap_or_default();
        let (uid, gid) = (getuid().as_raw(), getgid().as_raw());
        own((uid, gid), &read("/etc/passwd"), std::env::var_os("HOME"))
    }

    /// Makes this process the user's. It must have one thread.
    pub(crate) fn become_it(&self) -> io::Result<()> {
        if getuid().as_raw() == self.uid {
            return Ok(());
        }
        let groups: Vec<Gid> = self.groups.iter().map(|group| Gid::from_raw(*group)).collect();
        let (uid, gid) = (Uid::from_raw(self.uid), Gid::from_raw(self.gid));
        set_thread_groups(&groups)?;
        set_thread_res_gid(gid, gid, gid)?;
        set_thread_res_uid(uid, uid, uid)?;
        Ok(())
    }
}

/// An image without files has root all the same.
fn found(user: &str, passwd: &str, group: &str) -> Option<Account> {
    let lines = passwd.lines().map(|line| line.split(':').collect::<Vec<&str>>());
    let line = lines.into_iter().find(|fields| fields.len() >= 7 && fields[0] == user);
    let (uid, gid, home, shell) = match line.as_deref() {
        Some([_, _, uid, gid, _, home, shell, ..]) => (uid.parse().ok()?, gid.parse().ok()?, *home, *shell),
        _ if user == "root" => (0, 0, "", ""),
        _ => return None,
    };
    let or = |text: &str, other: &str| if text.is_empty() { other.to_owned() } else { text.to_owned() };
    let root_home = if uid == 0 { concat!("/", "root") } else { "/" };
    let mut groups = vec![gid];
    groups.extend(group.lines().filter_map(|line| {
        let fields: Vec<&str> = line.split(':').collect();
        let [_, _, number, members] = fields.as_slice() else { return None };
        let number: u32 = number.parse().ok()?;
        (number != gid && members.split(',').any(|member| member.trim() == user)).then_some(number)
    }));
    Some(Account {
        name: user.to_owned(),
        uid,
        gid,
        groups,
        home: or(home, root_home).into(),
        shell: or(shell, "/bin/sh"),
    })
}

/// The account of a user id. Without a line for it, its number is its name, and its home is where the container says.
fn own((uid, gid): (u32, u32), passwd: &str, home: Option<OsString>) -> Account {
    let number = uid.to_string();
    let lines = passwd.lines().map(|line| line.split(':').collect::<Vec<&str>>());
    let line = lines.into_iter().find(|fields| fields.len() >= 7 && fields[2] == number);
    let name = line.map_or(if uid == 0 { "root" } else { number.as_str() }, |fields| fields[0]);
    let home = || home.filter(|home| !home.is_empty()).map_or_else(|| "/".into(), PathBuf::from);
    match found(name, passwd, "").filter(|account| account.uid == uid) {
        Some(account) => Account { gid, ..account },
        None => Account {
            name: name.to_owned(),
            uid,
            gid,
            groups: vec![gid],
            home: home(),
            shell: "/bin/sh".to_owned(),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_account_comes_from_the_images_files() {
        let passwd =
            "root:x:0:0:root:/r:/bin/ash\n# a comment\nci:x:1000:100:CI,,,:/home/ci:\nodd:x:many:1::/:\n";
        let group = "root:x:0:ci\nusers:x:100:\ndocker:x:999:other, ci\nwheel:x:10:cia\nbroken\n";
        let ci = found("ci", passwd, group).unwrap();
        assert_eq!((ci.uid, ci.gid, ci.groups), (1000, 100, vec![100, 0, 999]));
        assert_eq!((ci.home, ci.shell.as_str()), (PathBuf::from("/home/ci"), "/bin/sh"));
        let root = found("root", passwd, group).unwrap();
        assert_eq!((root.uid, root.groups, root.shell.as_str()), (0, vec![0], "/bin/ash"));
        for (user, passwd) in [("nobody", passwd), ("odd", passwd), ("ci", ""), ("", passwd)] {
            assert_eq!(found(user, passwd, group), None, "{user}");
        }
        assert_eq!(found("root", "", "").unwrap().uid, 0, "an image may have no files at all");
    }

    #[test]
    fn the_containers_own_account_needs_no_line() {
        let passwd = "root:x:0:0:root:/r:/bin/ash\nnode:x:1000:1000::/home/node:/bin/bash\n";
        for (uid, home, name, at) in [
            (1000, None, "node", "/home/node"),
            (0, Some("/other"), "root", "/r"),
            (1001, Some("/srv"), "1001", "/srv"),
            (1001, Some(""), "1001", "/"),
            (1001, None, "1001", "/"),
        ] {
            let account = own((uid, 7), passwd, home.map(OsString::from));
            assert_eq!((account.uid, account.gid), (uid, 7), "the container's group stays");
            assert_eq!((account.name.as_str(), account.home), (name, PathBuf::from(at)), "{uid}");
        }
        assert_eq!(own((0, 0), "", None).name, "root");
    }
}
