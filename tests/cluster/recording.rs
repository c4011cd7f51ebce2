//! Recorded answers: small files without dates, addresses and identities, to which a stand-in can be held.
//!
//! `UPDATE_RECORDED=1 cargo test --test cluster` writes them anew.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value, json};

use crate::api::Answer;

/// The path of a recording.
fn file(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cluster/recorded").join(format!("{name}.json"))
}

/// Compares a value with its recording, or writes the recording.
#[track_caller]
pub fn expect_recorded(name: &str, value: &Value) {
    let text = format!("{value:#}\n");
    if std::env::var_os("UPDATE_RECORDED").is_some() {
        fs::write(file(name), &text).expect("the recording can be written");
    }
    let there = fs::read_to_string(file(name)).unwrap_or_default();
    assert!(there == text, "{name}: recorded:\n{there}\nanswered now:\n{text}");
}

/// Compares an answer with its recording: the request without its body, the status, and the body's parts that matter.
#[track_caller]
pub fn expect_answer(name: &str, request: &str, answer: &Answer) {
    let body = if answer.body.is_null() { json!(answer.text) } else { essence(&answer.body) };
    expect_recorded(name, &json!({"request": request, "status": answer.status, "body": body}));
}

/// An object's body without what differs from run to run, and without a pod's long specification.
pub fn essence(body: &Value) -> Value {
    let mut body = masked("", body);
    if let Some(object) = body.as_object_mut() {
        if object.get("kind") == Some(&json!("Pod")) {
            object.remove("spec");
        }
        if let Some(items) = object.get_mut("items").and_then(Value::as_array_mut) {
            for item in items {
                item.as_object_mut().map(|item| (item.remove("spec"), item.remove("status")));
            }
        }
    }
    body
}

/// The words of a pod's status about its end, or about the obstacle that keeps it from running.
pub fn end_of(pod: &Value) -> Value {
    let status = masked("", &pod["status"]);
    let mut end = Map::new();
    for key in ["phase", "reason", "message"] {
        if let Some(value) = status.get(key) {
            end.insert(key.to_owned(), value.clone());
        }
    }
    let conditions = status["conditions"].as_array().into_iter().flatten();
    let telling = conditions.filter(|one| {
        one["type"] == "DisruptionTarget" || one["type"] == "PodScheduled" && one["status"] == "False"
    });
    let telling: Vec<Value> = telling.cloned().collect();
    if !telling.is_empty() {
        end.insert("conditions".to_owned(), Value::Array(telling));
    }
    if let Some(state) = status["containerStatuses"][0].get("state") {
        end.insert("state".to_owned(), state.clone());
    }
    Value::Object(end)
}

/// The value with names in place of what differs from run to run. `key` is the one that it stands under.
pub fn masked(key: &str, value: &Value) -> Value {
    match value {
        Value::Object(object) => {
            let kept = object
                .iter()
                .filter(|(key, _)| !matches!(key.as_str(), "managedFields" | "observedGeneration"));
            Value::Object(kept.map(|(key, value)| (key.clone(), masked(key, value))).collect())
        }
        Value::Array(list) => Value::Array(list.iter().map(|one| masked(key, one)).collect()),
        Value::String(text) => json!(match key {
            "resourceVersion" => "VERSION",
            "continue" if !text.is_empty() => "TOKEN",
            "podIP" | "hostIP" | "ip" => "ADDRESS",
            "containerID" | "imageID" => "ID",
            "startedAt" | "finishedAt" => "TIME",
            _ if key.ends_with("Time") || key.ends_with("Timestamp") => "TIME",
            _ => return json!(without_uids(text)),
        }),
        Value::Null | Value::Bool(_) | Value::Number(_) => value.clone(),
    }
}

/// The text with `UID` for each identity in it: 36 hexadecimal digits and dashes.
fn without_uids(text: &str) -> String {
    let is_uid = |part: &str| {
        let groups: Vec<usize> = part.split('-').map(str::len).collect();
        groups == [8, 4, 4, 4, 12] && part.bytes().all(|byte| byte == b'-' || byte.is_ascii_hexdigit())
    };
    let mut rest = text;
    let mut result = String::new();
    while let Some(first) = rest.chars().next() {
        let step = if rest.get(..36).is_some_and(is_uid) { 36 } else { first.len_utf8() };
        result.push_str(if step == 36 { "UID" } else { &rest[..step] });
        rest = &rest[step..];
    }
    result
}

#[test]
fn what_differs_from_run_to_run_is_not_recorded() {
    let uid = "0f3a6c1e-8f6d-4a3e-9a53-1d8c6e5b7a90";
    let answer = json!({
        "kind": "Pod", "spec": {}, "metadata": {"uid": uid, "creationTimestamp": "2030-01-01T00:00:00Z", "name": "pod-1"},
        "status": {"podIP": "10.244.0.9", "startTime": null, "reason": format!("UID is {uid}, not {uid}…")},
    });
    let expected = json!({
        "kind": "Pod", "metadata": {"uid": "UID", "creationTimestamp": "TIME", "name": "pod-1"},
        "status": {"podIP": "ADDRESS", "startTime": null, "reason": "UID is UID, not UID…"},
    });
    assert_eq!(essence(&answer), expected);
}
