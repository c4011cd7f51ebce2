//! The hosts of `~/.ssh/config`, as far as their sections name them plainly.

/// A host with the settings of its own section.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct SshHost {
    pub(super) alias: String,
    pub(super) address: Option<String>,
    pub(super) user: Option<String>,
    pub(super) port: Option<u16>,
    pub(super) key: Option<String>,
}

/// The hosts without wildcards, in their order. What `Match`, `Include` and sections with wildcards would add is left
/// out: Greenroom does not read this file later, so each setting is written into its own.
pub(super) fn hosts(text: &str) -> Vec<SshHost> {
    let mut hosts: Vec<SshHost> = Vec::new();
    // The first of the hosts of the present section.
    let mut section = 0;
    for line in text.lines() {
        let line = line.trim();
        let Some((name, value)) = line.split_once([' ', '\t', '=']) else { continue };
        let value = value.trim_start_matches([' ', '\t', '=']).trim();
        match name.to_ascii_lowercase().as_str() {
            "host" => {
                section = hosts.len();
                let plain = |alias: &&str| !alias.contains(['*', '?', '!', '"']) && !alias.starts_with('#');
                let known = |alias: &&str| !hosts.iter().any(|host| host.alias == *alias);
                let fresh: Vec<&str> = value.split_whitespace().filter(plain).filter(known).collect();
                let named = |alias: &str| SshHost { alias: alias.to_owned(), ..SshHost::default() };
                hosts.extend(fresh.into_iter().map(named));
            }
            "match" => section = hosts.len(),
            keyword => {
                let value = value.trim_matches('"');
                for host in &mut hosts[section..] {
                    set(host, keyword, value);
                }
            }
        }
    }
    hosts
}

/// The first value of a keyword counts, as for `ssh`.
fn set(host: &mut SshHost, keyword: &str, value: &str) {
    let text = || Some(value.to_owned());
    match keyword {
        "hostname" if host.address.is_none() => host.address = Some(value.replace("%h", &host.alias)),
        "user" if host.user.is_none() => host.user = text(),
        "port" if host.port.is_none() => host.port = value.parse().ok(),
        "identityfile" if host.key.is_none() => host.key = text(),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_hosts_are_found_with_their_own_settings() {
        let text = "# mine\nHost *\n  User nobody\nHost build-1 build-2 *.example.com\n  HostName %h.corp\n\tUser=ci\n\
                    Port 2222\n IdentityFile \"~/.ssh/id_ci\"\n IdentityFile ~/.ssh/other\nHost !x build-1 mac\n\
                    User admin\nMatch user root\n Port 1\nrubbish\nHost\n";
        let build = |alias: &str| SshHost {
            alias: alias.into(),
            address: Some(format!("{alias}.corp")),
            user: Some("ci".into()),
            port: Some(2222),
            key: Some("~/.ssh/id_ci".into()),
        };
        let mac = SshHost { alias: "mac".into(), user: Some("admin".into()), ..SshHost::default() };
        assert_eq!(hosts(text), [build("build-1"), build("build-2"), mac]);
    }
}
