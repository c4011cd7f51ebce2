//! The table of a pool on EC2: its keys, and the settings that they are read into.

use greenroom_core::ids::PoolName;
use greenroom_keys::DefaultValue::{Described, Required, Value};
use greenroom_keys::TakesEffect::{Launch, Pass};
use greenroom_keys::ValueType::{Flag, Text, TextOrTexts, Word};
use greenroom_keys::problem::Problems;
use greenroom_keys::table::{self, Table};
use greenroom_keys::value_error::ValueError;
use greenroom_keys::{KeySpec, KeyTable, key};

use crate::cloud::offerings::{KeyNames, Market, Offering};
use crate::cloud::settings::{
    ADDRESS, AS_ABOVE, CREDENTIALS_FILE, Common, DISK, DISK_TYPE, ENDPOINT, MARKET, OFFERING, OFFERINGS,
    SSH_PORT, TAGS, USER, USER_DATA, endpoint, public_ip,
};

const KEY_NAMES: KeyNames = KeyNames { types: "instance_types", places: &["subnets", "zones"], check };
const NAME_A_GROUP: &str = "name a group that allows inbound TCP to `ssh_port` from the runner host and nothing else; the \
                            default group of a network lets its members reach each other";

/// The table, checked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Settings {
    pub(super) common: Common,
    /// The pool's region; `None`: that of `AWS_REGION` or the profile.
    pub(super) region: Option<String>,
    /// The address of STS; `None`: `endpoint`, or else AWS's.
    pub(super) sts_endpoint: Option<String>,
    /// A profile of the credentials; `None`: the default one.
    pub(super) profile: Option<String>,
    /// The machines' security groups. Never empty: members of the network's default group reach each other.
    pub(super) security_groups: Vec<String>,
    /// The permissions of the machine itself; `None`: no permissions.
    pub(super) instance_profile: Option<String>,
    /// True if the machine gets a public address; `None`: as the subnet sets.
    pub(super) public_ip: Option<bool>,
    /// Maximum price of a spot machine, in dollars per hour; `None`: the on-demand price.
    pub(super) spot_price: Option<String>,
}

impl Settings {
    pub(super) fn read(pool: &PoolName, values: &toml::Table) -> Result<Self, Problems> {
        table::read(TABLES, pool.as_str(), values, Self::of)
    }

    fn of(table: &Table<'_>) -> Self {
        let common = Common::read(table, &KEY_NAMES);
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

pub(super) const TABLES: &[KeyTable] = &[
    KeyTable {
        header: "[pool.NAME.provider]",
        about: "Instances are EC2 instances of an AWS account. [providers/aws-ec2.md](providers/aws-ec2.md) \
                explains permissions, costs and limits; `greenroom doctor` checks this table against the account.",
        keys: &[
            key("region", Text, Described("`AWS_REGION`, or the region of the profile"), Pass)
                .doc("Region of the pool.")
                .notes("A keeper refuses a change while the pool has instances: drain the pool first."),
            key("profile", Text, Described("the default profile"), Pass)
                .doc("Profile in the files of the AWS tools that credentials come from."),
            CREDENTIALS_FILE
                .doc("File with credentials, in the format of `~/.aws/credentials`.")
                .notes("Without it, credentials come from where AWS's own tools find them: environment, web \
                            identity, `~/.aws`, the role of the runner host. A keeper that a job has started has \
                            no secrets in its environment."),
            ENDPOINT.notes("`greenroom doctor` queries quotas there, too."),
            key("sts_endpoint", Text, Described("`endpoint`, or AWS's public address"), Pass)
                .doc("Address of AWS STS, `https://…`, for private endpoints.")
                .notes("STS says which account an empty list of instances is from."),
            IMAGE,
            INSTANCE_TYPES,
            SUBNETS,
            ZONES,
            MARKET,
            key("spot_price", Text, Described("the on-demand price"), Launch)
                .unit("US dollars per hour")
                .doc("Highest price of a spot instance, such as `\"0.05\"`.")
                .notes("Only with `\"spot\"` in `market`."),
            OFFERING,
            key("security_groups", TextOrTexts, Required, Launch)
                .doc("Ids of security groups.")
                .notes("One of them must allow inbound SSH from the runner host on `ssh_port`, and none anything \
                            else. With `zones`, groups of the default VPC."),
            key("instance_profile", Text, Described("none"), Launch)
                .doc("Name or ARN of the instance profile.")
                .notes("Jobs have its permissions."),
            key("public_ip", Flag, Described("as the subnet says"), Launch)
                .doc("Whether an instance gets a public IPv4 address.")
                .notes("Must not be `false` with `address = \"public\"`."),
            ADDRESS.notes("`\"ipv6\"` needs subnets with an IPv6 block, and a group that allows the runner \
                               host's IPv6 address. Idle instances without such an address fail their next probe \
                               and are replaced."),
            USER,
            SSH_PORT,
            key("user_data", Word(USER_DATA), Value("\"cloud-init\""), Launch)
                .doc("What reads the user data at the first boot: cloud-init, or an image that runs a script."),
            DISK,
            DISK_TYPE.doc("EC2's name of the kind of root disk, such as `\"gp3\"`.").with_default(Described("that of the image")),
            TAGS.doc("Tags for instances and their disks.").notes("Names that begin with `greenroom-` are \
                                                                         reserved."),
        ],
    },
    KeyTable {
        header: "[[pool.NAME.provider.offering]]",
        about: OFFERINGS,
        keys: &[
            INSTANCE_TYPES.with_default(AS_ABOVE).notes(""),
            SUBNETS.with_default(AS_ABOVE).notes("Excludes `zones`."),
            ZONES.with_default(AS_ABOVE),
            MARKET.with_default(AS_ABOVE).notes(""),
            IMAGE.with_default(AS_ABOVE).notes("It must fit the architecture of the types."),
        ],
    },
];

const IMAGE: KeySpec = key("image", Text, Required, Launch)
    .doc("Id of the image (`ami-…`) that instances boot from.")
    .notes("Required here or in each `offering`. It needs an SSH server, and what `user_data` names.");

const INSTANCE_TYPES: KeySpec = key("instance_types", TextOrTexts, Required, Launch)
    .doc("Instance types, the preferred ones first.")
    .notes("Required here or in each `offering`. All places of a type are tried before the next type.");

const SUBNETS: KeySpec = key("subnets", TextOrTexts, Described("`zones` is required"), Launch)
    .doc("Ids of subnets, the preferred ones first.")
    .notes("Here or in each `offering`, `subnets` or `zones` is required, and only one of them.");

const ZONES: KeySpec = key("zones", TextOrTexts, Described("`subnets` is required"), Launch)
    .doc("Availability zones: instances use the default subnet of each.")
    .notes("Excludes `subnets`.");

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
