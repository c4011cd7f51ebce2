//! The keys of jobs in containers.

use greenroom_core::container::settings::PullPolicy;
use greenroom_keys::Applies::{Job, Pass};
use greenroom_keys::Takes::{
    Choice, Count, Duration, Factor, Flag, Globs, HostPath, Map, Range, Size, Text, TextOrTexts, Texts, Word,
    Words as OneOrMore,
};
use greenroom_keys::Unset::{Value, Words};
use greenroom_keys::{Key, KeyTable, key};

/// The values of `mode`, in the order of `core::container::settings::Mode`.
pub(in crate::config) const MODE: &[&str] = &["image", "always"];
/// The values of `engine`: the programs of `core::container::engine::ContainerEngine::ALL`.
pub(in crate::config) const ENGINE: &[&str] = &["podman", "docker"];
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
            .means("Which jobs run in containers: those that name an image, or all of them.")
            .interacts("`\"always\"` requires `default_image`."),
        key("engine", Word(ENGINE), Value("\"podman\""), Job)
            .means("Program on the instances that runs the containers: Podman, or Docker.")
            .interacts(
                "`greenroom image build --containers` installs Podman. [What a machine needs](containers.md#what-a-machine-needs) \
                 lists what each engine needs.",
            ),
        key("default_image", Text, Words("none"), Job)
            .means("Image of jobs that name none.")
            .interacts("It needs no entry in `images`. No effect with `mode = \"image\"`."),
        key("images", Globs, Words("all images"), Job).means("Images that jobs may name."),
        key("services", Globs, Words("all images"), Job).means("Images that services may have."),
        key("services_limit", Count(0), Words("`100`"), Job)
            .unit("services")
            .means("Services that a job may have; with 0, none. A greater number than 100 counts as 100."),
        key("pull_policy", OneOrMore(&PullPolicy::NAMES), Words(PULL_POLICY_DEFAULT), Job)
            .means("When an image is pulled. If one policy of the list fails, the next one is tried.")
            .interacts("A job's own `pull_policy` replaces it, as far as `allowed_pull_policies` permits."),
        key("allowed_pull_policies", OneOrMore(&PullPolicy::NAMES), Words("`pull_policy`"), Job)
            .means("Pull policies that jobs may name.")
            .interacts("It must contain those of `pull_policy`."),
        MIRRORS,
        key("registry_auth", HostPath, Words("none"), Job)
            .means("File on the runner host with passwords for registries, in the format of Docker's `config.json`.")
            .interacts(
                "`DOCKER_AUTH_CONFIG` of a job comes before it, the credentials that GitLab gives to the job after it. \
                 Credential helpers are not used. Only Greenroom's user should be able to read it.",
            ),
        REGISTRY_AUTH_SHARED,
        key("ca", HostPath, Words("the certificates of the instance"), Job).means(
            "File on the runner host with certificates (PEM) that verify registries and mirrors, in addition to the \
             instance's own.",
        ),
        key("privileged", Choice(&["single-use"]), Value("\"single-use\""), Job)
            .means("Which containers get all rights of the instance: all, none, or those of the images listed.")
            .interacts(
                "`\"single-use\"` is `true` where an instance is terminated after one job, else `false`. Docker in \
                 Docker needs it.",
            ),
        key("volumes", Texts, Value("[\"/certs/client\"]"), Job)
            .means("Volumes that all containers of a job share, as `PATH` or `HOST_PATH:PATH[:OPTIONS]`.")
            .interacts("All containers have `builds_dir` and `cache_dir`, too. The host is the instance."),
        key("wait_for_services", Duration(0), Value("\"30s\""), Job)
            .means("How long a job waits for a port of each service to answer; 0: not at all.")
            .interacts("A service that does not answer causes a warning, not a failure."),
        key("pull_timeout", Duration(1000), Value("\"15m\""), Job)
            .means("How long pulling all images of a job may take, repetitions included.")
            .interacts(
                "The runner's `prepare_exec_timeout` (1 hour by default) must be longer than `acquire_timeout` and \
                 `pull_timeout` together.",
            ),
        key("min_free_space", Size, Value("\"2G\""), Job)
            .means("Free space on a static host below which images are removed before a job, the least recently used first.")
            .interacts("No effect where instances are launched. An image that was used within `pull_timeout` stays."),
        IMAGES_WARM,
        key("images_warm_size", Size, Words("10G"), Pass)
            .means("Limit of the unpacked size of all learned images on an instance.")
            .interacts("No effect without `images_warm = \"learn\"`."),
        UMASK_KEY,
        key("user", Text, Words("the job's, else the image's"), Job)
            .means("User of jobs' containers.")
            .interacts("It overrides `user` of a job's image, and needs no entry in `allowed_users`."),
        key("allowed_users", Globs, Words("all users"), Job).means("Users that jobs and services may name."),
        key("shm_size", Size, Words("64M"), Job).means("Size of `/dev/shm` in each container."),
        key("extra_hosts", Texts, Words("none"), Job)
            .means("Further names for `/etc/hosts` of all containers, each as `NAME:ADDRESS`."),
        key("dns", Texts, Words("the instance's"), Job).means("Addresses of the name servers of all containers."),
        key("cap_add", Texts, Words("none"), Job).means("Capabilities that all containers get in addition."),
        key("cap_drop", Texts, Words("none"), Job).means("Capabilities that no container gets."),
        key("devices", Texts, Words("none"), Job)
            .means("Devices of the instance for all containers, as `PATH` or `PATH:PATH_INSIDE[:rwm]`."),
        key("gpus", Text, Words("none"), Job)
            .means("GPUs of the instance for all containers, such as `\"all\"`.")
            .interacts("The instance needs the vendor's container toolkit."),
        key("ulimit", Map, Words("the engine's"), Job)
            .means("Resource limits of all containers: from a limit's name to `\"SOFT\"` or `\"SOFT:HARD\"`."),
        key("tmpfs", Map, Words("none"), Job)
            .means("File systems in memory: from a path to its mount options, such as `\"rw,noexec\"`."),
        key("memory", Size, Words("no limit"), Job).means("Memory limit of each container."),
        key("cpus", Factor, Words("no limit"), Job)
            .unit("processors")
            .means("Processor time of each container, as a number of processors."),
        key("pids_limit", Count(1), Words("no limit"), Job)
            .unit("processes")
            .means("Processes and threads that each container may have."),
        key("network_mtu", Range(576, 65535), Words("that of the instance's default route"), Job)
            .unit("bytes")
            .means("MTU of the networks of containers.")
            .interacts("Docker in Docker gets it, too. No effect on jobs that use the network of their instance."),
    ],
};

