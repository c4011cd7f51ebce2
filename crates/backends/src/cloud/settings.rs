//! The keys that every cloud's table has, and the settings that they are read into ([`Common`]).

use std::path::PathBuf;
use std::time::Duration;

use greenroom_keys::DefaultValue::{self, Described, Value};
use greenroom_keys::TakesEffect::{Launch, Pass, Within};
use greenroom_keys::ValueType::{self, HostPath, Map, Range, Size, Tables, Text, Word};
use greenroom_keys::problem::{Place, Problem, join};
use greenroom_keys::table::Table;
use greenroom_keys::value_error::ValueError;
use greenroom_keys::{KeySpec, key};
use serde::{Deserialize, Serialize};

use super::offerings::{self, KeyNames, Market, Offering};
use super::tags;

/// The address of a machine that Greenroom connects to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum AddressKind {
    Private,
    Public,
    Ipv6,
}

/// The program that reads the user data at the first boot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum UserData {
    CloudInit,
    /// A script for `/bin/sh`, as root: for images that run one and have no cloud-init.
    Script,
}

/// The table's common part, checked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Common {
    /// The preferred one first; never empty.
    pub offerings: Vec<Offering>,
    /// The Linux user that logs in.
    pub user: String,
    pub ssh_port: u16,
    pub address: AddressKind,
    pub user_data: UserData,
    /// Size of the root disk in GiB; `None`: the size of the image.
    pub disk_gib: Option<u32>,
    /// The cloud's own name for a kind of disk; `None`: the cloud's default.
    pub disk_type: Option<String>,
    /// The operator's own tags.
    pub tags: Vec<(String, String)>,
    /// Address of the cloud's API; `None`: the public one.
    pub endpoint: Option<String>,
    /// A file with credentials; `None`: the usual places.
    pub credentials_file: Option<PathBuf>,
}

impl Common {
    /// The settings of a table without a cloud's keys, whose instances have one address each.
    pub fn plain(table: &Table<'_>, offerings: Vec<Offering>, user_data: UserData) -> Self {
        Self {
            offerings,
            user: own_user(table),
            ssh_port: table.count("ssh_port").or_declared(),
            address: AddressKind::Private,
            user_data,
            disk_gib: None,
            disk_type: None,
            tags: Vec::new(),
            endpoint: None,
            credentials_file: None,
        }
    }

    /// The settings of a cloud's table. Without offerings, something is wrong and reported.
    pub fn read(table: &Table<'_>, key_names: &KeyNames) -> Self {
        Self {
            offerings: offerings::read(table, key_names),
            user: own_user(table),
            ssh_port: table.count("ssh_port").or_declared(),
            address: match table.word("address").or_declared() {
                "public" => AddressKind::Public,
                "ipv6" => AddressKind::Ipv6,
                _ => AddressKind::Private,
            },
            user_data: user_data(table),
            disk_gib: table.parsed("disk", table.size("disk"), gib).into_value(),
            disk_type: table.text("disk_type").into_value(),
            tags: own_tags(table),
            endpoint: table.parsed("endpoint", table.text("endpoint"), |url| endpoint(&url)).into_value(),
            credentials_file: table.text("credentials_file").into_value().map(PathBuf::from),
        }
    }

    /// The interval at which instances are listed for the sake of notices. Spot instances need `reclaims`; scheduled
    /// maintenance is known days before.
    pub fn notice_interval(&self, reclaims: Duration) -> Duration {
        let has_spot = self.offerings.iter().any(|offering| offering.market == Market::Spot);
        if has_spot { reclaims } else { Duration::from_mins(5) }
    }
}

/// `public_ip`, which every cloud's table has with a default of its own; `address`: the kind that Greenroom needs.
pub fn public_ip(table: &Table<'_>, address: AddressKind) -> Option<bool> {
    let configured = table.flag("public_ip").into_value();
    if address == AddressKind::Public && configured == Some(false) {
        table.refuse("public_ip", "is false, but `address` requires a public one");
    }
    configured
}

fn gib(bytes: u64) -> Result<u32, ValueError> {
    let whole = bytes.is_multiple_of(1 << 30).then(|| u32::try_from(bytes >> 30).ok()).flatten();
    whole.ok_or_else(|| ValueError::rule("be in whole GiB, such as \"50G\""))
}

/// The key `user`.
fn own_user(table: &Table<'_>) -> String {
    let given = table.text("user");
    table.parsed("user", given.clone(), user).or(given.or_declared())
}

/// The key `user_data`.
pub fn user_data(table: &Table<'_>) -> UserData {
    match table.word("user_data").or_declared() {
        "cloud-init" => UserData::CloudInit,
        _ => UserData::Script,
    }
}

/// A plain name, because it goes into a script and a configuration.
pub fn user(user: String) -> Result<String, ValueError> {
    let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, '-' | '_');
    let fits = user.starts_with(|c: char| c.is_ascii_lowercase() || c == '_') && user.chars().all(plain);
    if fits && user.len() <= 32 {
        return Ok(user);
    }
    Err(ValueError::value(user, "the name of a Linux user"))
}

fn own_tags(table: &Table<'_>) -> Vec<(String, String)> {
    let named = table.map("tags").or_default();
    for (reserved, _) in named.iter().filter(|(name, _)| name.starts_with(tags::PREFIX)) {
        let title =
            format!("`tags.{reserved}` begins with `{}`, which is reserved for Greenroom", tags::PREFIX);
        let place = Place::name_of(join(&table.path("tags"), reserved));
        table.report(Problem::new(title).at(place, "here"));
    }
    named
}

