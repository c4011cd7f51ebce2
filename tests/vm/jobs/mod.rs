//! Whole jobs on pools of virtual machines: the real binary under a played GitLab Runner.
//!
//! Each test has a place of its own, as in `tests/jobs`; most share one template. `GREENROOM_KILLS` says how often
//! `crowd.rs` kills (default 5) and `GREENROOM_VM_JOBS` how many jobs come at once (default 6), `GREENROOM_SEED` replays
//! one of its seeds.

use std::collections::BTreeSet;
use std::net::TcpStream;
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::sync::MutexGuard;
use std::time::Duration;

use greenroom_core::event::Change;
use greenroom_core::ids::InstanceId;
use greenroom_core::pool::PoolState;
use greenroom_harness::place::Place;
use greenroom_harness::processes::{Kind, Process, wait_for};
use greenroom_harness::setting::Setting;
use greenroom_testkit::gitlab_runner::record::{CallRecord, JobResult, Outcome};

use crate::images;

mod containers;
mod crowd;
mod docker;
mod ends;
mod foreign;
mod hangs;
mod kills;
pub(crate) mod registry;
mod sources;
mod stores;
mod work;

/// The time that a machine is given, emulated, while others keep the processors busy.
const PATIENCE: Duration = Duration::from_mins(4);

/// A pool of small machines. How long a lost machine is looked for is as by default: whoever waits for the keeper's
/// verdict waits as in real life.
fn machines() -> Setting {
    let mut setting = Setting::new().provider("kind", "qemu").provider("memory", "256M");
    setting.patience = PATIENCE;
    let setting = setting.pool("max_instances", 2).timing("launch_timeout", "4m");
    let setting = setting.timing("list_interval", "5s").timing("loss_reason_timeout", "10s");
    setting.timing("connect_timeout", "30s").timing("ready_timeout", "1m")
}

/// A place with machines, and the turn to have some.
struct Machines {
    place: Place,
    _turn: MutexGuard<'static, ()>,
}

impl Deref for Machines {
    type Target = Place;

    fn deref(&self) -> &Place {
        &self.place
    }
}

impl Machines {
    /// A place whose machines are clones of the one template that is built for all tests. Its holder belongs to no
    /// place: it goes by itself.
    fn open(setting: Setting) -> Self {
        let turn = images::turn();
        let setting = setting.provider("images", images::folder().display().to_string());
        Self { place: setting.provider("template_retention", "5s").open(), _turn: turn }
    }

    /// A place whose state directory has the test image, so that its template and the template's holder are its own.
    fn with_own_images(setting: Setting) -> Self {
        let turn = images::turn();
        let place = setting.open();
        images::link_into(&place.state_dir.join("images"));
        Self { place, _turn: turn }
    }

    fn pool_dir(&self) -> PathBuf {
        self.state_dir.join("instances/pool")
    }

    /// The QEMU of a machine, if it lives.
    fn qemu(&self, machine: &InstanceId) -> Option<Process> {
        let is_named = |process: &Process| process.arguments.iter().any(|word| word == machine.as_str());
        self.of_kind(Kind::Qemu).into_iter().find(is_named)
    }

    /// The ports on which machines were ever reached, without those of machines that are recorded now.
    fn former_ports(&self) -> BTreeSet<u16> {
        let reached = self.events().into_iter().filter_map(|event| match event.change {
            Change::Reached { endpoint, .. } => Some(endpoint.port),
            _ => None,
        });
        let state = self.state();
        let living: BTreeSet<u16> =
            state.instances.values().filter_map(|machine| Some(machine.endpoint.as_ref()?.port)).collect();
        reached.filter(|port| !living.contains(port)).collect()
    }

    /// Waits for peace with so many idle machines, and looks for anything that is left of others: processes,
    /// directories with their disks, sockets, ports.
    #[track_caller]
    fn expect_nothing_left(&self, idle: usize) {
        self.wait_until_settled(idle);
        wait_for("one QEMU for each machine", PATIENCE, || {
            (self.of_kind(Kind::Qemu).len() == idle).then_some(())
        });
        let recorded: BTreeSet<String> = self.idle().iter().map(ToString::to_string).collect();
        wait_for("only the recorded machines have directories", PATIENCE, || {
            (entries(&self.pool_dir()) == recorded).then_some(())
        });
        let is_open = |port: &u16| TcpStream::connect(("127.0.0.1", *port)).is_ok();
        // A QEMU that went with its supervisor gives its memory back first, its port a moment later.
        wait_for("the ports of machines that are gone are closed", PATIENCE, || {
            (!self.former_ports().iter().any(is_open)).then_some(())
        });
        assert_eq!(self.of_kind(Kind::Other), [], "processes that nobody knows");
        self.expect_sound();
        let state = self.state();
        assert!(is_quiet(&state), "{state:?}");
    }
}

fn is_quiet(state: &PoolState) -> bool {
    state.granted.is_empty() && state.waiting.is_empty()
}

/// The names in a directory, without those that begin with a dot.
fn entries(dir: &Path) -> BTreeSet<String> {
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    let names = entries.map(|entry| entry.file_name().to_string_lossy().into_owned());
    names.filter(|name| !name.starts_with('.')).collect()
}

/// Our own words in the output of a call, without the prefix, one sentence a line.
fn told(call: &CallRecord) -> Vec<String> {
    let text = call.stderr_text();
    text.lines().filter_map(|line| line.strip_prefix("greenroom: ")).map(str::to_owned).collect()
}

/// The job ended as a system failure in its script, and its author reads one sentence with this cause.
#[track_caller]
fn expect_lost(result: &JobResult, machine: &InstanceId, cause: &str) {
    result.expect_outcome(&Outcome::RunnerSystemFailure);
    let said = told(result.call("build_script"));
    let begin = format!("system failure: instance {machine} {cause}");
    assert!(said.len() == 1 && said[0].starts_with(&begin), "expected {begin:?}\n{}", result.describe());
}
