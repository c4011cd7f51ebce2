//! The keys of provider `kubernetes`.

use greenroom_core::container::settings::PullPolicy;
use greenroom_keys::Applies::{Job, Launch, Pass, Within};
use greenroom_keys::Takes::{Count, Flag, Globs, HostPath, Map, Tables, Text, TextOrTexts, Word};
use greenroom_keys::Unset::{Required, Value, Words};
use greenroom_keys::{Key, KeyTable, Takes, key};

use super::settings::{ADDRESS, PORT_FORWARD};
use crate::cloud::keys::{AS_ABOVE, SSH_PORT, USER};

/// The values of `via` and of `image_pull_policy`.
const VIA: &[&str] = &[PORT_FORWARD, ADDRESS];
pub(super) const PULL: &[&str] = &["Always", "IfNotPresent", "Never"];

pub(super) const TABLES: &[KeyTable] = &[
    KeyTable {
        header: "[pool.NAME.provider]",
        about: "Instances are pods of a Kubernetes cluster. [providers/kubernetes.md](providers/kubernetes.md) explains \
                the image, the role and the network policy; `greenroom doctor` checks this table against the cluster.",
        keys: &[
            key("context", Text, Words("none: the service account of the pod that Greenroom runs in"), Pass)
                .means("Context of the kubeconfig, which names the cluster and the credentials.")
                .interacts("A keeper refuses a change to another cluster while the pool has instances: drain the pool first."),
            key("kubeconfig", HostPath, Words("`KUBECONFIG` of the keeper, otherwise `~/.kube/config`"), Pass)
                .means("File with the context.")
                .interacts("Only with `context`."),
            key("namespace", Text, Required, Pass)
                .means("Namespace of the pods.")
                .interacts("It should have nothing else: an account that may create pods may also use the secrets of their \
                            namespace. Drain the pool before a change."),
            key("via", Word(VIA), Value("\"port-forward\""), Launch)
                .means("How Greenroom reaches the SSH server of a pod: through the API server, or by the pod's address.")
                .interacts("With `\"address\"`, the runner host needs a route to the network of the pods. Jobs then survive a \
                            restart of the API server or the kubelet."),
            IMAGE,
            key("server_image", Text, Words("none: the image has an SSH server"), Launch)
                .means("Image with the program `greenroom-server`, an SSH server for images that have none.")
                .interacts("An init container copies the program into each pod. `image` then needs `/bin/sh`, and what jobs need."),
            key("image_pull_policy", Word(PULL), Words("as Kubernetes chooses by the tag"), Launch)
                .means("When a node pulls the images."),
            key("image_pull_secrets", TextOrTexts, Words("none"), Launch)
                .means("Secrets of the namespace with passwords for the registry."),
            key("image_from_job", Flag, Value("false"), Job)
                .means("Whether a job with another `image:`, or with `services:`, gets a pod of its own, made of these images.")
                .interacts("It needs `server_image`. Such a pod starts cold. All other jobs get the pool's pods."),
            key("images", Globs, Words("all images"), Job)
                .means("Images that jobs may name.")
                .interacts(WITH_ORDERS),
            key("services", Globs, Words("all images"), Job)
                .means("Images that services may have.")
                .interacts(WITH_ORDERS),
            key("services_limit", Count(0), Words("no limit"), Job)
                .unit("services")
                .means("Services that a job may have; with 0, none. Never more than 100.")
                .interacts(WITH_ORDERS),
            key("allowed_pull_policies", Takes::Words(&PullPolicy::NAMES), Words(PULL_POLICIES), Job)
                .means("Pull policies that jobs may name. Of a job's list, the first one that is allowed counts.")
                .interacts(WITH_ORDERS),
            key("service_cpu", Text, Words("none: as the namespace's LimitRange says"), Launch)
                .means("Processors that the scheduler reserves for each service of a job.")
                .interacts(WITH_ORDERS),
            key("service_cpu_limit", Text, Words("none: as the namespace's LimitRange says"), Launch)
                .means("Limit of the processors that each service of a job may use.")
                .interacts("Only with `image_from_job`. Without it, `doctor` warns: a service may take a node's processors from others."),
            key("service_memory", Text, Words("none: as the namespace's LimitRange says"), Launch)
                .means("Memory of each service of a job: reserved, and its limit.")
                .interacts("Only with `image_from_job`. A service that exceeds it is killed, and started again."),
            key("cpu", Text, Words("none: as the namespace's LimitRange says"), Launch)
                .means("Processors that the scheduler reserves for a pod, such as `\"2\"` or `\"500m\"`."),
            key("cpu_limit", Text, Words("none"), Launch).means("Limit of the processors that a pod may use."),
            key("memory", Text, Words("none: as the namespace's LimitRange says"), Launch)
                .means("Memory of a pod, such as `\"4Gi\"`: reserved, and its limit.")
                .interacts("A pod that exceeds it is killed, with its job."),
            key("disk", Text, Words("none: as the namespace's LimitRange says"), Launch)
                .means("Ephemeral storage of a pod, such as `\"20Gi\"`: reserved, and its limit.")
                .interacts("A pod that exceeds it is evicted, with its job."),
            key("service_account", Text, Words("the namespace's `default`"), Launch)
                .means("Service account of the pods, which should have no rights.")
                .interacts("Pods get no token of it."),
            key("owner_config_map", Text, Words("none"), Launch)
                .means("ConfigMap of the namespace that owns the pods: when the operator deletes it, Kubernetes deletes them.")
                .interacts("The role needs `get` on it. Never use an object of Greenroom's own deployment as an owner."),
            key("pod", HostPath, Words("none"), Launch)
                .means("YAML file with a pod to start from: volumes, sidecars, security context, labels.")
                .interacts("Its container `job` is the one that jobs run in. The keys of this table win. What Greenroom sets \
                            may not be set there, and is refused by name."),
            key("schedule_within", greenroom_keys::Takes::Duration(0), Value("\"20s\""), Launch)
                .means("How long a pod may wait for a node before the launch continues with the next offering.")
                .interacts("Set it to minutes where an autoscaler adds nodes. While one reports that it adds a node, the launch \
                            waits until `launch_timeout`."),
            NODE_SELECTOR,
            TOLERATIONS,
            RUNTIME_CLASS,
            PRIORITY_CLASS,
            ARCHITECTURE,
            key("offering", Tables, Words("one, `default`, from the keys of this table"), Within)
                .means("Other kinds of nodes, in their order."),
            USER.or(Value("\"root\""))
                .means("Linux user that logs in and runs jobs. Without `server_image`, a pod that starts as root creates a missing one.")
                .interacts("Where pods do not start as root, it must be the image's own user. Idle instances with the earlier \
                            user fail their next probe and are replaced."),
            SSH_PORT
                .or(Value("2222"))
                .means("Port of the SSH server in the pods.")
                .interacts("With `via = \"address\"`, network policies must allow it from the runner host."),
        ],
    },
    KeyTable {
        header: "[[pool.NAME.provider.offering]]",
        about: "Kinds of nodes are tried one after another. A launch uses the first one on which Kubernetes finds a place.",
        keys: &[
            key("name", Text, Required, Launch).means("Name of the offering in messages."),
            IMAGE.or(AS_ABOVE).interacts("It must fit the architecture."),
            NODE_SELECTOR.or(AS_ABOVE),
            TOLERATIONS.or(AS_ABOVE).interacts(""),
            RUNTIME_CLASS.or(AS_ABOVE),
            PRIORITY_CLASS.or(AS_ABOVE).interacts(""),
            ARCHITECTURE.or(AS_ABOVE).interacts(""),
        ],
    },
];

