//! Each way to a pod, with either server: where pods may not be root, where an image lacks the server, and when what carries a
//! connection is killed.

use std::time::Duration;

use greenroom_core::failure::ErrorClass;
use greenroom_core::inventory::Status;
use greenroom_harness::processes::wait_for;
use greenroom_harness::provider::{Fixture as _, gone, listed, request, until};
use greenroom_testkit::gitlab_runner::job::Job;
use greenroom_testkit::gitlab_runner::record::Outcome;
use serde_json::{Value, json};

use super::site::{ADDRESS_SERVED, FORWARD, FORWARD_SERVED, MARK, PATIENCE, Site, marking};
use super::{Namespace, images, kubectl};
use crate::jobs::sentences;

/// `real::jobs` plays the other two.
#[test]
fn a_whole_job_runs_by_each_way() {
    for way in [FORWARD, ADDRESS_SERVED] {
        let Some(namespace) = Namespace::open() else { return };
        let site = Site::by(way, namespace, &json!({}), |setting| setting);
        let whole = site.run(&Job::new(1).script(marking(1)));
        whole.expect_outcome(&Outcome::Success);
        assert_eq!(site.mark(1).as_deref(), Some(MARK));
        let failing = site.run(&Job::new(2).script(["tr '\\0' ' ' </proc/1/cmdline", "exit 9"]));
        failing.expect_outcome(&Outcome::ScriptFailure { exit_code: 9 });
        let first = failing.log_text().contains("/run/greenroom/greenroom-server");
        assert_eq!(first, way.is_served, "{way:?}: {}", failing.describe());
        site.expect_nothing_left();
        let forwards =
            site.namespace.calls().iter().filter(|call| call.ends_with(" pods/portforward")).count();
        assert_eq!(forwards > 0, way.via == "port-forward", "{way:?}: {forwards} port-forwards");
    }
}

/// The pod that docs/providers/kubernetes.md shows for such a namespace.
fn rootless() -> Value {
    json!({ "spec": {
        "securityContext": { "runAsNonRoot": true, "runAsUser": 1000 },
        "containers": [{
            "name": "job",
            "securityContext": { "allowPrivilegeEscalation": false, "capabilities": { "drop": ["ALL"] } },
        }],
    } })
}

fn restrict(namespace: &Namespace) {
    let label = "pod-security.kubernetes.io/enforce=restricted";
    let said = namespace.kubectl(&["label", "namespace", &namespace.name, label]);
    assert!(said.contains("labeled"), "{said}");
}

#[test]
fn pods_without_root_serve_jobs_where_pod_security_is_restricted() {
    for way in [FORWARD, FORWARD_SERVED] {
        let Some(namespace) = Namespace::open() else { return };
        restrict(&namespace);
        let site = Site::of(way, namespace, &rootless(), |setting| {
            let setting = setting.provider("user", way.user());
            setting.pool("builds_dir", "/tmp/builds").pool("cache_dir", "/tmp/cache")
        });
        let script = [
            "echo \"I am $(id -u), $(id -un), in $HOME\"",
            "if touch /etc/new 2>/dev/null; then exit 1; fi",
            "exit 9",
        ];
        let result = site.run(&Job::new(1).script(script));
        result.expect_outcome(&Outcome::ScriptFailure { exit_code: 9 });
        let said = format!("I am 1000, {0}, in /home/{0}", way.user());
        assert!(result.log_text().contains(&said), "{}", result.describe());
        site.run(&Job::new(2)).expect_outcome(&Outcome::Success);
        site.expect_nothing_left();
    }
}

#[tokio::test]
async fn a_pod_that_may_be_root_is_refused_where_pod_security_is_restricted() {
    for way in [FORWARD, FORWARD_SERVED] {
        let Some(namespace) = Namespace::open() else { return };
        restrict(&namespace);
        let refused = namespace.build_by(way, "").launch(&request(&namespace, 1)).await.unwrap_err();
        assert_eq!(refused.class(), &ErrorClass::Invalid);
        assert!(refused.to_string().contains("violates PodSecurity"), "{refused}");
    }
}

#[tokio::test]
async fn an_image_that_lacks_the_server_is_named() {
    for (image, expected) in [
        (
            "greenroom.test/busybox:1",
            "cannot get the SSH server of `server_image`: the image greenroom.test/busybox:1 has no program /greenroom-server \
             for this node: ",
        ),
        ("greenroom.test/absent:1", "has an image that is not on its node and may not be pulled"),
    ] {
        let Some(namespace) = Namespace::open() else { return };
        let table = namespace.table_by(FORWARD_SERVED).replace(images::SERVER, image);
        let provider = namespace.build_of(&table);
        let request = request(&namespace, 1);
        let told = match provider.launch(&request).await {
            Err(error) => {
                assert_eq!(error.class(), &ErrorClass::Invalid);
                error.to_string()
            }
            // It was placed before its node said so.
            Ok(()) => {
                until("its end", Duration::from_mins(1), async || {
                    let listed = listed(&*provider, &namespace.pool()).await;
                    listed.into_iter().find(|one| one.status == Status::Stopping)?.detail
                })
                .await
            }
        };
        assert!(told.contains(expected), "{told}");
        gone(&namespace, &*provider, &request.instance).await;
    }
}

/// A port-forward goes through all three. The pod itself survives.
#[test]
fn what_carries_a_port_forward_is_killed_in_mid_stage() {
    let ticking = "for i in $(seq 1000); do echo tick; sleep 0.2; done";
    for way in [FORWARD, FORWARD_SERVED] {
        let Some(namespace) = Namespace::open_alone() else { return };
        let site = Site::by(way, namespace, &json!({}), |setting| setting);
        for (id, victim) in (1..).zip(["kubelet", "containerd", "apiserver"]) {
            let script = [vec![ticking.to_owned()], marking(id)].concat();
            let job = site.runner().start(&Job::new(id).script(script));
            job.wait_for_stage("build_script").wait_for_output("\ntick\n", PATIENCE);
            site.namespace.cluster.on_node(&format!("kill -9 $(cat /mnt/own/pids/{victim})"));
            let result = job.finish();
            result.expect_outcome(&Outcome::RunnerSystemFailure);
            let told = sentences(&result, "build_script");
            assert!(
                matches!(told.as_slice(), [one] if one.starts_with("system failure: ")),
                "{victim}: {}",
                result.describe()
            );
            assert_eq!(site.mark(id), None, "{victim}: its script has not ended");
            let reads = || (kubectl(&["get", "--raw", "/readyz"], None) == "ok").then_some(());
            wait_for("the API server", PATIENCE, reads);
        }
        site.run(&Job::new(9).script(marking(9))).expect_outcome(&Outcome::Success);
        assert_eq!(site.mark(9).as_deref(), Some(MARK));
        site.expect_nothing_left();
    }
}
