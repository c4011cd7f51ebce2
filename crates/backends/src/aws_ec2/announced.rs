//! What EC2's instance metadata announces about a spot instance.

use greenroom_core::metadata::MetadataAnswers;
use serde_json::Value;

/// EC2 takes a spot instance back, as its list of spot requests says, too.
pub(super) const RECLAIM: &str = "will be reclaimed by EC2 (spot)";
/// EC2's rebalance recommendation, which may come long before, or without anything after it.
const REBALANCE: &str = "may be reclaimed by EC2 at any time (spot, rebalance recommendation)";
/// The values of an action.
const ACTIONS: [&str; 3] = ["terminate", "stop", "hibernate"];

/// The instance may have forged the answers: only what EC2 documents counts, and none of their words is repeated.
pub(super) fn announced(answers: &MetadataAnswers) -> Option<&'static str> {
    let has = |key: &str, field: &str, fits: fn(&str) -> bool| {
        let answer = answers.get(key).and_then(|text| serde_json::from_str::<Value>(text).ok());
        answer.is_some_and(|answer| answer[field].as_str().is_some_and(fits))
    };
    let is_time = |text: &str| text.parse::<jiff::Timestamp>().is_ok();
    if has("spot/instance-action", "action", |text| ACTIONS.contains(&text)) {
        return Some(RECLAIM);
    }
    has("events/recommendations/rebalance", "noticeTime", is_time).then_some(REBALANCE)
}

#[cfg(test)]
mod tests {
    use greenroom_core::metadata::MetadataService;

    use super::*;

    const TIME: &str = "2026-12-01T14:00:00Z";

    fn of(action: &str, rebalance: &str) -> Option<&'static str> {
        let keys = MetadataService::AwsEc2.keys().iter().map(|key| (*key).to_owned());
        let answers = keys.zip([action, rebalance].map(str::to_owned));
        announced(&answers.filter(|(_, answer)| !answer.is_empty()).collect())
    }

    #[test]
    fn what_ec2_documents_is_a_notice() {
        for action in ACTIONS {
            let answer = format!(r#"{{"action": "{action}", "time": "{TIME}"}}"#);
            assert_eq!(of(&answer, ""), Some(RECLAIM));
            assert_eq!(of(&answer, &format!(r#"{{"noticeTime": "{TIME}"}}"#)), Some(RECLAIM));
        }
        assert_eq!(of("", &format!(r#"{{"noticeTime": "{TIME}"}}"#)), Some(REBALANCE));
        assert_eq!(of("", ""), None);
    }

    #[test]
    fn all_else_is_none() {
        for rubbish in ["terminate", "{", "[]", "{}", "null", r#"{"action": 1}"#, r#"{"action": "rm -rf"}"#] {
            assert_eq!(of(rubbish, rubbish), None, "{rubbish}");
        }
        for rubbish in [r#"{"noticeTime": "soon"}"#, r#"{"noticeTime": 5}"#, r#"{"action": "terminate"}"#] {
            assert_eq!(of("", rubbish), None, "{rubbish}");
        }
    }
}
