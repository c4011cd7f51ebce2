//! The keys of provider `static`, and the settings that a pool's table gives them.

use std::collections::BTreeSet;

use greenroom_core::endpoint::LoginKey;
use greenroom_core::ids::PoolName;
use greenroom_keys::DefaultValue::{Described, Required, Value};
use greenroom_keys::TakesEffect::{Pass, Within};
use greenroom_keys::ValueType::{self, Flag, HostPath, Range, Tables, Text};
use greenroom_keys::problem::{Place, Problem, Problems, join};
use greenroom_keys::table::{self, Table};
use greenroom_keys::value_error::{Got, ValueError};
use greenroom_keys::{KeySpec, KeyTable, key};

pub(super) const TABLES: &[KeyTable] = &[
    KeyTable {
        header: "[pool.NAME.provider]",
        about: "Instances are hosts of the operator's, Linux or macOS, reached over SSH: adopted, and cleaned \
                between jobs. [providers/static.md](providers/static.md) explains what a host needs, and what \
                cleaning does and does not do. `user`, `port` and the login key may stand here for all hosts, or \
                in the table of a host.",
        keys: &[
            USER.with_default(Described("each host names its own")),
            KEY.with_default(Described("each host names its own")),
            AGENT,
            AGENT_KEY,
            PORT.with_default(Value("22")).notes("A jump host does not take this value."),
            key("clean", Flag, Value("true"), Pass)
                .doc("Whether Greenroom cleans a host after each job: stops processes, removes builds, temporary \
                        files and the cache.")
                .notes("`clean_command` runs afterwards, even with `false`. A host that stays with its trust domain keeps the cache."),
            key("dedicated_user", Flag, Value("false"), Pass)
                .doc("Whether only jobs use the account; cleaning then stops every process of it, and removes \
                        its files from temporary directories.")
                .notes("Refused where the account is root. No effect with `clean = false`."),
            CLEAN_USER
                .with_default(Described("the jobs' own account cleans"))
                .notes("Each host may have its own. Only with `dedicated_user = true`."),
            key("jump", ValueType::Table, Described("none: direct connections"), Within)
                .doc("A host through which all connections go."),
            key("host", Tables, Required, Within).doc("The hosts, one table each.").notes(
                "A host that is removed from the file is forgotten when its jobs have ended.",
            ),
        ],
    },
    KeyTable {
        header: "[[pool.NAME.provider.host]]",
        about: "A host that runs jobs. Two hosts with the same address, port and user are refused.",
        keys: &[
            key("name", Text, Required, Pass)
                .doc("Name of the host in commands and messages: letters, digits, `-`, `_` and `.`, at most 63.")
                .notes("Another name is another host. `\"jump\"` is reserved."),
            ADDRESS,
            PORT.with_default(Described("`port` of the provider's table")),
            USER.with_default(Described("`user` of the provider's table")),
            KEY.with_default(Described("the login key of the provider's table")),
            AGENT,
            AGENT_KEY,
            HOST_KEY,
            CLEAN_USER.with_default(Described("`clean_user` of the provider's table")),
            key("capacity", Range(1, u32::MAX), Described("`capacity_per_instance` of the pool"), Pass)
                .unit("jobs")
                .doc("Jobs that may share the host at the same time.")
                .notes("A lower value applies as soon as the present jobs fit."),
        ],
    },
    KeyTable {
        header: "[pool.NAME.provider.jump]",
        about: "A host that passes connections on and runs no jobs.",
        keys: &[
            ADDRESS,
            PORT.with_default(Value("22")),
            USER.with_default(Described("`user` of the provider's table")).doc("Account that logs in."),
            KEY.with_default(Described("the login key of the provider's table")),
            AGENT,
            AGENT_KEY,
            HOST_KEY,
        ],
    },
];

const ADDRESS: KeySpec = key("address", Text, Required, Pass).doc("IP address or name of the host.");
const USER: KeySpec = key("user", Text, Required, Pass).doc("Account that logs in and runs jobs.");
const CLEAN_USER: KeySpec = key("clean_user", Text, Required, Pass).doc(
    "Account that cleans: `root`, or one that a rule of `sudo` lets run the cleaning script. It logs in with \
            the key of `user`.",
);
const PORT: KeySpec = key("port", Range(1, 65535), Required, Pass).doc("Port of the SSH server.");
const KEY: KeySpec = key("key", HostPath, Required, Pass)
    .doc("File of the private key that logs in, without a passphrase: Ed25519, ECDSA, or RSA of 2048 to 4096 bits.")
    .notes("Excludes `agent`.");
