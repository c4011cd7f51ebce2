//! The table of a pool on EC2.

use greenroom_core::ids::PoolName;
use greenroom_keys::problem::Problems;
use greenroom_keys::table::{self, Table};
use greenroom_keys::value_error::ValueError;

use super::keys::TABLES;
use crate::cloud::offerings::{KeyNames, Market, Offering};
use crate::cloud::settings::{Common, UserData, endpoint, public_ip};

const KEY_NAMES: KeyNames = KeyNames { types: "instance_types", places: &["subnets", "zones"], check };
const NAME_A_GROUP: &str = "name a group that allows inbound TCP to `ssh_port` from the runner host and nothing else; the \
                            default group of a network lets its members reach each other";

/// The table, checked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Settings {
    pub(super) common: Common,
    /// `None`: from `AWS_REGION` or the profile.
    pub(super) region: Option<String>,
    /// Where to ask for the account's ID; `None`: at `endpoint`, or else AWS.
    pub(super) sts_endpoint: Option<String>,
    /// A profile of the credentials; `None`: the default one.
    pub(super) profile: Option<String>,
    /// Never empty: members of the network's default group reach each other.
    pub(super) security_groups: Vec<String>,
    /// The permissions of the machine itself; `None`: no permissions.
    pub(super) instance_profile: Option<String>,
    /// Whether the machine gets a public address; `None`: as the subnet sets.
    pub(super) public_ip: Option<bool>,
    /// Maximum price of a spot machine, in dollars per hour; `None`: the on-demand price.
    pub(super) spot_price: Option<String>,
}

impl Settings {
    pub(super) fn read(pool: &PoolName, values: &toml::Table) -> Result<Self, Problems> {
        table::read(TABLES, pool.as_str(), values, Self::of)
    }

    fn of(table: &Table<'_>) -> Self {
        let common = Common::read(table, &KEY_NAMES, UserData::CloudInit);
        let text = |name: &str| table.text(name).into_value();
        Self {
            region: text("region"),
            sts_endpoint: table
                .parsed("sts_endpoint", table.text("sts_endpoint"), |url| endpoint(&url))
                .into_value(),
            profile: text("profile"),
            security_groups: security_groups(table),
            instance_profile: text("instance_profile"),
            public_ip: public_ip(table, common.address),
            spot_price: spot_price(table, &common.offerings),
            common,
        }
    }
}

fn check(key: &str, text: &str) -> Result<(), ValueError> {
    if key != "image" || is_id(text, "ami-") {
        return Ok(());
    }
    Err(ValueError::value(text, "the ID of an image (`ami-0123456789abcdef0`)"))
}

fn security_groups(table: &Table<'_>) -> Vec<String> {
    const KEY: &str = "security_groups";
    let named = table.required(KEY, table.texts(KEY), NAME_A_GROUP);
    let groups = named.or_default();
    table.check_each(KEY, &groups, |group| {
        let wrong = || ValueError::entry(group, "IDs of groups (`sg-0123456789abcdef0`)");
        is_id(group, "sg-").then_some(()).ok_or_else(wrong)
    });
    groups.into_iter().map(|(group, _)| group).collect()
}

fn spot_price(table: &Table<'_>, offerings: &[Offering]) -> Option<String> {
    let price = table.parsed("spot_price", table.text("spot_price"), |price| match price.parse::<f64>() {
        Ok(dollars) if dollars > 0.0 => Ok(price),
        _ => Err(ValueError::value(price, "dollars such as \"0.05\"")),
    });
    let on_demand = |offering: &Offering| offering.market == Market::OnDemand;
    if price.value().is_some() && !offerings.is_empty() && offerings.iter().all(on_demand) {
        table.refuse("spot_price", "has no effect without `market = \"spot\"`");
    }
    price.into_value()
}

fn is_id(text: &str, prefix: &str) -> bool {
    text.strip_prefix(prefix)
        .is_some_and(|rest| rest.len() >= 8 && rest.bytes().all(|b| b.is_ascii_hexdigit()))
}

#[cfg(test)]
mod tests {
    use greenroom_testkit::key_tables;

    use super::*;

    const MINIMAL: &str = "image = \"ami-0a000000000000001\"\ninstance_types = \"m7i.large\"\nsubnets = \"subnet-0a1b2c3d\"\n\
                           security_groups = \"sg-0a1b2c3d\"\n";

    fn settings(values: &toml::Table) -> Result<Settings, Problems> {
        Settings::read(&PoolName::new("linux"), values)
    }

    fn read(text: &str) -> Result<Settings, Problems> {
        let mut table: toml::Table = MINIMAL.parse().unwrap();
        table.extend(text.parse::<toml::Table>().unwrap());
        settings(&table)
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
                "security_groups = []",
                "`security_groups` in `[pool.linux.provider]` must be a string or a list",
            ),
            (
                "address = \"public\"\npublic_ip = false",
                "`public_ip` is false, but `address` requires a public one",
            ),
            ("spot_price = \"cheap\"\nmarket = \"spot\"", "`spot_price` is \"cheap\", expected dollars"),
            ("spot_price = \"0.1\"", "has no effect without `market = \"spot\"`"),
            (
                "machine_types = \"x\"",
                "`machine_types` is not a key of `[pool.linux.provider]` (did you mean `instance_types`?)",
            ),
        ] {
            let wrong = read(text).unwrap_err();
            assert!(wrong.to_string().contains(expected) && wrong.0.len() == 1, "{text}: {wrong}");
        }
        let wrong = read("image = \"debian\"").unwrap_err().to_string();
        assert!(wrong.starts_with("`image` is \"debian\", expected the ID of an image"), "{wrong}");
        let mut without: toml::Table = MINIMAL.parse().unwrap();
        without.remove("security_groups");
        let wrong = settings(&without).unwrap_err();
        let expected =
            "`security_groups` is missing in `[pool.linux.provider]` (name a group that allows inbound TCP";
        assert!(wrong.to_string().starts_with(expected) && wrong.0.len() == 1, "{wrong}");
    }

    #[test]
    fn all_mistakes_are_found_together() {
        let text = "image = \"debian\"\ninstance_types = [\"t\", 3]\nsecurity_groups = [\"sg-01234567\", \"b\"]\n\
                    address = \"public\"\npublic_ip = false\nprofil = \"x\"\nspot_price = \"0.1\"\n";
        let problems = settings(&text.parse().unwrap()).unwrap_err();
        let found: Vec<&str> = problems.0.iter().map(|problem| problem.marks[0].0.path.as_str()).collect();
        let wanted = [".profil", ".instance_types.1", ".image", "", ".security_groups.1", ".public_ip"];
        assert_eq!(found, wanted.map(|path| format!("pool.linux.provider{path}")), "{problems}");
    }

    #[test]
    fn the_table_of_keys_is_the_one_that_is_read() {
        key_tables::hold(TABLES, &format!("{MINIMAL}[[offering]]\n"), settings);
    }

    #[test]
    fn the_example_shows_every_key() {
        key_tables::shown(TABLES, super::super::REGISTRATION.example);
        let table: toml::Table = super::super::REGISTRATION.example.parse().unwrap();
        assert_eq!(settings(&table).unwrap().common.offerings.len(), 8);
    }
}