const PULL_POLICY_DEFAULT: &str = "`[\"always\", \"if-not-present\"]` where an instance serves one trust domain, else \
                                   `\"always\"`";

const MIRRORS: Key = key("mirrors", Map, Words("none"), Job)
    .means("Registries that are tried first: from a registry, such as `docker.io`, to its mirror.")
    .interacts(
        "A mirror is `HOST`, `HOST:PORT` or one of these with a path; `http://` before it stands for one without TLS. \
         Where the mirror lacks an image, the registry itself is tried. Docker in Docker gets the mirror of `docker.io`, \
         unless it has a path.",
    );

const IMAGES_WARM: Key = key("images_warm", TextOrTexts, Words("none"), Pass)
    .means("Images that the keeper pulls on idle instances, before a job needs them. With `\"learn\"`: those that at least \
            two of the last 200 jobs used, the most used first.")
    .interacts(
        "Two instances of the pool pull at the same time. `registry_auth`, `mirrors` and `ca` are used, and \
         `pull_timeout` limits each pull. A job that gets the instance stops the pull. The provider `qemu` also puts named images \
         that need no password into its templates.",
    );

const REGISTRY_AUTH_SHARED: Key = key("registry_auth_shared", Flag, Value("false"), Job)
    .means("Whether jobs get the passwords in `registry_auth` on instances that serve several jobs, where others can read them.")
    .interacts(
        "Without it, jobs get the passwords where `max_use_count` is 1, and on static hosts for one job at a time. Elsewhere, \
         only `images_warm` are pulled with them, on instances that no job has used.",
    );

const UMASK_KEY: Key = key("umask", Word(UMASK), Value("\"auto\""), Job)
    .means("File mode of sources, caches and artifacts: `\"open\"` lets every user write to them, \
            `\"closed\"` only the user of the job's container.")
    .interacts(
        "`\"auto\"` is `\"open\"` if the image's user is not root or the job has services, else `\"closed\"`. A job's \
         `FF_DISABLE_UMASK_FOR_DOCKER_EXECUTOR` stands for `\"closed\"`.",
    );
