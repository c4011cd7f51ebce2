//! The examples of docs/containers.md, as they stand there, in images that imitate those of Docker Hub.

use greenroom_harness::place::Place;
use greenroom_testkit::gitlab_runner::job::Job;
use greenroom_testkit::gitlab_runner::record::Outcome;
use serde_json::{Value, json};

use crate::pool::setting;
use crate::site::site;
use crate::yaml;

/// The fenced blocks of one language.
pub fn blocks(page: &str, language: &str) -> Vec<String> {
    let fence = format!("```{language}\n");
    let parts = page.split(&fence).skip(1);
    parts.filter_map(|part| Some(part.split_once("```")?.0.to_owned())).collect()
}

pub fn words(value: &Value) -> Vec<String> {
    value.as_array().into_iter().flatten().filter_map(Value::as_str).map(str::to_owned).collect()
}

/// GitLab's way from `.gitlab-ci.yml` to a job response.
pub fn job(id: u64, yaml: &Value) -> Job {
    let image = &yaml["image"];
    let name = image.as_str().or_else(|| image["name"].as_str()).expect("an example has an image");
    let mut job =
        Job::new(id).image(name).script(words(&yaml["script"])).after_script(words(&yaml["after_script"]));
    if let Some(entrypoint) = image.get("entrypoint") {
        job = job.image_option("entrypoint", entrypoint.clone());
    }
    for (key, value) in yaml["variables"].as_object().into_iter().flatten() {
        job = job.variable(key, value.as_str().expect("a word"));
    }
    for service in yaml["services"].as_array().into_iter().flatten() {
        let mut service = if service.is_string() { json!({"name": service}) } else { service.clone() };
        let variables = service["variables"].as_object().cloned().unwrap_or_default();
        service["variables"] =
            variables.iter().map(|(key, value)| json!({"key": key, "value": value})).collect();
        job = job.service(service);
    }
    job
}

fn run_all(place: &Place, page: &str) -> usize {
    let mut count = 0;
    for block in blocks(page, "yaml") {
        for (name, yaml) in yaml::parse(&block).as_object().expect("a map of jobs") {
            count += 1;
            let result = place.run(&job(count, yaml));
            assert_eq!(result.outcome, Outcome::Success, "{name}: {}", result.describe());
            assert!(!result.log_text().contains("greenroom: warning"), "{name}: {}", result.describe());
        }
    }
    usize::try_from(count).expect("a few")
}

#[test]
pub fn the_examples_of_the_page_run() {
    let Some(site) = site() else { return };
    let page = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/containers.md"));
    let place = setting(site).open();
    assert!(run_all(&place, &page.expect("the page")) >= 2);
}
