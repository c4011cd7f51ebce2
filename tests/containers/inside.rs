//! The processes on a machine of the lab, seen by root from the machine itself.

use std::path::PathBuf;

use greenroom_core::ids::InstanceId;
use greenroom_harness::place::Place;
use greenroom_harness::processes::wait_for;
use greenroom_testkit::gitlab_runner::attempt::Attempt;
use greenroom_testkit::program;

/// The machine of an attempt, as long as it lives.
#[derive(Debug)]
pub struct Inside {
    pid: String,
    home: PathBuf,
}

impl Inside {
    #[track_caller]
    pub fn of(place: &Place, attempt: &Attempt) -> Self {
        Self::at(place, &place.instance_of(attempt))
    }

    #[track_caller]
    pub fn at(place: &Place, instance: &InstanceId) -> Self {
        let dir = place.state_dir.join("instances/pool").join(instance.as_str());
        let pid = std::fs::read_to_string(dir.join("machine.pid")).expect("a machine that has booted");
        Self { pid: pid.trim().to_owned(), home: place.path().to_owned() }
    }

    /// The output of a command on the machine.
    pub fn sh(&self, script: &str) -> String {
        let mut command = program::command("nsenter", &self.home);
        command.args(["--mount", "--pid", "--net", "--target", &self.pid, "sh", "-c", script]);
        let output = command.output().expect("nsenter starts");
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// The arguments of each process whose arguments have this text, containers' included.
    pub fn running(&self, text: &str) -> Vec<String> {
        let all = self.sh("for p in /proc/[0-9]*; do tr '\\0' ' ' <$p/cmdline; echo; done 2>/dev/null");
        all.lines()
            .filter(|line| line.contains(text) && !line.contains("/proc/[0-9]"))
            .map(str::to_owned)
            .collect()
    }

    /// Waits until such a process runs.
    #[track_caller]
    pub fn wait_for(&self, place: &Place, text: &str) {
        wait_for(text, place.setting.patience, || (!self.running(text).is_empty()).then_some(()));
    }
}
