//! The findings of `doctor` about clusters, which it makes without leaving a trace.

#![cfg(test)]

use std::time::Duration;

use greenroom_ports::provider::{Demand, Provider};
use serde_json::{Value, json};

use crate::fixture::Pool;

async fn findings(provider: &dyn Provider) -> Vec<(&'static str, String)> {
    let demand = Demand {
        max_instances: 8,
        recorded: 3,
        max_lifetime: Some(Duration::from_hours(24)),
        idle_stopped: 0,
    };
    provider.examine(&demand).await.into_iter().map(|finding| (finding.code, finding.message)).collect()
}

async fn found(pool: &Pool) -> Vec<(&'static str, String)> {
    findings(&*pool.build()).await
}

#[tokio::test]
async fn a_cluster_that_is_well_has_no_finding_and_no_trace() {
    let Some(pool) = Pool::open("owner_config_map = 'greenroom-owner'") else { return };
    assert_eq!(found(&pool).await, []);
    assert!(pool.cluster.pods().is_empty() && pool.cluster.made().is_empty());
    assert!(pool.cluster.requests().contains(&"create pods".to_owned()), "a dry run");
}

#[tokio::test]
async fn a_pool_that_is_reached_by_addresses_needs_no_right_to_forward() {
    for (way, findings) in [("address", 0), ("port-forward", 1)] {
        let Some(pool) = Pool::open(&format!("via = '{way}'")) else { return };
        let role = [
            "create pods",
            "delete pods",
            "get pods",
            "list pods",
            "watch pods",
            "get pods/log",
            "list events",
            "list resourcequotas",
            "list limitranges",
        ];
        pool.cluster.set(&json!({ "role": role }));
        let found = found(&pool).await;
        assert_eq!(found.len(), findings, "{found:?}");
        let named = |(code, message): &(&str, String)| {
            *code == "kubernetes-denied" && message.contains("create pods/portforward, get pods/portforward")
        };
        assert!(found.iter().all(named), "{found:?}");
    }
}

#[tokio::test]
async fn each_trouble_of_a_cluster_is_one_finding() {
    let offering = "priority_class = 'high'\n";
    for (table, settings, code, text) in [
        ("", json!({ "restricted": true }), "kubernetes-refused", "violates PodSecurity"),
        (offering, json!({}), "kubernetes-refused", "no PriorityClass with name high was found"),
        ("service_account = 'jobs'", json!({}), "kubernetes-refused", "serviceaccount \"jobs\" not found"),
        (
            "",
            json!({ "quota": { "pods": "4" } }),
            "kubernetes-quota",
            "quotas allow 4 more instances of pool `linux`, but the pool may launch 5 more",
        ),
        (
            "",
            json!({ "version": ["1", "30+"] }),
            "kubernetes-version",
            "has Kubernetes 1.30, untested with Greenroom",
        ),
        (
            "",
            json!({ "namespace": "other" }),
            "kubernetes-namespace",
            "namespace `ci-jobs` of pool `linux` does not exist, or these credentials have no role in it",
        ),
        (
            "owner_config_map = 'mine'",
            json!({ "namespace": "other", "admin": true }),
            "kubernetes-namespace",
            "namespace `ci-jobs` of pool `linux` does not exist",
        ),
        (
            "memory = '1Gi'",
            json!({ "limit_ranges": [{ "type": "Container", "max": { "memory": "64Mi" } }] }),
            "kubernetes-limit-range",
            "it allows a container at most 64Mi of memory, not 1Gi",
        ),
        (
            "memory = '1Gi'",
            json!({ "limit_ranges": [{ "type": "Container", "default": { "ephemeral-storage": "1Gi" } }] }),
            "kubernetes-limit-default",
            "sets a limit of 1Gi of ephemeral-storage for each pod of pool `linux`",
        ),
        (
            "owner_config_map = 'mine'",
            json!({}),
            "kubernetes-refused",
            "the ConfigMap `mine` cannot own pods",
        ),
        (
            "image_from_job = true\nserver_image = 's:1'\nservice_memory = '1Gi'",
            json!({}),
            "kubernetes-service-limits",
            "services of jobs in pool `linux` have no limit of cpu: one of them may take a node's from all other pods",
        ),
        (
            "image_from_job = true\nserver_image = 's:1'\nservice_memory = '1Gi'\nservice_cpu_limit = '2'",
            json!({ "sidecars": false }),
            "kubernetes-order",
            "refuse pods of jobs with services in pool `linux`: BadRequest: strict decoding error: unknown field",
        ),
    ] {
        let Some(pool) = Pool::open(table) else { return };
        pool.cluster.set(&settings);
        let found: Vec<_> =
            found(&pool).await.into_iter().filter(|(code, _)| *code != "kubernetes-denied").collect();
        assert!(
            matches!(found.as_slice(), [(known, message)] if *known == code && message.contains(text)),
            "{found:?}"
        );
    }
}

