//! The cloud emulator of tests/lab: one process for each concurrent test, reset between tests.
//!
//! A start takes two seconds of processor time, a reset a hundredth of one. So a test takes an idle process, or
//! starts one. Each exits when its standard input closes, thus with this process, however that ends.

use std::io::{BufRead as _, BufReader};
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::{Mutex, PoisonError};

use greenroom_testkit::dice::number;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::credentials;
use crate::http;
use crate::truth::{Request, Truth};

/// Emulators that no test uses.
static IDLE: Mutex<Vec<Lab>> = Mutex::new(Vec::new());

/// A process of the emulator.
#[derive(Debug)]
pub struct Lab {
    child: Child,
    /// The emulator runs until this is closed.
    _life: Option<ChildStdin>,
    /// Host and port.
    host: String,
    /// Credentials, and the emulator's log.
    home: tempfile::TempDir,
}

/// An emulator that one test has to itself. At the end of the test, it must have no violations.
#[derive(Debug)]
pub struct Taken {
    lab: Option<Lab>,
    /// The accounts' initial content; its ids change with each reset.
    pub world: Value,
}

impl Lab {
    fn start() -> Self {
        let here = Path::new(env!("CARGO_MANIFEST_DIR"));
        let installed = Command::new(here.join("tests/lab/install")).status();
        assert!(installed.is_ok_and(|status| status.success()), "tests/lab/install installs the lab");
        let home = tempfile::Builder::new().prefix("greenroom-lab-").tempdir().expect("a directory");
        let log = std::fs::File::create(home.path().join("log")).expect("a log");
        let mut child = Command::new(here.join("state/lab/bin/python"))
            .arg(here.join("tests/lab"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(log)
            .spawn()
            .expect("the lab starts");
        let mut line = String::new();
        let output = child.stdout.take().expect("its output is a pipe");
        BufReader::new(output).read_line(&mut line).expect("the lab says where it is");
        let hello: Value = serde_json::from_str(&line).unwrap_or_else(|_| {
            let log = std::fs::read_to_string(home.path().join("log")).unwrap_or_default();
            panic!("the lab does not start: {log}")
        });
        let url = hello["url"].as_str().expect("the lab has an address");
        let host = url.trim_start_matches("http://").to_owned();
        credentials::write(home.path(), &host);
        Self { _life: child.stdin.take(), child, host, home }
    }

    /// Calls one of the emulator's own operations, which must succeed.
    #[track_caller]
    fn call<T: DeserializeOwned>(&self, method: &str, operation: &str, body: Option<&Value>) -> T {
        let answer = http::call(&self.host, method, &format!("/_lab/{operation}"), body);
        let (status, answer) = answer.unwrap_or_else(|error| panic!("{operation}: {error}"));
        assert_eq!(status, 200, "{operation}: {answer}");
        serde_json::from_value(answer).unwrap_or_else(|error| panic!("{operation}: {error}"))
    }

    pub fn host(&self) -> &str {
        &self.host
    }

    pub fn url(&self) -> String {
        format!("http://{}", self.host)
    }

    /// The file with credentials of a cloud.
    pub fn credentials(&self, file: &str) -> PathBuf {
        self.home.path().join(file)
    }

    /// Sets delays, quotas, capacity; tests/lab/shared/settings.py lists all settings.
    #[track_caller]
    pub fn set(&self, settings: &Value) {
        self.call::<Value>("POST", "settings", Some(settings));
    }

    /// Adds one fault; tests/lab/README.md describes its form.
    #[track_caller]
    pub fn fault(&self, fault: &Value) {
        self.call::<Value>("POST", "faults", Some(fault));
    }

    /// The number of times that each fault can still happen; `None`: without limit.
    #[track_caller]
    pub fn faults_left(&self) -> Vec<Option<u64>> {
        let reply: Value = self.call("GET", "faults", None);
        reply["faults"].as_array().into_iter().flatten().map(|fault| fault["count"].as_u64()).collect()
    }

    /// Resets the emulator. The same seed and the same calls in the same order give the same faults.
    #[track_caller]
    pub fn reset(&self, seed: u64) {
        self.call::<Value>("POST", "reset", Some(&json!({ "seed": seed })));
    }

    /// Every request since the reset, in order of arrival.
    #[track_caller]
    pub fn requests(&self) -> Vec<Request> {
        let mut reply: Value = self.call("GET", "requests", None);
        serde_json::from_value(reply["log"].take()).expect("the log has the form of requests")
    }

    /// All instances and volumes that exist.
    #[track_caller]
    pub fn truth(&self) -> Truth {
        self.call("GET", "instances", None)
    }

    /// Ends an instance, by the emulator's id; without `why`, as a reclaimed spot instance.
    #[track_caller]
    pub fn interrupt(&self, id: &str, why: Option<&str>) {
        self.call::<Value>("POST", "interrupt", Some(&json!({ "id": id, "why": why })));
    }

    /// Ends an instance as [`interrupt`](Self::interrupt) does, if it still exists.
    pub fn interrupt_if_alive(&self, id: &str, why: Option<&str>) {
        let body = json!({ "id": id, "why": why });
        let _answer = http::call(&self.host, "POST", "/_lab/interrupt", Some(&body));
    }

    /// Announces the end of an instance, without ending it. EC2: without `why`, that a spot instance is reclaimed,
    /// otherwise a scheduled event with this code. Compute Engine: maintenance of the host.
    #[track_caller]
    pub fn notice(&self, id: &str, why: Option<&str>) {
        self.call::<Value>("POST", "notice", Some(&json!({ "id": id, "why": why })));
    }

    /// Launches an instance like this one, as a person does in the cloud's console; returns the emulator's id.
    #[track_caller]
    pub fn copy(&self, id: &str) -> String {
        let reply: Value = self.call("POST", "copy", Some(&json!({ "id": id })));
        reply["id"].as_str().expect("the copy has an id").to_owned()
    }

    /// Requests that no correct client would have sent.
    #[track_caller]
    pub fn violations(&self) -> Vec<Value> {
        let reply: Value = self.call("GET", "violations", None);
        reply["violations"].as_array().cloned().unwrap_or_default()
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        let _gone = self.child.kill();
        let _waited = self.child.wait();
    }
}

impl Taken {
    /// An emulator in its initial state; `GREENROOM_SEED` is the seed of its random faults.
    #[track_caller]
    pub fn take() -> Self {
        let idle = IDLE.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let lab = idle.unwrap_or_else(Lab::start);
        lab.reset(number("GREENROOM_SEED", 1));
        let world = lab.call("GET", "world", None);
        Self { lab: Some(lab), world }
    }
}

impl Deref for Taken {
    type Target = Lab;

    fn deref(&self) -> &Lab {
        self.lab.as_ref().expect("it is given back at the end")
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        let Some(lab) = self.lab.take() else { return };
        if std::thread::panicking() {
            let log = std::fs::read_to_string(lab.home.path().join("log")).unwrap_or_default();
            eprintln!("the lab's violations: {:#?}\nits log:\n{log}", lab.violations());
            return;
        }
        let violations = lab.violations();
        IDLE.lock().unwrap_or_else(PoisonError::into_inner).push(lab);
        assert!(violations.is_empty(), "no correct client would have done this: {violations:#?}");
    }
}
