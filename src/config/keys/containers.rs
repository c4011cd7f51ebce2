//! The keys of jobs in containers.

use greenroom_core::container::settings::PullPolicy;
use greenroom_keys::DefaultValue::{Described, Value};
use greenroom_keys::TakesEffect::{Job, Pass};
use greenroom_keys::ValueType::{
    Choice, Count, Duration, Factor, Flag, Globs, HostPath, Map, Range, Size, Text, TextOrTexts, Texts, Word,
    Words as OneOrMore,
};
use greenroom_keys::{KeySpec, KeyTable, key};

/// The values of `mode`, in the order of `core::container::settings::Mode`.
pub(in crate::config) const MODE: &[&str] = &["image", "always"];
/// The values of `engine`: the programs of `core::container::engine::ContainerEngine::ALL`.
const ENGINE: &[&str] = &["podman", "docker"];
/// The values of `umask`, in the order of `core::container::settings::Umask`.
pub(in crate::config) const UMASK: &[&str] = &["auto", "open", "closed"];

pub(in crate::config) const CONTAINERS: KeyTable = KeyTable {
    header: "[pool.NAME.containers]",
    about: "With this table, even an empty one, jobs of the pool run in containers on their instance: the job in its \
            `image:`, its `services:` beside it. [Jobs in containers](containers.md) describes how, and what an \
            instance needs. Keys with names of GitLab Runner's `[runners.docker]` have the same meaning.\n\n\
            The shell `pwsh` is refused. The provider `static` runs containers \
            [without root](providers/static.md#containers), and refuses `privileged`, `memory`, `cpus` and `pids_limit`. Patterns are those of [`[[rule]]`](#rule). They match \
            the name as the job writes it or the complete one: `ruby:*` and `docker.io/library/ruby:*` both allow \
            `ruby:3.3`.",
    keys: &[
        key("mode", Word(MODE), Value("\"image\""), Job)
            .doc("Which jobs run in containers: those that name an image, or all of them.")
            .notes("`\"always\"` requires `default_image`."),
        key("engine", Word(ENGINE), Value("\"podman\""), Job)
            .doc("Program on the instances that runs the containers: Podman, or Docker.")
            .notes(
                "`greenroom image build --containers` installs Podman. [What a machine needs](containers.md#what-a-machine-needs) \
                 lists what each engine needs.",
            ),
        key("default_image", Text, Described("none"), Job)
            .doc("Image of jobs that name none.")
            .notes("It needs no entry in `images`. No effect with `mode = \"image\"`."),
        key("images", Globs, Described("all images"), Job).doc("Images that jobs may name."),
        key("services", Globs, Described("all images"), Job).doc("Images that services may have."),
        key("services_limit", Count(0), Described("`100`"), Job)
            .unit("services")
            .doc("Services that a job may have; with 0, none. A greater number than 100 counts as 100."),
        key("pull_policy", OneOrMore(&PullPolicy::NAMES), Described(PULL_POLICY_DEFAULT), Job)
            .doc("When an image is pulled. If one policy of the list fails, the next one is tried.")
            .notes("A job's own `pull_policy` replaces it, as far as `allowed_pull_policies` permits."),
        key("allowed_pull_policies", OneOrMore(&PullPolicy::NAMES), Described("`pull_policy`"), Job)
            .doc("Pull policies that jobs may name.")
            .notes("It must contain those of `pull_policy`."),
        MIRRORS,
        key("registry_auth", HostPath, Described("none"), Job)
            .doc("File on the runner host with passwords for registries, in the format of Docker's `config.json`.")
            .notes(
                "`DOCKER_AUTH_CONFIG` of a job comes before it, the credentials that GitLab gives to the job after it. \
                 Credential helpers are not used. Only Greenroom's user should be able to read it.",
            ),
        REGISTRY_AUTH_SHARED,
        key("ca", HostPath, Described("the certificates of the instance"), Job).doc(
            "File on the runner host with certificates (PEM) that verify registries and mirrors, in addition to the \
             instance's own.",
        ),
        key("privileged", Choice(&["single-use"]), Value("\"single-use\""), Job)
            .doc("Which containers get all rights of the instance: all, none, or those of the images listed.")
            .notes(
                "`\"single-use\"` is `true` where an instance is terminated after one job, else `false`. Docker in \
                 Docker needs it.",
            ),
        key("volumes", Texts, Value("[\"/certs/client\"]"), Job)
            .doc("Volumes that all containers of a job share, as `PATH` or `HOST_PATH:PATH[:OPTIONS]`.")
            .notes("All containers have `builds_dir` and `cache_dir`, too. The host is the instance."),
        key("wait_for_services", Duration(0), Value("\"30s\""), Job)
            .doc("How long a job waits for a port of each service to answer; 0: not at all.")
            .notes("A service that does not answer causes a warning, not a failure."),
        key("pull_timeout", Duration(1000), Value("\"15m\""), Job)
            .doc("How long pulling all images of a job may take, repetitions included.")
            .notes(
                "The runner's `prepare_exec_timeout` (1 hour by default) must be longer than `acquire_timeout` and \
                 `pull_timeout` together.",
            ),
        key("min_free_space", Size, Value("\"2G\""), Job)
            .doc("Free space on a static host below which images are removed before a job, the least recently used first.")
            .notes("No effect where instances are launched. An image that was used within `pull_timeout` stays."),
        IMAGES_WARM,
        key("images_warm_size", Size, Described("10G"), Pass)
            .doc("Limit of the unpacked size of all learned images on an instance.")
            .notes("No effect without `images_warm = \"learn\"`."),
        UMASK_KEY,
        key("user", Text, Described("the job's, else the image's"), Job)
            .doc("User of jobs' containers.")
            .notes("It overrides `user` of a job's image, and needs no entry in `allowed_users`."),
        key("allowed_users", Globs, Described("all users"), Job).doc("Users that jobs and services may name."),
        key("shm_size", Size, Described("64M"), Job).doc("Size of `/dev/shm` in each container."),
        key("extra_hosts", Texts, Described("none"), Job)
            .doc("Further names for `/etc/hosts` of all containers, each as `NAME:ADDRESS`."),
        key("dns", Texts, Described("the instance's"), Job).doc("Addresses of the name servers of all containers."),
        key("cap_add", Texts, Described("none"), Job).doc("Capabilities that all containers get in addition."),
        key("cap_drop", Texts, Described("none"), Job).doc("Capabilities that no container gets."),
        key("devices", Texts, Described("none"), Job)
            .doc("Devices of the instance for all containers, as `PATH` or `PATH:PATH_INSIDE[:rwm]`."),
        key("gpus", Text, Described("none"), Job)
            .doc("GPUs of the instance for all containers, such as `\"all\"`.")
            .notes("The instance needs the vendor's container toolkit."),
        key("ulimit", Map, Described("the engine's"), Job)
            .doc("Resource limits of all containers: from a limit's name to `\"SOFT\"` or `\"SOFT:HARD\"`."),
        key("tmpfs", Map, Described("none"), Job)
            .doc("File systems in memory: from a path to its mount options, such as `\"rw,noexec\"`."),
        key("memory", Size, Described("no limit"), Job).doc("Memory limit of each container."),
        key("cpus", Factor, Described("no limit"), Job)
            .unit("processors")
            .doc("Processor time of each container, as a number of processors."),
        key("pids_limit", Count(1), Described("no limit"), Job)
            .unit("processes")
            .doc("Processes and threads that each container may have."),
        key("network_mtu", Range(576, 65535), Described("that of the instance's default route"), Job)
            .unit("bytes")
            .doc("MTU of the networks of containers.")
            .notes("Docker in Docker gets it, too. No effect on jobs that use the network of their instance."),
    ],
};

