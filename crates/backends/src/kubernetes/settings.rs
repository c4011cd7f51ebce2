//! The table of a pool of Kubernetes pods: its keys, the settings that they are read into, and quantities such as `500m` and
//! `4Gi`.

use std::path::PathBuf;
use std::time::Duration;

use greenroom_core::container::settings::PullPolicy;
use greenroom_core::ids::PoolName;
use greenroom_keys::DefaultValue::{Described, Required, Value};
use greenroom_keys::TakesEffect::{Job, Launch, Pass, Within};
use greenroom_keys::ValueType::{self, Count, Flag, Globs, HostPath, Map, Tables, Text, TextOrTexts, Word};
use greenroom_keys::problem::Problems;
use greenroom_keys::table::{self, Table};
use greenroom_keys::value_error::ValueError;
use greenroom_keys::{KeySpec, KeyTable, key};

use super::orders::{self, Orders};
use super::placement::{self, Placement, image, name};
use crate::cloud::settings::{AS_ABOVE, Common, SSH_PORT, USER, UserData};

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
    /// The way to a pod's SSH server: [`ADDRESS`] or [`PORT_FORWARD`].
    pub(super) via: &'static str,
    pub(super) pull_policy: Option<&'static str>,
    /// The image with Greenroom's own SSH server. `None`: the images have one.
    pub(super) server_image: Option<String>,
    pub(super) pull_secrets: Vec<String>,
    /// `None`: jobs get the pool's own pods only.
    pub(super) orders: Option<Orders>,
    pub(super) resources: JobResources,
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

/// JobResources of the container that jobs run in, as quantities.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct JobResources {
    pub(super) cpu: Option<String>,
    pub(super) cpu_limit: Option<String>,
    /// The memory that is reserved, and its limit.
    pub(super) memory: Option<String>,
    /// The ephemeral storage that is reserved, and its limit.
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
        let context = table.text("context");
        let kubeconfig = table.text("kubeconfig");
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
            via: table.word("via").or_declared(),
            server_image: table.parsed("server_image", table.text("server_image"), image).into_value(),
            orders: orders::read(table, &placements, pull_policy),
            pull_policy,
            pull_secrets: secrets.into_iter().map(|(text, _)| text).collect(),
            resources: JobResources::of(table),
            service_account: named("service_account"),
            owner: named("owner_config_map"),
            template: table.text("pod").into_value().map(PathBuf::from),
            schedule_within: table.duration("schedule_within").or_declared(),
            common: common(table, &placements),
            placements,
        }
    }
}

