//! EC2's clock, from the header of an answer.

use std::sync::{Arc, Mutex};
use std::time::SystemTime;

use aws_sdk_ec2::config::ConfigBag;
use aws_smithy_runtime_api::box_error::BoxError;
use aws_smithy_runtime_api::client::interceptors::context::BeforeDeserializationInterceptorContextRef;
use aws_smithy_runtime_api::client::interceptors::{Intercept, dyn_dispatch_hint};
use aws_smithy_runtime_api::client::runtime_components::RuntimeComponents;

use crate::cloud::clock;

/// Stores the date of the last answer.
#[derive(Debug, Clone, Default)]
pub(super) struct ClockOf(Arc<Mutex<Option<String>>>);

impl ClockOf {
    /// EC2's clock minus the runner host's, in seconds; `None` if the answer had no date.
    pub(super) fn ahead_s(&self, now: SystemTime) -> Option<i64> {
        clock::ahead_s(self.0.lock().ok()?.as_ref()?, now)
    }
}

#[dyn_dispatch_hint]
impl Intercept for ClockOf {
    fn name(&self) -> &'static str {
        "ClockOf"
    }

    fn read_before_deserialization(
        &self,
        context: &BeforeDeserializationInterceptorContextRef<'_>,
        _components: &RuntimeComponents,
        _config: &mut ConfigBag,
    ) -> Result<(), BoxError> {
        if let Ok(mut last) = self.0.lock() {
            *last = context.response().headers().get("date").map(str::to_owned);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn what_was_said_is_compared_with_ours() {
        let clock = ClockOf::default();
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000);
        assert_eq!(clock.ahead_s(now), None);
        *clock.0.lock().unwrap() = Some("Thu, 01 Jan 1970 00:20:00 GMT".to_owned());
        assert_eq!(clock.ahead_s(now), Some(200));
        *clock.0.lock().unwrap() = Some("tomorrow".to_owned());
        assert_eq!(clock.ahead_s(now), None);
    }
}
