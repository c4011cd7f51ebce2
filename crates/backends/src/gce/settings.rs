//! The table of a pool on Compute Engine: its keys, and the settings that they are read into.

use greenroom_core::ids::PoolName;
use greenroom_keys::DefaultValue::{Described, Required, Value};
use greenroom_keys::TakesEffect::{Launch, Pass};
use greenroom_keys::ValueType::{Flag, Text, TextOrTexts, Word};
use greenroom_keys::problem::{Place, Problem, Problems, join};
use greenroom_keys::table::{self, Table};
use greenroom_keys::value_error::ValueError;
use greenroom_keys::{KeySpec, KeyTable, key};

use super::resource::{Image, Net, is_name, is_project, region};
use crate::cloud::offerings::KeyNames;
use crate::cloud::settings::{
    ADDRESS, AS_ABOVE, AddressKind, CREDENTIALS_FILE, Common, DISK, DISK_TYPE, ENDPOINT, MARKET, OFFERING,
    OFFERINGS, SSH_PORT, TAGS, USER, USER_DATA, public_ip,
};

#[cfg(feature = "gce")]
use greenroom_core::ids::Location;

const KEY_NAMES: KeyNames = KeyNames { types: "machine_types", places: &["zones"], check };
/// The roles of a service account set its permissions; this scope does not limit them further.
const ALL_THAT_ITS_ROLES_ALLOW: &str = "cloud-platform";
const SCOPES: &str = "https://www.googleapis.com/auth/";

/// The table, checked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Settings {
    pub(super) common: Common,
    /// The project that the machines belong to and that pays for them.
    pub(super) project: String,
    /// `None`: that of the subnetwork.
    pub(super) network: Option<Net>,
    pub(super) subnetwork: Option<Net>,
    /// True if a machine has an external address: of IPv6 if `address` is "ipv6", otherwise of IPv4. Default: only if
    /// `address` is "public".
    pub(super) public_ip: bool,
    /// The permissions of the machine itself; `None`: no permissions.
    pub(super) service_account: Option<ServiceAccount>,
    /// The machines' tags, which firewall rules refer to.
    pub(super) network_tags: Vec<String>,
}

/// The service account of a machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ServiceAccount {
    pub(super) email: String,
    /// The scopes in full.
    pub(super) scopes: Vec<String>,
}

impl Settings {
    pub(super) fn read(pool: &PoolName, values: &toml::Table) -> Result<Self, Problems> {
        table::read(TABLES, pool.as_str(), values, Self::of)
    }

    fn of(table: &Table<'_>) -> Self {
        let common = Common::read(table, &KEY_NAMES);
        let subnetwork = subnetwork(table, &common);
        let network = table.parsed("network", table.text("network"), |text| {
            Net::network(&text).ok_or_else(|| not_a_net(text, "global/networks"))
        });
        // A subnetwork names its network.
        let default = network.effective().filter(|_| subnetwork.is_none()).cloned();
        if let Some(kind) = common.disk_type.as_deref().filter(|kind| !is_name(kind)) {
            table.refuse("disk_type", format!("is {kind:?}, expected one such as \"pd-balanced\""));
        }
        labels(table, &common.tags);
        Self {
            project: project(table),
            network: network.into_value().or(default),
            subnetwork,
            public_ip: public_ip(table, common.address).unwrap_or(common.address == AddressKind::Public),
            service_account: service_account(table),
            network_tags: network_tags(table),
            common,
        }
    }

    /// Lists cover all zones of the project.
    #[cfg(feature = "gce")]
    pub(super) fn location(&self) -> Location {
        Location::new(format!("gce project {}", self.project))
    }

    #[cfg(feature = "gce")]
    pub(super) fn has_ipv6(&self) -> bool {
        self.common.address == AddressKind::Ipv6
    }
}

/// The keys of offerings, by Compute Engine's rules.
fn check(key: &str, text: &str) -> Result<(), ValueError> {
    match key {
        "image" if Image::parse(text).is_none() => Err(ValueError::value(text, IMAGE_FORMS)),
        "machine_types" if !is_name(text) => Err(ValueError::entry(text, "types such as \"e2-standard-4\"")),
        "zones" if region(text).is_none() => Err(ValueError::entry(text, "zones such as \"us-east1-b\"")),
        _ => Ok(()),
    }
}

