//! A client of the cluster's API, by curl: what a call answers, unchanged.

use std::io::Write as _;
use std::process::{Command, Stdio};

use serde_json::{Value, json};

use crate::cluster::{Cluster, try_for, wait_for};

/// The node's address is in the server's certificate, and so is this one.
const SERVER: &str = "https://127.0.0.1:6443";

#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    /// The body of the response; null if the text is no JSON.
    pub body: Value,
    pub text: String,
}

impl Answer {
    /// The body, if the call succeeded.
    #[track_caller]
    pub fn done(self) -> Value {
        assert!((200..300).contains(&self.status), "{}: {}", self.status, self.text);
        self.body
    }
}

/// Whom the API server sees.
#[derive(Debug, Clone)]
pub enum Caller {
    Administrator,
    Token(String),
}

impl Cluster {
    pub fn call(&self, method: &str, path: &str, body: Option<&Value>) -> Answer {
        self.call_as(&Caller::Administrator, method, path, body)
    }

    pub fn call_as(&self, caller: &Caller, method: &str, path: &str, body: Option<&Value>) -> Answer {
        let mut curl = self.command("curl");
        curl.args([
            "--silent",
            "--show-error",
            "--max-time",
            "60",
            "--write-out",
            "\n%{http_code}",
            "--request",
        ]);
        curl.arg(method).arg("--cacert").arg(self.dir.join("ca.crt"));
        match caller {
            Caller::Administrator => {
                curl.arg("--cert")
                    .arg(self.dir.join("admin.crt"))
                    .arg("--key")
                    .arg(self.dir.join("admin.key"));
            }
            Caller::Token(token) => {
                curl.args(["--header", &format!("Authorization: Bearer {token}")]);
            }
        }
        if body.is_some() {
            curl.args(["--header", "Content-Type: application/json", "--data-binary", "@-"]);
        }
        curl.arg(format!("{SERVER}{path}"));
        let input = body.map_or_else(String::new, Value::to_string);
        let text = run(&mut curl, &input);
        let (text, status) = text.rsplit_once('\n').expect("a status behind the body");
        let body = serde_json::from_str(text).unwrap_or(Value::Null);
        Answer { status: status.parse().expect("a number"), body, text: text.to_owned() }
    }

    pub fn get(&self, path: &str) -> Answer {
        self.call("GET", path, None)
    }

    #[track_caller]
    pub fn create(&self, path: &str, body: &Value) -> Value {
        self.call("POST", path, Some(body)).done()
    }

    /// A namespace of a test's own, in which pods can be created; its path.
    pub fn namespace(&self, name: &str) -> String {
        self.namespace_with(name, &json!({}))
    }

    pub fn namespace_with(&self, name: &str, labels: &Value) -> String {
        self.create("/api/v1/namespaces", &json!({"metadata": {"name": name, "labels": labels}}));
        let path = format!("/api/v1/namespaces/{name}");
        let account = format!("{path}/serviceaccounts/default");
        wait_for("the service account of a new namespace", || {
            (self.get(&account).status == 200).then_some(())
        });
        path
    }

    /// Waits for a pod in a state.
    #[track_caller]
    pub fn pod(&self, path: &str, what: &str, is_so: impl Fn(&Value) -> bool) -> Value {
        let mut last = Value::Null;
        let seen = try_for(|| {
            last = self.get(path).body;
            is_so(&last).then(|| last.clone())
        });
        seen.unwrap_or_else(|| panic!("{path} is never {what}: {last:#}"))
    }

    pub fn is_gone(&self, path: &str) -> bool {
        self.get(path).status == 404
    }
}

/// Runs a program with that input; its output.
fn run(command: &mut Command, input: &str) -> String {
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the program starts");
    child.stdin.take().expect("a pipe").write_all(input.as_bytes()).expect("it reads its input");
    let output = child.wait_with_output().expect("it ends");
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("text")
}

/// True if the object has a condition in that state.
pub fn has_condition(object: &Value, name: &str, status: &str) -> bool {
    let conditions = object["status"]["conditions"].as_array();
    conditions.is_some_and(|all| all.iter().any(|one| one["type"] == name && one["status"] == status))
}

/// True if the pod runs and is ready.
pub fn is_ready(pod: &Value) -> bool {
    has_condition(pod, "Ready", "True") && pod["status"]["podIP"].is_string()
}
