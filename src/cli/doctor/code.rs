//! Every code that `doctor` itself can name.
//!
//! A code and its severity are stable: scripts and search engines know them. docs/doctor.md lists the same ones, a
//! test compares the two and another provokes each. Providers have codes of their own, which begin with their kind.

use crate::port::finding::{Finding, Severity};

/// One kind of finding.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Code {
    pub name: &'static str,
    pub severity: Severity,
    /// What it means, for the documentation.
    pub meaning: &'static str,
}

impl Code {
    /// With what helps.
    pub(super) fn found(&self, what: impl Into<String>, remedy: impl Into<String>) -> Finding {
        let (code, severity) = (self.name, self.severity);
        Finding { code, severity, message: what.into(), remedy: Some(remedy.into()) }
    }

    /// Nothing has to be done about it.
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
    STATE_DIR_UNUSABLE Error "state-dir-unusable" "The state directory cannot be opened, or is no directory.";
    STATE_DIR_OWNER Error "state-dir-owner" "The state directory belongs to another user than the one who asks.";
    STATE_DIR_MODE Error "state-dir-mode" "Others may enter the state directory; it must have mode 0700.";
    STATE_DIR_REMOTE Error "state-dir-remote" "The state directory lies on a network or FUSE file system.";
    STATE_DIR_READ_ONLY Error "state-dir-read-only" "The state directory lies on a read-only file system.";
    STATE_DIR_EPHEMERAL Warning "state-dir-ephemeral" "The state directory does not survive its container, or a reboot.";
    STATE_DIR_NOT_WRITABLE Error "state-dir-not-writable" "A file could not be written, synced and renamed there.";
    STATE_DIR_LOCKS Error "state-dir-locks" "A lock that is held was given a second time.";
    STATE_DIR_SPACE Warning "state-dir-space" "Little space, or few files, are left on its file system.";

    OWNER_MISSING Error "owner-missing" "The file `owner` is gone, and instances have been launched.";
    OWNER_UNREADABLE Error "owner-unreadable" "The file `owner` cannot be read or understood.";
    OWNER_MOVED Error "owner-moved" "The state directory was copied or moved: everything stands still.";

    STATE_LOCKED Error "state-locked" "The lock of a pool's state is held for longer than any call needs it.";
    STATE_DAMAGED Error "state-damaged" "A pool's state is damaged: nothing is launched, granted or terminated.";
    STATE_NEWER Error "state-newer" "A pool's state was written by a newer version: it can be read, not changed.";
    STATE_UNREADABLE Error "state-unreadable" "The files of a pool's state cannot be read.";
    STATE_INAPPLICABLE_EVENTS Warning "state-inapplicable-events" "Events did not fit the state they were applied to: a bug.";
    STATE_TORN Note "state-torn" "A write was cut short; the next writer cuts it off.";
    STATE_BACKUP_FILES Note "state-backup-files" "Cut-off or damaged pieces of state are kept beside it.";
    HISTORY_DAMAGED Warning "history-damaged" "Old events cannot be read; only `explain` and `history` miss them.";

    CLOCK_BEHIND Error "clock-behind" "The wall clock is before the day this program was installed.";
    CLOCK_WENT_BACK Warning "clock-went-back" "Something is recorded for a time that has not come yet.";
    CLOCK_JUMPED Note "clock-jumped" "The wall clock was set since the last event of this boot.";
    CLOCK_UNREADABLE Error "clock-unreadable" "The boot id or the boot clock cannot be read.";

    CONFIG_UNREADABLE Error "config-unreadable" "The configuration cannot be read.";
    CONFIG_INVALID Error "config-invalid" "The configuration has mistakes; the last good one stays in force.";
    CONFIG_WRITABLE Warning "config-writable" "Others may change the configuration, and with it run commands as us.";
    CONFIG_NOT_APPLIED Note "config-not-applied" "The recorded policy of a pool is not what the configuration says.";
    PROVIDER_UNKNOWN Error "provider-unknown" "A pool names a provider that does not exist.";
    PROVIDER_TIMEOUT Warning "provider-timeout" "A provider did not answer what doctor asked it within half a minute.";

    KEEPER_MISSING Error "keeper-missing" "There is work, and no keeper runs.";
    KEEPER_STALLED Error "keeper-stalled" "A keeper runs, and has not looked at a pool when it meant to.";
    KEEPER_UNKNOWN Warning "keeper-unknown" "It could not be found out whether a keeper runs.";
    KEEPER_NO_SERVICE Warning "keeper-no-service" "No service runs `greenroom keep`: keepers go when the runner's service stops.";
    ATTEMPTS_ORPHANED Warning "attempts-orphaned" "Jobs ended without a cleanup, and still hold what they had.";
    LINK_UNRESPONSIVE Warning "link-unresponsive" "A link, the process that holds a connection to an instance, does not answer.";
    LINK_ORPHANED Note "link-orphaned" "Links are there of instances that are recorded no more.";