const IMAGE_FORMS: &str = "`projects/PROJECT/global/images/NAME` or `projects/PROJECT/global/images/family/FAMILY`; \
                     `NAME` or `family/FAMILY` for one of this project's";

fn project(table: &Table<'_>) -> String {
    let help = "set it to the ID of the project that creates instances and pays for them";
    let named = table.required("project", table.text("project"), help);
    let expected = "the ID of a project (not its name or number)";
    let project =
        |named: String| if is_project(&named) { Ok(named) } else { Err(ValueError::value(named, expected)) };
    table.parsed("project", named, project).or_default()
}

fn not_a_net(text: String, whole: &str) -> ValueError {
    ValueError::value(text, format!("a name or `projects/PROJECT/{whole}/NAME`"))
}

fn subnetwork(table: &Table<'_>, common: &Common) -> Option<Net> {
    let subnetwork = table.parsed("subnetwork", table.text("subnetwork"), |text| {
        Net::subnetwork(&text).ok_or_else(|| not_a_net(text, "regions/REGION/subnetworks"))
    });
    if common.address == AddressKind::Ipv6 && subnetwork.is_absent() {
        let why = "is missing: `address` is \"ipv6\", and auto mode networks such as `default` have no \
                   subnetworks with IPv6 addresses";
        table.refuse("subnetwork", why);
    }
    let subnetwork = subnetwork.into_value()?;
    if let Some(fixed) = &subnetwork.region {
        let mut zones = common.offerings.iter().map(|offering| offering.place.as_str());
        if let Some(zone) = zones.find(|zone| region(zone).is_some_and(|region| region != fixed)) {
            table.refuse("subnetwork", format!("is in {fixed}, but zone `{zone}` is not"));
        }
    }
    Some(subnetwork)
}

fn service_account(table: &Table<'_>) -> Option<ServiceAccount> {
    let scopes = table.texts("scopes");
    let email = table.text("service_account");
    if scopes.value().is_some() && email.is_absent() {
        table.refuse("scopes", "has no effect without `service_account`");
    }
    let expected = "its address (`NAME@PROJECT.iam.gserviceaccount.com`)";
    let address =
        |email: String| if email.contains('@') { Ok(email) } else { Err(ValueError::value(email, expected)) };
    let email = table.parsed("service_account", email, address);
    let whole = |scope: String| if scope.contains("://") { scope } else { format!("{SCOPES}{scope}") };
    let scopes = scopes.map(|scopes| scopes.into_iter().map(|(scope, _)| whole(scope)).collect());
    let all = || vec![whole(ALL_THAT_ITS_ROLES_ALLOW.to_owned())];
    Some(ServiceAccount { email: email.into_value()?, scopes: scopes.into_value().unwrap_or_else(all) })
}

fn network_tags(table: &Table<'_>) -> Vec<String> {
    let tags = table.texts("network_tags").or_default();
    table.check_each("network_tags", &tags, |tag| {
        let wrong = || ValueError::entry(tag, "lower-case letters, digits and hyphens");
        is_name(tag).then_some(()).ok_or_else(wrong)
    });
    tags.into_iter().map(|(tag, _)| tag).collect()
}

/// Compute Engine's labels are more restricted than other clouds' tags.
fn labels(table: &Table<'_>, tags: &[(String, String)]) {
    let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, '-' | '_');
    for (name, value) in tags {
        let fits = name.starts_with(|c: char| c.is_ascii_lowercase())
            && [name, value].iter().all(|text| text.len() <= 63);
        if fits && name.chars().chain(value.chars()).all(plain) {
            continue;
        }
        let title = format!(
            "`tags.{name}` is {value:?}; labels consist of lower-case letters, digits, `-` and `_`, and their names \
             begin with a letter"
        );
        let place = Place::value_of(join(&table.path("tags"), name));
        table.report(Problem::new(title).at(place, "here"));
    }
}

