//! A cloud under the provider contract: the emulator injects faults and lists what exists.

#![cfg(test)]

use std::collections::BTreeSet;
use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

use greenroom::provider::WITH_BACKENDS;
use greenroom_core::ids::{InstanceId, PoolName};
use greenroom_harness::here::{HereAndNow, make_keys, read_keys};
use greenroom_harness::provider::{Behaviour, Fixture};
use greenroom_ports::clock::Clock;
use greenroom_ports::provider::{InstanceKeys, Provider};
use greenroom_providers::registration::BuildContext;
use serde_json::json;
use tempfile::TempDir;

use crate::cloud::{Buy, Cloud, instance_name, machine};
use crate::lab::Taken;

pub(crate) struct CloudFixture {
    cloud: Cloud,
    buy: Buy,
    pub(crate) lab: Taken,
    state: TempDir,
    keys: InstanceKeys,
}

impl CloudFixture {
    pub(crate) fn new(cloud: Cloud) -> Self {
        Self::buying(cloud, Buy::OnDemand)
    }

    /// A fixture with instances that are paid for this way.
    pub(crate) fn buying(cloud: Cloud, buy: Buy) -> Self {
        let (lab, state) = (Taken::take(), tempfile::tempdir().unwrap());
        make_keys(state.path());
        Self { cloud, buy, lab, keys: read_keys(state.path()), state }
    }

    /// A new provider without the memory of earlier ones.
    fn build(&self) -> Rc<dyn Provider> {
        let context = BuildContext {
            pool: self.pool(),
            state_dir: self.state.path().to_owned(),
            program: Path::new(env!("CARGO_BIN_EXE_greenroom")).to_owned(),
            containers: false,
            pulls: None,
            clock: self.clock(),
            host_keys: Rc::new(greenroom_ports::host_keys::Unconnected),
        };
        let table = self.cloud.table(&self.lab, &self.lab.url(), self.buy);
        let provider =
            WITH_BACKENDS.iter().find(|known| known.kind == self.cloud.kind()).expect("it is built in");
        (provider.build)(&context, &table).expect("a table that builds")
    }
}

impl Fixture for CloudFixture {
    fn pool(&self) -> PoolName {
        PoolName::new("linux")
    }

    /// The emulator behaves this way from this call on, for every provider.
    fn provider(&self, behaviour: &Behaviour) -> Option<Rc<dyn Provider>> {
        match behaviour {
            Behaviour::Good => {}
            Behaviour::SlowBoot => self.lab.set(&json!({ "boot": 3.1 })),
            Behaviour::Full => {
                let none: serde_json::Map<_, _> =
                    self.cloud.places().map(|place| (place.to_owned(), 0.into())).into_iter().collect();
                self.lab.set(&json!({ "capacity": none }));
            }
            Behaviour::Refuses(class) => self.lab.fault(&self.cloud.refusal(class)?),
            Behaviour::LosesAnswer => {
                self.lab.fault(&json!({ "operation": self.cloud.launch(), "mode": "lost" }));
            }
        }
        Some(self.build())
    }

    fn clock(&self) -> Rc<dyn Clock> {
        Rc::new(HereAndNow { ahead: Duration::ZERO })
    }

    fn keys(&self) -> InstanceKeys {
        self.keys.clone()
    }

    fn boot_deadline(&self) -> Duration {
        Duration::from_secs(30)
    }

    fn break_instance(&self, id: &InstanceId) -> bool {
        let machine = machine(&self.lab.truth(), id.as_str()).expect("it is running");
        self.lab.interrupt(&machine.id, Some(self.cloud.host_failure()));
        true
    }

    fn living(&self) -> BTreeSet<String> {
        let truth = self.lab.truth();
        let living: Vec<_> = truth.live().filter(|machine| machine.runs()).collect();
        let names: BTreeSet<String> = living.iter().map(|machine| instance_name(machine)).collect();
        assert_eq!(names.len(), living.len(), "two live under one name: {living:?}");
        names
    }

    fn remains(&self) -> Vec<String> {
        let truth = self.lab.truth();
        let machines = truth.live().map(|machine| format!("{machine:?}"));
        machines.chain(truth.volumes.iter().map(|volume| format!("{volume:?}"))).collect()
    }
}

mod ec2 {
    use greenroom_harness::provider_contract;

    use super::{Cloud, CloudFixture};

    provider_contract!(CloudFixture::new(Cloud::Ec2));
}

mod gce {
    use greenroom_harness::provider_contract;

    use super::{Cloud, CloudFixture};

    provider_contract!(CloudFixture::new(Cloud::Gce));
}
