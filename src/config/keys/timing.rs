//! The keys of `[timing]`.

use greenroom_keys::DefaultValue::Value;
use greenroom_keys::TakesEffect::{Pass, Request, Start};
use greenroom_keys::ValueType::{Count, Duration};
use greenroom_keys::{KeyTable, key};

pub(in crate::config) const TIMING: KeyTable = KeyTable {
    header: "[timing]",
    about: "Timeouts, intervals, retentions and back-off of all pools. The defaults suit most installations; \
            [examples/config.toml](../examples/config.toml) shows the dozen that operators change.",
    keys: &[
        // Jobs.
        key("acquire_timeout", Duration(0), Value("\"30m\""), Request)
            .doc("How long a job waits for an instance before it fails.")
            .notes(
                "`acquire_timeout` of a pool overrides it. The runner's `prepare_exec_timeout` (1 hour by default) \
                 must be longer.",
            ),
        key("no_host_timeout", Duration(0), Value("\"1m\""), Pass)
            .doc("How long a job waits while all static hosts of its pool are out of service.")
            .notes("Only an operator, or a cleaning, returns them to service."),
        key("place_retention", Duration(0), Value("\"5m\""), Pass)
            .doc("How long a job keeps its place in the queue between two attempts.")
            .notes("A retried job also keeps what is left of its `acquire_timeout`."),
        key("waiter_poll_interval", Duration(10), Value("\"1s\""), Pass)
            .doc("How often a waiting job polls the state where no wake-up reaches it."),
        key("connect_timeout", Duration(1), Value("\"10s\""), Pass)
            .doc("How long connecting to an instance and logging in may take; starting a script may take as long \
                    again.")
            .notes("Must not exceed `launch_timeout`. A job keeps the value that was active when it got its \
                        instance."),
        key("stop_grace", Duration(0), Value("\"10s\""), Request)
            .doc("Time from TERM to KILL when a script is stopped.")
            .notes("The runner's `graceful_kill_timeout` must be longer by some seconds, and below 300; \
                        `greenroom doctor` checks that."),
        key("container_start_timeout", Duration(1), Value("\"1m\""), Pass)
            .doc("How long the engine of an instance may take to start a job's container. An entrypoint may take \
                    longer.")
            .notes("A job keeps the value that was active when it got its instance."),
        key("image_check_interval", Duration(1000), Value("\"1h\""), Pass)
            .doc("How often an image of `images_warm` is compared with the registry's, and pulled again if it has \
                    changed.")
            .notes("Without `greenroom keep` as a service, only while a keeper has other work."),
        key("loss_reason_timeout", Duration(0), Value("\"10s\""), Pass)
            .doc("How long a job that lost its instance waits for the keeper to find the reason.")
            .notes("Should be longer than `list_interval`, or the list comes too late."),
        // Launches.
        key("launch_timeout", Duration(1), Value("\"10m\""), Pass)
            .doc("How long a launch may take until the instance is ready; then the instance is terminated.")
            .notes("Must not be shorter than `connect_timeout` or `ready_timeout`. Clouds terminate an \
                        instance by themselves after `max_lifetime` + `launch_timeout`."),
        key("ready_timeout", Duration(1), Value("\"2m\""), Pass)
            .doc("How long `ready_command` may take.")
            .notes("Must not exceed `launch_timeout`."),
        key("relaunch_after", Duration(1), Value("\"30s\""), Pass)
            .doc("Time after which a launch without an answer is requested again, with the same token."),
        key("launch_backoff", Duration(0), Value("\"5s\""), Pass)
            .doc("Pause after a failed launch; it doubles with each further failure in a row.")
            .notes(
                "Must not exceed `launch_backoff_max`. Launches that fail together count once. Failed calls about \
                 one instance, terminations for example, are repeated at the same pace. Offerings have a back-off \
                 of their own: `stockout_backoff`, `quota_backoff`.",
            ),
        key("launch_backoff_max", Duration(0), Value("\"5m\""), Pass)
            .doc("Longest pause after failed launches.")
            .notes("It is also the pause of the circuit breaker, and after errors that a retry cannot correct \
                        (quota, permission)."),
        key("breaker_failures", Count(1), Value("5"), Pass)
            .unit("failed launches")
            .doc("Failures in a row after which the pool pauses for `launch_backoff_max`, then tries one launch.")
            .notes("`greenroom pool resume` ends the pause."),
        key("stockout_backoff", Duration(0), Value("\"2m\""), Pass)
            .doc("How long an offering without capacity is unavailable; the time doubles with each further \
                    refusal in a row.")
            .notes("Must not exceed `stockout_backoff_max`. Providers without offerings use `launch_backoff`. \
                        `greenroom pool resume` makes all offerings available."),
        key("stockout_backoff_max", Duration(0), Value("\"30m\""), Pass).doc("Longest time for which an offering \
                                                                                without capacity is unavailable."),
        key("quota_backoff", Duration(0), Value("\"15m\""), Pass)
            .doc("How long an offering is unavailable that was refused for a quota, for a missing permission or \
                    as invalid.")
            .notes("`greenroom pool resume` makes all offerings available."),
        // The keeper.
        key("probe_interval", Duration(10), Value("\"1s\""), Pass)
            .doc("Time between two probes of a booting instance.")
            .notes("Providers `local` and `qemu` are probed more often at the beginning of a boot."),
        key("pass_interval", Duration(10), Value("\"10s\""), Pass)
            .doc("Longest time between two reconcile passes while work is under way."),
        key("list_interval", Duration(0), Value("\"5s\""), Pass)
            .doc("Shortest time between two lists of the provider's instances.")
            .notes("The pass after a launch lists in any case."),
        key("absence_interval", Duration(0), Value("\"30s\""), Pass)
            .doc("Shortest time between the two complete lists that must lack an instance before it counts as \
                    gone."),
        key("reap_grace", Duration(0), Value("\"5m\""), Pass)
            .doc("Age at which an orphan is terminated: an instance with this owner's tag and no record.")
            .notes("`greenroom pool leaks` uses the same age."),
        key("surplus_min_time", Duration(0), Value("\"60s\""), Pass)
            .doc("Shortest time for which an instance stays that turned out to be unneeded during its launch.")
            .notes("`idle_time` counts if it is longer."),
        key("health_interval", Duration(1), Value("\"1m\""), Pass)
            .doc("How often an idle instance is probed.")
            .notes(
                "An instance that fails two probes in a row is replaced. If most of at least three fail together, the \
                 runner host is suspected: each is kept for at most 5 minutes. A static host gets no job until it \
                 answers. Without `greenroom keep` as a service, only while a keeper has other work.",
            ),
        key("suspend_timeout", Duration(1), Value("\"10m\""), Pass)
            .doc("How long an instance may take to be suspended, for `idle_stopped`; then it is terminated."),
        key("resume_timeout", Duration(1), Value("\"3m\""), Pass)
            .doc("How long a stopped instance may take until it is ready again; then it is terminated, and its job \
                    gets another one.")
            .notes("It includes `ready_command`."),
        key("clean_timeout", Duration(1), Value("\"10m\""), Pass)
            .doc("How long the cleaning of a static host may take; its `clean_command` may take as long again."),
        key("clean_grace", Duration(0), Value("\"60s\""), Pass)
            .doc("Longest time from the end of a job until its slot is free, even if one of its calls is still \
                    running.")
            .notes("Then the cleaning of a static host starts at the latest."),
        // Attempts.
        key("lease_free_timeout", Duration(1), Value("\"10m\""), Pass)
            .doc("Time without a call after which the keeper ends an attempt whose runner it cannot observe, such as \
                    one in another container.")
            .notes("Must not be shorter than `lease_renew_interval`. A runner that can be observed is judged \
                        by its process."),
        key("job_timeout_grace", Duration(0), Value("\"15m\""), Pass)
            .doc("Time after a job's own timeout at which its attempt ends in any case."),
        key("attempt_retention", Duration(0), Value("\"1d\""), Pass)
            .doc("How long the directory of an ended attempt is kept.")
            .notes("With provider `local`, builds of a job are kept as long."),
        // Processes of the runner host.
        key("lock_timeout", Duration(1), Value("\"10s\""), Start)
            .doc("How long a process waits for the lock of a pool's state.")
            .notes(NOT_IN_RUN),
        key("lease_lock_timeout", Duration(1), Value("\"10s\""), Start)
            .doc("How long a call waits for the lease of its attempt while the keeper examines it.")
            .notes(NOT_IN_RUN),
        key("lease_renew_interval", Duration(10), Value("\"1m\""), Start)
            .doc("How often a long call writes the time into its lease.")
            .notes(RENEWAL),
        key("keeper_start_timeout", Duration(1), Value("\"3s\""), Start)
            .doc("How long the start of a keeper may take, and how long a new keeper waits for its predecessor \
                    to exit.")
            .notes("`cleanup` uses the default."),
        key("self_check_interval", Duration(10), Value("\"5s\""), Start)
            .doc("How often the keeper checks whether the configuration, the executable or the state directory \
                    has changed."),
        key("half_made_retention", Duration(0), Value("\"1h\""), Start)
            .doc(
                "Age at which half-made files of killed calls are removed, and interval of the search for builds without \
                 an attempt.",
            ),
        key("unprepared_retention", Duration(0), Value("\"1d\""), Start)
            .doc("Age at which attempts are removed that never came to `prepare`."),
    ],
};

const NOT_IN_RUN: &str = "`run` and `cleanup` use the default.";
const RENEWAL: &str = "Must not exceed `lease_free_timeout`. `run` uses the default.";
