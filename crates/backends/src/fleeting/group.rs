//! The port of a plugin ([`InstanceGroup`]): one instance group, its calls, and what a failed call means to the engine.

use async_trait::async_trait;
use greenroom_core::failure::ErrorClass;
use greenroom_ports::provider::ProviderError;
use serde::{Deserialize, Serialize};

/// State of an instance, as the plugin reports it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum InstanceState {
    Creating,
    Running,
    Deleting,
    Deleted,
    /// The plugin has given up the instance.
    Timeout,
    Suspending,
    Suspended,
    Resuming,
    /// A number that this version of the protocol does not have.
    Unknown(i32),
}

/// One instance in the plugin's list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SeenInstance {
    /// The plugin's own id.
    pub id: String,
    pub state: InstanceState,
}

/// One start of the plugin.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PluginStart {
    /// Hexadecimal digits; no other start has the same.
    pub id: String,
    /// True if the plugin was to use the pool's credentials, and to make none.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_static: bool,
}

/// Description of a group, which the plugin gives when it starts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GroupInfo {
    /// The group's id, such as that of an autoscaling group.
    pub id: String,
    /// The most instances that the plugin allows; `None`: no limit.
    pub max_size: Option<u32>,
    /// The plugin's version.
    pub version: String,
    /// True if it can suspend and resume instances.
    pub suspends: bool,
    pub start: PluginStart,
    /// The reason the plugin did not start with static credentials, if Greenroom tried that first.
    pub refusal: Option<String>,
}

/// The address of an instance, and the login to it, as [`InstanceGroup::connect_info`] returns them.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct ConnectInfo {
    pub os: String,
    pub arch: String,
    /// `ssh`, `winrm`, `winrm+https`; empty: `ssh`.
    pub protocol: String,
    pub username: String,
    /// Empty: none.
    pub password: String,
    /// A private key, PEM; empty: none.
    pub key: Vec<u8>,
    /// `None`: the protocol's default.
    pub port: Option<u16>,
    /// May contain a port; empty: none.
    pub external_address: String,
    pub internal_address: String,
    /// The time when the credentials expire, in seconds since 1970; `None`: never.
    pub expires: Option<i64>,
}

/// The reason a call of an [`InstanceGroup`] failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CallError {
    pub kind: CallErrorKind,
    /// One sentence, cleaned, without secrets.
    pub message: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CallErrorKind {
    /// The plugin answered with an error. An [`increase`](InstanceGroup::increase) or [`decrease`](InstanceGroup::decrease) may
    /// have been done in part.
    Refused,
    /// The plugin does not accept its configuration. A repeat is useless until the operator has changed it.
    Configuration,
    /// The plugin does not have this call.
    Unsupported,
    /// The plugin cannot be started, or will not be before some time has passed. The call was not made.
    NotStarted,
    /// The plugin exited, or did not answer in time. What the call did is unknown.
    Unknown,
}

/// A plugin's calls, each made once. The implementation starts the plugin if it does not run.
#[async_trait(?Send)]
pub trait InstanceGroup {
    /// The group, as of the plugin's last start.
    async fn info(&self) -> Result<GroupInfo, CallError>;

    /// All instances of the group. An answer that breaks off is an error.
    async fn update(&self) -> Result<Vec<SeenInstance>, CallError>;

    /// Requests `count` more instances, and returns how many the plugin accepted. Their ids appear in later updates.
    async fn increase(&self, count: u32) -> Result<u32, CallError>;

    /// Requests the removal of instances, and returns those that the plugin accepted.
    async fn decrease(&self, ids: &[String]) -> Result<Vec<String>, CallError>;

    /// Returns how an instance of the last update is reached. Some plugins exit if the update did not have it.
    async fn connect_info(&self, id: &str) -> Result<ConnectInfo, CallError>;

    /// The plugin's own check of an instance.
    async fn heartbeat(&self, id: &str) -> Result<(), CallError>;

    async fn suspend(&self, ids: &[String]) -> Result<Vec<String>, CallError>;

    async fn resume(&self, ids: &[String]) -> Result<Vec<String>, CallError>;

    /// The operator has removed a cause of failures: a plugin that does not run is started with the next call.
    fn forget_failures(&self) {}
}

/// Shows the login without the credentials.
impl std::fmt::Debug for ConnectInfo {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ConnectInfo")
            .field("protocol", &self.protocol)
            .field("username", &self.username)
            .field("external_address", &self.external_address)
            .field("internal_address", &self.internal_address)
            .field("expires", &self.expires)
            .finish_non_exhaustive()
    }
}

/// A failed call that changes nothing, or whose changes the next update shows.
pub fn call_failure(what: &str, error: &CallError) -> ProviderError {
    let class = match error.kind {
        CallErrorKind::Configuration | CallErrorKind::Unsupported => ErrorClass::Invalid,
        CallErrorKind::Refused | CallErrorKind::NotStarted | CallErrorKind::Unknown => ErrorClass::Transient,
    };
    ProviderError::new(class, sentence(what, error))
}

/// A failed request for instances.
pub fn increase_failure(error: &CallError) -> ProviderError {
    let failure = call_failure("launch an instance", error);
    match error.kind {
        // It may have been carried out.
        CallErrorKind::Unknown => ProviderError::new(ErrorClass::Unknown, failure.failure.message),
        _ => failure,
    }
}

fn sentence(what: &str, error: &CallError) -> String {
    match error.kind {
        CallErrorKind::Configuration => {
            format!("the plugin does not accept `plugin_config`: {}", error.message)
        }
        CallErrorKind::NotStarted => format!("the plugin does not run: {}", error.message),
        CallErrorKind::Unsupported => format!("the plugin cannot {what}: {}", error.message),
        CallErrorKind::Refused => format!("the plugin did not {what}: {}", error.message),
        CallErrorKind::Unknown => {
            format!("no answer of the plugin to the request to {what}: {}", error.message)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_launch_without_an_answer_may_have_been_carried_out() {
        for (kind, launch, other) in [
            (CallErrorKind::Refused, ErrorClass::Transient, ErrorClass::Transient),
            (CallErrorKind::Configuration, ErrorClass::Invalid, ErrorClass::Invalid),
            (CallErrorKind::Unsupported, ErrorClass::Invalid, ErrorClass::Invalid),
            (CallErrorKind::NotStarted, ErrorClass::Transient, ErrorClass::Transient),
            (CallErrorKind::Unknown, ErrorClass::Unknown, ErrorClass::Transient),
        ] {
            let error = CallError { kind, message: "no route to host".to_owned() };
            let launched = increase_failure(&error);
            let listed = call_failure("list its instances", &error);
            assert_eq!((launched.class(), listed.class()), (&launch, &other), "{kind:?}");
            assert!(launched.to_string().contains("no route to host"), "{launched}");
        }
    }
}