const PULL_POLICY_DEFAULT: &str = "`[\"always\", \"if-not-present\"]` where an instance serves one trust domain, else \
                                   `\"always\"`";

const MIRRORS: KeySpec = key("mirrors", Map, Described("none"), Job)
    .doc("Registries that are tried first: from a registry, such as `docker.io`, to its mirror.")
    .notes(
        "A mirror is `HOST`, `HOST:PORT` or one of these with a path; `http://` before it stands for one without TLS. \
         Where the mirror lacks an image, the registry itself is tried. Docker in Docker gets the mirror of `docker.io`, \
         unless it has a path.",
    );

const IMAGES_WARM: KeySpec = key("images_warm", TextOrTexts, Described("none"), Pass)
    .doc("Images that the keeper pulls on idle instances, before a job needs them. With `\"learn\"`: those that at least \
            two of the last 200 jobs used, the most used first.")
    .notes(
        "Two instances of the pool pull at the same time. `registry_auth`, `mirrors` and `ca` are used, and \
         `pull_timeout` limits each pull. A job that gets the instance stops the pull. The provider `qemu` also puts named images \
         that need no password into its templates.",
    );

const REGISTRY_AUTH_SHARED: KeySpec = key("registry_auth_shared", Flag, Value("false"), Job)
    .doc("Whether jobs get the passwords in `registry_auth` on instances that serve several jobs, where others can read them.")
    .notes(
        "Without it, jobs get the passwords where `max_use_count` is 1, and on static hosts for one job at a time. Elsewhere, \
         only `images_warm` are pulled with them, on instances that no job has used.",
    );

const UMASK_KEY: KeySpec = key("umask", Word(UMASK), Value("\"auto\""), Job)
    .doc("File mode of sources, caches and artifacts: `\"open\"` lets every user write to them, \
            `\"closed\"` only the user of the job's container.")
    .notes(
        "`\"auto\"` is `\"open\"` if the image's user is not root or the job has services, else `\"closed\"`. A job's \
         `FF_DISABLE_UMASK_FOR_DOCKER_EXECUTOR` stands for `\"closed\"`.",
    );
