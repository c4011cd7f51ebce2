//! The table of a pool on EC2.

use crate::provider::cloud::offerings::{KeyNames, Market};
use crate::provider::cloud::settings::{AddressKind, Common, UserData};
use crate::provider::keys::{KeyError, Keys};

const KEY_NAMES: KeyNames = KeyNames { types: "instance_types", places: &["subnets", "zones"] };

/// The table, checked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Settings {
    pub(super) common: Common,
    /// `None`: from `AWS_REGION` or the profile.
    pub(super) region: Option<String>,
    /// A profile of the credentials; `None`: the default one.
    pub(super) profile: Option<String>,
    /// Empty: the default group of the network.
    pub(super) security_groups: Vec<String>,
    /// The permissions of the machine itself; `None`: no permissions.
    pub(super) instance_profile: Option<String>,
    /// Whether the machine gets a public address; `None`: as the subnet sets.
    pub(super) public_ip: Option<bool>,
    /// Maximum price of a spot machine, in dollars per hour; `None`: the on-demand price.
    pub(super) spot_price: Option<String>,
}

impl Settings {
    pub(super) fn read(table: &toml::Table) -> Result<Self, KeyError> {
        let mut keys = Keys::of(table);
        let common = Common::read(&mut keys, &KEY_NAMES, UserData::CloudInit)?;
        let texts =
            |list: Option<Vec<&str>>| list.unwrap_or_default().into_iter().map(str::to_owned).collect();
        let settings = Self {
            common,
            region: keys.text("region")?.map(str::to_owned),
            profile: keys.text("profile")?.map(str::to_owned),
            security_groups: texts(keys.texts("security_groups")?),
            instance_profile: keys.text("instance_profile")?.map(str::to_owned),
            public_ip: keys.flag("public_ip")?,
            spot_price: keys.text("spot_price")?.map(str::to_owned),
        };
        keys.finish()?;
        settings.check()?;
        Ok(settings)
    }

    fn check(&self) -> Result<(), KeyError> {
        for offering in &self.common.offerings {
            if !is_id(&offering.image, "ami-") {
                let why =
                    format!("is {:?}, expected the ID of an image (`ami-0123456789abcdef0`)", offering.image);
                return Err(KeyError::new("image", why));
            }
        }
        for group in &self.security_groups {
            if !is_id(group, "sg-") {
                let why = format!("contains {group:?}, expected IDs of groups (`sg-0123456789abcdef0`)");
                return Err(KeyError::new("security_groups", why));
            }
        }
        if self.common.address == AddressKind::Public && self.public_ip == Some(false) {
            return Err(KeyError::new("public_ip", "is false, but `address` requires a public one"));
        }
        if let Some(price) = &self.spot_price {
            if !price.parse::<f64>().is_ok_and(|dollars| dollars > 0.0) {
                return Err(KeyError::new(
                    "spot_price",
                    format!("is {price:?}, expected dollars such as \"0.05\""),
                ));
            }
            if self.common.offerings.iter().all(|offering| offering.market == Market::OnDemand) {
                return Err(KeyError::new("spot_price", "has no effect without `market = \"spot\"`"));
            }
        }
        Ok(())
    }
}

fn is_id(text: &str, prefix: &str) -> bool {
    text.strip_prefix(prefix)
        .is_some_and(|rest| rest.len() >= 8 && rest.bytes().all(|b| b.is_ascii_hexdigit()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::provider::key_tables;

    const MINIMAL: &str =
        "image = \"ami-0a000000000000001\"\ninstance_types = \"m7i.large\"\nsubnets = \"subnet-0a1b2c3d\"\n";

    fn read(text: &str) -> Result<Settings, String> {
        Settings::read(&format!("{MINIMAL}{text}").parse().unwrap()).map_err(|error| error.to_string())
    }

    #[test]
    fn the_least_table_is_one_offering_on_demand() {
        let settings = read("").unwrap();
        assert_eq!(settings.common.offerings[0].name.as_str(), "subnet-0a1b2c3d m7i.large");
        assert_eq!((settings.region, settings.public_ip), (None, None));
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (text, expected) in [
            ("security_groups = \"default\"", "`security_groups` contains \"default\", expected IDs"),
            (
                "address = \"public\"\npublic_ip = false",
                "`public_ip` is false, but `address` requires a public one",
            ),
            ("spot_price = \"cheap\"\nmarket = \"spot\"", "`spot_price` is \"cheap\", expected dollars"),
            ("spot_price = \"0.1\"", "has no effect without `market = \"spot\"`"),
            (
                "machine_types = \"x\"",
                "`machine_types` is not a key of this table: did you mean `instance_types`?",
            ),
        ] {
            let error = read(text).unwrap_err();
            assert!(error.contains(expected), "{text}: {error}");
        }
        let image =
            Settings::read(&"image = \"debian\"\ninstance_types = \"t\"\nzones = \"a\"".parse().unwrap());
        assert!(
            image.unwrap_err().to_string().contains("`image` is \"debian\", expected the ID of an image")
        );
    }

    #[test]
    fn the_table_of_keys_is_the_one_that_is_read() {
        key_tables::hold(super::super::keys::TABLES, &format!("{MINIMAL}[[offering]]\n"), Settings::read);
    }

    #[test]
    fn the_example_shows_every_key() {
        key_tables::shown(super::super::keys::TABLES, super::super::REGISTRATION.example);
        let table: toml::Table = super::super::REGISTRATION.example.parse().unwrap();
        assert_eq!(Settings::read(&table).unwrap().common.offerings.len(), 8);
    }
}
