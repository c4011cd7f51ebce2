//! The keys that every cloud's table has.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::keys::{ADDRESSES, USER_DATA};
use super::offerings::{self, KeyNames, Offering};
use super::tags;
use crate::provider::keys::{KeyError, Keys};

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
    /// The Linux user that logs in. Default `ci`.
    pub user: String,
    /// Default 22.
    pub ssh_port: u16,
    /// Default private.
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
    /// `user_data`: the default, which fits most images of this cloud.
    pub fn read(keys: &mut Keys<'_>, key_names: &KeyNames, user_data: UserData) -> Result<Self, KeyError> {
        let disk_gib = keys.size("disk")?.map(|bytes| gib(&keys.name("disk"), bytes)).transpose()?;
        Ok(Self {
            offerings: offerings::read(keys, key_names)?,
            user: user(keys)?,
            ssh_port: port(keys)?,
            address: match keys.choice("address", ADDRESSES)? {
                Some("public") => AddressKind::Public,
                Some("ipv6") => AddressKind::Ipv6,
                _ => AddressKind::Private,
            },
            user_data: match keys.choice("user_data", USER_DATA)? {
                Some("cloud-init") => UserData::CloudInit,
                Some(_) => UserData::Script,
                None => user_data,
            },
            disk_gib,
            disk_type: keys.text("disk_type")?.map(str::to_owned),
            tags: own_tags(keys)?,
            endpoint: endpoint(keys)?,
            credentials_file: credentials(keys)?,
        })
    }
}

fn gib(key: &str, bytes: u64) -> Result<u32, KeyError> {
    let whole = bytes.is_multiple_of(1 << 30).then(|| u32::try_from(bytes >> 30).ok()).flatten();
    whole.ok_or_else(|| KeyError::new(key, "must be in whole GiB, such as \"50G\""))
}

/// A plain name, because it goes into a script and a configuration.
fn user(keys: &mut Keys<'_>) -> Result<String, KeyError> {
    let user = keys.text("user")?.unwrap_or("ci");
    let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, '-' | '_');
    let fits = user.starts_with(|c: char| c.is_ascii_lowercase() || c == '_') && user.chars().all(plain);
    if fits && user.len() <= 32 {
        return Ok(user.to_owned());
    }
    Err(KeyError::new(keys.name("user"), format!("is {user:?}, expected the name of a Linux user")))
}

fn port(keys: &mut Keys<'_>) -> Result<u16, KeyError> {
    let Some(number) = keys.count("ssh_port")? else { return Ok(22) };
    let port = u16::try_from(number).ok().filter(|port| *port > 0);
    port.ok_or_else(|| KeyError::new(keys.name("ssh_port"), format!("is {number}, expected 1 to 65535")))
}

fn own_tags(keys: &mut Keys<'_>) -> Result<Vec<(String, String)>, KeyError> {
    let named = keys.map_of_texts("tags")?;
    if let Some((reserved, _)) = named.iter().find(|(name, _)| name.starts_with(tags::PREFIX)) {
        let why = format!("begins with `{}`, which is reserved for Greenroom", tags::PREFIX);
        return Err(KeyError::new(keys.name(&format!("tags.{reserved}")), why));
    }
    Ok(named)
}

fn endpoint(keys: &mut Keys<'_>) -> Result<Option<String>, KeyError> {
    let Some(url) = keys.text("endpoint")? else { return Ok(None) };
    if url.starts_with("https://") || url.starts_with("http://") {
        return Ok(Some(url.trim_end_matches('/').to_owned()));
    }
    Err(KeyError::new(keys.name("endpoint"), format!("is {url:?}, expected `https://…`")))
}

fn credentials(keys: &mut Keys<'_>) -> Result<Option<PathBuf>, KeyError> {
    let Some(text) = keys.text("credentials_file")? else { return Ok(None) };
    let path = PathBuf::from(text);
    if path.is_absolute() {
        return Ok(Some(path));
    }
    Err(KeyError::new(keys.name("credentials_file"), format!("is {text:?}, expected an absolute path")))
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY_NAMES: KeyNames = KeyNames { types: "machine_types", places: &["zones"] };
    const MINIMAL: &str = "image = \"i\"\nmachine_types = \"t\"\nzones = \"a\"\n";

    fn read(text: &str) -> Result<Common, String> {
        let table: toml::Table = format!("{MINIMAL}{text}").parse().unwrap();
        let mut keys = Keys::of(&table);
        let common = Common::read(&mut keys, &KEY_NAMES, UserData::CloudInit);
        common.and_then(|common| keys.finish().map(|()| common)).map_err(|error| error.to_string())
    }

    #[test]
    fn the_defaults_are_private_and_need_nothing() {
        let common = read("").unwrap();
        assert_eq!((common.user.as_str(), common.ssh_port, common.address), ("ci", 22, AddressKind::Private));
        assert_eq!((common.user_data, common.disk_gib), (UserData::CloudInit, None));
        let other = read("user_data = \"script\"\ndisk = \"50G\"\ntags = { team = \"ci\" }").unwrap();
        assert_eq!((other.user_data, other.disk_gib), (UserData::Script, Some(50)));
        assert_eq!(other.tags, [("team".to_owned(), "ci".to_owned())]);
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (text, expected) in [
            ("user = \"a b\"", "`user` is \"a b\", expected the name of a Linux user"),
            ("user = \"$(id)\"", "expected the name of a Linux user"),
            ("ssh_port = 0", "`ssh_port` is 0, expected 1 to 65535"),
            ("address = \"pubilc\"", "did you mean \"public\"?"),
            ("disk = \"1500M\"", "`disk` must be in whole GiB"),
            ("endpoint = \"localhost\"", "`endpoint` is \"localhost\", expected `https://…`"),
            ("credentials_file = \"aws\"", "expected an absolute path"),
            (
                "tags = { greenroom-pool = \"x\" }",
                "`tags.greenroom-pool` begins with `greenroom-`, which is reserved",
            ),
            ("tags = { a = 1 }", "`tags.a` is 1, expected a string"),
            ("usre = \"ci\"", "did you mean `user`?"),
        ] {
            let error = read(text).unwrap_err();
            assert!(error.contains(expected), "{text}: {error}");
        }
    }
}
