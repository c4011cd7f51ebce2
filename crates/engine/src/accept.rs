//! Acceptance of a changed configuration by a keeper.
//!
//! A change of the kind, the region or the project leaves the pool's instances behind: the new provider neither lists
//! nor terminates them. A keeper refuses it while the pool has instances, and works with the earlier configuration.

use std::rc::Rc;

use greenroom_core::ids::Location;
use greenroom_ports::provider::Provider;
use greenroom_ports::setup::{PoolSetup, Setup};

use super::{Engine, deadline};

/// The configuration that a keeper works with.
#[derive(Default)]
pub(super) struct ActiveSetup {
    active: Option<PoolSetup>,
    /// A newer provider that was not accepted, and its location.
    refused: Option<(Rc<dyn Provider>, Location)>,
}

/// The configuration for the next pass.
pub(super) struct Accepted {
    pub(super) setup: PoolSetup,
    /// The error in a newer one.
    pub(super) problem: Option<String>,
    /// The provider is another one than before.
    pub(super) is_new: bool,
}

impl ActiveSetup {
    /// Reads the configuration, and judges a change.
    pub(super) async fn read(&mut self, engine: &Engine, setup: &dyn Setup) -> Accepted {
        let (current, problem) = setup.current().await;
        let earlier = self.active.take_if(|active| !Rc::ptr_eq(&active.provider, &current.provider));
        let is_new = earlier.is_some();
        if let Some(earlier) = earlier
            && let Some(refusal) = self.leads_away(engine, &current.provider).await
        {
            self.active = Some(earlier.clone());
            return Accepted { setup: earlier, problem: Some(refusal), is_new: false };
        }
        *self = Self { active: Some(current.clone()), refused: None };
        Accepted { setup: current, problem, is_new }
    }

    /// The reason why a provider cannot replace the present one: instances are recorded in another location than its own.
    async fn leads_away(&mut self, engine: &Engine, provider: &Rc<dyn Provider>) -> Option<String> {
        let state = engine.store.load().await.ok()?;
        if state.instances.is_empty() {
            return None;
        }
        let known = self.refused.as_ref().filter(|(refused, _)| Rc::ptr_eq(refused, provider));
        let here = match known {
            Some((_, location)) => location.clone(),
            // Without an answer, the change is accepted: `plan` makes no call for another location, either.
            None => engine.call(deadline::ASIDE, provider.list(&engine.pool)).await.ok()?.location?,
        };
        let location = state.location_outside(&here)?;
        let pool = &engine.pool;
        let refusal = format!(
            "it leads to {here}, but instances are in {location}; restore it, run `greenroom pool drain {pool} --wait`, and \
             then change it"
        );
        self.refused = Some((Rc::clone(provider), here));
        Some(refusal)
    }
}
