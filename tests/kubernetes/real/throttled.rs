//! An API server that answers 429: all pools of its cluster hold still, and one tries.
//!
//! Greenroom and a blocker have one account, to which priority and fairness gives no more than one request at a time. The blocker's
//! request waits for a webhook of this test that never answers.

use std::net::TcpListener;
use std::path::PathBuf;
use std::process::{Child, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use greenroom_core::failure::ErrorClass;
use greenroom_core::ids::{InstanceId, PoolName};
use greenroom_core::inventory::Tags;
use greenroom_core::time::Stamp;
use greenroom_harness::provider::{Fixture as _, gone, listed, request, until};
use greenroom_ports::provider::{LaunchRequest, ProviderError};
use greenroom_providers::registration::BuildContext;
use serde_json::{Value, json};

use super::site::FORWARD;
use super::{Namespace, kubectl, kubectl_command};
use crate::api::Caller;
use crate::cluster::try_for;

/// The longest time from the announcement of a creation until it reaches the webhook.
const ANNOUNCED_WITHIN: Duration = Duration::from_secs(5);

/// An account of the namespace whose requests may be held up.
struct Account<'a> {
    namespace: &'a Namespace,
    kubeconfig: PathBuf,
    caller: Caller,
    webhook: TcpListener,
    /// Tells that a request waits for the webhook.
    waits: Receiver<()>,
}

impl Drop for Account<'_> {
    fn drop(&mut self) {
        for kind in ["flowschema", "prioritylevelconfiguration", "validatingwebhookconfiguration"] {
            kubectl(&["delete", kind, &self.namespace.name], None);
        }
    }
}

/// Ends with its webhook's answer, or with this.
struct Blocker(Child);

impl Drop for Blocker {
    fn drop(&mut self) {
        let _ended = self.0.kill();
        let _waited = self.0.wait();
    }
}

impl<'a> Account<'a> {
    fn open(namespace: &'a Namespace) -> Self {
        let name = &namespace.name;
        namespace.kubectl(&["create", "serviceaccount", "few"]);
        let account = format!("--serviceaccount={name}:few");
        namespace.kubectl(&["create", "rolebinding", "few", "--clusterrole=edit", &account]);
        let token = namespace.kubectl(&["create", "token", "few"]);
        let mut config: Value =
            serde_json::from_str(&kubectl(&["config", "view", "--raw", "-o", "json"], None)).unwrap();
        config["users"][0]["user"] = json!({ "token": token.trim() });
        let kubeconfig = namespace.state.path().join("few");
        std::fs::write(&kubeconfig, config.to_string()).unwrap();
        let webhook = TcpListener::bind("127.0.0.1:0").unwrap();
        let (told, waits) = channel();
        let accepting = webhook.try_clone().unwrap();
        std::thread::spawn(move || {
            let mut held = Vec::new();
            for stream in accepting.incoming() {
                held.push(stream);
                if told.send(()).is_err() {
                    break;
                }
            }
        });
        let caller = Caller::Token(token.trim().to_owned());
        let account = Self { namespace, kubeconfig, caller, webhook, waits };
        for object in account.objects() {
            kubectl(&["apply", "-f", "-"], Some(&object));
        }
        account
    }

