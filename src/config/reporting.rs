//! The keeper's own reports: where it serves metrics (`metrics`), and how operators get notices (`[notify]`).

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use greenroom_keys::table::Table;
use greenroom_keys::value_error::ValueError;

/// The longest path that a socket's address holds, less what the socket's name has while it is made.
const LONGEST_PATH: usize = 100;

/// An address to serve metrics at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MetricsAddress {
    /// `unix:PATH`
    Unix(PathBuf),
    /// `ADDR:PORT`; port 0: the system chooses one.
    Tcp(SocketAddr),
}

impl FromStr for MetricsAddress {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Self, ValueError> {
        if let Some(path) = text.strip_prefix("unix:") {
            let path = PathBuf::from(path);
            if !path.is_absolute() || path.file_name().is_none() || path.ends_with("..") {
                return Err(ValueError::rule("be an absolute path after `unix:`"));
            }
            if path.as_os_str().len() > LONGEST_PATH {
                return Err(ValueError::rule(format!(
                    "have a path of at most {LONGEST_PATH} bytes after `unix:`"
                )));
            }
            return Ok(Self::Unix(path));
        }
        text.parse().map(Self::Tcp).map_err(|_| {
            ValueError::rule(
                "be \"unix:PATH\" or \"ADDRESS:PORT\", such as \"127.0.0.1:9252\"; a host name is not accepted",
            )
        })
    }
}

impl fmt::Display for MetricsAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
            Self::Tcp(address) => address.fmt(f),
        }
    }
}

/// How operators get notices: by a command, a webhook, or both.
#[derive(Clone, PartialEq, Eq)]
pub struct Notify {
    /// Program and arguments.
    pub command: Option<Vec<String>>,
    pub webhook: Option<Webhook>,
    pub min_interval: Duration,
}

/// A URL, in parts.
#[derive(Clone, PartialEq, Eq)]
pub struct Webhook {
    /// `https://`, else `http://`.
    pub tls: bool,
    pub host: String,
    pub port: u16,
    /// With the query, which may have a secret: never shown.
    pub target: String,
}

impl std::fmt::Debug for Notify {
    /// Without arguments, which may have a secret.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let program = self.command.as_ref().and_then(|words| words.first());
        f.debug_struct("Notify")
            .field("command", &program)
            .field("webhook", &self.webhook)
            .finish_non_exhaustive()
    }
}

impl std::fmt::Debug for Webhook {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}://{}:{}/…", self.scheme(), self.bracketed(), self.port)
    }
}

impl Webhook {
    fn parse(url: &str) -> Result<Self, ValueError> {
        let (tls, rest) = match (url.strip_prefix("https://"), url.strip_prefix("http://")) {
            (Some(rest), _) => (true, rest),
            (None, Some(rest)) => (false, rest),
            (None, None) => return Err(ValueError::rule("be an `https://` or `http://` URL")),
        };
        let at = rest.find(['/', '?', '#']).unwrap_or(rest.len());
        let (authority, path) = rest.split_at(at);
        if authority.contains('@') {
            return Err(ValueError::rule("have no user and no password"));
        }
        let path = path.split('#').next().unwrap_or_default();
        if !url.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(ValueError::rule("have no spaces, control characters or letters beyond ASCII"));
        }
        let (host, port) = match authority.rsplit_once(':') {
            Some((host, port)) if !port.ends_with(']') => {
                let port = port.parse().ok().filter(|port| *port > 0);
                (host, port.ok_or_else(|| ValueError::rule("have a port from 1 to 65535"))?)
            }
            _ => (authority, if tls { 443 } else { 80 }),
        };
        let host = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
        if host.is_empty() {
            return Err(ValueError::rule("have a host"));
        }
        let target = if path.starts_with('/') { path.to_owned() } else { format!("/{path}") };
        Ok(Self { tls, host: host.to_owned(), port, target })
    }

    fn scheme(&self) -> &'static str {
        if self.tls { "https" } else { "http" }
    }

    /// The host as a URL has it.
    fn bracketed(&self) -> String {
        if self.host.contains(':') { format!("[{}]", self.host) } else { self.host.clone() }
    }

    /// Host and port as a request names them: without the scheme's own port.
    pub fn authority(&self) -> String {
        let own = if self.tls { 443 } else { 80 };
        if self.port == own { self.bracketed() } else { format!("{}:{}", self.bracketed(), self.port) }
    }

    /// All of it, with its secret.
    pub fn url(&self) -> String {
        format!("{}://{}{}", self.scheme(), self.authority(), self.target)
    }
}