    POOL_UNCONFIGURED Warning "pool-unconfigured" "A pool has instances or jobs, and the configuration does not name it.";
    POOL_IDLE_OVER_LIMIT Warning "pool-idle-over-limit" "More idle slots are wanted than `max_instances` allows.";
    POOL_DRAINED Note "pool-drained" "The operator has drained a pool.";
    POOL_PAUSED Error "pool-paused" "Launches failed so often that a pool pauses.";
    POOL_LAUNCHES_FAIL Warning "pool-launches-fail" "The last launch of a pool failed.";
    POOL_OUT_OF_SERVICE Warning "pool-out-of-service" "Instances are out of service until somebody looks at them.";
    POOL_OVER_LIMIT Note "pool-over-limit" "More instances exist than `max_instances` allows.";
    POOL_LIST_FAILING Warning "pool-list-failing" "The provider's list fails or is incomplete.";
    POOL_INSTANCE_TROUBLE Warning "pool-instance-trouble" "Calls to the provider about an instance keep failing.";
    POOL_HOST_UNAVAILABLE Warning "pool-host-unavailable" "A fixed host cannot be used at present.";
    POOL_OWNER_CONFLICT Error "pool-owner-conflict" "Somebody works with a copy of this state directory.";

    HOST_UNREACHABLE Error "host-unreachable" "A fixed host, or its jump host, does not answer.";
    HOST_KEY_CHANGED Error "host-key-changed" "A host answers with another key than the one that is stated or pinned.";
    HOST_LOGIN_DENIED Error "host-login-denied" "A host does not let us in.";
    HOST_CLIENT_SETUP Error "host-client-setup" "Something on this side keeps us from trying a host: a key file, an agent.";
    HOST_LOGIN_SHELL Error "host-login-shell" "The login shell of a host's user runs no commands for us.";
    HOST_SHELL_MISSING Error "host-shell-missing" "The pool's `shell` is not there on a host.";
    HOST_BUILDS_DIR Error "host-builds-dir" "Jobs cannot make `builds_dir`, or write in it, on a host.";
    HOST_SPACE Warning "host-space" "Little space is left for builds on a host.";
    HOST_PROCESSES Error "host-processes" "A host has neither `/proc` nor `pkill`: no stage can be stopped there.";
    HOST_SESSIONS Note "host-sessions" "A host allows one session in a connection (`MaxSessions 1`): each stop of a stage takes another.";
    HOST_CONNECTIONS Error "host-connections" "A host allows fewer connections at once than its capacity needs.";
    HOST_SHELL_SLOW Warning "host-shell-slow" "A host's shell takes long to start, and every stage of a job waits for it.";
    HOST_GIT_MISSING Warning "host-git-missing" "`git` is not there on a host: jobs cannot fetch their sources.";
    HOST_GIT_LFS_MISSING Note "host-git-lfs-missing" "`git-lfs` is not there on a host: projects with large files fail.";
    HOST_RUNNER_MISSING Warning "host-runner-missing" "`gitlab-runner` is not there on a host: artifacts and caches fail.";

    RUNNER_CONFIG_UNREADABLE Note "runner-config-unreadable" "The runner's config.toml cannot be read: its stanza is not checked.";
    RUNNER_CONFIG_INVALID Error "runner-config-invalid" "The runner's config.toml is no TOML.";
    RUNNER_STANZA_MISSING Warning "runner-stanza-missing" "No `[[runners]]` with the custom executor runs greenroom.";
    RUNNER_EXEC_MISSING Error "runner-exec-missing" "`config_exec`, `prepare_exec` or `run_exec` is missing.";
    RUNNER_CLEANUP_MISSING Error "runner-cleanup-missing" "`cleanup_exec` is missing: instances are given back late.";
    RUNNER_EXEC_RELATIVE Error "runner-exec-relative" "An executable's path is not absolute: the runner starts it in the job's directory.";
    RUNNER_EXEC_BROKEN Error "runner-exec-broken" "An executable is not there, or may not be executed.";
    RUNNER_ARGS Error "runner-args" "The arguments of an executable do not call the right command.";
    RUNNER_OTHER_CONFIG Warning "runner-other-config" "The runner's calls read another configuration than this check.";
    RUNNER_UNKNOWN_POOL Error "runner-unknown-pool" "The runner's calls name a pool that the configuration does not.";
    RUNNER_KILL_TIMEOUT Warning "runner-kill-timeout" "`graceful_kill_timeout` is not below 300: `cleanup` may come while `run` still works.";
    RUNNER_KILL_TIMEOUT_SHORT Warning "runner-kill-timeout-short" "`graceful_kill_timeout` is too short to stop a stage.";
    RUNNER_PREPARE_TIMEOUT Warning "runner-prepare-timeout" "`prepare_exec_timeout` ends the wait for an instance before `acquire_timeout` does.";
    RUNNER_TOO_MANY_JOBS Warning "runner-too-many-jobs" "The runner takes more jobs than the pool has slots: they wait on their own time.";
    RUNNER_TOO_FEW_JOBS Note "runner-too-few-jobs" "The runner takes fewer jobs than the pool has slots.";
    RUNNER_CONCURRENT Note "runner-concurrent" "`concurrent` is below the runner's `limit`.";
    RUNNER_SHELL Note "runner-shell" "The runner's `shell` is not the pool's, and has no effect.";
}