/// Does not repeat a wrong address, which may contain a password.
pub fn endpoint(url: &str) -> Result<String, ValueError> {
    if url.starts_with("https://") || url.starts_with("http://") {
        return Ok(url.trim_end_matches('/').to_owned());
    }
    Err(ValueError::rule("be an address such as `https://…`"))
}

/// The values of `market`, `address` and `user_data`.
const MARKETS: &[&str] = &["spot", "on-demand"];
const ADDRESSES: &[&str] = &["private", "public", "ipv6"];
pub const USER_DATA: &[&str] = &["cloud-init", "script"];

/// Default of `max_lifetime`: instances of a manager that is lost cost money for at most a day.
pub const LIFETIME: Duration = Duration::from_hours(24);

/// Default in the tables of offerings.
pub const AS_ABOVE: DefaultValue = Described("that of the provider's table");

/// Description of `[[…offering]]`.
pub const OFFERINGS: &str = "Offerings are tried one table after another, each with all its combinations. Use \
                             these tables where types and images belong together.";

pub const MARKET: KeySpec = key("market", ValueType::Words(MARKETS), Value("\"on-demand\""), Launch)
    .doc("Spot or on-demand capacity, the preferred one first.")
    .notes(
        "All types and places of the first market come before the second market. The cloud may reclaim a \
                spot instance; its job ends as a system failure.",
    );

pub const OFFERING: KeySpec = key("offering", Tables, Described("one, from the keys of this table"), Within)
    .doc("Other combinations of type, place, market and image, in their order.");

pub const ENDPOINT: KeySpec = key("endpoint", Text, Described("the cloud's public address"), Pass)
    .doc("Address of the cloud's API, `https://…`, for private endpoints.");

pub const CREDENTIALS_FILE: KeySpec = key("credentials_file", HostPath, Described("none"), Pass);

pub const ADDRESS: KeySpec = key("address", Word(ADDRESSES), Value("\"private\""), Launch)
    .doc("Which address of an instance Greenroom connects to.");

pub const USER: KeySpec = key("user", Text, Value("\"ci\""), Launch)
    .doc("Linux user that logs in and runs jobs. The first boot creates a missing one, with `sudo`.")
    .notes("Idle instances with the earlier user fail their next probe and are replaced.");

pub const SSH_PORT: KeySpec = key("ssh_port", Range(1, 65535), Value("22"), Pass)
    .doc("Port of the image's SSH server.")
    .notes("The network must allow it.");

pub const DISK: KeySpec = key("disk", Size, Described("the size of the image"), Launch)
    .doc("Size of the root disk, in whole GiB.")
    .notes("Must not be smaller than the image.");

pub const DISK_TYPE: KeySpec = key("disk_type", Text, Described("the cloud's default"), Launch);

pub const TAGS: KeySpec = key("tags", Map, Described("none"), Launch);

#[cfg(test)]
mod tests {
    use greenroom_keys::problem::Problems;
    use greenroom_keys::table;

    use super::*;

    const KEY_NAMES: KeyNames = KeyNames { types: "machine_types", places: &["zones"], check: |_, _| Ok(()) };
    const MINIMAL: &str = "image = \"i\"\nmachine_types = \"t\"\nzones = \"a\"\n";

    fn read(text: &str) -> Result<Common, Problems> {
        let table: toml::Table = format!("{MINIMAL}{text}").parse().unwrap();
        let read = |table: &Table<'_>| Common::read(table, &KEY_NAMES);
        table::read(crate::gce::KEYS, "linux", &table, read)
    }

    #[test]
    fn the_defaults_are_private_and_need_nothing() {
        let common = read("").unwrap();
        assert_eq!((common.user.as_str(), common.ssh_port, common.address), ("ci", 22, AddressKind::Private));
        // The declared default of this table.
        assert_eq!((common.user_data, common.disk_gib), (UserData::Script, None));
        let other = read("user_data = \"cloud-init\"\ndisk = \"50G\"\ntags = { team = \"ci\" }").unwrap();
        assert_eq!((other.user_data, other.disk_gib), (UserData::CloudInit, Some(50)));
        assert_eq!(other.tags, [("team".to_owned(), "ci".to_owned())]);
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (text, expected) in [
            ("user = \"a b\"", "`user` is \"a b\", expected the name of a Linux user"),
            ("user = \"$(id)\"", "expected the name of a Linux user"),
            ("ssh_port = 0", "`ssh_port` in `[pool.linux.provider]` must be a whole number from 1 to 65535"),
            (
                "ssh_port = 65536",
                "`ssh_port` in `[pool.linux.provider]` must be a whole number from 1 to 65535",
            ),
            ("address = \"pubilc\"", "did you mean \"public\"?"),
            ("disk = \"1500M\"", "`disk` must be in whole GiB"),
            ("endpoint = \"user:hunter2@a\"", "`endpoint` must be an address such as `https://…`"),
            (
                "credentials_file = \"aws\"",
                "`credentials_file` in `[pool.linux.provider]` must be an absolute path",
            ),
            (
                "tags = { greenroom-pool = \"x\" }",
                "`tags.greenroom-pool` begins with `greenroom-`, which is reserved",
            ),
            ("tags = { a = 1 }", "`tags` in `[pool.linux.provider]` must be a table of strings"),
            ("usre = \"ci\"", "did you mean `user`?"),
        ] {
            let wrong = read(text).unwrap_err();
            assert!(wrong.to_string().contains(expected) && wrong.0.len() == 1, "{text}: {wrong}");
            assert!(!wrong.to_string().contains("hunter2"), "{wrong}");
        }
    }
}
