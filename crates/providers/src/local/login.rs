//! Login name and shell of the user that runs this process.

/// The login name in the user database; if there is none, a name made of the user id.
pub(super) fn name() -> String {
    let uid = rustix::process::geteuid().as_raw();
    let local = std::fs::read_to_string("/etc/passwd").ok().and_then(|text| in_passwd(&text, uid));
    local.or_else(in_directory).unwrap_or_else(|| format!("uid{uid}"))
}

fn in_passwd(text: &str, uid: u32) -> Option<String> {
    entry(text, uid)?.split(':').next().filter(|name| !name.is_empty()).map(str::to_owned)
}

fn entry(text: &str, uid: u32) -> Option<&str> {
    text.lines().find(|line| line.split(':').nth(2).is_some_and(|field| field == uid.to_string()))
}

/// The login shell, if it denies every login: OpenSSH runs it, the embedded server does not.
pub(super) fn closed_shell() -> Option<String> {
    let text = std::fs::read_to_string("/etc/passwd").ok()?;
    closed(&text, rustix::process::geteuid().as_raw())
}

fn closed(text: &str, uid: u32) -> Option<String> {
    let shell = entry(text, uid)?.split(':').nth(6)?;
    let name = shell.rsplit('/').next().unwrap_or_default();
    matches!(name, "nologin" | "false").then(|| shell.to_owned())
}

/// The name of a user of a network directory, who is not in /etc/passwd.
fn in_directory() -> Option<String> {
    let output =
        std::process::Command::new("id").arg("-un").output().ok().filter(|out| out.status.success())?;
    let name = String::from_utf8(output.stdout).ok()?.trim().to_owned();
    (!name.is_empty()).then_some(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_name_of_a_number_counts() {
        let text =
            "root:x:0:0:root:/root:/bin/bash\nci:x:1000:1000::/home/ci:/bin/sh\ntoor:x:0:0::/:/bin/sh\n";
        assert_eq!(in_passwd(text, 0).as_deref(), Some("root"));
        assert_eq!(in_passwd(text, 1000).as_deref(), Some("ci"));
        assert_eq!(in_passwd(text, 100), None);
        assert!(!name().is_empty());
    }

    #[test]
    fn a_shell_that_lets_nobody_in_is_known() {
        let text = "www:x:33:33::/:/usr/sbin/nologin\nci:x:1000:1000::/:/bin/bash\nno:x:5:5::/:/bin/false\n";
        assert_eq!(closed(text, 33).as_deref(), Some("/usr/sbin/nologin"));
        assert_eq!(closed(text, 5).as_deref(), Some("/bin/false"));
        assert_eq!((closed(text, 1000), closed(text, 7)), (None, None));
    }
}
