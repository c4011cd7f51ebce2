//! Pods of a job's own on a real cluster: another image and a service, and registries that do not have what a job names.

use std::io::{Read as _, Write as _};
use std::net::TcpListener;
use std::path::Path;
use std::process::Command;
use std::sync::Once;
use std::time::{Duration, Instant};

use greenroom_harness::processes::wait_for;
use greenroom_harness::setting::Setting;
use greenroom_testkit::dice::number;
use greenroom_testkit::gitlab_runner::job::Job;
use greenroom_testkit::gitlab_runner::record::Outcome;
use serde_json::{Value, json};

use super::figures::{by_default, load, show};
use super::site::{PATIENCE, Site};
use super::{IMAGE, Namespace};
use crate::jobs::sentences;

/// An image with a shell and no SSH server, which the cluster has.
const SMALL: &str = "greenroom.test/busybox:1";
const SERVER: &str = "greenroom.test/greenroom-server:1";

/// A pool of small pods whose jobs may name images. `None`: the test is skipped.
fn open(pod: &Value, change: impl FnOnce(Setting) -> Setting) -> Option<Site> {
    static SERVED: Once = Once::new();
    let namespace = Namespace::open()?;
    SERVED.call_once(|| {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cluster/serve");
        let mut serve = Command::new(script);
        serve.arg(&namespace.cluster.dir).arg(env!("CARGO_BIN_EXE_greenroom-server"));
        let output = serve.output().expect("tests/cluster/serve starts");
        assert!(output.status.success(), "{output:?}");
    });
    Some(Site::open(namespace, pod, |setting| {
        let setting = setting.provider("server_image", SERVER).provider("image_from_job", true);
        let policies = ["never", "always"].map(toml::Value::from).to_vec();
        change(setting.provider("image", SMALL).provider("allowed_pull_policies", policies))
    }))
}

#[test]
fn a_job_with_an_image_and_a_service_gets_a_pod_of_both() {
    // Sessions are those of the user that the container starts as.
    let user =
        json!({ "spec": { "containers": [{ "name": "job", "securityContext": { "runAsUser": 1000 } }] } });
    let Some(site) = open(&user, |setting| setting) else { return };
    let serve = "mkdir /tmp/www && echo \"it is $GREETING\" >/tmp/www/index.html && exec httpd -f -p 8080 -h /tmp/www";
    let variable =
        |key: &str, value: &str| json!({ "key": key, "value": value, "public": true, "raw": true });
    let service = json!({
        "name": SMALL, "alias": "web", "entrypoint": ["sh"], "command": ["-c", serve],
        "variables": [variable("HEALTHCHECK_TCP_PORT", "8080"), variable("GREETING", "$(PATH) and $$")],
    });
    let script = [
        "echo \"user $(id -u) in $PWD\" && touch written",
        "exec 3<>/dev/tcp/web/8080; printf 'GET / HTTP/1.0\\r\\n\\r\\n' >&3; cat <&3",
        "grep -c 127.0.0.1.*greenroom.test-busybox /etc/hosts",
    ];
    let result = site.run(&Job::new(1).image(IMAGE).service(service).script(script));
    let log = result.expect_outcome(&Outcome::Success).log_text();
    assert!(log.contains("user 1000 in /builds/"), "{log}");
    assert!(log.contains("it is $(PATH) and $$"), "Kubernetes replaces nothing: {log}");
    site.expect_nothing_left();
}

