//! Metadata services: HTTP servers of clouds, which an instance asks about itself.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// The metadata service of an instance whose cloud announces there what it is about to do to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum MetadataService {
    AwsEc2,
    Gce,
}

/// The last answers of a metadata service, by key. The instance passed it on, and may have forged it.
pub type MetadataAnswers = BTreeMap<String, String>;

impl MetadataService {
    /// Keys that have a value while something is announced, or a value that says so.
    pub fn keys(self) -> &'static [&'static str] {
        match self {
            Self::AwsEc2 => &["spot/instance-action", "events/recommendations/rebalance"],
            Self::Gce => &["instance/preempted", "instance/maintenance-event"],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_service_is_asked_for_its_own_keys() {
        for (service, own) in
            [(MetadataService::AwsEc2, "spot/instance-action"), (MetadataService::Gce, "instance/preempted")]
        {
            assert!(service.keys().contains(&own), "{service:?}");
            // They follow the service's path.
            assert!(service.keys().iter().all(|key| !key.is_empty() && !key.starts_with('/')), "{service:?}");
        }
    }
}
