//! Every code of `doctor` itself.
//!
//! A code and its severity are stable, because scripts and search engines use them. docs/doctor.md lists the same ones:
//! a test compares the two, and another provokes each. Providers have codes of their own, which begin with their kind.

use greenroom_ports::finding::{Finding, Severity};

/// One kind of finding.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Code {
    pub name: &'static str,
    pub severity: Severity,
    /// The meaning, for the documentation.
    pub meaning: &'static str,
}

impl Code {
    /// A [`Finding`] of this code with a remedy.
    pub(super) fn found(&self, what: impl Into<String>, remedy: impl Into<String>) -> Finding {
        let code = self.name;
        let severity = self.severity;
        Finding { code, severity, message: what.into(), remedy: Some(remedy.into()) }
    }

    /// A [`Finding`] of this code that needs no action.
    pub(super) fn noted(&self, what: impl Into<String>) -> Finding {
        Finding { code: self.name, severity: self.severity, message: what.into(), remedy: None }
    }
}

macro_rules! codes {
    ($($code:ident $severity:ident $name:literal $meaning:literal;)*) => {
        $(pub(super) const $code: Code =
            Code { name: $name, severity: Severity::$severity, meaning: $meaning };)*

        /// All of them, in the order of the documentation.
        pub const ALL: &[Code] = &[$($code),*];
    };
}

