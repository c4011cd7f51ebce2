//! The part of provider `static` in `greenroom init`, which proposes the hosts of `~/.ssh/config`.

use std::path::{Path, PathBuf};

use toml::{Table, Value};

use crate::first_pool::{FirstPool, Found, Given, RunnerHost, Suits, few};

pub(super) const FIRST_POOL: FirstPool = FirstPool {
    name: "hosts",
    about: "hosts over SSH",
    comments: &[("dedicated_user", "false"), ("clean_user", "\"root\"")],
    look: |host| Box::new(SshConfig::look(host)),
};

#[derive(Debug, Default)]
struct SshConfig {
    hosts: Vec<SshHost>,
    home: Option<PathBuf>,
}

impl SshConfig {
    fn look(host: &RunnerHost<'_>) -> Self {
        let hosts = host.read_at_home(".ssh/config").map(|text| hosts_of_ssh_config(&text));
        Self { hosts: hosts.unwrap_or_default(), home: host.home() }
    }
}

impl Found for SshConfig {
    fn text(&self) -> Option<String> {
        let names: Vec<&str> = self.hosts.iter().map(|host| host.alias.as_str()).collect();
        Some(match names.as_slice() {
            [] => "no hosts in ~/.ssh/config".to_owned(),
            names => format!("in ~/.ssh/config: {}", few(names)),
        })
    }

    fn suits(&self) -> Suits {
        if self.hosts.is_empty() { Suits::Unknown } else { Suits::Now }
    }

    fn asks_for(&self) -> &'static [&'static str] {
        &["user", "key"]
    }

    fn likely(&self, key: &str, _given: &Given<'_>) -> Option<String> {
        match key {
            "user" => Some("ci".to_owned()),
            "key" => Some("/etc/greenroom/hosts_key".to_owned()),
            _ => None,
        }
    }

    fn replaces(&self, key: &str, given: &Given<'_>) -> bool {
        let in_each_host = !given.hosts.is_empty() && given.hosts.iter().all(|host| host.contains_key(key));
        in_each_host || key == "key" && given.has("agent")
    }

    /// Below the home of the account that all hosts share: it may create nothing elsewhere.
    fn follows_for_pool(&self, given: &Given<'_>) -> Vec<(&'static str, Value)> {
        let Some(user) = given.text("user").filter(|user| *user != "root") else { return Vec::new() };
        let below = |folder: &str| Value::String(format!("/home/{user}/{folder}"));
        vec![("builds_dir", below("builds")), ("cache_dir", below("cache"))]
    }

    /// The host is called as the operator writes it. The other values come from the operator or the host's section.
    fn host(&self, text: &str) -> Option<Table> {
        let (user, rest) = match text.split_once('@') {
            Some((user, rest)) => (Some(user.to_owned()), rest),
            None => (None, text),
        };
        let (name, port) = match rest.rsplit_once(':') {
            // An address of IPv6 has several colons and no port.
            Some((name, port)) if !name.contains(':') || name.ends_with(']') => {
                (name, Some(port.parse::<u16>().ok()?))
            }
            _ => (rest, None),
        };
        let name = name.trim_matches(['[', ']']);
        if name.is_empty() || name.contains(char::is_whitespace) || user.as_deref() == Some("") {
            return None;
        }
        let known = self.hosts.iter().find(|host| host.alias == name).cloned().unwrap_or_default();
        let SshHost { alias: _, address, user: usual, port: usual_port, key } = known;
        let own = |key: String| match (key.strip_prefix("~/"), &self.home) {
            (Some(rest), Some(home)) => Some(home.join(rest).display().to_string()),
            _ => key.starts_with('/').then_some(key),
        };
        let plain = name.replace(|c: char| !c.is_ascii_alphanumeric() && !"-_.".contains(c), "-");
        let values = [
            ("name", Some(Value::String(plain))),
            ("address", Some(Value::String(address.unwrap_or_else(|| name.to_owned())))),
            ("user", user.or(usual).map(Value::String)),
            ("port", port.or(usual_port).map(|port| Value::Integer(port.into()))),
            ("key", key.and_then(own).map(Value::String)),
        ];
        Some(values.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?))).collect())
    }

    fn instances(&self, given: &Given<'_>) -> Option<u32> {
        Some(u32::try_from(given.hosts.len()).unwrap_or(u32::MAX))
    }

    fn steps(&self, _pool: &str, given: &Given<'_>, program: &str) -> Vec<String> {
        let shared = |name: &str| given.text(name).unwrap_or_default();
        let mut lines = Vec::new();
        if !shared("key").is_empty() && !Path::new(shared("key")).exists() {
            lines.push(format!("ssh-keygen -q -t ed25519 -N '' -f {}", shared("key")));
        }
        for host in given.hosts {
            let text = |name: &str| host.get(name).and_then(Value::as_str);
            let key = text("key").unwrap_or(shared("key"));
            let user = text("user").unwrap_or(shared("user"));
            let port = host.get("port").map(|port| format!(" -p {port}")).unwrap_or_default();
            if !key.is_empty() {
                let address = text("address").unwrap_or_default();
                lines.push(format!("ssh-copy-id -i {key}.pub{port} {user}@{address}"));
            }
            lines.push(format!("{program} doctor --pin {}", text("name").unwrap_or_default()));
        }
        lines
    }
}

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
pub(super) fn hosts_of_ssh_config(text: &str) -> Vec<SshHost> {
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
                    set_keyword(host, keyword, value);
                }
            }
        }
    }
    hosts
}

/// The first value of a keyword counts, as for `ssh`.
fn set_keyword(host: &mut SshHost, keyword: &str, value: &str) {
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
        assert_eq!(hosts_of_ssh_config(text), [build("build-1"), build("build-2"), mac]);
    }
}
