//! What Compute Engine's metadata server announces about an instance.

use greenroom_core::metadata::MetadataAnswers;

/// Compute Engine preempts a spot instance, as its list says, too.
pub(super) const RECLAIMING: &str = "is being reclaimed by Compute Engine (spot)";
/// Maintenance of the host, in the list's words without a time.
pub(super) const MAINTENANCE: &str = "has host maintenance by Compute Engine";

/// The instance may have forged the answers: only what Compute Engine documents counts, and none of their words is
/// repeated. Maintenance that moves the instance while it runs is none.
pub(super) fn announced(answers: &MetadataAnswers) -> Option<&'static str> {
    let is = |key: &str, value: &str| answers.get(key).is_some_and(|answer| answer == value);
    if is("instance/preempted", "TRUE") {
        return Some(RECLAIMING);
    }
    is("instance/maintenance-event", "TERMINATE_ON_HOST_MAINTENANCE").then_some(MAINTENANCE)
}

#[cfg(test)]
mod tests {
    use greenroom_core::metadata::MetadataService;

    use super::*;

    #[test]
    fn what_compute_engine_documents_is_a_notice_and_all_else_is_none() {
        for (preempted, maintenance, expected) in [
            ("FALSE", "NONE", None),
            ("TRUE", "NONE", Some(RECLAIMING)),
            ("TRUE", "TERMINATE_ON_HOST_MAINTENANCE", Some(RECLAIMING)),
            ("FALSE", "TERMINATE_ON_HOST_MAINTENANCE", Some(MAINTENANCE)),
            ("FALSE", "MIGRATE_ON_HOST_MAINTENANCE", None),
            ("true", "terminate", None),
            ("", "", None),
        ] {
            let keys = MetadataService::Gce.keys().iter().map(|key| (*key).to_owned());
            let answers = keys.zip([preempted, maintenance].map(str::to_owned)).collect();
            assert_eq!(announced(&answers), expected, "{answers:?}");
        }
        assert_eq!(announced(&MetadataAnswers::new()), None);
    }
}