#[tokio::test]
async fn a_pod_with_an_unknown_field_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("pod.yaml");
    std::fs::write(&path, "spec: { tolerance: 1 }").unwrap();
    let Some(pool) = Pool::open(&format!("pod = '{}'", path.display())) else { return };
    let found = found(&pool).await;
    assert!(found[0].1.contains("unknown field \"spec.tolerance\""), "{found:?}");
}

#[tokio::test]
async fn credentials_and_addresses_that_do_not_work_are_named() {
    let Some(pool) = Pool::open("") else { return };
    let build = |change: &dyn Fn(&mut toml::Table)| {
        let mut values = pool.values();
        change(&mut values);
        (crate::fixture::registration().build)(&pool.context(), &values).unwrap()
    };
    let dir = tempfile::tempdir().unwrap();
    let edited = |edit: &dyn Fn(&mut Value)| {
        let text = std::fs::read(&pool.cluster.kubeconfig).unwrap();
        let mut config: Value = serde_json::from_slice(&text).unwrap();
        edit(&mut config);
        let path = dir.path().join("kubeconfig");
        std::fs::write(&path, config.to_string()).unwrap();
        path.display().to_string()
    };
    let with =
        |path: String| build(&|values| drop(values.insert("kubeconfig".to_owned(), path.clone().into())));
    let none = build(&|values| drop(values.insert("kubeconfig".to_owned(), "/nowhere".into())));
    assert!(findings(&*none).await[0].1.contains("the kubeconfig cannot be read"));
    let context = build(&|values| drop(values.insert("context".to_owned(), "nowhere".into())));
    assert!(findings(&*context).await[0].1.contains("context `nowhere` cannot be used"));
    let token = with(edited(&|config| config["users"][0]["user"] = json!({ "token": "wrong" })));
    assert!(findings(&*token).await[0].1.contains("Unauthorized"));
    let closed =
        with(edited(&|config| config["clusters"][0]["cluster"]["server"] = json!("https://127.0.0.1:1")));
    assert!(findings(&*closed).await[0].1.contains("refused"));
    // The certificate of another authority.
    let Some(other) = Pool::open("") else { return };
    let stranger =
        with(edited(&|config| config["clusters"][0]["cluster"]["server"] = json!(other.cluster.url)));
    let found = findings(&*stranger).await;
    assert!(found[0].0 == "kubernetes-unreachable" && found[0].1.contains("ertificate"), "{found:?}");
}

#[tokio::test]
async fn a_token_that_expired_is_read_again() {
    let Some(pool) = Pool::open("") else { return };
    let dir = tempfile::tempdir().unwrap();
    let token = dir.path().join("token");
    let mut config: Value =
        serde_json::from_slice(&std::fs::read(&pool.cluster.kubeconfig).unwrap()).unwrap();
    config["users"][0]["user"] = json!({ "tokenFile": token });
    let path = dir.path().join("kubeconfig");
    std::fs::write(&path, config.to_string()).unwrap();
    std::fs::write(&token, "expired").unwrap();
    let mut values = pool.values();
    values.insert("kubeconfig".to_owned(), path.display().to_string().into());
    let provider = (crate::fixture::registration().build)(&pool.context(), &values).unwrap();
    assert!(provider.list(&greenroom_harness::provider::Fixture::pool(&pool)).await.is_err());
    std::fs::write(&token, "ci").unwrap();
    provider.list(&greenroom_harness::provider::Fixture::pool(&pool)).await.unwrap();
}
