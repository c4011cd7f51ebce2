//! The table of a pool of Kubernetes pods.

use std::path::PathBuf;
use std::time::Duration;

use greenroom_core::ids::PoolName;
use greenroom_keys::problem::Problems;
use greenroom_keys::table::{self, Table};
use greenroom_keys::value_error::ValueError;

use super::keys::TABLES;
use super::orders::{self, Orders};
use super::placement::{self, Placement, image, name};
use super::quantity;
use crate::cloud::settings::{Common, UserData};

/// Default of `schedule_within`.
const SCHEDULE_WITHIN: Duration = Duration::from_secs(20);

/// Values of `via`.
pub(super) const ADDRESS: &str = "address";
pub(super) const PORT_FORWARD: &str = "port-forward";

/// The table, checked.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Settings {
    /// `None`: the service account of Greenroom's own pod.
    pub(super) context: Option<String>,
    pub(super) kubeconfig: Option<PathBuf>,
    pub(super) namespace: String,
    /// `ADDRESS` or `PORT_FORWARD`.
    pub(super) via: &'static str,
    pub(super) pull_policy: Option<&'static str>,
    /// The image with Greenroom's own SSH server. `None`: the images have one.
    pub(super) server_image: Option<String>,
    pub(super) pull_secrets: Vec<String>,
    /// `None`: jobs get the pool's own pods only.
    pub(super) orders: Option<Orders>,
    pub(super) resources: Resources,
    pub(super) service_account: Option<String>,
    /// The ConfigMap that owns the pods.
    pub(super) owner: Option<String>,
    /// A file with a pod to start from.
    pub(super) template: Option<PathBuf>,
    pub(super) schedule_within: Duration,
    /// The preferred one first; never empty.
    pub(super) placements: Vec<Placement>,
    pub(super) common: Common,
}

/// Resources of the container that jobs run in, as quantities.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Resources {
    pub(super) cpu: Option<String>,
    pub(super) cpu_limit: Option<String>,
    /// Reserved, and the limit.
    pub(super) memory: Option<String>,
    /// The same.
    pub(super) disk: Option<String>,
}

impl Settings {
    pub(super) fn read(pool: &PoolName, values: &toml::Table) -> Result<Self, Problems> {
        table::read(TABLES, pool.as_str(), values, Self::of)
    }

    fn of(table: &Table<'_>) -> Self {
        let namespace = table.parsed("namespace", table.text("namespace"), name);
        let namespace = table.required("namespace", namespace, "name the namespace of the pods");
        let named = |key| table.parsed(key, table.text(key), name).into_value();
        let (context, kubeconfig) = (table.text("context"), table.text("kubeconfig"));
        if context.is_absent() && !kubeconfig.is_absent() {
            table.refuse("kubeconfig", "has no effect without `context`");
        }
        let secrets = table.texts("image_pull_secrets").or_default();
        table.check_each("image_pull_secrets", &secrets, |text| {
            name(text.to_owned()).map(drop).map_err(|_| ValueError::entry(text, "names of secrets"))
        });
        let placements = placement::read(table);
        let pull_policy = table.word("image_pull_policy").into_value();
        Self {
            context: context.into_value(),
            kubeconfig: kubeconfig.into_value().map(PathBuf::from),
            namespace: namespace.or_default(),
            via: table.word("via").or(PORT_FORWARD),
            server_image: table.parsed("server_image", table.text("server_image"), image).into_value(),
            orders: orders::read(table, &placements, pull_policy),
            pull_policy,
            pull_secrets: secrets.into_iter().map(|(text, _)| text).collect(),
            resources: Resources::of(table),
            service_account: named("service_account"),
            owner: named("owner_config_map"),
            template: table.text("pod").into_value().map(PathBuf::from),
            schedule_within: table.duration("schedule_within").or(SCHEDULE_WITHIN),
            common: common(table, &placements),
            placements,
        }
    }
}

impl Resources {
    fn of(table: &Table<'_>) -> Self {
        let of = |key| table.parsed(key, table.text(key), |text| quantity::checked(&text)).into_value();
        let resources =
            Self { cpu: of("cpu"), cpu_limit: of("cpu_limit"), memory: of("memory"), disk: of("disk") };
        let milli = |text: &Option<String>| text.as_deref().and_then(quantity::milli);
        if let (Some(reserved), Some(limit)) = (milli(&resources.cpu), milli(&resources.cpu_limit))
            && limit < reserved
        {
            table.refuse("cpu_limit", "is less than `cpu`");
        }
        resources
    }
}

fn common(table: &Table<'_>, placements: &[Placement]) -> Common {
    let offerings = placements.iter().map(Placement::offering).collect();
    Common::plain(table, offerings, ("root", 2222), UserData::Script)
}