/// Reads the table; mistakes are reported.
pub(super) fn notify(table: &Table<'_>) -> Notify {
    let command = table.texts("command").map(|texts| texts.into_iter().map(|(text, _)| text).collect());
    let command: Option<Vec<String>> = command.into_value();
    let webhook = table.parsed("webhook", table.text("webhook"), |url| Webhook::parse(&url));
    if webhook.is_absent() && !table.has("command") {
        table.refuse("command", "or `webhook` is missing");
    }
    if command.as_ref().and_then(|words| words.first()).is_some_and(|program| !program.starts_with('/')) {
        table.refuse("command", "must begin with the absolute path of a program");
    }
    let min_interval = table.duration("min_interval").or_declared();
    Notify { command, webhook: webhook.into_value(), min_interval }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;

    #[test]
    fn an_address_is_a_path_or_an_address_with_a_port() {
        for text in ["unix:/run/greenroom/metrics.sock", "127.0.0.1:9252", "[::1]:0", "0.0.0.0:9252"] {
            assert_eq!(text.parse::<MetricsAddress>().unwrap().to_string(), text);
        }
        let long = format!("unix:/{}", "a".repeat(LONGEST_PATH));
        for text in ["", "unix:", "unix:metrics.sock", "unix:/", "9252", ":9252", "localhost:9252", &long] {
            text.parse::<MetricsAddress>().expect_err(text);
        }
    }

    fn read(notify: &str) -> Result<Option<Notify>, String> {
        let pool = "[pool.a]\nmax_instances = 1\n[pool.a.provider]\nkind = \"local\"";
        let config = Config::parse(&format!("{notify}\n{pool}\n"), "greenroom.toml");
        config.map(|config| config.notify).map_err(|wrong| wrong.to_string())
    }

    #[test]
    fn a_target_is_a_command_or_a_url() {
        assert_eq!(read("").unwrap(), None);
        let command =
            read("[notify]\ncommand = [\"/bin/mail\", \"-s\"]\nmin_interval = \"1h\"").unwrap().unwrap();
        assert_eq!(command.command, Some(vec!["/bin/mail".to_owned(), "-s".to_owned()]));
        assert_eq!(command.min_interval, Duration::from_hours(1));
        let webhook = |tls, host: &str, port, target: &str| Webhook {
            tls,
            host: host.to_owned(),
            port,
            target: target.to_owned(),
        };
        for (url, expected) in [
            ("http://127.0.0.1:9093/hook?key=1", webhook(false, "127.0.0.1", 9093, "/hook?key=1")),
            ("http://relay.corp", webhook(false, "relay.corp", 80, "/")),
            ("https://chat.corp/hook?a", webhook(true, "chat.corp", 443, "/hook?a")),
            ("https://[::1]:8443", webhook(true, "::1", 8443, "/")),
            ("http://[::1]:8080/a#b", webhook(false, "::1", 8080, "/a")),
            ("http://[::1]?a", webhook(false, "::1", 80, "/?a")),
        ] {
            let found = read(&format!("[notify]\nwebhook = \"{url}\"")).unwrap().unwrap();
            assert_eq!(found.webhook, Some(expected), "{url}");
        }
    }

    #[test]
    fn mistakes_say_what_is_expected() {
        for (notify, expected) in [
            ("[notify]", "`command` or `webhook` is missing"),
            ("[notify]\ncommand = [\"mail\"]", "absolute path of a program"),
            ("[notify]\ncommand = []", "command"),
            ("[notify]\nwebhook = \"ftp://a/\"", "must be an `https://` or `http://` URL"),
            ("[notify]\nwebhook = \"http://user:secret@a/\"", "no password"),
            ("[notify]\nwebhook = \"http://a:0/\"", "must have a port from 1 to 65535"),
            ("[notify]\nwebhook = \"https://user:secret@a/\"", "no password"),
            ("[notify]\nwebhook = \"http:///x\"", "must have a host"),
            ("[notify]\nwebhook = \"http://a/b c\"", "no spaces"),
        ] {
            let wrong = read(notify).unwrap_err();
            assert!(wrong.contains(expected), "{notify}: {wrong}");
        }
    }

    #[test]
    fn a_url_is_put_together_as_it_was() {
        for url in ["http://a/", "https://a/b?c", "https://a:80/", "http://a:443/", "https://[::1]:8443/x"] {
            let webhook = read(&format!("[notify]\nwebhook = \"{url}\"")).unwrap().unwrap().webhook;
            assert_eq!(webhook.unwrap().url(), url);
        }
    }

    #[test]
    fn what_is_logged_has_no_secret() {
        let notify = read("[notify]\nwebhook = \"https://a/hook?key=secret\"").unwrap().unwrap();
        let shown = format!("{notify:?}");
        assert!(shown.contains("https://a:443/…") && !shown.contains("secret"), "{shown}");
        let notify = read("[notify]\ncommand = [\"/bin/x\", \"secret\"]").unwrap().unwrap();
        assert!(!format!("{notify:?}").contains("secret"));
    }
}
