//! The manifests of examples/kubernetes/: what they allow is enough, and each part of it is needed.

#![cfg(test)]

use std::path::{Path, PathBuf};
use std::time::Duration;

use greenroom_harness::provider::{gone, request, running};
use greenroom_ports::finding::Severity;
use greenroom_ports::provider::Demand;
use serde_json::{Value, json};

use crate::fixture::Pool;

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/kubernetes")
}

/// The objects of a manifest.
fn objects(name: &str) -> Vec<Value> {
    let text = std::fs::read_to_string(folder().join(name)).unwrap();
    text.split("\n---\n").map(|document| serde_saphyr::from_str(document).unwrap()).collect()
}

fn of_kind(name: &str, kind: &str) -> Value {
    objects(name).into_iter().find(|object| object["kind"] == kind).unwrap()
}

/// The rights that the role allows, as verb and resource.
fn allowed() -> Vec<String> {
    let role = of_kind("role.yaml", "Role");
    let texts = |value: &Value| -> Vec<String> { serde_json::from_value(value.clone()).unwrap() };
    let of_rule = |rule: &Value| -> Vec<String> {
        assert_eq!(rule["apiGroups"], json!([""]));
        let (verbs, resources) = (texts(&rule["verbs"]), texts(&rule["resources"]));
        verbs
            .iter()
            .flat_map(|verb| resources.iter().map(move |resource| format!("{verb} {resource}")))
            .collect()
    };
    role["rules"].as_array().unwrap().iter().flat_map(of_rule).collect()
}

#[test]
fn all_of_it_is_in_one_namespace_and_fits_together() {
    let mut all: Vec<Value> = ["namespace.yaml", "role.yaml", "network-policy.yaml"].map(objects).concat();
    let namespace = all.remove(0);
    assert_eq!(namespace["kind"], "Namespace");
    for object in &all {
        assert_eq!(object["metadata"]["namespace"], namespace["metadata"]["name"], "{object}");
    }
    let binding = of_kind("role.yaml", "RoleBinding");
    assert_eq!(binding["roleRef"]["name"], of_kind("role.yaml", "Role")["metadata"]["name"]);
    assert_eq!(binding["subjects"][0]["name"], of_kind("role.yaml", "ServiceAccount")["metadata"]["name"]);
    let policy = of_kind("network-policy.yaml", "NetworkPolicy");
    let default: toml::Table =
        include_str!("../../crates/backends/src/kubernetes/example.toml").parse().unwrap();
    assert_eq!(policy["spec"]["ingress"][0]["ports"][0]["port"].as_i64(), default["ssh_port"].as_integer());
}

#[tokio::test]
async fn the_role_is_enough_and_doctor_names_each_verb_without_which_something_fails() {
    let role = allowed();
    assert_eq!(role.len(), 12, "{role:?}");
    let Some(pool) = Pool::open("owner_config_map = 'greenroom-owner'") else { return };
    for missing in std::iter::once(None).chain(role.iter().map(Some)) {
        let rest: Vec<_> = role.iter().filter(|verb| Some(*verb) != missing).collect();
        pool.cluster.set(&json!({ "role": rest }));
        let provider = pool.build();
        let demand = Demand {
            max_instances: 2,
            recorded: 0,
            max_lifetime: Some(Duration::from_hours(1)),
            idle_stopped: 0,
        };
        let found = provider.examine(&demand).await;
        match missing.map(String::as_str) {
            None => {
                assert_eq!(found, []);
                let request = request(&pool, 1);
                provider.launch(&request).await.unwrap();
                running(&pool, &*provider, &request.instance).await;
                provider.console(&request.instance).await.unwrap();
                gone(&pool, &*provider, &request.instance).await;
            }
            Some("list resourcequotas" | "list limitranges") => {
                assert_eq!((found.len(), found[0].severity), (1, Severity::Note), "{found:?}");
            }
            Some(verb) => {
                let first = &found[0];
                let named = verb.replace("configmaps", "configmaps `greenroom-owner`");
                assert!(
                    first.code == "kubernetes-denied" && first.message.contains(&named),
                    "{verb}: {found:?}"
                );
            }
        }
    }
}

#[test]
fn the_recipe_of_the_image_installs_what_the_page_names() {
    let recipe = std::fs::read_to_string(folder().join("Containerfile")).unwrap();
    let page = include_str!("../../docs/providers/kubernetes.md");
    for package in ["bash", "ca-certificates", "git", "openssh-server"] {
        assert!(recipe.contains(package) && page.contains(&format!("`{package}`")), "{package}");
    }
}
