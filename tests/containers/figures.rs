//! The cost of a job, against the way of GitLab's docker-autoscaler: an engine's client on the machine, through SSH.
//!
//! `GREENROOM_DRIVER` names the program to measure, such as a release build.

use std::fmt::Write as _;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use greenroom_harness::driver;
use greenroom_harness::place::{Place, SOON};
use greenroom_harness::processes::wait_for;
use greenroom_testkit::gitlab_runner::record::{CallRecord, JobResult, Outcome};
use serde_json::{Value, json};

use crate::pool::{job, plain, setting};
use crate::site::site;

const ROUNDS: usize = 20;
const NO_OP: &str = "set -o errexit\nset -o pipefail\nset +o noclobber\n:\nexit 0\n";

/// A shared connection to a machine, which is there before it is measured.
struct Ssh {
    master: Child,
    arguments: Vec<String>,
}

impl Drop for Ssh {
    fn drop(&mut self) {
        let _gone = self.master.kill();
        let _gone = self.master.wait();
    }
}

impl Ssh {
    /// A connection to the only instance of the place, with a key that is made for it.
    fn to_instance(place: &Place) -> Self {
        let instance = place.idle().remove(0);
        let dir = place.state_dir.join("instances/pool").join(instance.as_str());
        let key = place.path().join("key");
        let mut keygen = Command::new("ssh-keygen");
        keygen.args(["-q", "-t", "ed25519", "-N", "", "-f"]).arg(&key);
        assert!(keygen.status().expect("ssh-keygen starts").success());
        let public = std::fs::read_to_string(key.with_extension("pub")).expect("a key");
        let file = std::fs::OpenOptions::new().append(true).open(dir.join("authorized_keys"));
        file.expect("the machine's keys").write_all(format!("\n{public}").as_bytes()).expect("one more");
        let endpoint = std::fs::read(dir.join("endpoint.json")).expect("the machine's address");
        let endpoint: Value = serde_json::from_slice(&endpoint).expect("JSON");
        let socket = place.path().join("mux");
        let mut arguments: Vec<String> =
            ["-F", "none", "-T", "-o", "BatchMode=yes", "-o", "StrictHostKeyChecking=no"]
                .map(str::to_owned)
                .into();
        arguments.extend(["-o".to_owned(), "UserKnownHostsFile=/dev/null".to_owned()]);
        arguments.extend([
            "-i".to_owned(),
            key.display().to_string(),
            "-S".to_owned(),
            socket.display().to_string(),
        ]);
        arguments.extend(["-p".to_owned(), endpoint["port"].to_string(), "root@127.0.0.1".to_owned()]);
        let mut master = Command::new("ssh");
        master.args(["-M", "-N"]).args(&arguments).stdin(Stdio::null()).stderr(Stdio::null());
        let master = master.spawn().expect("ssh starts");
        wait_for("a shared connection", SOON, || socket.exists().then_some(()));
        Self { master, arguments }
    }

    fn run(&self, command: &str, input: &str) {
        let mut ssh = Command::new("ssh");
        ssh.args(&self.arguments)
            .arg(command)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::piped());
        let mut ssh = ssh.spawn().expect("ssh starts");
        ssh.stdin.take().expect("a pipe").write_all(input.as_bytes()).expect("it reads");
        let ended = ssh.wait_with_output().expect("ssh ends");
        assert!(ended.status.success(), "{command}: {}", String::from_utf8_lossy(&ended.stderr));
    }
}

/// The stages of a job without sources: two containers are created, and each stage starts and attaches to one.
/// GitLab's volumes, their rights and all that the runner itself does are left out.
fn autoscaler(ssh: &Ssh, round: usize) -> Duration {
    let begun = Instant::now();
    let create = |name: &str| {
        let options = "--interactive --log-driver none --network host --volume /builds --volume /cache";
        ssh.run(&format!("podman create {options} --name {name}-{round} {} sh", plain("bash:1")), "");
    };
    let stage = |name: &str| ssh.run(&format!("podman start --attach --interactive {name}-{round}"), NO_OP);
    create("helper");
    stage("helper"); // prepare_script
    stage("helper"); // get_sources
    create("build");
    stage("build"); // step_script
    stage("helper"); // cleanup_file_variables
    ssh.run(&format!("podman rm --force --volumes --time 0 helper-{round} build-{round}"), "");
    begun.elapsed()
}

fn median(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

/// The time that the calls of this name took, in milliseconds.
fn took(result: &JobResult, is_meant: impl Fn(&CallRecord) -> bool) -> f64 {
    let calls = result.calls.iter().filter(|call| is_meant(call)).filter_map(CallRecord::took);
    calls.sum::<Duration>().as_secs_f64() * 1000.0
}

#[test]
#[ignore = "figures, taken by hand on an idle machine"]
fn what_a_job_costs() {
    let Some(site) = site() else { return };
    let driver = std::env::var_os("GREENROOM_DRIVER").map_or_else(|| driver().into(), PathBuf::from);
    let setting = setting(site).pool("max_instances", 1).pool("max_use_count", 1000);
    let place = setting.open();
    let runner = place.runner_with(Path::new(&driver));
    let run = |id| {
        let result = runner
            .run(&job(id, "bash:1").script(["true"]).image_option("pull_policy", json!(["if-not-present"])));
        result.expect_outcome(&Outcome::Success);
        place.wait_until_idle(1);
        result
    };
    run(1);
    let ssh = Ssh::to_instance(&place);
    autoscaler(&ssh, 0);
    run(2);
    let (mut theirs, mut ours, mut parts) = (Vec::new(), Vec::new(), [const { Vec::new() }; 2]);
    for round in 1..=ROUNDS {
        theirs.push(autoscaler(&ssh, round).as_secs_f64() * 1000.0);
        let result = run(round as u64 + 2);
        ours.push(took(&result, |_| true));
        parts[0].push(took(&result, |call| call.name() == "prepare"));
        parts[1].push(took(&result, |call| call.stage.is_some()));
    }
    let (theirs, ours, [prepare, stages]) = (median(theirs), median(ours), parts.map(median));
    let mut text = String::new();
    _ = writeln!(text, "a job with a present image: {ours:.0} ms (prepare {prepare:.0}, stages {stages:.0})");
    _ = writeln!(text, "create, start and attach through SSH: {theirs:.0} ms; ratio {:.2}", ours / theirs);
    eprint!("{text}");
}