pub(super) const TABLES: &[KeyTable] = &[
    KeyTable {
        header: "[pool.NAME.provider]",
        about: "Instances are Compute Engine instances of a Google Cloud project. \
                [providers/gce.md](providers/gce.md) explains permissions, addresses and costs; `greenroom doctor` \
                checks this table against the project.",
        keys: &[
            key("project", Text, Required, Pass)
                .doc("Id of the project that the instances belong to and that pays for them.")
                .notes("A keeper refuses a change while the pool has instances: drain the pool first."),
            CREDENTIALS_FILE
                .doc("File with the key of a service account.")
                .notes("Without it, credentials come from where Google's own tools find them: \
                            `GOOGLE_APPLICATION_CREDENTIALS`, `gcloud auth application-default login`, the service \
                            account of the runner host."),
            ENDPOINT,
            IMAGE,
            MACHINE_TYPES,
            ZONES,
            MARKET,
            OFFERING,
            key("network", Text, Value("\"default\""), Launch)
                .doc("Network of the instances, by its name or its path.")
                .notes("No default with `subnetwork`. The network must allow SSH from the runner host on \
                            `ssh_port`."),
            key("subnetwork", Text, Described("as the network says"), Launch)
                .doc("Subnetwork of the instances, by its path, or by its name in the region of each zone.")
                .notes("Required with `address = \"ipv6\"`."),
            key("network_tags", TextOrTexts, Described("none"), Launch)
                .doc("Network tags of the instances, which firewall rules refer to."),
            key("service_account", Text, Described("none, and no permissions"), Launch)
                .doc("Address of the instances' service account.")
                .notes("Jobs have its permissions."),
            key("scopes", TextOrTexts, Described("`\"cloud-platform\"`, all that the account's roles allow"), Launch)
                .doc("Access scopes of the service account.")
                .notes("Only with `service_account`."),
            key("public_ip", Flag, Described("`true` with `address = \"public\"`, otherwise `false`"), Launch)
                .doc("Whether an instance has an external address: of IPv6 with `address = \"ipv6\"`, otherwise \
                        of IPv4.")
                .notes("Without an external address, instances reach the internet through Cloud NAT only. Must \
                            not be `false` with `address = \"public\"`."),
            ADDRESS.notes("`\"ipv6\"` needs a `subnetwork` with IPv6 addresses. Idle instances without such an \
                               address fail their next probe and are replaced."),
            USER,
            SSH_PORT,
            key("user_data", Word(USER_DATA), Value("\"script\""), Launch)
                .doc("What reads the user data at the first boot: the startup script of Google's images, or \
                        cloud-init."),
            DISK,
            DISK_TYPE
                .doc("Compute Engine's name of the kind of boot disk, such as `\"pd-balanced\"`.")
                .with_default(Described("`pd-standard`")),
            TAGS.doc("Labels for instances and their disks.")
                .notes("Names and values consist of lower-case letters, digits, `-` and `_`. Names that begin \
                            with `greenroom-` are reserved."),
        ],
    },
    KeyTable {
        header: "[[pool.NAME.provider.offering]]",
        about: OFFERINGS,
        keys: &[
            MACHINE_TYPES.with_default(AS_ABOVE).notes(""),
            ZONES.with_default(AS_ABOVE).notes(""),
            MARKET.with_default(AS_ABOVE).notes(""),
            IMAGE.with_default(AS_ABOVE).notes("It must fit the architecture of the types."),
        ],
    },
];

const IMAGE: KeySpec = key("image", Text, Required, Launch)
    .doc("Image that instances boot from, by its path, or the newest image of a family (`…/family/NAME`). In the \
            same project, its name is enough.")
    .notes("Required here or in each `offering`. It needs an SSH server, and what `user_data` names.");

const MACHINE_TYPES: KeySpec = key("machine_types", TextOrTexts, Required, Launch)
    .doc("Machine types, the preferred ones first.")
    .notes("Required here or in each `offering`. All zones of a type are tried before the next type.");

const ZONES: KeySpec = key("zones", TextOrTexts, Required, Launch)
    .doc("Zones, the preferred ones first.")
    .notes("Required here or in each `offering`. `subnetwork` must be in their regions.");

#[cfg(test)]
mod tests {
    use greenroom_testkit::key_tables;

    use super::*;
    use crate::cloud::settings::UserData;

    const MINIMAL: &str = "project = \"my-project\"\nimage = \"family/ci\"\nmachine_types = \"e2-medium\"\nzones = \"us-east1-b\"\n";

    fn settings(values: &toml::Table) -> Result<Settings, Problems> {
        Settings::read(&PoolName::new("linux"), values)
    }

