//! Pools whose machines a program makes.

#![cfg(test)]

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;

use greenroom::provider::WITH_BACKENDS;
use greenroom_core::failure::ErrorClass;
use greenroom_core::ids::{InstanceId, PoolName};
use greenroom_harness::here::{HereAndNow, make_keys, read_keys};
use greenroom_harness::provider::{Behaviour, Fixture};
use greenroom_ports::clock::Clock;
use greenroom_ports::provider::{InstanceKeys, Provider};
use greenroom_providers::registration::{BuildContext, Registration};

use crate::platform::Platform;

/// Greenroom's program, which holds the programs that a pool calls.
pub const GREENROOM: &str = env!("CARGO_BIN_EXE_greenroom");

/// One of the programs beside this file.
pub fn program(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/external").join(name)
}

pub fn registration() -> &'static Registration {
    WITH_BACKENDS.iter().find(|known| known.kind == "external").unwrap()
}

/// A pool on a platform of its own.
pub struct Pool {
    pub platform: Platform,
    state: tempfile::TempDir,
    /// The provider's table, apart from `settings`.
    table: String,
    /// Further entries of `settings`.
    settings: String,
}

impl Pool {
    /// A pool of one of the programs beside this file.
    pub fn of(name: &str) -> Self {
        Self::with(name, "")
    }

    pub fn with(name: &str, settings: &str) -> Self {
        let state = tempfile::tempdir().unwrap();
        make_keys(state.path());
        let table = format!("program = '{}'\n", program(name).display());
        Self { platform: Platform::new(), state, table, settings: settings.to_owned() }
    }

    pub fn context(&self) -> BuildContext {
        BuildContext {
            pool: self.pool(),
            state_dir: self.state.path().to_owned(),
            program: GREENROOM.into(),
            containers: false,
            pulls: None,
            clock: self.clock(),
            host_keys: Rc::new(greenroom_ports::host_keys::Unconnected),
        }
    }

    pub fn build(&self) -> Rc<dyn Provider> {
        self.build_for("ci")
    }

    /// A provider with machines into which this user logs in.
    pub fn build_for(&self, user: &str) -> Rc<dyn Provider> {
        let platform = self.platform.dir.path().display();
        let text = format!(
            "{}user = '{user}'\nsettings = {{ platform = '{platform}'{} }}",
            self.table, self.settings
        );
        (registration().build)(&self.context(), &text.parse().unwrap()).unwrap()
    }
}

impl Fixture for Pool {
    fn pool(&self) -> PoolName {
        PoolName::new("linux")
    }

    fn provider(&self, behaviour: &Behaviour) -> Option<Rc<dyn Provider>> {
        match behaviour {
            Behaviour::Good => {}
            Behaviour::SlowBoot => self.platform.fault("boot_ms", "3500"),
            Behaviour::Full => self.platform.fault("full", ""),
            Behaviour::LosesAnswer => self.platform.fault("lose", ""),
            Behaviour::Refuses(class) => self.platform.fault("refuse", code(class)),
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
        self.platform.power_cut(id.as_str());
        true
    }

    fn living(&self) -> BTreeSet<String> {
        self.platform.living()
    }

    fn remains(&self) -> Vec<String> {
        self.platform.remains()
    }
}

/// The exit code of a class.
fn code(class: &ErrorClass) -> &'static str {
    match class {
        ErrorClass::NotFound => "10",
        ErrorClass::NoCapacity { .. } => "11",
        ErrorClass::Quota => "12",
        ErrorClass::Denied => "13",
        ErrorClass::Invalid => "14",
        ErrorClass::Throttled { .. } => "15",
        ErrorClass::Transient => "16",
        // No external program makes orders.
        ErrorClass::Unknown | ErrorClass::Order { .. } => "1",
    }
}
