//! Docker in Docker: Debian's Docker as a service, with and without TLS.
//!
//! The image takes minutes to make and to unpack in emulated machines, so this test is for `scripts/test --full`.

use std::process::{Command, Stdio};
use std::time::Duration;

use greenroom_testkit::gitlab_runner::job::Job;
use greenroom_testkit::gitlab_runner::record::{JobResult, Outcome};
use greenroom_testkit::skipped::skipped;
use serde_json::json;
use tempfile::TempDir;

use super::containers::{expect, report};
use super::registry::Registries;
use super::{Machines, machines};
use crate::published::{Image, PLAIN, publish};

const ENTRY: &[(&str, &str)] = &[("entry", include_str!("docker-entry"))];

const DAEMON: Image = Image {
    name: "library/docker:dind",
    tree: &[
        "%docker.io,bash,ca-certificates,coreutils,dash,grep,iptables,openssl,sed",
        "-usr/bin/ctr",
        "-usr/bin/dnet",
        "-usr/bin/docker",
        "-usr/bin/containerd-shim",
        "-usr/bin/containerd-shim-runc-v1",
        "-usr/sbin/ovrouter",
        "-usr/lib/*/perl*",
        "-usr/share",
    ],
    files: ENTRY,
    entrypoint: &["/entry"],
    command: &[],
    port: Some(2376),
    volumes: &["/var/lib/docker"],
    ..PLAIN
};

const CLIENT: Image = Image {
    name: "library/docker:27",
    tree: &[
        "%docker.io,bash,coreutils,dash",
        "-usr/bin/containerd*",
        "-usr/bin/ctr",
        "-usr/bin/dnet",
        "-usr/lib/*/perl*",
        "-usr/sbin",
        "-usr/share",
    ],
    files: ENTRY,
    entrypoint: &["/entry"],
    ..PLAIN
};

fn is_missing(program: &str) -> bool {
    let mut version = Command::new(program);
    version.arg("--version").stdout(Stdio::null()).stderr(Stdio::null());
    !version.status().is_ok_and(|status| status.success())
}

/// A pool of one machine, whose later jobs find the images of the first one there.
struct Yard {
    place: Machines,
    registries: Registries,
    _dir: TempDir,
}

impl Yard {
    /// A yard with an image that has Docker; `None`: something is missing here.
    fn open() -> Option<Self> {
        let missing = is_missing("mmdebstrap").then_some("an image with Docker needs mmdebstrap");
        if let Some(why) = Registries::obstacle().or(missing) {
            skipped(why);
            return None;
        }
        crate::images::containers();
        let dir = tempfile::tempdir().expect("a directory");
        let registries = Registries::serve(dir.path(), &["library/alpine:3.20"]);
        let work = dir.path().join("docker");
        std::fs::create_dir(&work).expect("a folder");
        for image in [&DAEMON, &CLIENT] {
            publish(image, &dir.path().join("registry"), &work);
        }
        std::fs::remove_dir_all(work).expect("it was made here");
        let mut keys = registries.keys();
        // An emulated machine makes the daemon's certificates first.
        keys.insert("wait_for_services".into(), "4m".into());
        // Later jobs have the images of the first one.
        keys.insert("privileged".into(), true.into());
        let setting = machines().provider("image", "containers").provider("network", "open");
        let mut setting = setting.provider("memory", "1G").pool("containers", keys).pool("max_use_count", 20);
        setting = setting.pool("max_instances", 1);
        setting.patience *= 5;
        Some(Self { place: Machines::open(setting), registries, _dir: dir })
    }

    fn run(&self, job: &Job, way: &str, says: &[&str]) -> JobResult {
        let result = self.place.runner().run(job);
        report(way, &result);
        expect(&result, &Outcome::Success, says);
        result
    }
}

/// A job with Docker as a service: with TLS if there is a folder for certificates.
fn with_docker(id: u64, certificates: &str, kit: &str) -> Job {
    let job = Job::new(id).image("docker:27").service(json!({"name": "docker:dind", "alias": "docker"}));
    let job = job.variable("DOCKER_TLS_CERTDIR", certificates).variable("DOCKER_BUILDKIT", kit);
    let job = job.variable("CI_DEBUG_SERVICES", "true");
    job.variable("HEALTHCHECK_TCP_PORT", if certificates.is_empty() { "2375" } else { "2376" })
}

#[test]
#[ignore = "in `scripts/test --full`: makes images of 300 MB"]
fn a_job_builds_and_runs_an_image_with_docker_in_docker() {
    let Some(yard) = Yard::open() else { return };
    // Docker asks the pool's mirror for the base image, and verifies both registries with the pool's certificate.
    let pushed = format!("{}/built:1", yard.registries.open);
    let build = [
        "printf 'FROM alpine:3.20\\nRUN echo made inside >/made\\n' >Dockerfile".to_owned(),
        format!("docker build --quiet --tag {pushed} . >/dev/null"),
        format!("docker run --rm {pushed} cat /made"),
        format!("docker push --quiet {pushed} >/dev/null && echo pushed"),
        "echo \"at $DOCKER_HOST\"".to_owned(),
    ];
    let with_tls = with_docker(1, "/certs", "1").script(&build);
    yard.run(&with_tls, "with TLS, by BuildKit", &["made inside", "pushed", "at tcp://docker:2376"]);
    let without = with_docker(2, "", "0").script(&build);
    yard.run(&without, "without TLS", &["made inside", "pushed", "at tcp://docker:2375"]);
    // The machine may take more jobs, and so stays for `idle_time`.
    yard.place.expect_nothing_left(1);
}

const ROUNDS: u64 = 5;

/// The time of a job's `prepare` without a service, and with Docker as a service until it answers, with TLS and
/// without.
#[test]
#[ignore = "figures, taken by hand on an idle machine"]
fn what_docker_in_docker_costs() {
    let Some(yard) = Yard::open() else { return };
    let ask = ["docker info >/dev/null && echo answers"];
    // The first job waits for the machine and pulls the images.
    yard.run(&with_docker(1, "/certs", "1").script(ask), "the first", &["answers"]);
    for round in 0..ROUNDS {
        let id = 10 * (round + 1);
        let ways = [
            ("no service", Job::new(id).image("docker:27").script(["echo answers"])),
            ("Docker without TLS", with_docker(id + 1, "", "1").script(ask)),
            ("Docker with TLS", with_docker(id + 2, "/certs", "1").script(ask)),
        ];
        for (way, job) in ways {
            let prepared = yard.run(&job, way, &["answers"]).call("prepare").took();
            eprintln!(
                "round {round}: {way}: `prepare` {:.1} s",
                prepared.unwrap_or(Duration::MAX).as_secs_f64()
            );
        }
    }
}
