//! The facts that are the same in every recording: the environment, the job response, and how a call is started.

use std::collections::BTreeSet;

use greenroom_testkit::gitlab_runner::record::JobResult;
use serde_json::Value;

use crate::driver::{Lab, Sighting};
use crate::recording::{Recording, directory};

/// The lab of the recordings, played once more with the job whose samples were kept.
fn sampled() -> (Lab, Vec<Sighting>, JobResult) {
    let (lab, recording) = (Lab::new(), Recording::read("image-and-services"));
    let runner = lab.runner();
    let result = runner.run(&recording.job(recording.job_ids()[0], &lab));
    let sightings = lab.sightings();
    assert!(!sightings.is_empty(), "{}", result.describe());
    (lab, sightings, result)
}

fn fixture(name: &str) -> Value {
    let bytes = std::fs::read(directory().join(name)).expect("the fixture can be read");
    serde_json::from_slice(&bytes).expect("the fixture is JSON")
}

/// The environment of a call as it was recorded: that of `build_script` with the differences of this call.
fn recorded_environment(all: &Value, name: &str) -> Vec<(String, String)> {
    let base = all["run-build_script"].as_object().expect("the base of all differences");
    let key = format!("{name} (differences to run-build_script)");
    let differences = all.get(&key).and_then(Value::as_object).cloned().unwrap_or_default();
    let mut merged = base.clone();
    for (key, value) in differences {
        merged.insert(key, value);
    }
    merged.retain(|_, value| !value.is_null());
    let text = |value: Value| value.as_str().expect("a variable is text").to_owned();
    merged.into_iter().map(|(key, value)| (key, text(value))).collect()
}

#[test]
fn every_call_gets_the_recorded_environment_and_nothing_else() {
    let (lab, sightings, _) = sampled();
    let recorded = fixture("environment.json");
    for sighting in &sightings {
        let name = match sighting.all("arg").last() {
            Some(stage) => format!("run-{stage}"),
            None => sighting.fact("call").to_owned(),
        };
        let environment = sighting.environment();
        let expected = recorded_environment(&recorded, &name);
        for (key, value) in &expected {
            let ours = environment.get(key).map(|value| value.to_string_lossy().into_owned());
            let ours = ours.unwrap_or_else(|| panic!("{name} lacks {key}"));
            let ours = ours.replace(sighting.fact("tmpdir"), "$TMPDIR");
            assert_eq!(
                &ours.replace(&lab.path().display().to_string(), "/srv/lab"),
                value,
                "{key} of {name}"
            );
        }
        // What the runner process has by itself, what bash adds, and the record's own address.
        let keys: BTreeSet<&str> = expected.iter().map(|(key, _)| key.as_str()).collect();
        let by_itself = ["PATH", "HOME", "RECORDINGS", "PWD", "SHLVL", "_", "OLDPWD"];
        let more: Vec<&String> = environment
            .keys()
            .filter(|key| !keys.contains(key.as_str()) && !by_itself.contains(&key.as_str()))
            .collect();
        assert!(more.is_empty(), "{name} has more than was recorded: {more:?}");
    }
}

/// The recording's own description of the job does not keep the order of its variables.
fn by_key(mut response: Value) -> Value {
    let variables = response["variables"].as_array_mut().expect("a response has variables");
    variables.sort_by_key(|variable| variable["key"].to_string());
    response
}

#[test]
fn the_job_response_is_the_recorded_one() {
    let (_lab, sightings, _) = sampled();
    for sighting in &sightings {
        let file = format!("{}.response", sighting.file.display());
        let bytes = std::fs::read(file).expect("the call kept its job response");
        let ours: Value = serde_json::from_slice(&bytes).expect("a job response is JSON");
        assert_eq!(by_key(ours), by_key(fixture("response.json")));
    }
}

#[test]
fn every_call_starts_as_recorded() {
    let (_lab, sightings, _) = sampled();
    for sighting in &sightings {
        assert_eq!(sighting.fact("cwd"), sighting.fact("tmpdir"));
        assert_eq!(sighting.fact("stdin"), "/dev/null");
        assert_eq!(sighting.fact("group"), sighting.fact("pid"), "leads its own process group");
        let (stdout, stderr) = (sighting.fact("stdout"), sighting.fact("stderr"));
        assert!(stdout.starts_with("pipe:") && stderr.starts_with("pipe:") && stdout != stderr, "two pipes");
        assert_eq!(sighting.fact("response"), "600");
        assert_eq!(sighting.fact("own_dir"), "700");
        assert!(sighting.fact("tmpdir").contains("/custom-executor"), "{}", sighting.fact("tmpdir"));
        let is_run = sighting.fact("call") == "run";
        assert_eq!(sighting.get("mode"), is_run.then_some("700"), "mode of the script");
    }
}

#[test]
fn the_directory_of_an_attempt_goes_after_its_cleanup() {
    let (_lab, _, result) = sampled();
    for call in &result.calls {
        assert!(!call.tmpdir.exists(), "{}", call.tmpdir.display());
    }
}
