//! The table of a pool on Compute Engine.

use super::resource::{Image, Net, is_name, is_project, region};
use crate::provider::cloud::offerings::KeyNames;
use crate::provider::cloud::settings::{AddressKind, Common, UserData};
use crate::provider::keys::{KeyError, Keys};

const KEY_NAMES: KeyNames = KeyNames { types: "machine_types", places: &["zones"] };
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
    /// Whether a machine has an external address: of IPv6 if `address` is "ipv6", otherwise of IPv4. Default: only if
    /// `address` is "public".
    pub(super) public_ip: bool,
    /// The permissions of the machine itself; `None`: no permissions.
    pub(super) service_account: Option<ServiceAccount>,
    /// Firewall rules refer to them.
    pub(super) network_tags: Vec<String>,
}

/// The service account of a machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ServiceAccount {
    pub(super) email: String,
    /// In full.
    pub(super) scopes: Vec<String>,
}

impl Settings {
    pub(super) fn read(table: &toml::Table) -> Result<Self, KeyError> {
        let mut keys = Keys::of(table);
        let common = Common::read(&mut keys, &KEY_NAMES, UserData::Script)?;
        let subnetwork = net(&mut keys, "subnetwork", Net::subnetwork)?;
        let network = net(&mut keys, "network", Net::network)?;
        let settings = Self {
            project: project(&mut keys)?,
            network: network.or_else(|| subnetwork.is_none().then(|| Net::network("default")).flatten()),
            subnetwork,
            public_ip: public_ip(&mut keys, common.address)?,
            service_account: service_account(&mut keys)?,
            network_tags: network_tags(&mut keys)?,
            common,
        };
        keys.finish()?;
        settings.check()?;
        Ok(settings)
    }

    pub(super) fn has_ipv6(&self) -> bool {
        self.common.address == AddressKind::Ipv6
    }

    /// The common keys, by Compute Engine's rules.
    fn check(&self) -> Result<(), KeyError> {
        for offering in &self.common.offerings {
            if Image::parse(&offering.image).is_none() {
                return Err(KeyError::new("image", format!("is {:?}, expected {IMAGE}", offering.image)));
            }
            if !is_name(&offering.machine_type) {
                let why =
                    format!("contains {:?}, expected types such as \"e2-standard-4\"", offering.machine_type);
                return Err(KeyError::new(KEY_NAMES.types, why));
            }
            let Some(region) = region(&offering.place) else {
                let why = format!("contains {:?}, expected zones such as \"us-east1-b\"", offering.place);
                return Err(KeyError::new(KEY_NAMES.places[0], why));
            };
            let fixed = self.subnetwork.as_ref().and_then(|subnetwork| subnetwork.region.as_deref());
            if let Some(fixed) = fixed.filter(|fixed| *fixed != region) {
                let why = format!("is in {fixed}, but zone `{}` is not", offering.place);
                return Err(KeyError::new("subnetwork", why));
            }
        }
        if self.has_ipv6() && self.subnetwork.is_none() {
            let why = "is missing: `address` is \"ipv6\", and auto mode networks such as `default` have no \
                       subnetworks with IPv6 addresses";
            return Err(KeyError::new("subnetwork", why));
        }
        if let Some(kind) = self.common.disk_type.as_deref().filter(|kind| !is_name(kind)) {
            return Err(KeyError::new(
                "disk_type",
                format!("is {kind:?}, expected one such as \"pd-balanced\""),
            ));
        }
        self.common.tags.iter().try_for_each(|(name, value)| label(name, value))
    }
}

const IMAGE: &str = "`projects/PROJECT/global/images/NAME` or `projects/PROJECT/global/images/family/FAMILY`; \
                     `NAME` or `family/FAMILY` for one of this project's";

fn project(keys: &mut Keys<'_>) -> Result<String, KeyError> {
    let missing = || {
        KeyError::new("project", "is missing: the ID of the project that creates instances and pays for them")
    };
    let named = keys.text("project")?.ok_or_else(missing)?;
    if is_project(named) {
        return Ok(named.to_owned());
    }
    Err(KeyError::new(
        "project",
        format!("is {named:?}, expected the ID of a project (not its name or number)"),
    ))
}