    fn objects(&self) -> [Value; 3] {
        let name = &self.namespace.name;
        let flow = "flowcontrol.apiserver.k8s.io/v1";
        let port = self.webhook.local_addr().unwrap().port();
        [
            json!({
                "apiVersion": flow, "kind": "PriorityLevelConfiguration", "metadata": { "name": name },
                "spec": { "type": "Limited", "limited": {
                    "nominalConcurrencyShares": 0, "lendablePercent": 0, "borrowingLimitPercent": 0,
                    "limitResponse": { "type": "Reject" },
                } },
            }),
            json!({
                "apiVersion": flow, "kind": "FlowSchema", "metadata": { "name": name },
                "spec": {
                    "priorityLevelConfiguration": { "name": name }, "matchingPrecedence": 10,
                    "rules": [{
                        "subjects": [{ "kind": "ServiceAccount", "serviceAccount": { "name": "few", "namespace": name } }],
                        "resourceRules": [{
                            "verbs": ["*"], "apiGroups": ["*"], "resources": ["*"], "namespaces": ["*"], "clusterScope": true,
                        }],
                    }],
                },
            }),
            json!({
                "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingWebhookConfiguration",
                "metadata": { "name": name },
                "webhooks": [{
                    "name": "never.greenroom.test", "admissionReviewVersions": ["v1"], "sideEffects": "None",
                    "timeoutSeconds": 30, "failurePolicy": "Ignore",
                    "clientConfig": { "url": format!("https://127.0.0.1:{port}/") },
                    "namespaceSelector": { "matchLabels": { "kubernetes.io/metadata.name": name } },
                    "rules": [{
                        "operations": ["CREATE"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["configmaps"],
                    }],
                }],
            }),
        ]
    }

    /// Takes the one place. An announcement takes effect some moments later.
    fn block(&self) -> Blocker {
        let mut number = 0;
        try_for(|| {
            number += 1;
            let mut command = kubectl_command();
            command.env("KUBECONFIG", &self.kubeconfig).args([
                "-n",
                &self.namespace.name,
                "create",
                "configmap",
            ]);
            command
                .arg(format!("blocker-{number}"))
                .stdin(Stdio::null())
                .stdout(Stdio::null())
                .stderr(Stdio::null());
            let blocker = Blocker(command.spawn().expect("kubectl starts"));
            let waits = self.waits.recv_timeout(ANNOUNCED_WITHIN).is_ok();
            (waits && self.is_throttled()).then_some(blocker)
        })
        .expect("a request that waits")
    }

    fn is_throttled(&self) -> bool {
        let path = format!("/api/v1/namespaces/{}/configmaps", self.namespace.name);
        self.namespace.cluster.call_as(&self.caller, "GET", &path, None).status == 429
    }

    /// The answers 429 that Greenroom got, by verb.
    fn refusals(&self) -> Vec<String> {
        let log = std::fs::read_to_string(self.namespace.cluster.dir.join("log/audit.jsonl")).unwrap();
        let account = format!("system:serviceaccount:{}:few", self.namespace.name);
        let agent = |line: &Value| line["userAgent"].as_str().unwrap_or_default().to_owned();
        let is_one = |line: &Value| {
            line["user"]["username"] == account.as_str()
                && line["responseStatus"]["code"] == 429
                && !["kubectl", "curl"].iter().any(|ours| agent(line).starts_with(ours))
        };
        let lines = log.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        lines.filter(is_one).map(|line| line["verb"].as_str().unwrap_or_default().to_owned()).collect()
    }
}

/// The moment until which the provider makes no more calls.
#[track_caller]
fn throttled<T: std::fmt::Debug>(answer: Result<T, ProviderError>) -> Stamp {
    match answer.unwrap_err().class() {
        ErrorClass::Throttled { until: Some(until) } => *until,
        class => panic!("{class}"),
    }
}

#[tokio::test]
async fn all_pools_hold_still_while_the_api_server_throttles_and_one_tries() {
    let Some(namespace) = Namespace::open() else { return };
    let account = Account::open(&namespace);
    let table = namespace.table_by(FORWARD);
    let admins = namespace.cluster.dir.join("kubeconfig").display().to_string();
    let table = table.replace(&admins, &account.kubeconfig.display().to_string());
    let table: toml::Table = format!("schedule_within = '20s'\n{table}").parse().unwrap();
    let build = |pool: &PoolName| {
        let context = BuildContext { pool: pool.clone(), ..namespace.context() };
        (crate::fixture::registration().build)(&context, &table).unwrap()
    };
    let pools = [namespace.pool(), PoolName::new("other")];
    let [one, other] = pools.each_ref().map(build);
    let requests = pools.each_ref().map(|pool| {
        let like = request(&namespace, 1);
        let instance = InstanceId::launched(pool, &like.tags.generation, 1);
        let tags = Tags { pool: pool.clone(), ..like.tags };
        LaunchRequest { token: format!("{instance}-1"), instance, tags, ..like }
    });
    // The first answer of its cluster shows a pool with whom it shares the budget.
    for (provider, pool) in [(&one, &pools[0]), (&other, &pools[1])] {
        assert_eq!(listed(&**provider, pool).await, []);
    }

    let blocker = account.block();
    let until_then = throttled(one.launch(&requests[0]).await);
    // The other pool makes no call meanwhile.
    assert_eq!(throttled(other.launch(&requests[1]).await), until_then);
    let now = namespace.clock().now();
    tokio::time::sleep(now.until(until_then) + Duration::from_millis(50)).await;
    // Both may try now. One of them does.
    let (first, second) = tokio::join!(one.launch(&requests[0]), other.launch(&requests[1]));
    throttled(first);
    throttled(second);
    let refusals = until("the API server's notes", Duration::from_secs(30), async || {
        Some(account.refusals()).filter(|all| all.len() > 1)
    });
    assert_eq!(refusals.await, ["create", "create"]);

    drop(blocker);
    for (provider, request) in [(&one, &requests[0]), (&other, &requests[1])] {
        until("a launch", Duration::from_mins(1), async || match provider.launch(request).await {
            Ok(()) => Some(()),
            Err(error) => {
                assert!(matches!(error.class(), ErrorClass::Throttled { .. }), "{error}");
                None
            }
        })
        .await;
        gone(&namespace, &**provider, &request.instance).await;
    }
}