const WITH_ORDERS: &str = "Only with `image_from_job`.";
const PULL_POLICIES: &str = "that of `image_pull_policy`, otherwise `always` and `if-not-present`";

const IMAGE: Key =
    key("image", Text, Required, Launch).means("Image of the container that jobs run in.").interacts(
        "Required here or in each `offering`. It needs `git` and the pool's `shell`; without `server_image`, also an SSH server and `ssh-keygen`.",
    );

const NODE_SELECTOR: Key =
    key("node_selector", Map, Words("none"), Launch).means("Labels that a node must have.");

const TOLERATIONS: Key = key("tolerations", TextOrTexts, Words("none"), Launch)
    .means(
        "Taints that pods tolerate, as `kubectl taint` writes them: `\"spot=true:NoSchedule\"`, `\"spot\"`.",
    )
    .interacts("Kubernetes removes pods from a lost node after 30 s; tolerations of its taints are refused.");

const RUNTIME_CLASS: Key = key("runtime_class", Text, Words("the cluster's default"), Launch)
    .means("RuntimeClass of the pods, such as one with a virtual machine for each pod.");

const PRIORITY_CLASS: Key = key("priority_class", Text, Words("the cluster's default"), Launch)
    .means("PriorityClass of the pods.")
    .interacts("A pod of a higher priority may preempt a pod with its job.");

const ARCHITECTURE: Key = key("architecture", Text, Words("any"), Launch)
    .means("Architecture of the nodes (`kubernetes.io/arch`), such as `\"amd64\"` or `\"arm64\"`.")
    .interacts("Set it if the image is for one architecture only.");