fn net(
    keys: &mut Keys<'_>,
    key: &'static str,
    parse: fn(&str) -> Option<Net>,
) -> Result<Option<Net>, KeyError> {
    let Some(text) = keys.text(key)? else { return Ok(None) };
    let whole = if key == "network" { "global/networks" } else { "regions/REGION/subnetworks" };
    let wrong =
        || KeyError::new(key, format!("is {text:?}, expected a name or `projects/PROJECT/{whole}/NAME`"));
    parse(text).ok_or_else(wrong).map(Some)
}

fn public_ip(keys: &mut Keys<'_>, address: AddressKind) -> Result<bool, KeyError> {
    let wanted = address == AddressKind::Public;
    match keys.flag("public_ip")? {
        Some(false) if wanted => {
            Err(KeyError::new("public_ip", "is false, but `address` requires a public one"))
        }
        configured => Ok(configured.unwrap_or(wanted)),
    }
}

fn service_account(keys: &mut Keys<'_>) -> Result<Option<ServiceAccount>, KeyError> {
    let scopes = keys.texts("scopes")?;
    let Some(email) = keys.text("service_account")? else {
        let useless = KeyError::new("scopes", "has no effect without `service_account`");
        return if scopes.is_some() { Err(useless) } else { Ok(None) };
    };
    if !email.contains('@') {
        let why = format!("is {email:?}, expected its address (`NAME@PROJECT.iam.gserviceaccount.com`)");
        return Err(KeyError::new("service_account", why));
    }
    let whole =
        |scope: &str| if scope.contains("://") { scope.to_owned() } else { format!("{SCOPES}{scope}") };
    let scopes = scopes.unwrap_or_else(|| vec![ALL_THAT_ITS_ROLES_ALLOW]).into_iter().map(whole).collect();
    Ok(Some(ServiceAccount { email: email.to_owned(), scopes }))
}

fn network_tags(keys: &mut Keys<'_>) -> Result<Vec<String>, KeyError> {
    let tags = keys.texts("network_tags")?.unwrap_or_default();
    if let Some(wrong) = tags.iter().find(|tag| !is_name(tag)) {
        let why = format!("contains {wrong:?}, expected lower-case letters, digits and hyphens");
        return Err(KeyError::new("network_tags", why));
    }
    Ok(tags.into_iter().map(str::to_owned).collect())
}

/// Compute Engine's labels are more restricted than other clouds' tags.
fn label(name: &str, value: &str) -> Result<(), KeyError> {
    let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, '-' | '_');
    let fits = name.starts_with(|c: char| c.is_ascii_lowercase())
        && [name, value].iter().all(|text| text.len() <= 63);
    if fits && name.chars().chain(value.chars()).all(plain) {
        return Ok(());
    }
    let why = format!(
        "is {value:?}; labels consist of lower-case letters, digits, `-` and `_`, and their names begin with \
         a letter"
    );
    Err(KeyError::new(format!("tags.{name}"), why))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::provider::key_tables;

    const MINIMAL: &str = "project = \"my-project\"\nimage = \"family/ci\"\nmachine_types = \"e2-medium\"\nzones = \"us-east1-b\"\n";

    fn read(text: &str) -> Result<Settings, String> {
        let mut table: toml::Table = MINIMAL.parse().unwrap();
        table.extend(text.parse::<toml::Table>().unwrap());
        Settings::read(&table).map_err(|error| error.to_string())
    }

    #[test]
    fn the_least_table_is_one_offering_in_the_default_network_without_rights() {
        let settings = read("").unwrap();
        assert_eq!(settings.common.offerings[0].name.as_str(), "us-east1-b e2-medium");
        assert_eq!(settings.common.user_data, UserData::Script);
        assert_eq!(
            settings.network.map(|net| net.network_path()).as_deref(),
            Some("global/networks/default")
        );
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
                "`instance_types` is not a key of this table: did you mean `machine_types`?",
            ),
        ] {
            let error = read(text).unwrap_err();
            assert!(error.contains(expected), "{text}: {error}");
        }
        let text = "image = \"ci\"\nmachine_types = \"e2-medium\"\nzones = \"us-east1-b\"";
        let error = Settings::read(&text.parse().unwrap()).unwrap_err().to_string();
        assert!(error.starts_with("`project` is missing"), "{error}");
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