const AGENT: KeySpec = key("agent", HostPath, Described("none"), Pass)
    .doc("Socket of an ssh-agent that logs in instead of `key`.")
    .notes("Excludes `key`.");
const AGENT_KEY: KeySpec = key("agent_key", Text, Described("all keys of the agent"), Pass)
    .doc("Public key, in OpenSSH form, that chooses among the agent's keys.")
    .notes("Only with `agent`.");
const HOST_KEY: KeySpec = key("host_key", Text, Described("the pinned key"), Pass)
    .doc(
        "Host key in OpenSSH form, Ed25519 or ECDSA: the line of `/etc/ssh/ssh_host_ed25519_key.pub` on the \
            host.",
    )
    .notes("`greenroom doctor --pin NAME` pins a key instead; without either the host gets no job.");

/// The jump host is pinned under this name, so no host may have it.
pub(super) const JUMP: &str = "jump";
/// Longer names make file names and messages unusable.
const LONGEST_NAME: usize = 63;

/// A pool's provider table, checked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Settings {
    pub(super) hosts: Vec<Host>,
    pub(super) jump: Option<Server>,
    /// True if Greenroom does its own part of cleaning. Default true.
    pub(super) clean: bool,
    /// Whether only jobs use the account; cleaning then stops all its processes.
    pub(super) dedicated_user: bool,
}

/// A host that runs jobs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Host {
    pub(super) name: String,
    pub(super) server: Server,
    /// The account that cleans; `None`: `server.user`.
    pub(super) clean_user: Option<String>,
    /// Number of concurrent jobs; `None`: the pool's `capacity_per_instance`.
    pub(super) capacity: Option<u32>,
}

/// An SSH server of the operator's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Server {
    pub(super) address: String,
    pub(super) port: u16,
    pub(super) user: String,
    pub(super) key: LoginKey,
    /// In OpenSSH form; `None`: it is pinned.
    pub(super) host_key: Option<String>,
}

/// The values for hosts that do not set their own.
#[derive(Clone)]
struct Defaults {
    user: Got<String>,
    key: Got<LoginKey>,
    port: u16,
    clean_user: Got<String>,
}

impl Settings {
    pub(super) fn read(pool: &PoolName, values: &toml::Table) -> Result<Self, Problems> {
        table::read(TABLES, pool.as_str(), values, Self::of)
    }

