//! One provider program, called as Greenroom calls it: a verb, a document on standard input, an empty environment.

use std::ffi::OsString;
use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::{Value, json};

/// Stands in each request for what no other user of the runner host may read.
pub(super) const SECRET: &str = "a-made-up-private-key";

/// A program with its settings.
#[derive(Debug)]
pub(super) struct Program {
    /// The command that calls it, without the verb.
    pub(super) command: Vec<OsString>,
    pub(super) settings: Value,
    /// The fields that `launch` gets instead of the made-up ones.
    pub(super) keys: Value,
    pub(super) environment: Vec<(&'static str, String)>,
}

/// The result of one call.
#[derive(Debug)]
pub(super) struct Called {
    pub(super) code: Option<i32>,
    /// The answer of the program; null if standard output was no JSON document.
    pub(super) answer: Value,
    pub(super) log: String,
}

/// The path of an example.
pub(super) fn example(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/providers").join(name)
}

impl Program {
    pub(super) fn new(path: &Path, settings: Value) -> Self {
        Self { command: vec![path.into()], settings, keys: json!({}), environment: Vec::new() }
    }

    pub(super) fn with(mut self, name: &'static str, value: impl Into<String>) -> Self {
        self.environment.push((name, value.into()));
        self
    }

    fn request(&self, fields: &Value) -> Value {
        let mut request = json!({ "protocol": 1, "pool": "linux", "settings": self.settings });
        merge(&mut request, fields);
        request
    }

    fn command(&self) -> Command {
        let mut command = Command::new(&self.command[0]);
        let path = std::env::var("PATH").expect("a path") + ":/usr/sbin:/sbin";
        command.args(&self.command[1..]).env_clear().env("PATH", path);
        command.envs(self.environment.iter().map(|(name, value)| (name, value)));
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    /// Calls a verb. `fields` may replace the ones that each request has.
    pub(super) fn call(&self, verb: &str, fields: &Value) -> Called {
        let mut child = self.command().arg(verb).spawn().expect("the program starts");
        let mut input = child.stdin.take().expect("a pipe");
        // A program may answer without reading.
        drop(input.write_all(self.request(fields).to_string().as_bytes()));
        drop(input);
        let output = child.wait_with_output().expect("the program ends");
        Called {
            code: output.status.code(),
            answer: serde_json::from_slice(&output.stdout).unwrap_or_default(),
            log: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }

    /// The answer of a call that has to succeed.
    #[track_caller]
    pub(super) fn ask(&self, verb: &str, fields: &Value) -> Value {
        let called = self.call(verb, fields);
        assert!(called.code == Some(0) && called.answer.is_object(), "{verb}: {called:?}");
        called.answer
    }

    /// The fields of the launch of this number.
    pub(super) fn fields(&self, number: u32) -> Value {
        let mut fields = launch(number);
        merge(&mut fields, &self.keys);
        fields
    }

    /// Launches a machine of this number: its ID.
    #[track_caller]
    pub(super) fn launch(&self, number: u32) -> String {
        let answer = self.ask("launch", &self.fields(number));
        answer["machine"].as_str().expect("a machine").to_owned()
    }

    /// The machines of the pool, in a complete list.
    #[track_caller]
    pub(super) fn list(&self) -> Vec<Value> {
        let answer = self.ask("list", &json!({}));
        assert_eq!(answer["complete"], true, "{answer}");
        answer["machines"].as_array().expect("machines").clone()
    }

    /// Every argument of every program that a call of this verb starts.
    pub(super) fn arguments(&self, verb: &str, fields: &Value, directory: &Path) -> String {
        let [trace, input, end] = ["trace", "request", "end"].map(|name| directory.join(name));
        fs::write(&input, self.request(fields).to_string()).expect("a file");
        let command = self.command();
        let mut traced = Command::new("strace");
        traced.args(["-f", "-I", "1", "-qq", "-s", "1000000", "-e", "trace=execve", "-o"]).arg(&trace);
        // strace itself ends only after the daemons that the program leaves.
        traced
            .args([
                "sh",
                "-c",
                "end=$1; shift; \"$@\"; echo $? >\"$end.new\"; mv \"$end.new\" \"$end\"",
                "sh",
            ])
            .arg(&end);
        traced.arg(command.get_program()).args(command.get_args()).arg(verb).env_clear();
        for (name, value) in command.get_envs() {
            traced.env(name, value.expect("a value"));
        }
        traced.stdin(fs::File::open(&input).expect("a file")).stdout(Stdio::null());
        let mut strace = traced.spawn().expect("strace starts");
        while !end.exists() {
            assert!(strace.try_wait().expect("a child").is_none() || end.exists(), "strace has ended");
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
        // Detaches it from what is left.
        let pid = rustix::process::Pid::from_child(&strace);
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).ok();
        strace.wait().expect("strace ends");
        assert_eq!(fs::read_to_string(end).expect("a status").trim(), "0", "{verb} under strace");
        fs::read_to_string(trace).expect("a trace")
    }
}

fn merge(into: &mut Value, fields: &Value) {
    for (name, value) in fields.as_object().expect("fields") {
        into[name] = value.clone();
    }
}

/// The fields of a launch, with characters that a careless program takes for its own.
pub(super) fn launch(number: u32) -> Value {
    let instance = format!("linux-3f9a01-{number}");
    json!({
        "instance": instance, "name": format!("{instance}-0123456789abcdef"), "token": format!("{number:064x}"),
        "tags": {
            "greenroom-pool": "linux", "greenroom-owner": "0123456789abcdef", "greenroom-generation": "3f9a01",
            "greenroom-number": number.to_string(), "greenroom-token": format!("{number:040x}"),
        },
        "user": "root", "authorized_key": "ssh-ed25519 AAAA user", "host_key_public": "ssh-ed25519 AAAA host",
        "host_key": format!("-----BEGIN OPENSSH PRIVATE KEY-----\n{SECRET}\n-----END OPENSSH PRIVATE KEY-----\n"),
        "user_data": user_data(number), "lifetime_s": 7200,
    })
}

pub(super) fn user_data(number: u32) -> String {
    format!("#cloud-config\n{{\"it's\": \"{SECRET}\", \"$(id) `id` \\\\n %s\": \"ü\", \"n\": {number}}}\n")
}