#[cfg(test)]
mod tests {
    use greenroom_testkit::key_tables;

    use super::*;

    const MINIMAL: &str = "namespace = \"ci-jobs\"\nimage = \"ci:12\"\ncontext = \"ci\"\n";

    fn settings(values: &toml::Table) -> Result<Settings, Problems> {
        Settings::read(&PoolName::new("linux"), values)
    }

    fn read(text: &str) -> Result<Settings, Problems> {
        settings(&format!("{MINIMAL}{text}").parse().unwrap())
    }

    #[test]
    fn a_namespace_and_an_image_are_enough() {
        let least = settings(&"namespace = \"ci\"\nimage = \"i\"".parse().unwrap()).unwrap();
        assert_eq!((least.context, least.common.ssh_port, least.common.user.as_str()), (None, 2222, "root"));
        assert_eq!(least.placements.len(), 1);
        assert_eq!(least.common.offerings[0].name.as_str(), "default");
    }

    #[test]
    fn an_offering_takes_what_it_does_not_say_from_the_table() {
        let text = "node_selector = { a = \"b\" }\npriority_class = \"low\"\n\
                    [[offering]]\nname = \"spot\"\ntolerations = \"spot:NoSchedule\"\npriority_class = \"spot\"\n\
                    [[offering]]\nname = \"arm\"\nimage = \"arm:12\"\nnode_selector = {}\narchitecture = \"arm64\"\n";
        let read = read(text).unwrap();
        let [spot, arm] = read.placements.as_slice() else { panic!("{:?}", read.placements) };
        assert_eq!((spot.image.as_str(), spot.node_selector.len(), spot.tolerations.len()), ("ci:12", 1, 1));
        assert_eq!(spot.priority_class.as_deref(), Some("spot"));
        assert_eq!((arm.image.as_str(), arm.node_selector.len()), ("arm:12", 0));
        assert_eq!(
            (arm.priority_class.as_deref(), arm.architecture.as_deref()),
            (Some("low"), Some("arm64"))
        );
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (text, expected) in [
            ("via = \"exec\"", "`via` in `[pool.linux.provider]` must be one of"),
            ("memory = \"4 GB\"", "`memory` is \"4 GB\", expected a quantity of Kubernetes"),
            ("cpu = \"2\"\ncpu_limit = \"500m\"", "`cpu_limit` is less than `cpu`"),
            ("service_account = \"Jobs\"", "`service_account` is \"Jobs\", expected a name"),
            (
                "image_pull_secrets = [\"a b\"]",
                "`image_pull_secrets` contains \"a b\", expected names of secrets",
            ),
            (
                "tolerations = \"a:Sometimes\"",
                "`tolerations` contains \"a:Sometimes\", whose effect is none of",
            ),
            ("server_image = \"a b\"", "`server_image` is \"a b\", expected the name of an image"),
            ("user = \"C I\"", "`user` is \"C I\", expected the name of a Linux user"),
            ("pod = \"pod.yaml\"", "`pod` in `[pool.linux.provider]` must be an absolute path"),
            (
                "image_pull_policy = \"Sometimes\"",
                "`image_pull_policy` in `[pool.linux.provider]` must be one of",
            ),
            (
                "[[offering]]\nname = \"a\"\n[[offering]]\nname = \"a\"",
                "`name` is also that of another offering",
            ),
            (
                "namespce = \"x\"",
                "`namespce` is not a key of `[pool.linux.provider]` (did you mean `namespace`?)",
            ),
        ] {
            let wrong = read(text).unwrap_err();
            assert!(wrong.to_string().contains(expected) && wrong.0.len() == 1, "{text}: {wrong}");
        }
        let bare = |text: &str| settings(&text.parse().unwrap()).unwrap_err().to_string();
        let alone = bare("namespace = \"a\"\nimage = \"i\"\nkubeconfig = \"/k\"");
        assert!(alone.contains("`kubeconfig` has no effect without `context`"), "{alone}");
        assert!(bare("image = \"i\"").contains("`namespace` is missing in `[pool.linux.provider]`"));
    }

    #[test]
    fn the_table_of_keys_is_the_one_that_is_read() {
        key_tables::hold(TABLES, &format!("{MINIMAL}[[offering]]\nname = \"a\"\n"), settings);
    }

    #[test]
    fn the_example_shows_every_key() {
        key_tables::shown(TABLES, super::super::REGISTRATION.example);
        let table: toml::Table = super::super::REGISTRATION.example.parse().unwrap();
        assert_eq!(settings(&table).unwrap().placements.len(), 2);
    }
}
