//! Pools on the stand-in.

#![cfg(test)]

use std::collections::BTreeSet;
use std::rc::Rc;
use std::time::Duration;

use greenroom::provider::WITH_BACKENDS;
use greenroom_core::failure::ErrorClass;
use greenroom_core::ids::{InstanceId, PoolName};
use greenroom_harness::here::{HereAndNow, make_keys, read_keys};
use greenroom_harness::provider::{Behaviour, Fixture};
use greenroom_ports::clock::Clock;
use greenroom_ports::provider::{InstanceKeys, LaunchRequest, Provider};
use greenroom_providers::registration::{BuildContext, Registration};
use greenroom_testkit::skipped::skipped;
use serde_json::{Value, json};

use crate::standin::{self, StandIn};

pub fn registration() -> &'static Registration {
    WITH_BACKENDS.iter().find(|known| known.kind == "kubernetes").unwrap()
}

/// A pool on a cluster of its own.
pub struct Pool {
    pub cluster: StandIn,
    state: tempfile::TempDir,
    /// Further lines of the provider's table.
    table: String,
}

impl Pool {
    /// A pool on the stand-in of a cluster. `None`: pods cannot be processes here, and the test is skipped.
    pub fn open(table: &str) -> Option<Self> {
        if !standin::is_possible() {
            skipped(standin::IMPOSSIBLE);
            return None;
        }
        let state = tempfile::tempdir().unwrap();
        make_keys(state.path());
        let table = format!("schedule_within = '400ms'\n{table}");
        Some(Self { cluster: StandIn::start(), state, table })
    }

    pub fn context(&self) -> BuildContext {
        BuildContext {
            pool: self.pool(),
            state_dir: self.state.path().to_owned(),
            program: env!("CARGO_BIN_EXE_greenroom").into(),
            containers: false,
            pulls: None,
            clock: self.clock(),
            host_keys: Rc::new(greenroom_ports::host_keys::Unconnected),
        }
    }

    pub fn values(&self) -> toml::Table {
        self.cluster.table(&self.table).parse().unwrap()
    }

    pub fn build(&self) -> Rc<dyn Provider> {
        (registration().build)(&self.context(), &self.values()).unwrap()
    }

    /// The next creation is answered so.
    fn refuse_next(&self, code: u16, message: &str, reason: &str) {
        let fault =
            json!({ "request": "POST pods", "how": code, "message": message, "reason": reason, "count": 1 });
        self.cluster.fault(&fault);
    }
}

impl Fixture for Pool {
    fn pool(&self) -> PoolName {
        PoolName::new("linux")
    }

    fn provider(&self, behaviour: &Behaviour) -> Option<Rc<dyn Provider>> {
        let cluster = &self.cluster;
        match behaviour {
            Behaviour::Good => {}
            Behaviour::SlowBoot => cluster.set(&json!({ "boot_ms": 3500 })),
            Behaviour::Full => cluster.set(&json!({ "unschedulable": -1 })),
            Behaviour::LosesAnswer => {
                cluster
                    .fault(&json!({ "request": "POST pods", "how": "reset", "when": "after", "count": 1 }));
            }
            Behaviour::Refuses(class) => match class {
                ErrorClass::NoCapacity { .. } => cluster.set(&json!({ "unschedulable": 1 })),
                ErrorClass::Quota => {
                    self.refuse_next(403, "pods \"a\" is forbidden: exceeded quota: few", "Forbidden");
                }
                ErrorClass::Denied => self.refuse_next(403, "pods is forbidden", "Forbidden"),
                ErrorClass::Invalid => self.refuse_next(422, "Pod \"a\" is invalid", "Invalid"),
                ErrorClass::Throttled { .. } => {
                    cluster.fault(&json!({ "request": "POST pods", "how": 429, "count": 1 }));
                }
                ErrorClass::Transient => self.refuse_next(409, "the quota has been modified", "Conflict"),
                ErrorClass::Order { .. } | ErrorClass::NotFound | ErrorClass::Unknown => return None,
            },
        }
        Some(self.build())
    }

    fn clock(&self) -> Rc<dyn Clock> {
        Rc::new(HereAndNow { ahead: Duration::ZERO })
    }

    fn keys(&self) -> InstanceKeys {
        read_keys(self.state.path())
    }

    fn boot_deadline(&self) -> Duration {
        Duration::from_secs(30)
    }

    fn break_instance(&self, id: &InstanceId) -> bool {
        self.cluster.disrupt(id.as_str(), "break");
        true
    }

    fn living(&self) -> BTreeSet<String> {
        self.cluster.living()
    }

    fn remains(&self) -> Vec<String> {
        self.cluster.pods().into_keys().collect()
    }

    fn host_key(&self, request: &LaunchRequest) -> String {
        self.cluster.host_key(request.instance.as_str())
    }
}

/// The metadata of a pod.
pub fn metadata(cluster: &StandIn, pod: &str) -> Value {
    cluster.pods().remove(pod).unwrap()["metadata"].take()
}