    fn read(text: &str) -> Result<Settings, Problems> {
        let mut table: toml::Table = MINIMAL.parse().unwrap();
        table.extend(text.parse::<toml::Table>().unwrap());
        settings(&table)
    }

    #[test]
    fn the_least_table_is_one_offering_in_the_default_network_without_rights() {
        let settings = read("").unwrap();
        assert_eq!(settings.common.offerings[0].name.as_str(), "us-east1-b e2-medium");
        assert_eq!(settings.common.user_data, UserData::Script);
        assert_eq!(settings.network.map(|net| net.name).as_deref(), Some("default"));
        assert_eq!((settings.subnetwork, settings.public_ip, settings.service_account), (None, false, None));
    }

    #[test]
    fn one_key_follows_from_another() {
        assert!(read("address = \"public\"").unwrap().public_ip);
        assert!(!read("address = \"ipv6\"\nsubnetwork = \"ci\"").unwrap().public_ip);
        let inside = read("subnetwork = \"ci\"").unwrap();
        assert_eq!((inside.network, inside.subnetwork.unwrap().name.as_str()), (None, "ci"));
        let email = "ci@my-project.iam.gserviceaccount.com";
        let account = read(&format!("service_account = \"{email}\"")).unwrap().service_account.unwrap();
        assert_eq!(account.scopes, ["https://www.googleapis.com/auth/cloud-platform"]);
        let scopes = "scopes = [\"logging.write\", \"https://www.googleapis.com/auth/compute\"]";
        let account =
            read(&format!("service_account = \"{email}\"\n{scopes}")).unwrap().service_account.unwrap();
        assert_eq!(account.scopes[0], "https://www.googleapis.com/auth/logging.write");
        assert_eq!(account.scopes[1], "https://www.googleapis.com/auth/compute");
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (text, expected) in [
            ("project = \"My Project\"", "`project` is \"My Project\", expected the ID of a project"),
            (
                "image = \"debian-cloud/debian-12\"",
                "`image` is \"debian-cloud/debian-12\", expected `projects/",
            ),
            (
                "zones = [\"us-east1\"]",
                "`zones` contains \"us-east1\", expected zones such as \"us-east1-b\"",
            ),
            ("machine_types = \"E2\"", "`machine_types` contains \"E2\", expected types"),
            (
                "address = \"ipv6\"\nnetwork = \"ci\"",
                "`subnetwork` is missing: `address` is \"ipv6\", and auto mode networks such as `default` have no subnetworks",
            ),
            (
                "address = \"public\"\npublic_ip = false",
                "`public_ip` is false, but `address` requires a public one",
            ),
            (
                "subnetwork = \"regions/europe-west1/subnetworks/a\"",
                "`subnetwork` is in europe-west1, but zone `us-east1-b` is not",
            ),
            (
                "network = \"Default\"",
                "`network` is \"Default\", expected a name or `projects/PROJECT/global/networks/NAME`",
            ),
            ("service_account = \"ci\"", "`service_account` is \"ci\", expected its address"),
            ("scopes = \"compute\"", "`scopes` has no effect without `service_account`"),
            ("network_tags = [\"SSH\"]", "`network_tags` contains \"SSH\""),
            ("disk_type = \"SSD\"", "`disk_type` is \"SSD\", expected one such as \"pd-balanced\""),
            ("tags = { Team = \"ci\" }", "`tags.Team` is \"ci\"; labels consist of lower-case letters"),
            ("tags = { team = \"C I\" }", "`tags.team` is \"C I\"; labels consist of"),
            (
                "instance_types = \"x\"",
                "`instance_types` is not a key of `[pool.linux.provider]` (did you mean `machine_types`?)",
            ),
        ] {
            let wrong = read(text).unwrap_err();
            assert!(wrong.to_string().contains(expected) && wrong.0.len() == 1, "{text}: {wrong}");
        }
        let text = "image = \"ci\"\nmachine_types = \"e2-medium\"\nzones = \"us-east1-b\"";
        let error = settings(&text.parse().unwrap()).unwrap_err().to_string();
        assert!(
            error.starts_with("`project` is missing in `[pool.linux.provider]` (set it to the ID of "),
            "{error}"
        );
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
