//! The keys of a pool and of its policy entries, and the one key of a provider's table that is not the provider's.

use greenroom_core::execution::Shell;
use greenroom_keys::DefaultValue::{Described, Required, Value};
use greenroom_keys::TakesEffect::{Job, Launch, Pass, Request, Within};
use greenroom_keys::ValueType::{Count, Duration, Factor, Flag, GuestPath, Table, Tables, Text, Texts, Word};
use greenroom_keys::{DefaultValue, KeySpec, KeyTable, key};

use super::REUSE;

pub(in crate::config) const POOL: KeyTable = KeyTable {
    header: "[pool.NAME]",
    about: "A pool is a set of instances of one provider under one policy. Its name consists of lower-case \
            letters, digits and hyphens, at most 32. Keys with the names of GitLab Runner's own autoscaler have \
            the same meaning.\n\nA running keeper takes up a new pool by itself. Drain a pool before you remove it \
            (`greenroom pool drain NAME --wait`): a running keeper keeps a removed pool with its last policy, and \
            its successor ignores it.",
    keys: &[
        PROVIDER_TABLE,
        CONTAINERS_TABLE,
        MAX_INSTANCES,
        CAPACITY_PER_INSTANCE,
        MAX_USE_COUNT,
        IDLE_COUNT,
        IDLE_STOPPED,
        IDLE_TIME,
        SCALE_FACTOR,
        SCALE_FACTOR_LIMIT,
        POLICY_TABLES,
        MAX_LAUNCHING,
        LAUNCHES_PER_MINUTE,
        MAX_LIFETIME,
        REUSE_KEY,
        CLEAN_UNBINDS,
        KEEP_BUILDS,
        ACQUIRE_TIMEOUT,
        SUMMARY,
        SHELL,
        LOGIN_SHELL,
        SEPARATE_STDERR,
        BUILDS_DIR,
        CACHE_DIR,
        READY_COMMAND,
        RECHECK_COMMAND,
        CLEAN_COMMAND,
    ],
};

pub(in crate::config) const POLICY: KeyTable = KeyTable {
    header: "[[pool.NAME.policy]]",
    about: "Each entry sets other idle targets for some periods. The last entry whose periods contain the present \
            minute is active; outside all periods the pool's own keys are.",
    keys: &[
        key("periods", Texts, Required, Pass)
            .doc("Periods of the entry, each as `minute hour day month weekday`.")
            .notes("Each is read as a set of minutes: `\"* 8-17 * * mon-fri\"` covers 8:00 to 17:59. Ranges ascend: \
                 `\"* 22-23,0-6 * * *\"` is a night."),
        key("timezone", Text, Value("\"UTC\""), Pass).doc("Time zone of the periods, by its IANA name."),
        key("idle_count", Count(0), OF_POOL, Pass).unit("job slots").doc("As in the pool."),
        key("idle_time", Duration(0), OF_POOL, Pass).doc("As in the pool."),
        key("scale_factor", Factor, OF_POOL, Pass).doc("As in the pool."),
        key("scale_factor_limit", Count(0), OF_POOL, Pass).unit("job slots").doc("As in the pool."),
    ],
};

const OF_POOL: DefaultValue = Described("the pool's");

pub(in crate::config) const PROVIDER: KeyTable = KeyTable {
    header: "[pool.NAME.provider]",
    about: "Where the instances of the pool come from. Every key but `kind` is the provider's own; the sections \
            below describe them.",
    keys: &[key("kind", Text, Required, Pass)
        .doc("Which provider: a name from the sections below.")
        .notes(
            "A provider does not find the instances of another one: drain the pool before a change. The providers \
             of clouds need the program `greenroom-backends` beside `greenroom`; a running keeper re-executes \
             as that program by itself.",
        )],
};

const PROVIDER_TABLE: KeySpec =
    key("provider", Table, Required, Within).doc("Where the instances of the pool come from.");

const CONTAINERS_TABLE: KeySpec =
    key("containers", Table, Described("none: jobs run on the instance itself"), Within)
        .doc("Containers on the instance, for jobs with `image:` and `services:`.");

const MAX_INSTANCES: KeySpec = key("max_instances", Count(1), Required, Pass)
    .unit("instances")
    .doc("Limit of instances at any time, in any phase; booting and terminating instances count.")
    .notes(
        "A lower limit stops launches until the number of instances is below it; it terminates none. Every host of \
         a provider `static` is adopted, whatever the limit. Set the runner's `limit` to `max_instances` × \
         `capacity_per_instance`.",
    );

const CAPACITY_PER_INSTANCE: KeySpec = key("capacity_per_instance", Count(1), Value("1"), Launch)
    .unit("jobs")
    .doc("Jobs that may share an instance at the same time.")
    .notes(
        "Must not exceed `max_use_count`, unless that is 0. Above 1, each job gets a builds directory of its own \
         below `builds_dir`. Static hosts take a change with the next pass in which their present jobs fit; \
         `capacity` of a host overrides this key.",
    );

