//! Coverage of a run of seeds.
//!
//! A row, a fault or a port call that no seed reached is not tested, and fails the run.

use std::collections::BTreeMap;

use greenroom_core::plan::table::ROWS;

use super::fault::Fault;

/// Every method of every port, by the name of its step.
pub const CALLS: &[&str] = &[
    "attempts.assign",
    "attempts.attempts_of",
    "attempts.begin_attempt",
    "attempts.close_attempt",
    "attempts.closed",
    "attempts.enter_attempt",
    "attempts.forget_attempt",
    "attempts.mark_closed",
    "attempts.mark_used",
    "attempts.remove_tmpdir",
    "attempts.seize_attempt",
    "clock.now",
    "connector.begins_stage",
    "connector.check",
    "connector.command",
    "connector.discard_keys",
    "connector.keys",
    "connector.run",
    "leadership.begin_generation",
    "leadership.identity",
    "leadership.keeper_lives",
    "leadership.lock_keeper",
    "leadership.start_keeper",
    "provider.capabilities",
    "provider.console",
    "provider.endpoint",
    "provider.launch",
    "provider.list",
    "provider.resume",
    "provider.suspend",
    "provider.terminate",
    "reports.read_report",
    "reports.write_report",
    "setup.current",
    "store.compact",
    "store.load",
    "store.sync",
    "store.transact",
    "wakeups.pause",
    "wakeups.stopped",
    "wakeups.wait",
    "wakeups.wake_attempt",
    "wakeups.wake_keeper",
];

/// Counts of everything that was reached.
#[derive(Debug, Clone, Default)]
pub struct Coverage {
    calls: BTreeMap<&'static str, u64>,
    kills: BTreeMap<&'static str, u64>,
    faults: BTreeMap<Fault, u64>,
    rows: BTreeMap<u8, u64>,
    /// Jobs that got an instance from a second manager.
    second: u64,
}

impl Coverage {
    pub fn call(&mut self, call: &'static str) {
        *self.calls.entry(call).or_default() += 1;
    }

    /// A process was killed when it was about to make this call.
    pub fn kill(&mut self, call: &'static str) {
        *self.kills.entry(call).or_default() += 1;
    }

    pub fn fault(&mut self, fault: Fault) {
        *self.faults.entry(fault).or_default() += 1;
    }

    pub fn row(&mut self, row: u8) {
        *self.rows.entry(row).or_default() += 1;
    }

    /// A job got an instance from a second manager.
    pub fn second_job(&mut self) {
        self.second += 1;
    }

    pub fn fault_kinds(&self) -> usize {
        self.faults.len()
    }

    pub fn faults(&self) -> u64 {
        self.faults.values().sum()
    }

    pub fn kills(&self) -> u64 {
        self.faults.get(&Fault::Kill).copied().unwrap_or(0)
    }

    /// Adds the counts of another run.
    pub fn merge(&mut self, other: &Coverage) {
        fn add<K: Ord + Copy>(into: &mut BTreeMap<K, u64>, from: &BTreeMap<K, u64>) {
            for (key, count) in from {
                *into.entry(*key).or_default() += count;
            }
        }
        add(&mut self.calls, &other.calls);
        add(&mut self.kills, &other.kills);
        add(&mut self.faults, &other.faults);
        add(&mut self.rows, &other.rows);
        self.second += other.second;
    }

    /// Everything that was never reached, by name.
    pub fn missing(&self) -> Vec<String> {
        let hit = |call: &&&str| self.calls.contains_key(**call);
        let calls = CALLS.iter().filter(|call| !hit(call)).map(|c| format!("call {c}"));
        let faults = Fault::ALL.iter().filter(|f| !self.faults.contains_key(f)).map(|f| format!("fault {f}"));
        let rows = ROWS
            .iter()
            .filter(|r| !self.rows.contains_key(&r.0))
            .map(|r| format!("row {} ({} seen {})", r.0, r.1, r.2));
        let second = (self.second == 0).then(|| "job of a second manager".to_owned());
        calls.chain(faults).chain(rows).chain(second).collect()
    }

    /// A table for people.
    pub fn table(&self) -> String {
        use std::fmt::Write;
        let mut text = String::new();
        for (call, count) in &self.calls {
            let kills = self.kills.get(call).copied().unwrap_or(0);
            let _infallible = writeln!(text, "call  {call:<26} {count:>10}  killed there {kills}");
        }
        for (fault, count) in &self.faults {
            let _infallible = writeln!(text, "fault {:<26} {count:>10}", fault.to_string());
        }
        for (row, count) in &self.rows {
            let _infallible = writeln!(text, "row   {row:<26} {count:>10}");
        }
        let _infallible = writeln!(text, "jobs of second managers          {:>10}", self.second);
        text
    }
}
