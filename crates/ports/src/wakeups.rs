//! Waiting processes: how they sleep, wake each other, and learn that they should stop.

use std::fmt;
use std::time::Duration;

use async_trait::async_trait;
use greenroom_core::ids::{AttemptName, PoolName};

use super::host_error::HostError;

/// The mailbox in which a process waits for wake-ups.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MailboxName<'a> {
    Keeper(&'a PoolName),
    Attempt(&'a AttemptName),
}

/// The reason why a wait ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WakeReason {
    Message,
    Timeout,
    /// SIGTERM.
    Stop,
    /// A keeper after SIGQUIT: the service in which it was started stops, and no attempt is open.
    Unneeded,
    /// The runner that started this call is gone.
    RunnerGone,
    /// The executable was replaced: the new one takes over.
    Replaced,
    /// The state directory was removed or replaced.
    Evicted,
}

/// The wake-ups between processes. Correctness never depends on a wake-up: each waiting process also looks by itself.
#[async_trait(?Send)]
pub trait WakeUps: fmt::Debug {
    /// Sends the keeper a wake-up: errors are ignored.
    async fn wake_keeper(&self, pool: &PoolName);

    /// Sends a waiting `prepare` a wake-up: errors are ignored.
    async fn wake_attempt(&self, name: &AttemptName);

    /// Waits for a wake-up, a signal, or the end of `within`. Dropping the future loses no wake-up.
    async fn wait(&self, inbox: MailboxName<'_>, within: Duration) -> Result<WakeReason, HostError>;

    /// Sleeps within one effect; other effects continue.
    async fn pause(&self, time: Duration);

    /// Resolves when the runner stops this call, when the runner is gone, or when `cleanup` closes the attempt.
    async fn stopped(&self, name: &AttemptName) -> WakeReason;
}