const MAX_USE_COUNT: KeySpec = key("max_use_count", Count(0), Value("1"), Launch)
    .unit("jobs")
    .doc("Jobs that an instance serves before it is terminated; 0: no limit.")
    .notes(
        "Must be 0 or at least `capacity_per_instance`. Static hosts have no limit by default; with one, the count \
         starts again after each cleaning.",
    );

const IDLE_COUNT: KeySpec = key("idle_count", Count(0), Value("0"), Pass)
    .unit("job slots")
    .doc("Spare job slots that are kept ready; with 0 every job waits for a boot.")
    .notes(
        "Must not exceed `max_instances` × `capacity_per_instance`. It is the lower bound of `scale_factor`. \
         Providers `local` and `qemu` refill the pool only while no job waits for an instance. No effect on static \
         hosts.",
    );

const IDLE_STOPPED: KeySpec = key("idle_stopped", Count(0), Value("0"), Pass)
    .unit("instances")
    .doc(
        "Instances that are kept suspended, besides those of `idle_count`. Each was launched and checked. A job that finds \
         no idle instance resumes one of them.",
    )
    .notes(
        "They count against `max_instances`, and their age against `max_lifetime`. Only with provider `fleeting`; with \
         others, the configuration is invalid. Without effect if its plugin cannot suspend instances: `greenroom doctor` \
         says so. `ready_command` runs again after each resume. See `suspend_timeout` and `resume_timeout`.",
    );

const IDLE_TIME: KeySpec = key("idle_time", Duration(0), Value("\"20m\""), Pass)
    .doc("How long an instance that is not needed stays idle, counted from its last job or its boot.")
    .notes(
        "Spare instances for `idle_count` and `scale_factor` stay longer. An instance that has served no job stays \
         at least `surplus_min_time`. An instance that is bound to a project (`reuse`) counts as not needed. No \
         effect on static hosts.",
    );

const SCALE_FACTOR: KeySpec = key("scale_factor", Factor, Value("0.0"), Pass)
    .unit("spare slots per slot in use")
    .doc("Spare job slots as a multiple of those in use, rounded up; 0 switches it off.")
    .notes(
        "The result is at least `idle_count` and at most `scale_factor_limit`. No effect on static hosts.",
    );

const SCALE_FACTOR_LIMIT: KeySpec = key("scale_factor_limit", Count(0), Value("0"), Pass)
    .unit("job slots")
    .doc("Upper bound of the spare job slots from `scale_factor`; 0: no bound.")
    .notes("With a `scale_factor`, it must be 0 or at least `idle_count`.");

const POLICY_TABLES: KeySpec =
    key("policy", Tables, Described("none"), Within).doc("Other idle targets at other times.");

const MAX_LAUNCHING: KeySpec = key("max_launching", Count(1), Value("10"), Pass)
    .unit("instances")
    .doc("Launches under way at the same time.")
    .notes(
        "Provider `qemu` also launches at most as many as the runner host has processors. Instances that jobs order \
         (`image_from_job`) get at most half; with 1, one of them may boot beside one of the pool's.",
    );

const LAUNCHES_PER_MINUTE: KeySpec = key("launches_per_minute", Count(1), Value("60"), Pass)
    .unit("launches")
    .doc("Launches that begin within any minute.")
    .notes(
        "Launches that were refused for their offering alone do not count. Instances that jobs order get at most half.",
    );

const MAX_LIFETIME: KeySpec = key("max_lifetime", Duration(0), Described("24 hours in clouds, else no limit"), Pass)
    .doc("Age at which an instance takes no more jobs; it is terminated when it is idle. 0: no limit.")
    .notes(
        "A job fails immediately if its timeout is longer than a value that you set. The default extends: while a job with \
         a longer timeout waits, instances are launched for that timeout + `launch_timeout`. A job does not get an \
         instance whose remaining lifetime is shorter than the job's timeout. A living instance keeps the lifetime of its \
         launch if a change of the key would prolong it. Clouds terminate an instance by themselves after `max_lifetime` + \
         `launch_timeout`, as set at its launch; without a limit, they bill until a keeper terminates them. Static \
         hosts do not age.",
    );

const REUSE_KEY: KeySpec = key("reuse", Word(REUSE), Value("\"project\""), Request)
    .doc(
        "Which jobs may follow a job on its instance: those of the same project, of projects in the same \
         namespace, or all.",
    )
    .notes(
        "Jobs of protected refs and other jobs never follow one another, except with `\"any\"`. The key matters \
         where an instance serves several jobs: see `max_use_count` and `clean_unbinds`.",
    );

const CLEAN_UNBINDS: KeySpec = key("clean_unbinds", Flag, Described("`true` if `clean_user` cleans each host, else `false`"), Pass)
    .doc("Whether a static host may serve any job after a successful cleaning.")
    .notes(
        "With `false` a host stays with the trust domain of its first job (see `reuse`), and keeps its cache. \
         `greenroom pool resume POOL --instance HOST --unbind` releases it. With `true`, jobs of other projects can meet \
         what cleaning has missed. No effect on other providers.",
    );

