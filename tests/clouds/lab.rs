//! The cloud lab of tests/lab: one process for each test that runs at the same time, wiped between them.
//!
//! Starting one takes two seconds of processor time, wiping it a hundredth of one: a test takes one that is idle, or
//! starts one. Each ends with its standard input, which is to say with this process, however that ends.

use std::io::{BufRead as _, BufReader};
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::{Mutex, PoisonError};

use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::credentials;
use crate::http;
use crate::support::dice::number;
use crate::truth::{Request, Truth};

/// Labs that no test has now.
static IDLE: Mutex<Vec<Lab>> = Mutex::new(Vec::new());

/// A lab process and where it is.
#[derive(Debug)]
pub struct Lab {
    child: Child,
    /// The lab lives until this is closed.
    _life: Option<ChildStdin>,
    /// Host and port.
    host: String,
    /// Credentials, and what the lab says of its own failures.
    home: tempfile::TempDir,
}

/// A lab that one test has to itself. Given back, the judge in it must have found nothing.
#[derive(Debug)]
pub struct Taken {
    lab: Option<Lab>,
    /// What the accounts hold from the start; other ids after each wiping.
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
        let said: Value = serde_json::from_str(&line).unwrap_or_else(|_| {
            let log = std::fs::read_to_string(home.path().join("log")).unwrap_or_default();
            panic!("the lab does not start: {log}")
        });
        let url = said["url"].as_str().expect("the lab has an address");
        let host = url.trim_start_matches("http://").to_owned();
        credentials::write(home.path(), &host);
        Self { _life: child.stdin.take(), child, host, home }
    }

    /// One of the lab's own operations, which must succeed.
    #[track_caller]
    fn ask<T: DeserializeOwned>(&self, method: &str, operation: &str, body: Option<&Value>) -> T {
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

    /// Delays, quotas, capacity: tests/lab/shared/settings.py has all of them.
    #[track_caller]
    pub fn set(&self, settings: &Value) {
        self.ask::<Value>("POST", "settings", Some(settings));
    }

    /// One fault, as tests/lab/README.md describes it.
    #[track_caller]
    pub fn fault(&self, fault: &Value) {
        self.ask::<Value>("POST", "faults", Some(fault));
    }

    /// How often each fault can still happen; `None`: for ever.
    #[track_caller]
    pub fn faults_left(&self) -> Vec<Option<u64>> {
        let said: Value = self.ask("GET", "faults", None);
        said["faults"].as_array().into_iter().flatten().map(|fault| fault["count"].as_u64()).collect()
    }

    /// The same seed and the same calls in the same order give the same faults.
    #[track_caller]
    pub fn wipe(&self, seed: u64) {
        self.ask::<Value>("POST", "reset", Some(&json!({ "seed": seed })));
    }

    /// Every request since the wiping, in the order in which they came.
    #[track_caller]
    pub fn requests(&self) -> Vec<Request> {
        let mut said: Value = self.ask("GET", "requests", None);
        serde_json::from_value(said["log"].take()).expect("the log has the form of requests")
    }

    /// What there really is.
    #[track_caller]
    pub fn truth(&self) -> Truth {
        self.ask("GET", "instances", None)
    }

    /// The cloud takes an instance away, by the lab's id; without `why` as spot capacity.
    #[track_caller]
    pub fn interrupt(&self, id: &str, why: Option<&str>) {
        self.ask::<Value>("POST", "interrupt", Some(&json!({ "id": id, "why": why })));
    }

    /// What no correct client would have sent.
    #[track_caller]
    pub fn violations(&self) -> Vec<Value> {
        let said: Value = self.ask("GET", "violations", None);
        said["violations"].as_array().cloned().unwrap_or_default()
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        let _gone = self.child.kill();
        let _waited = self.child.wait();
    }
}

impl Taken {
    /// A lab as at its start; `GREENROOM_SEED` is the seed of its faults' dice.
    #[track_caller]
    pub fn take() -> Self {
        let idle = IDLE.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let lab = idle.unwrap_or_else(Lab::start);
        lab.wipe(number("GREENROOM_SEED", 1));
        let world = lab.ask("GET", "world", None);
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