/// A registry that answers each request with a status and no image. Its address, in the cluster's network.
fn registry(status: &'static str) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let at = listener.local_addr().expect("an address").to_string();
    std::thread::spawn(move || {
        for peer in listener.incoming() {
            let Ok(mut peer) = peer else { continue };
            let mut asked = Vec::new();
            let mut part = [0; 1024];
            while !asked.ends_with(b"\r\n\r\n") {
                match peer.read(&mut part) {
                    Ok(read) if read > 0 => asked.extend_from_slice(&part[..read]),
                    Ok(_) | Err(_) => break,
                }
            }
            let answer = format!("HTTP/1.1 {status}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
            // It may have gone.
            drop(peer.write_all(answer.as_bytes()));
        }
    });
    at
}

#[test]
fn what_a_registry_does_not_have_fails_its_job_and_what_it_may_have_later_does_not() {
    let Some(site) = open(&json!({}), |setting| setting.timing("launch_timeout", "15m")) else { return };
    let [missing, denied, down] = ["404 Not Found", "403 Forbidden", "503 Service Unavailable"].map(registry);
    let always =
        |id: u64, image: &str| Job::new(id).image(image).image_option("pull_policy", json!(["always"]));
    for (number, job, expected) in [
        (
            1,
            always(1, &format!("{missing}/tool:1")),
            format!("image `{missing}/tool:1` does not exist in registry `{missing}`"),
        ),
        (
            2,
            always(2, &format!("{denied}/tool:1")),
            format!("registry `{denied}` denies access to image `{denied}/tool:1`"),
        ),
        (
            3,
            Job::new(3).image("greenroom.test/none:1"),
            "image `greenroom.test/none:1` is not on the instance".to_owned(),
        ),
        (
            4,
            Job::new(4)
                .image(IMAGE)
                .service(json!({ "name": format!("{missing}/db:1"), "pull_policy": ["always"] })),
            "-db`: image `".to_owned(),
        ),
        (
            5,
            Job::new(5).image(IMAGE).service(json!({ "name": SMALL, "entrypoint": ["no-such-program"] })),
            format!("image `{SMALL}` cannot be started"),
        ),
    ] {
        let began = Instant::now();
        let result = site.run(&job);
        result.expect_outcome(&Outcome::ScriptFailure { exit_code: 1 });
        let told = sentences(&result, "prepare");
        println!("job {number} after {:?}: {told:?}", began.elapsed());
        assert!(
            told.last().is_some_and(|line| line.contains(&expected)),
            "{expected}: {}",
            result.describe()
        );
    }
    let mut waiting = site.runner().start(&always(9, &format!("{down}/tool:1")));
    wait_for("the kubelet's message", PATIENCE, || {
        let status = String::from_utf8_lossy(&site.greenroom(&["pool", "status"]).stdout).into_owned();
        status.contains("ImagePullBackOff").then_some(())
    });
    waiting.abort();
    waiting.finish();
    site.expect_nothing_left();
}

/// The time for which a job waits for its pod.
fn wait(site: &Site, job: &Job) -> Duration {
    let attempt = site.runner().attempt(job);
    assert_eq!(attempt.config().exit_code(), Some(0));
    let prepare = attempt.prepare();
    assert_eq!(prepare.exit_code(), Some(0), "{}", prepare.stderr_text());
    assert_eq!(attempt.run("build_script", "true").exit_code(), Some(0));
    assert_eq!(attempt.cleanup().exit_code(), Some(0));
    attempt.remove_tmpdir();
    prepare.took().expect("it ended")
}

/// A job on an idle pod, one that boots a pod of the pool, and one with an order. All pods have the same server.
#[test]
#[ignore = "figures"]
fn figures_of_orders() {
    println!("figure: load before: {}", load());
    let own = |setting: Setting| by_default(setting).provider("image", IMAGE);
    let Some(warm) = open(&json!({}), |setting| own(setting).pool("idle_count", 1)) else { return };
    let Some(cold) = open(&json!({}), own) else { return };
    let Some(orders) = open(&json!({}), by_default) else { return };
    let keepers = [warm.keep(), cold.keep(), orders.keep()];
    let (mut idle, mut booted, mut ordered) = (Vec::new(), Vec::new(), Vec::new());
    for round in 0..number("GREENROOM_ROUNDS", 10) {
        wait_for("an idle pod", PATIENCE, || (warm.idle().len() == 1).then_some(()));
        idle.push(wait(&warm, &Job::new(100 + round)));
        booted.push(wait(&cold, &Job::new(200 + round)));
        ordered.push(wait(&orders, &Job::new(300 + round).image(IMAGE)));
    }
    show("wait of a job, idle pod, with server_image", idle);
    show("wait of a job that boots a pod of the pool, with server_image", booted);
    show("wait of a job with a pod of its own, image on the node", ordered);
    println!("figure: load: {}", load());
    drop(keepers);
}