codes! {
    STATE_DIR_MISSING Warning "state-dir-missing" "The state directory does not exist yet.";
    STATE_DIR_UNUSABLE Error "state-dir-unusable" "The state directory cannot be opened, or is not a directory.";
    STATE_DIR_OWNER Error "state-dir-owner" "The state directory belongs to a user other than the one that runs doctor.";
    STATE_DIR_MODE Error "state-dir-mode" "Other users can enter the state directory; its mode must be 0700.";
    STATE_DIR_REMOTE Error "state-dir-remote" "The state directory is on a network or FUSE file system.";
    STATE_DIR_READ_ONLY Error "state-dir-read-only" "The state directory is on a read-only file system.";
    STATE_DIR_EPHEMERAL Warning "state-dir-ephemeral" "The state directory does not survive a reboot, or the end of its container.";
    STATE_DIR_NOT_WRITABLE Error "state-dir-not-writable" "A file cannot be written, synced and renamed in the state directory.";
    STATE_DIR_LOCKS Error "state-dir-locks" "The file system gave a held lock a second time.";
    STATE_DIR_SPACE Warning "state-dir-space" "The file system of the state directory is low on space or inodes.";

    OWNER_MISSING Error "owner-missing" "The file `owner` is missing, although instances have been launched.";
    OWNER_UNREADABLE Error "owner-unreadable" "The file `owner` cannot be read or parsed.";
    OWNER_MOVED Error "owner-moved" "The state directory was copied or moved: all pools are suspended.";

    STATE_LOCKED Error "state-locked" "A process holds the lock of a pool's state for longer than any call needs it.";
    STATE_DAMAGED Error "state-damaged" "A pool's state is damaged: nothing is launched, granted or terminated.";
    STATE_NEWER Error "state-newer" "A newer version wrote a pool's state: this version can read it, but not change it.";
    STATE_OUTDATED Error "state-outdated" "A pool's state has a format from before the first release.";
    STATE_UNREADABLE Error "state-unreadable" "The files of a pool's state cannot be read.";
    STATE_INAPPLICABLE_EVENTS Warning "state-inapplicable-events" "Recorded events did not fit the state they were applied to: a bug.";
    STATE_TORN Note "state-torn" "A write was cut short; the next writer moves the incomplete record to a backup file.";
    STATE_BACKUP_FILES Note "state-backup-files" "Incomplete or damaged pieces of state are kept in backup files.";
    HISTORY_DAMAGED Warning "history-damaged" "Old events cannot be read; only `explain` and `history` are affected.";

    CLOCK_BEHIND Error "clock-behind" "The wall clock is earlier than the installation of this program.";
    CLOCK_WENT_BACK Warning "clock-went-back" "The newest recorded event is in the future.";
    CLOCK_JUMPED Note "clock-jumped" "The wall clock was changed since the last event of this boot.";
    CLOCK_UNREADABLE Error "clock-unreadable" "The boot ID or the boot clock cannot be read.";

    CONFIG_UNREADABLE Error "config-unreadable" "The configuration cannot be read.";
    CONFIG_INVALID Error "config-invalid" "The configuration is invalid; the last valid one stays active.";
    CONFIG_WRITABLE Warning "config-writable" "Other users can change the configuration, and so run commands as Greenroom's user.";
    CONFIG_READABLE Warning "config-readable" "Other users can read a secret in the configuration, such as the URL of a webhook.";
    CONFIG_NOT_APPLIED Note "config-not-applied" "The recorded policy of a pool differs from the configuration.";
    CONTAINERS_AUTH_UNREADABLE Error "containers-auth-unreadable" "The file `registry_auth` of a pool cannot be read: pulls that need its passwords fail.";
    CONTAINERS_AUTH_INVALID Error "containers-auth-invalid" "The file `registry_auth` of a pool is not in the format of Docker's `config.json`, or has no passwords.";
    CONTAINERS_AUTH_MODE Warning "containers-auth-mode" "Other users can read the passwords in `registry_auth`.";
    CONTAINERS_AUTH_WITHHELD Warning "containers-auth-withheld" "Jobs of a pool do not get the passwords in `registry_auth`, because other jobs could read them on the instance.";
    CONTAINERS_CA_UNREADABLE Error "containers-ca-unreadable" "The file `ca` of a pool cannot be read, or contains no certificate: registries that need it are refused.";
    CONTAINERS_PRIVILEGED_SHARED Warning "containers-privileged-shared" "Privileged containers of concurrent jobs share an instance, so each job can control the others.";
    CONTAINERS_WARM_REFUSED Warning "containers-warm-refused" "The keeper pulls an image of `images_warm` that no job of the pool may use.";
    CONTAINERS_WARM_WITHOUT_STORE Note "containers-warm-without-store" "A pool of `qemu` has `images_warm`, but neither an image store nor templates with the images: each new instance pulls them.";
    PROVIDER_UNKNOWN Error "provider-unknown" "A pool names an unknown provider.";
    PROVIDER_TIMEOUT Warning "provider-timeout" "A provider did not answer doctor's calls within 30 seconds.";

    METRICS_REACHABLE Error "metrics-reachable-by-jobs" "Jobs of a pool can reach the TCP address at which metrics are served.";
    METRICS_EXPOSED Warning "metrics-exposed" "Metrics are served at an address that other machines may be able to reach.";
    METRICS_MISSING Warning "metrics-missing" "A keeper runs, but it does not serve the metrics that the configuration names.";
    NOTIFY_COMMAND Error "notify-command" "The program in `command` of `[notify]` does not exist, or cannot be executed.";
    NOTIFY_BACKENDS Error "notify-backends" "`webhook` of `[notify]` is an `https://` URL, and `greenroom-backends` is not in the directory of `greenroom`.";
    NOTIFY_UNDELIVERED Warning "notify-undelivered" "The last delivery of a notice failed.";

    KEEPER_MISSING Error "keeper-missing" "There is work to do, but no keeper is running.";
    KEEPER_STALLED Error "keeper-stalled" "The keeper is running but has missed a pool's scheduled reconcile pass.";
    KEEPER_UNKNOWN Warning "keeper-unknown" "Doctor cannot determine whether a keeper is running.";
    KEEPER_NO_SERVICE Warning "keeper-no-service" "No service runs `greenroom keep`: a background keeper stops together with the runner's service.";
    KEEPER_UNIT_DISABLED Warning "keeper-unit-disabled" "A unit runs `greenroom keep`, but systemd does not start it after a reboot.";
    ATTEMPTS_ORPHANED Warning "attempts-orphaned" "Attempts ended without `cleanup`, and still hold slots or reservations.";
    ATTEMPTS_UNREADABLE Warning "attempts-unreadable" "A file of an attempt is damaged or cannot be read: its job fails, and keeps its instance until the attempt ends.";
    LINK_UNRESPONSIVE Warning "link-unresponsive" "A link, the process that holds a connection to an instance, does not respond.";
    LINK_ORPHANED Note "link-orphaned" "Links exist for instances that are no longer recorded.";

    POOL_UNCONFIGURED Warning "pool-unconfigured" "A pool has instances or waiting jobs, but is not in the configuration.";
    POOL_IDLE_OVER_LIMIT Warning "pool-idle-over-limit" "The policy requests more idle slots than `max_instances` allows.";
    POOL_DRAINED Note "pool-drained" "An operator drained a pool.";
    POOL_PAUSED Error "pool-paused" "A pool is paused after repeated launch failures.";
    POOL_LAUNCHES_FAIL Warning "pool-launches-fail" "The last launch of a pool failed.";
    POOL_OUT_OF_SERVICE Warning "pool-out-of-service" "Instances are out of service until an operator resumes them.";
    POOL_UNFIT Warning "pool-unfit" "An instance failed the check between two jobs a few minutes ago.";
    POOL_SUSPECT Warning "pool-suspect" "Jobs of two projects in a row failed on an instance before their own scripts began: other jobs get it last.";
    POOL_OVER_LIMIT Note "pool-over-limit" "More instances exist than `max_instances` allows.";
    POOL_LIST_FAILING Warning "pool-list-failing" "The provider's list of instances fails or is incomplete.";
    POOL_CALLS_FAILING Warning "pool-calls-failing" "Calls to the provider about an instance fail repeatedly.";
    POOL_PULLS_FAILING Warning "pool-pulls-failing" "An image of `images_warm` cannot be pulled on idle instances: jobs in it wait for their own pull.";
    POOL_LIST_IMPLAUSIBLE Warning "pool-list-implausible" "The provider's list lacks all instances of the pool, but they still answer.";
    POOL_HOST_SUSPECTED Warning "pool-host-suspected" "So many instances do not respond that the runner host may be at fault.";
    POOL_HOST_UNAVAILABLE Warning "pool-host-unavailable" "A static host cannot be used at present.";
    POOL_OWNER_CONFLICT Error "pool-owner-conflict" "Another keeper works with a copy of this state directory.";
    POOL_ELSEWHERE Error "pool-elsewhere" "A pool has instances in another account, region or project than its provider now reaches.";
    POOL_LOCATION_UNKNOWN Warning "pool-location-unknown" "The provider does not say which account it lists, so missing instances are not forgotten.";
    POOL_ANNOUNCED Note "pool-announced" "The cloud has announced that it ends or interrupts an instance with a job.";
    POOL_SUSPENSIONS_FAIL Warning "pool-suspensions-fail" "Instances for `idle_stopped` are not suspended, or not resumed.";
    POOL_COPIES Error "pool-copies" "Instances bear this owner's tags, but Greenroom did not launch them: copies from the cloud's console.";

    HOST_UNREACHABLE Error "host-unreachable" "A static host, or its jump host, does not respond.";
    HOST_TURNS_AWAY Error "host-turns-away" "A static host, or its jump host, closes connections before its SSH greeting.";
    HOST_LOGIN_SLOW Error "host-login-slow" "A login to a static host takes longer than Greenroom waits.";
    HOST_KEY_CHANGED Error "host-key-changed" "A host presents a host key other than the configured or pinned one.";
    HOST_LOGIN_DENIED Error "host-login-denied" "A host denies the login.";
    HOST_CLEAN_USER Error "host-clean-user" "The `clean_user` of a host cannot clean it.";
    HOST_CLIENT_SETUP Error "host-client-setup" "A key file or an SSH agent on the runner host cannot be used: hosts cannot be checked.";
    HOST_LOGIN_SHELL Error "host-login-shell" "The login shell of a host's user does not run commands, or its profile keeps stages from beginning.";
    HOST_LOGIN_PATH Note "host-login-path" "A login shell on a host searches directories for programs that stages do not. `login_shell = true` changes that.";
    HOST_SHELL_MISSING Error "host-shell-missing" "The pool's `shell` is not installed on a host.";
    HOST_BUILDS_DIR Error "host-builds-dir" "Jobs cannot create `builds_dir` on a host, or cannot write to it.";
    HOST_UNREMOVABLE Warning "host-unremovable" "Cleaning could not remove builds or caches on a host, because files of another user are in them.";
    HOST_SPACE Warning "host-space" "A host has little space left for builds.";
    HOST_PROCESSES Error "host-processes" "A host has neither `/proc` nor `pkill`: no stage can be stopped there.";
    HOST_SESSIONS Note "host-sessions" "A host allows one session per connection (`MaxSessions 1`): stopping a stage needs another connection.";
    HOST_CONNECTIONS Error "host-connections" "A host allows fewer concurrent connections than its capacity needs.";
    HOST_SHELL_SLOW Warning "host-shell-slow" "A host's shell starts slowly, and every stage of a job waits for it.";
    HOST_GIT_MISSING Warning "host-git-missing" "`git` is not installed on a host: jobs cannot fetch their sources.";
    HOST_GIT_LFS_MISSING Note "host-git-lfs-missing" "`git-lfs` is not installed on a host: projects that use Git LFS fail.";
    HOST_BOUND Note "host-bound" "Each static host of a pool stays with the trust domain of its first job.";
    HOST_CLEANED Note "host-cleaned" "Static hosts of a pool serve all trust domains, after root has cleaned them.";
    HOST_SHARED Warning "host-shared" "Static hosts of a pool serve all trust domains, after a cleaning that a hostile job can evade.";
    HOST_CONTAINERS_MISSING Error "host-containers-missing" "A host of a pool with containers lacks something that containers without root need: a program, subordinate IDs or a device.";
    HOST_CONTAINERS_BROKEN Error "host-containers-broken" "No container runs on a host; the finding quotes the engine.";
    HOST_CONTAINERS_NETWORK Error "host-containers-network" "No container with a network of its own runs on a host: jobs with services fail.";
    HOST_CONTAINERS_STORAGE Warning "host-containers-storage" "The engine of a host stores images without layers: each container copies its image.";
    HOST_RUNNER_MISSING Warning "host-runner-missing" "`gitlab-runner` is not installed on a host: artifacts and caches fail.";

    CONTAINERS_ROOT_DENIED Error "containers-root-denied" "The login of an instance is not root, and cannot become root: no container can be started.";
    CONTAINERS_ENGINE_MISSING Error "containers-engine-missing" "The container engine is not installed on an instance.";
    CONTAINERS_ENGINE_OLD Warning "containers-engine-old" "The container engine of an instance is older than the oldest tested version.";
    CONTAINERS_ENGINE_BROKEN Error "containers-engine-broken" "No container runs on an instance; the finding quotes the engine.";
    CONTAINERS_CGROUPS Error "containers-cgroups" "An instance has no unified cgroup hierarchy (cgroup v2), which containers need.";
    CONTAINERS_NETWORK_BROKEN Error "containers-network-broken" "No container with a network of its own runs on an instance: jobs with services fail.";
    CONTAINERS_STORAGE_SLOW Warning "containers-storage-slow" "The engine of an instance stores images without layers: each container copies its image.";
    CONTAINERS_SPACE Warning "containers-space" "An instance has little space left for images.";
    CONTAINERS_PROCESSES Warning "containers-processes" "Containers of an instance may have few processes: builds with many threads fail.";
    CONTAINERS_NAME_SERVERS Warning "containers-name-servers" "Only an instance itself reaches its name servers: containers of jobs with services use public ones.";
    CONTAINERS_REGISTRY_UNREACHABLE Warning "containers-registry-unreachable" "A registry or a mirror does not answer an instance: pulls from there fail.";
    CONTAINERS_LOGIN_DENIED Error "containers-login-denied" "A registry denies a login with the passwords in `registry_auth`.";
    CONTAINERS_CLOCK Warning "containers-clock" "The clock of an instance is so far off that registries may refuse its tokens, and the instance may refuse their certificates.";

    RUNNER_CONFIG_UNREADABLE Note "runner-config-unreadable" "The runner's config.toml cannot be read: its `[[runners]]` sections are not checked.";
    RUNNER_CONFIG_INVALID Error "runner-config-invalid" "The runner's config.toml is not valid TOML.";
    RUNNER_STANZA_MISSING Warning "runner-stanza-missing" "No `[[runners]]` section with the custom executor runs Greenroom.";
    RUNNER_EXEC_MISSING Error "runner-exec-missing" "`config_exec`, `prepare_exec` or `run_exec` is missing.";
    RUNNER_CLEANUP_MISSING Error "runner-cleanup-missing" "`cleanup_exec` is missing: instances are released late.";
    RUNNER_EXEC_RELATIVE Error "runner-exec-relative" "The path of an executable is not absolute: the runner resolves it in the job's directory.";
    RUNNER_EXEC_BROKEN Error "runner-exec-broken" "An executable does not exist, or is not executable.";
    RUNNER_ARGS Error "runner-args" "The arguments of an executable do not call the right command.";
    RUNNER_OTHER_CONFIG Warning "runner-other-config" "The runner's calls read a configuration other than the one that doctor checks.";
    RUNNER_UNKNOWN_POOL Error "runner-unknown-pool" "The runner's calls name a pool that is not in the configuration.";
    RUNNER_KILL_TIMEOUT Warning "runner-kill-timeout" "`graceful_kill_timeout` is not below 300: `cleanup` may start while `run` is still working.";
    RUNNER_KILL_TIMEOUT_SHORT Warning "runner-kill-timeout-short" "`graceful_kill_timeout` is too short to stop a stage.";
    RUNNER_PREPARE_TIMEOUT Warning "runner-prepare-timeout" "`prepare_exec_timeout` ends the wait for an instance before `acquire_timeout` does.";
    RUNNER_TOO_MANY_JOBS Warning "runner-too-many-jobs" "The runner accepts more jobs than the pool has slots: jobs wait while their own timeout runs.";
    RUNNER_TOO_FEW_JOBS Note "runner-too-few-jobs" "The runner accepts fewer jobs than the pool has slots.";
    RUNNER_DASH Note "runner-dash" "The runner's scripts cannot be read by dash, the shell of some images.";
    RUNNER_SHELL Note "runner-shell" "The runner's `shell` differs from the pool's, and has no effect.";
}