    fn of(table: &Table<'_>) -> Self {
        let user = table.text("user");
        let key = login_key(table);
        let defaults = Defaults {
            user,
            key,
            port: table.count("port").or_declared(),
            clean_user: table.parsed("clean_user", table.text("clean_user"), plain_account),
        };
        let dedicated_user = table.flag("dedicated_user").or_declared();
        let tables = match table.tables("host") {
            Got::Good(none, _) if none.is_empty() => Got::Absent(None),
            tables => tables,
        };
        let help = "name each host in a `[[pool.NAME.provider.host]]` table of its own";
        let tables = table.required("host", tables, help).or_default();
        let hosts = tables.iter().filter_map(|table| Some((table, host(table, &defaults)?)));
        let hosts: Vec<(&Table<'_>, Host)> = hosts.collect();
        refuse_shared(&hosts);
        let root = hosts.iter().find(|(_, host)| host.server.user == "root");
        if let Some((_, Host { name, .. })) = root.filter(|_| dedicated_user) {
            let why = format!(
                "is true, but jobs on host \"{name}\" run as root: cleaning would kill every process of the host"
            );
            table.refuse("dedicated_user", why);
        }
        let clean = table.flag("clean").or_declared();
        for (host_table, host) in hosts.iter().filter(|(_, host)| host.clean_user.is_some()) {
            let why = if !clean {
                "has no effect with `clean = false`".to_owned()
            } else if !dedicated_user {
                "needs `dedicated_user = true`: it stops all processes of the account, and resets its home"
                    .to_owned()
            } else if host.clean_user.as_ref() == Some(&host.server.user) {
                "is the account of jobs: name `root`, or an account that no job has".to_owned()
            } else if let Err(why) = plain_account(host.server.user.clone()) {
                format!("cannot clean the account `user`, which {why}")
            } else {
                continue;
            };
            let own = host_table.text("clean_user");
            (if own.is_absent() { table } else { *host_table }).refuse("clean_user", why);
            break;
        }
        Self {
            hosts: hosts.into_iter().map(|(_, host)| host).collect(),
            jump: table.table("jump").into_value().and_then(|jump| server(&jump, &defaults)),
            clean,
            dedicated_user,
        }
    }

    /// Returns why jobs cannot run in containers on these hosts.
    pub(super) fn no_containers(&self, pool: &PoolName) -> Option<Problem> {
        let (key, why, help) = if self.hosts.iter().any(|host| host.server.user == "root") {
            ("user", "an account without root, and `user` is root", "name an account that only jobs use")
        } else if self.hosts.iter().any(|host| host.clean_user.is_none()) {
            let why = "`clean_user`: containers leave processes and files of ids that the account of jobs cannot clean";
            ("clean_user", why, "set `clean_user = \"root\"` and `dedicated_user = true`")
        } else {
            return None;
        };
        let table = format!("pool.{pool}.provider");
        let problem = Problem::new(format!("containers on static hosts need {why}"));
        let place = if key == "user" { Place::name_of(join(&table, key)) } else { Place::value_of(table) };
        Some(problem.at(place, "this pool has containers").help(help))
    }

    pub(super) fn host(&self, name: &str) -> Option<&Host> {
        self.hosts.iter().find(|host| host.name == name)
    }
}

/// The host of a table; `None`, as in [`server`]: something is missing or wrong, and reported.
fn host(table: &Table<'_>, defaults: &Defaults) -> Option<Host> {
    let name = table.required("name", table.text("name"), "name this host");
    let name = table.parsed("name", name, plain_name);
    let capacity = table.count("capacity").into_value();
    let server = server(table, defaults)?;
    let clean_user = table.parsed("clean_user", table.text("clean_user"), plain_account);
    let clean_user = clean_user.over(&defaults.clean_user).clone().into_value();
    Some(Host { name: name.into_value()?, server, clean_user, capacity })
}

fn server(table: &Table<'_>, defaults: &Defaults) -> Option<Server> {
    let address = table.required("address", table.text("address"), "set it to an IP address or a host name");
    let user = table.text("user").over(&defaults.user).clone();
    let user = table.required("user", user, "name the user that jobs run as, here or for all hosts");
    let key = login_key(table).over(&defaults.key).clone();
    let help = "name the file of a private key (or `agent`, a socket), here or for all hosts";
    let key = table.required("key", key, help);
    // The jump host has a default of its own: the port of the hosts does not apply to it.
    let port = table.count("port").effective().copied().unwrap_or(defaults.port);
    let host_key = table.parsed("host_key", table.text("host_key"), |text| host_key(&text)).into_value();
    let address = address.into_value()?.trim().to_owned();
    Some(Server { address, port, user: user.into_value()?, key: key.into_value()?, host_key })
}

/// The login key of a table: `key`, or `agent` with an optional `agent_key`.
fn login_key(table: &Table<'_>) -> Got<LoginKey> {
    let file = table.text("key");
    let agent = table.text("agent");
    let agent_key = table.text("agent_key");
    let refuse = |name, why| {
        table.refuse(name, why);
        Got::Bad(None)
    };
    match (file, agent, agent_key.into_value()) {
        (Got::Bad(_), _, _) | (_, Got::Bad(_), _) => Got::Bad(None),
        (Got::Good(..), Got::Good(..), _) => refuse("agent", "conflicts with `key`: remove one of the two"),
        (Got::Good(..), Got::Absent(_), Some(_)) => {
            refuse("agent_key", "conflicts with `key`: it selects one of an agent's keys")
        }
        (Got::Absent(_), Got::Absent(_), Some(_)) => {
            refuse("agent_key", "has no effect without `agent`, the socket of an ssh-agent")
        }
        (Got::Absent(_), Got::Absent(_), None) => Got::Absent(None),
        (file @ Got::Good(..), Got::Absent(_), None) => file.map(|file| LoginKey::File(file.into())),
        (Got::Absent(_), agent, key) => agent.map(|socket| LoginKey::Agent { socket: socket.into(), key }),
    }
}

/// Names become file names and arguments.
fn plain_name(name: String) -> Result<String, ValueError> {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    if name == JUMP {
        return Err(ValueError::unusable(name, "the jump host's name: choose another"));
    }
    if name.len() > LONGEST_NAME {
        return Err(ValueError::value(name, "at most 63 characters"));
    }
    if !name.starts_with(|c: char| c.is_ascii_alphanumeric()) || !name.chars().all(plain) {
        let expected = "letters, digits, `-`, `_` and `.`, beginning with a letter or a digit";
        return Err(ValueError::value(name, expected));
    }
    Ok(name)
}

/// Names of accounts that a shell and sudoers take as they are.
fn plain_account(name: String) -> Result<String, ValueError> {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    if name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_') && name.chars().all(plain) {
        return Ok(name);
    }
    Err(ValueError::value(name, "letters, digits, `-`, `_` and `.`, beginning with a letter"))
}