impl JobResources {
    fn of(table: &Table<'_>) -> Self {
        let of = |key| table.parsed(key, table.text(key), |text| checked_quantity(&text)).into_value();
        let resources =
            Self { cpu: of("cpu"), cpu_limit: of("cpu_limit"), memory: of("memory"), disk: of("disk") };
        let milli = |text: &Option<String>| text.as_deref().and_then(milli);
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
    Common::plain(table, offerings, UserData::Script)
}

/// The values of `via` and of `image_pull_policy`.
const VIA: &[&str] = &[PORT_FORWARD, ADDRESS];
pub(super) const PULL: &[&str] = &["Always", "IfNotPresent", "Never"];

pub(super) const TABLES: &[KeyTable] = &[
    KeyTable {
        header: "[pool.NAME.provider]",
        about: "Instances are pods of a Kubernetes cluster. [providers/kubernetes.md](providers/kubernetes.md) explains \
                the image, the role and the network policy; `greenroom doctor` checks this table against the cluster.",
        keys: &[
            key("context", Text, Described("none: the service account of the pod that Greenroom runs in"), Pass)
                .doc("Context of the kubeconfig, which names the cluster and the credentials.")
                .notes("A keeper refuses a change to another cluster while the pool has instances: drain the pool first."),
            key("kubeconfig", HostPath, Described("`KUBECONFIG` of the keeper, otherwise `~/.kube/config`"), Pass)
                .doc("File with the context.")
                .notes("Only with `context`."),
            key("namespace", Text, Required, Pass)
                .doc("Namespace of the pods.")
                .notes("It should have nothing else: an account that may create pods may also use the secrets of their \
                            namespace. Drain the pool before a change."),
            key("via", Word(VIA), Value("\"port-forward\""), Launch)
                .doc("How Greenroom reaches the SSH server of a pod: through the API server, or by the pod's address.")
                .notes("With `\"address\"`, the runner host needs a route to the network of the pods. Jobs then survive a \
                            restart of the API server or the kubelet."),
            IMAGE,
            key("server_image", Text, Described("none: the image has an SSH server"), Launch)
                .doc("Image with the program `greenroom-server`, an SSH server for images that have none.")
                .notes("An init container copies the program into each pod. `image` then needs `/bin/sh`, and what jobs need."),
            key("image_pull_policy", Word(PULL), Described("as Kubernetes chooses by the tag"), Launch)
                .doc("When a node pulls the images."),
            key("image_pull_secrets", TextOrTexts, Described("none"), Launch)
                .doc("Secrets of the namespace with passwords for the registry."),
            key("image_from_job", Flag, Value("false"), Job)
                .doc("Whether a job with another `image:`, or with `services:`, gets a pod of its own, made of these images.")
                .notes("It needs `server_image`. Such a pod starts cold. All other jobs get the pool's pods."),
            key("images", Globs, Described("all images"), Job)
                .doc("Images that jobs may name.")
                .notes(WITH_ORDERS),
            key("services", Globs, Described("all images"), Job)
                .doc("Images that services may have.")
                .notes(WITH_ORDERS),
            key("services_limit", Count(0), Described("no limit"), Job)
                .unit("services")
                .doc("Services that a job may have; with 0, none. Never more than 100.")
                .notes(WITH_ORDERS),
            key("allowed_pull_policies", ValueType::Words(&PullPolicy::NAMES), Described(PULL_POLICIES), Job)
                .doc("Pull policies that jobs may name. Of a job's list, the first one that is allowed counts.")
                .notes(WITH_ORDERS),
            key("service_cpu", Text, Described("none: as the namespace's LimitRange says"), Launch)
                .doc("Processors that the scheduler reserves for each service of a job.")
                .notes(WITH_ORDERS),
            key("service_cpu_limit", Text, Described("none: as the namespace's LimitRange says"), Launch)
                .doc("Limit of the processors that each service of a job may use.")
                .notes("Only with `image_from_job`. Without it, `doctor` warns: a service may take a node's processors from others."),
            key("service_memory", Text, Described("none: as the namespace's LimitRange says"), Launch)
                .doc("Memory of each service of a job: reserved, and its limit.")
                .notes("Only with `image_from_job`. A service that exceeds it is killed, and started again."),
            key("cpu", Text, Described("none: as the namespace's LimitRange says"), Launch)
                .doc("Processors that the scheduler reserves for a pod, such as `\"2\"` or `\"500m\"`."),
            key("cpu_limit", Text, Described("none"), Launch).doc("Limit of the processors that a pod may use."),
            key("memory", Text, Described("none: as the namespace's LimitRange says"), Launch)
                .doc("Memory of a pod, such as `\"4Gi\"`: reserved, and its limit.")
                .notes("A pod that exceeds it is killed, with its job."),
            key("disk", Text, Described("none: as the namespace's LimitRange says"), Launch)
                .doc("Ephemeral storage of a pod, such as `\"20Gi\"`: reserved, and its limit.")
                .notes("A pod that exceeds it is evicted, with its job."),
            key("service_account", Text, Described("the namespace's `default`"), Launch)
                .doc("Service account of the pods, which should have no rights.")
                .notes("Pods get no token of it."),
            key("owner_config_map", Text, Described("none"), Launch)
                .doc("ConfigMap of the namespace that owns the pods: when the operator deletes it, Kubernetes deletes them.")
                .notes("The role needs `get` on it. Never use an object of Greenroom's own deployment as an owner."),
            key("pod", HostPath, Described("none"), Launch)
                .doc("YAML file with a pod to start from: volumes, sidecars, security context, labels.")
                .notes("Its container `job` is the one that jobs run in. The keys of this table win. What Greenroom sets \
                            may not be set there, and is refused by name."),
            key("schedule_within", greenroom_keys::ValueType::Duration(0), Value("\"20s\""), Launch)
                .doc("How long a pod may wait for a node before the launch continues with the next offering.")
                .notes("Set it to minutes where an autoscaler adds nodes. While one reports that it adds a node, the launch \
                            waits until `launch_timeout`."),
            NODE_SELECTOR,
            TOLERATIONS,
            RUNTIME_CLASS,
            PRIORITY_CLASS,
            ARCHITECTURE,
            key("offering", Tables, Described("one, `default`, from the keys of this table"), Within)
                .doc("Other kinds of nodes, in their order."),
            USER.with_default(Value("\"root\""))
                .doc("Linux user that logs in and runs jobs. Without `server_image`, a pod that starts as root creates a missing one.")
                .notes("Where pods do not start as root, it must be the image's own user. Idle instances with the earlier \
                            user fail their next probe and are replaced."),
            SSH_PORT
                .with_default(Value("2222"))
                .doc("Port of the SSH server in the pods.")
                .notes("With `via = \"address\"`, network policies must allow it from the runner host."),
        ],
    },
    KeyTable {
        header: "[[pool.NAME.provider.offering]]",
        about: "Kinds of nodes are tried one after another. A launch uses the first one on which Kubernetes finds a place.",
        keys: &[
            key("name", Text, Required, Launch).doc("Name of the offering in messages."),
            IMAGE.with_default(AS_ABOVE).notes("It must fit the architecture."),
            NODE_SELECTOR.with_default(AS_ABOVE),
            TOLERATIONS.with_default(AS_ABOVE).notes(""),
            RUNTIME_CLASS.with_default(AS_ABOVE),
            PRIORITY_CLASS.with_default(AS_ABOVE).notes(""),
            ARCHITECTURE.with_default(AS_ABOVE).notes(""),
        ],
    },
];

const WITH_ORDERS: &str = "Only with `image_from_job`.";
const PULL_POLICIES: &str = "that of `image_pull_policy`, otherwise `always` and `if-not-present`";

const IMAGE: KeySpec =
    key("image", Text, Required, Launch).doc("Image of the container that jobs run in.").notes(
        "Required here or in each `offering`. It needs `git` and the pool's `shell`; without `server_image`, also an SSH server and `ssh-keygen`.",
    );

const NODE_SELECTOR: KeySpec =
    key("node_selector", Map, Described("none"), Launch).doc("Labels that a node must have.");

const TOLERATIONS: KeySpec = key("tolerations", TextOrTexts, Described("none"), Launch)
    .doc("Taints that pods tolerate, as `kubectl taint` writes them: `\"spot=true:NoSchedule\"`, `\"spot\"`.")
    .notes("Kubernetes removes pods from a lost node after 30 s; tolerations of its taints are refused.");

const RUNTIME_CLASS: KeySpec = key("runtime_class", Text, Described("the cluster's default"), Launch)
    .doc("RuntimeClass of the pods, such as one with a virtual machine for each pod.");

const PRIORITY_CLASS: KeySpec = key("priority_class", Text, Described("the cluster's default"), Launch)
    .doc("PriorityClass of the pods.")
    .notes("A pod of a higher priority may preempt a pod with its job.");

const ARCHITECTURE: KeySpec = key("architecture", Text, Described("any"), Launch)
    .doc("Architecture of the nodes (`kubernetes.io/arch`), such as `\"amd64\"` or `\"arm64\"`.")
    .notes("Set it if the image is for one architecture only.");

/// Suffixes, and by how many thousandths they multiply.
const UNITS: [(&str, u128); 14] = [
    ("", 1_000),
    ("m", 1),
    ("k", 1_000_000),
    ("M", 1_000_000_000),
    ("G", 1_000_000_000_000),
    ("T", 1_000_000_000_000_000),
    ("P", 1_000_000_000_000_000_000),
    ("E", 1_000_000_000_000_000_000_000),
    ("Ki", 1_000 << 10),
    ("Mi", 1_000 << 20),
    ("Gi", 1_000 << 30),
    ("Ti", 1_000 << 40),
    ("Pi", 1_000 << 50),
    ("Ei", 1_000 << 60),
];

/// A quantity in thousandths, rounded down; `None` if it is not one, or has an exponent.
pub(super) fn milli(text: &str) -> Option<u128> {
    let text = text.trim();
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    let (_, factor) = UNITS.iter().find(|(suffix, _)| *suffix == unit)?;
    let (whole, part) = number.split_once('.').unwrap_or((number, ""));
    if whole.is_empty() && part.is_empty() || whole.len() > 15 || part.len() > 9 {
        return None;
    }
    let digits = |text: &str| if text.is_empty() { Some(0) } else { text.parse::<u128>().ok() };
    let scale = 10_u128.pow(u32::try_from(part.len()).ok()?);
    Some(digits(whole)? * factor + digits(part)? * factor / scale)
}

/// A quantity of a pod's resource.
pub(super) fn checked_quantity(text: &str) -> Result<String, ValueError> {
    match milli(text) {
        Some(amount) if amount > 0 => Ok(text.trim().to_owned()),
        _ => Err(ValueError::value(text, "a quantity of Kubernetes such as \"2\", \"500m\" or \"4Gi\"")),
    }
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

    #[test]
    fn a_quantity_is_read_as_kubernetes_reads_it() {
        for (text, expected) in [
            ("2", Some(2_000)),
            ("500m", Some(500)),
            ("0.5", Some(500)),
            (".5", Some(500)),
            ("1.", Some(1_000)),
            ("4Gi", Some(4_000 << 30)),
            ("1.5Ki", Some(1_536_000)),
            ("2G", Some(2_000_000_000_000)),
            ("", None),
            (".", None),
            ("4gi", None),
            ("4GiB", None),
            ("1.5.1", None),
            ("-1", None),
            ("1e3", None),
        ] {
            assert_eq!(milli(text), expected, "{text}");
        }
        assert_eq!(checked_quantity(" 4Gi "), Ok("4Gi".to_owned()));
        assert!(checked_quantity("0").is_err() && checked_quantity("4 GB").is_err());
    }
}
