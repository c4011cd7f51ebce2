//! Stages that print nothing for long, behind a proxy that cuts idle connections: before the API server, and before the pod.

#![cfg(test)]

use std::io::{Seek as _, Write as _};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use greenroom_core::endpoint::Endpoint;
use greenroom_core::execution::Shell;
use greenroom_core::ids::InstanceId;
use greenroom_harness::provider::{gone, request, running, until};
use greenroom_ports::connector::{ConnectError, Connector as _, Reader, Stage, StageEnd};
use greenroom_ports::tail::Tail;
use greenroom_ssh::{Ssh, SshSettings};
use greenroom_testkit::gitlab_runner::job::Job;
use greenroom_testkit::gitlab_runner::record::Outcome;

use crate::fixture::Pool;
use crate::idle::IdleProxy;
use crate::jobs::Site;
use crate::standin::StandIn;

/// The time after which many load balancers cut an idle connection.
const LIMIT: Duration = Duration::from_mins(1);
const SILENCE: Duration = Duration::from_mins(6);
/// The factor by which the limit and the keep-alive are shorter in the test that everyone runs.
const SCALE: u32 = 10;
/// Three limits are enough there.
const SHORT_SILENCE: Duration = Duration::from_secs(18);

/// A copy of the stand-in's kubeconfig that leads through a proxy.
fn through_proxy(cluster: &StandIn, dir: &Path, limit: Duration) -> (IdleProxy, PathBuf) {
    let upstream: SocketAddr = cluster.url.trim_start_matches("https://").parse().unwrap();
    let proxy = IdleProxy::new(upstream, limit);
    let text = std::fs::read_to_string(&cluster.kubeconfig).unwrap();
    let changed = text.replace(&cluster.url, &format!("https://127.0.0.1:{}", proxy.port));
    assert_ne!(text, changed);
    let path = dir.join("kubeconfig");
    std::fs::write(&path, changed).unwrap();
    (proxy, path)
}

fn silent(how_long: Duration) -> Stage {
    let mut script = tempfile::tempfile().unwrap();
    writeln!(script, "sleep {}; echo end; exit 7", how_long.as_secs()).unwrap();
    script.rewind().unwrap();
    Stage {
        reader: Reader::Shell(Shell::Bash.into()),
        open_umask: false,
        separate_stderr: false,
        ahead: None,
        script,
        start_within: Duration::from_secs(30),
        stop_grace: Duration::from_secs(1),
        container_start: Duration::from_mins(1),
        trace: None,
        last: false,
    }
}

async fn run(ssh: &Ssh, id: &InstanceId, at: &Endpoint, stage: Stage) -> Result<StageEnd, ConnectError> {
    ssh.run(id, at, stage, &mut Tail::default(), Box::pin(std::future::pending())).await
}

/// A silent stage with all times divided. Its connection also has to be cut where nothing keeps it alive.
async fn a_silent_stage_outlives_the_proxy(via: &str) {
    let Some(pool) = Pool::open(&format!("via = '{via}'")) else { return };
    let dir = tempfile::tempdir().unwrap();
    let forwarder = Some(env!("CARGO_BIN_EXE_greenroom-backends").into());
    let defaults = SshSettings { forwarder, ..SshSettings::new(dir.path().join("keys")) };
    let kept = Ssh::new(SshSettings { keepalive: defaults.keepalive / SCALE, ..defaults.clone() });
    let provider = pool.build();
    let mut request = request(&pool, 1);
    let id = request.instance.clone();
    request.keys = kept.keys(&id).await.unwrap();
    provider.launch(&request).await.unwrap();
    let mut at = running(&pool, &*provider, &id).await;
    let proxy = if let Some(forward) = at.forward.as_deref_mut() {
        let (proxy, kubeconfig) = through_proxy(&pool.cluster, dir.path(), LIMIT / SCALE);
        forward.kubeconfig = vec![kubeconfig];
        proxy
    } else {
        let upstream = SocketAddr::new(at.address.parse().unwrap(), at.port);
        let proxy = IdleProxy::new(upstream, LIMIT / SCALE);
        (at.address, at.port) = ("127.0.0.1".to_owned(), proxy.port);
        proxy
    };
    assert_eq!(at.forward.is_some(), via == "port-forward");
    // The log has the host key some moments before the server listens.
    let answers = async || kept.check(&id, &at, Duration::from_secs(30)).await.ok();
    until("an answer", Duration::from_secs(30), answers).await;

    let neglected = Ssh::new(SshSettings { keepalive: Duration::from_hours(1), ..defaults });
    let lost = run(&neglected, &id, &at, silent(SILENCE)).await;
    assert!(matches!(lost, Err(ConnectError::Lost { sent: true, .. })), "{via}: {lost:?}");
    assert!(proxy.cuts() > 0, "{via}: the proxy cut it");

    let began = Instant::now();
    let ended = run(&kept, &id, &at, silent(SHORT_SILENCE)).await;
    assert!(matches!(ended, Ok(StageEnd::Exited(7))), "{via}: {ended:?}");
    assert!(began.elapsed() >= SHORT_SILENCE);
    gone(&pool, &*provider, &id).await;
}

#[tokio::test]
async fn a_silent_stage_outlives_a_proxy_before_the_api_server() {
    a_silent_stage_outlives_the_proxy("port-forward").await;
}

#[tokio::test]
async fn a_silent_stage_outlives_a_proxy_before_the_pod() {
    a_silent_stage_outlives_the_proxy("address").await;
}

/// The limits are not divided. Between jobs, the idle pod's connection has to last, too.
#[test]
#[ignore = "takes seven minutes"]
fn a_job_is_silent_for_six_minutes_behind_a_proxy() {
    let Some(site) = Site::open(|setting| setting.pool("idle_count", 1)) else { return };
    let (proxy, kubeconfig) = through_proxy(&site.cluster, site.path(), LIMIT);
    let text = site.setting.text(&site.state_dir);
    let changed = text.replace(&site.cluster.kubeconfig, &kubeconfig.display().to_string());
    assert_ne!(text, changed);
    site.write_config(&changed);
    let mut runner = site.runner();
    runner.patience = SILENCE * 2;
    let script = [format!("sleep {}", SILENCE.as_secs()), "exit 7".to_owned()];
    let result = runner.run(&Job::new(1).script(script));
    result.expect_outcome(&Outcome::ScriptFailure { exit_code: 7 });
    assert!(result.call("build_script").took().expect("it ended") >= SILENCE);
    eprintln!("the proxy cut {} idle connections meanwhile", proxy.cuts());
    site.run(&Job::new(2)).expect_outcome(&Outcome::Success);
    site.expect_nothing_left(1);
}