fn host_key(text: &str) -> Result<String, ValueError> {
    let mut fields = text.split_whitespace();
    match (fields.next(), fields.next()) {
        (Some(kind), Some(blob)) if kind == "ssh-ed25519" || kind.starts_with("ecdsa-sha2-") => {
            Ok(format!("{kind} {blob}"))
        }
        _ => Err(ValueError::rule(
            "be an Ed25519 or ECDSA key in OpenSSH format (`ssh-ed25519 AAAA…`): take it from \
             /etc/ssh/ssh_host_ed25519_key.pub on the host",
        )),
    }
}

/// Refuses two hosts with the same name, or with the same account, which they would share unawares.
fn refuse_shared(hosts: &[(&Table<'_>, Host)]) {
    let mut names = BTreeSet::new();
    let mut places = BTreeSet::new();
    for (table, Host { name, server, .. }) in hosts {
        if !names.insert(name) {
            table.refuse("name", format!("is {name:?}, the name of another host"));
        }
        let Server { address, port, user, .. } = server;
        if !places.insert((address, port, user)) {
            let why = format!("is {address:?}, but another host has the same address, port and user");
            table.refuse("address", why);
        }
    }
}

#[cfg(test)]
mod tests {
    use greenroom_testkit::key_tables;

    use super::*;

    const COMMON: &str = "user = \"ci\"\nkey = \"/etc/greenroom/id\"\n";
    const HOST_KEY: &str = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJdD7y3aLq454yWBdwLWbieU1ebz9/cu7/QEXn9OIeZJ";

    fn settings(values: &toml::Table) -> Result<Settings, Problems> {
        Settings::read(&PoolName::new("linux"), values)
    }

    fn read(text: &str) -> Result<Settings, String> {
        settings(&text.parse().unwrap()).map_err(|problems| problems.to_string())
    }

    #[track_caller]
    fn expect_refused(text: &str, path: &str, message: &str) {
        let problems = settings(&text.parse().unwrap()).unwrap_err();
        let error = problems.to_string();
        assert!(error.starts_with(message) && problems.0.len() == 1, "{error}\n is not\n{message}");
        let path = format!("pool.linux.provider.{path}");
        assert_eq!(problems.0[0].marks[0].0.path, path.trim_end_matches('.'), "{error}");
    }

    #[test]
    fn a_host_takes_from_the_table_what_it_does_not_say_itself() {
        let text = format!(
            "{COMMON}port = 2222\n[[host]]\nname = \"a\"\naddress = \"10.0.0.1\"\n\
             [[host]]\nname = \"mac-1\"\naddress = \"mac.example\"\nport = 22\nuser = \"build\"\n\
             agent = \"/run/agent\"\ncapacity = 2\nhost_key = \"{HOST_KEY} root@mac\"\n"
        );
        let settings = read(&text).unwrap();
        let a = &settings.hosts[0];
        assert_eq!((a.server.port, a.server.user.as_str(), a.capacity), (2222, "ci", None));
        assert_eq!(a.server.key, LoginKey::File("/etc/greenroom/id".into()));
        let mac = settings.host("mac-1").unwrap();
        assert_eq!((mac.server.port, mac.server.user.as_str(), mac.capacity), (22, "build", Some(2)));
        assert_eq!(mac.server.key, LoginKey::Agent { socket: "/run/agent".into(), key: None });
        assert_eq!(mac.server.host_key.as_deref(), Some(HOST_KEY), "without its comment");
        assert!(settings.clean && !settings.dedicated_user);
    }

    #[test]
    fn mistakes_are_named_by_their_key_with_what_was_expected() {
        let host = "[[host]]\nname = \"a\"\naddress = \"h\"\n";
        for (text, path, message) in [
            (COMMON.to_owned(), "", "`host` is missing in `[pool.linux.provider]` (name each host in a "),
            ("host = []\n".to_owned(), "", "`host` is missing in `[pool.linux.provider]`"),
            (
                format!("key = \"/k\"\n{host}"),
                "host.0",
                "`user` is missing in `[[pool.linux.provider.host]]`",
            ),
            (
                format!("user = \"ci\"\n{host}"),
                "host.0",
                "`key` is missing in `[[pool.linux.provider.host]]`",
            ),
            (
                format!("user = \"ci\"\nkey = \"id\"\n{host}"),
                "key",
                "`key` in `[pool.linux.provider]` must be an absolute path",
            ),
            (format!("{COMMON}agent = \"/a\"\n{host}"), "agent", "`agent` conflicts with `key`"),
            (
                format!("{COMMON}{host}prot = 22\n"),
                "host.0.prot",
                "`prot` is not a key of `[[pool.linux.provider.host]]` (did you mean `port`?)",
            ),
            (
                format!("{COMMON}{host}port = 70000\n"),
                "host.0.port",
                "`port` in `[[pool.linux.provider.host]]` must be a whole number from 1 to 65535",
            ),
            (
                format!("{COMMON}{host}capacity = 0\n"),
                "host.0.capacity",
                "`capacity` in `[[pool.linux.provider.host]]` must be a whole number, 1 or more",
            ),
            (
                format!("{COMMON}{host}host_key = \"ssh-rsa AAAA\"\n"),
                "host.0.host_key",
                "`host_key` must be an Ed25519 or ECDSA",
            ),
            (
                format!("{COMMON}{host}[[host]]\nname = \"a\"\naddress = \"i\"\n"),
                "host.1.name",
                "`name` is \"a\", the name of another host",
            ),
            (
                format!("{COMMON}{host}[[host]]\nname = \"b\"\naddress = \"h\"\n"),
                "host.1.address",
                "`address` is \"h\", but another host has the same",
            ),
            (
                format!("{COMMON}[[host]]\nname = \"jump\"\naddress = \"h\"\n"),
                "host.0.name",
                "`name` is \"jump\", the jump host's name",
            ),
            (
                format!("{COMMON}[[host]]\nname = \"../x\"\naddress = \"h\"\n"),
                "host.0.name",
                "`name` is \"../x\", expected letters",
            ),
            (
                format!("{COMMON}{host}[jump]\nuser = \"j\"\n"),
                "jump",
                "`address` is missing in `[pool.linux.provider.jump]`",
            ),
            (
                format!("user = \"root\"\nkey = \"/k\"\ndedicated_user = true\n{host}"),
                "dedicated_user",
                "`dedicated_user` is true, but jobs on host \"a\" run as root",
            ),
        ] {
            expect_refused(&text, path, message);
        }
    }

    #[test]
    fn an_account_that_cleans_is_another_one_and_needs_an_account_of_jobs_alone() {
        let host = "[[host]]\nname = \"a\"\naddress = \"h\"\n";
        for (text, path, message) in [
            (
                format!("{COMMON}clean_user = \"root\"\n{host}"),
                "clean_user",
                "`clean_user` needs `dedicated_user = true`",
            ),
            (
                format!("{COMMON}dedicated_user = true\nclean = false\n{host}clean_user = \"root\"\n"),
                "host.0.clean_user",
                "`clean_user` has no effect with `clean = false`",
            ),
            (
                format!("{COMMON}dedicated_user = true\nclean_user = \"ci\"\n{host}"),
                "clean_user",
                "`clean_user` is the account of jobs",
            ),
            (
                format!("{COMMON}dedicated_user = true\nclean_user = \"a b\"\n{host}"),
                "clean_user",
                "`clean_user` is \"a b\", expected letters",
            ),
            (
                format!(
                    "user = \"ALL\\\\\"\nkey = \"/k\"\ndedicated_user = true\n{host}clean_user = \"root\"\n"
                ),
                "host.0.clean_user",
                "`clean_user` cannot clean the account `user`, which is",
            ),
        ] {
            expect_refused(&text, path, message);
        }
    }

    #[test]
    fn the_mistakes_of_all_hosts_are_found_together() {
        let text = "[[host]]\nname = \"a b\"\nport = 0\n[[host]]\nuser = \"u\"\nkey = \"/k\"\n";
        let problems = settings(&text.parse().unwrap()).unwrap_err();
        let found: Vec<&str> = problems.0.iter().map(|problem| problem.marks[0].0.path.as_str()).collect();
        let inner = ["host.0.name", "host.0", "host.0", "host.0", "host.0.port", "host.1", "host.1"];
        assert_eq!(found, inner.map(|path| format!("pool.linux.provider.{path}")));
    }

    #[test]
    fn the_table_of_keys_is_the_one_that_is_read() {
        let least = "[[host]]\nname = \"a\"\naddress = \"h\"\n[jump]\naddress = \"j\"\n";
        key_tables::hold(TABLES, &format!("{COMMON}{least}"), settings);
    }

    #[test]
    fn the_example_shows_every_key() {
        key_tables::shown(TABLES, include_str!("example.toml"));
    }
}
