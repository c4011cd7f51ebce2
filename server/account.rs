//! The account that jobs run in, from the image's own files: a static program has no name service.

use std::io;
use std::path::PathBuf;

use rustix::process::{Gid, Uid, getuid};
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
}
