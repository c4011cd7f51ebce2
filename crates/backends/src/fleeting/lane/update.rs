//! Updates, shared by all who need one.

use std::rc::Rc;
use std::time::Duration;

use greenroom_core::failure::ErrorClass;
use greenroom_core::time::Stamp;
use greenroom_ports::provider::ProviderError;

use super::{Lane, failures};

impl Lane {
    /// Makes sure that the book is from an update that began at most `age` ago; if `age` is zero, from one that begins
    /// after this request. An update that fails, fails for all who wait for it.
    pub(in crate::fleeting) async fn update(self: &Rc<Self>, age: Duration) -> Result<Stamp, ProviderError> {
        let requested = self.now();
        if let Some(Ok(begun)) = self.updated.borrow().as_ref()
            && !age.is_zero()
            && requested.since(*begun) <= age
        {
            return Ok(*begun);
        }
        let (lane, before) = (Rc::clone(self), self.updates.get());
        self.serial
            .run(async move {
                // One for all who waited.
                if lane.updates.get() == before {
                    lane.update_now().await;
                }
            })
            .await;
        let updated = self.updated.borrow().clone();
        updated.unwrap_or_else(|| {
            let why = "the plugin's settings have changed meanwhile";
            Err(ProviderError::new(ErrorClass::Transient, why))
        })
    }

    /// An update, in the lane.
    pub(super) async fn update_now(&self) {
        self.updates.set(self.updates.get() + 1);
        let begun = self.now();
        let updated = self.try_update(begun).await.map(|()| begun);
        if updated.is_ok() {
            self.last_good.set(Some(begun));
        }
        self.updated.replace(Some(updated));
    }

    async fn try_update(&self, begun: Stamp) -> Result<(), ProviderError> {
        self.open()?;
        if self.restarts.take() {
            self.group.replace(None);
        }
        let group = self.group()?;
        let failed = |error| failures::of_call("list its instances", &error);
        let info = self.counted(group.info().await).map_err(failed)?;
        let seen = self.counted(group.update().await).map_err(failed)?;
        // A plugin that was started meanwhile may serve another group.
        let after = group.info().await.map_err(failed)?;
        if after.id != info.id {
            let why = "the plugin was started again and serves another group now";
            return Err(ProviderError::new(ErrorClass::Transient, why));
        }
        self.info.replace(Some(after));
        let within = self.rules().appears_within;
        self.change(|book| book.update(&seen, within, begun));
        // A machine counts as an instance's only once that is on disk: after a restart, it is the same one.
        self.store().await
    }
}