const KEEP_BUILDS: KeySpec = key("keep_builds", Flag, Value("false"), Pass)
    .doc("Whether a static host keeps the builds of jobs for the next job of its trust domain.")
    .notes(
        "`GIT_STRATEGY: fetch` then finds the clone of an earlier job. Needs `clean_unbinds = false`. A release from the \
         trust domain removes the builds. A directory with files of another user, such as root, is removed after the \
         job in any case.",
    );

const ACQUIRE_TIMEOUT: KeySpec =
    key("acquire_timeout", Duration(0), Described("`acquire_timeout` of `[timing]`"), Request)
        .doc("How long a job of this pool waits for an instance before it fails.")
        .notes("The runner's `prepare_exec_timeout` (1 hour by default) must be longer.");

const SUMMARY: KeySpec = key("summary", Flag, Value("false"), Job)
    .doc("Whether the job log ends with a table of the job's parts and their times.")
    .notes(
        "The last stage of GitLab Runner writes it. A job that GitLab Runner gives up before that stage has none: see \
         [job summaries](status.md#a-summary-in-the-job-log).",
    );

const SHELL: KeySpec = key("shell", Word(&Shell::NAMES), Value("\"bash\""), Job)
    .doc("Shell that runs the job's scripts on the instance, and for which the runner writes them.")
    .notes("Overrides `shell` in the runner's configuration.");

const LOGIN_SHELL: KeySpec =
    key("login_shell", Flag, Described("`true` with provider `static`, else `false`"), Job)
        .doc(
            "Whether stages on the instance get the environment of a login shell: that of `/etc/profile` and of the \
             account's own profile.",
        )
        .notes(
            "The program of `shell` reads them once for each job, without input and output (`sh` does for `\"pwsh\"`). \
             Scripts get variables, the umask and the limit of open files, but no functions and aliases. A stage fails if \
             a profile waits, exits or starts another shell. No effect in a job's container, nor on the pool's own \
             commands, such as `clean_command`.",
        );

const SEPARATE_STDERR: KeySpec = key("separate_stderr", Flag, Value("false"), Job)
    .doc("Whether standard error of scripts stays apart from standard output on its way to GitLab Runner.")
    .notes(
        "With `false` the job log has both in the order in which a script wrote them. With `true` that order is lost: \
         GitLab Runner reads the two streams concurrently.",
    );

const BUILDS_DIR: KeySpec = key("builds_dir", GuestPath, Value("\"/builds\""), Job)
    .doc("Directory for sources on the instance; the user that runs jobs must be able to create it.")
    .notes(
        "Must differ from `cache_dir`. Each job gets a directory of its own below it on static hosts, with \
         provider `local`, and with a `capacity_per_instance` above 1. With provider `local` the default is \
         `builds` in the state directory, unless one of the two keys is given.",
    );

const CACHE_DIR: KeySpec = key("cache_dir", GuestPath, Value("\"/cache\""), Job)
    .doc("Directory for local caches on the instance; the user that runs jobs must be able to create it.")
    .notes(
        "Cleaning of a static host empties it if the host may serve another trust domain next: see \
         `clean_unbinds`. With provider `local` the default is `cache` in the state directory, unless one of the two \
         keys is given.",
    );

const READY_COMMAND: KeySpec = key("ready_command", Text, Described("`cloud-init status --wait` in clouds, else none"), Pass)
    .doc("Command that runs on each new instance before a job gets it; it must exit with status 0.")
    .notes(
        "`ready_timeout` bounds the command. After a failure the instance is replaced, and counts for `breaker_failures`; a \
         static host goes out of service. With providers `aws-ec2`, `gce`, `external` and `fleeting`, the default waits for \
         cloud-init where an instance has it. Errors that cloud-init recovered from (exit status 2) do not count. A command of your own \
         replaces that: `\"true\"` waits for nothing. With other providers, and without a command, an instance is ready when \
         it accepts the login.",
    );

const RECHECK_COMMAND: KeySpec = key("recheck_command", Text, Described("none"), Pass)
    .doc(
        "Command that runs on an instance between two jobs, before it gets the next one; it must exit with status 0. \
         The value `\"ready_command\"` stands for that command.",
    )
    .notes(
        "It follows Greenroom's own check. Jobs can write to `builds_dir` and to the directory for temporary files, and at \
         least 100 MiB and 1,000 inodes are free. `ready_timeout` bounds the command. An instance that fails is \
         replaced; a static host goes out of service. No effect where each instance serves one job: see `max_use_count`.",
    );

const CLEAN_COMMAND: KeySpec = key("clean_command", Text, Described("none"), Pass)
    .doc("Command that runs on a static host between two jobs; it must exit with status 0.")
    .notes(
        "It runs after the provider's own cleaning (`clean`), for at most another `clean_timeout`. After a failure the \
         host goes out of service. No effect on other providers.",
    );
