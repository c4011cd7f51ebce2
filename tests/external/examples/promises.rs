//! The promises that every example has to keep, whatever it drives.

use std::path::Path;

use greenroom_testkit::skipped::skipped;
use serde_json::{Value, json};

use super::program::{Program, SECRET, launch};

/// The machine of this ID in a list.
pub(super) fn machine<'a>(list: &'a [Value], id: &str) -> Option<&'a Value> {
    list.iter().find(|machine| machine["machine"] == id)
}

/// Lists until the machine is in this state. A stand-in goes on with each list, so a few are enough.
#[track_caller]
pub(super) fn until(program: &Program, id: &str, done: impl Fn(Option<&Value>) -> bool) -> Value {
    for tries in 0.. {
        let seen = program.list();
        let found = machine(&seen, id);
        if done(found) {
            return found.cloned().unwrap_or_default();
        }
        assert!(tries < 100, "{id} does not get there: {seen:?}");
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    Value::Null
}

/// Launches, lists and terminates two machines, and calls the program wrongly. Nothing is left behind.
#[track_caller]
pub(super) fn keeps(program: &Program, directory: &Path) {
    let capabilities = program.ask("capabilities", &json!({ "protocols": [1] }));
    assert_eq!(capabilities["protocol"], 1, "{capabilities}");
    let has_tags = capabilities["identity"] == "tags";
    assert_eq!(program.list(), Vec::<Value>::new());

    let one = program.launch(1);
    if capabilities["idempotent_launch"] == true {
        assert_eq!(program.launch(1), one, "a repeated launch");
    }
    let two = program.launch(2);
    assert_ne!(one, two);
    for (number, id) in [(1, &one), (2, &two)] {
        let found = until(program, id, |found| found.is_some_and(|found| found["state"] == "running"));
        assert_eq!(found["name"], launch(number)["name"], "{found}");
        for (name, value) in launch(number)["tags"].as_object().expect("tags") {
            assert!(!has_tags || found["tags"][name] == *value, "{name}: {found}");
        }
    }
    assert_eq!(program.list().len(), 2, "nothing was made twice");
    if has_tags {
        let elsewhere = program.ask("list", &json!({ "pool": "lin" }));
        assert_eq!(
            elsewhere,
            json!({ "complete": true, "machines": [] }),
            "a pool whose name is the beginning of this one"
        );
    }

    let refused = |verb: &str, fields: Value, code: i32| {
        let called = program.call(verb, &fields);
        assert_eq!(called.code, Some(code), "{verb}: {called:?}");
        assert!(called.answer["error"].as_str().is_some_and(|error| error.len() > 5), "{verb}: {called:?}");
    };
    refused("unheard-of", json!({}), 14);
    refused("list", json!({ "settings": { "imag": "a typing error" } }), 14);
    for (number, id) in [(1, &one), (2, &two)] {
        let fields =
            json!({ "machine": id, "instance": launch(number)["instance"], "name": launch(number)["name"] });
        program.ask("terminate", &fields);
        until(program, id, |found| found.is_none());
        refused("terminate", fields, 10);
    }
    assert_eq!(program.list(), Vec::<Value>::new());
    whispers(program, directory);
}

/// No secret stands in the arguments of a program, which all users of the runner host can read.
#[track_caller]
fn whispers(program: &Program, directory: &Path) {
    if std::process::Command::new("strace").arg("-V").output().is_err() {
        return skipped("strace is missing");
    }
    let arguments = program.arguments("launch", &program.fields(3), directory);
    assert!(arguments.contains("execve("), "{arguments}");
    let secrets = program
        .environment
        .iter()
        .filter(|(name, _)| name.contains("TOKEN") || name.contains("SECRET") || name.contains("KEY"));
    let fields = program.fields(3);
    let key = fields["host_key"].as_str().and_then(|key| key.lines().nth(1)).expect("a key");
    for secret in secrets.map(|(_, value)| value.as_str()).chain([SECRET, key]) {
        assert!(!arguments.contains(secret), "{secret} is an argument:\n{arguments}");
    }
    let mut list = program.list();
    while list.is_empty() {
        std::thread::sleep(std::time::Duration::from_millis(20));
        list = program.list();
    }
    let fields =
        json!({ "machine": list[0]["machine"], "instance": launch(3)["instance"], "name": list[0]["name"] });
    program.ask("terminate", &fields);
    until(program, list[0]["machine"].as_str().expect("an ID"), |found| found.is_none());
}
