//! Tests of what the script may say, and of what its reports mean.

use std::io::Write as _;
use std::process::{Command, Stdio};
use std::time::Duration;

use greenroom_core::container::engine::ContainerEngine;
use greenroom_core::container::name::ContainerName;
use greenroom_core::container::report::ImageFacts;
use greenroom_core::container::settings::{EngineOptions, PullPolicy, Umask};
use greenroom_core::container::spec::{ContainerJob, ContainerSpec, Login, ServiceSpec};
use greenroom_core::text::Secret;
use greenroom_core::time::{BootId, ManagerId, Stamp};
use greenroom_core::unbegun::CheckKind;
use greenroom_ports::connector::{Output as _, StageEnd, Stream};

use super::progress::{ContainerProgress, Watcher};
use super::script::{JobNetwork, script};
use super::{ContainerError, options};

/// Debian's `sh` is dash.
const SHELLS: [&[&str]; 3] = [&["sh"], &["bash", "--posix"], &["busybox", "ash"]];

const HOSTILE: &str = "it's $(touch /x) `id` \"q\"\nnext\\";

fn spec(image: &str) -> ContainerSpec {
    ContainerSpec {
        called: image.to_owned(),
        image: format!("h:1/{image}"),
        policies: vec![PullPolicy::Always, PullPolicy::IfNotPresent],
        login: Some(Login {
            scope: "h:1".to_owned(),
            username: "joe".to_owned(),
            password: Secret::new(HOSTILE.to_owned()),
            source: "DOCKER_AUTH_CONFIG",
        }),
        login_withheld: false,
        platform: Some("linux/amd64".to_owned()),
        user: Some("a b".to_owned()),
        entrypoint: Some(vec!["/e'".to_owned()]),
        command: Some(vec![HOSTILE.to_owned()]),
        environment: vec![("A".into(), Secret::new(HOSTILE.into()))],
        privileged: true,
    }
}

fn job() -> ContainerJob {
    let options = EngineOptions {
        shm_size: Some(1 << 20),
        extra_hosts: vec!["a:1.2.3.4".to_owned()],
        gpus: Some("device=0,1".to_owned()),
        ulimit: [("nofile".to_owned(), "1:2".to_owned())].into(),
        tmpfs: [("/t".to_owned(), String::new())].into(),
        cpus: Some(1.5),
        ..EngineOptions::default()
    };
    ContainerJob {
        engine: ContainerEngine::Podman,
        job: spec("bb"),
        services: vec![ServiceSpec {
            container: spec("db"),
            names: vec!["db".to_owned(), "g__db".to_owned()],
            probe: Some(5432),
        }],
        remarks: Vec::new(),
        umask: Umask::Auto,
        options,
        volumes: vec!["/certs/client".to_owned(), "/a b:/c:ro".to_owned()],
        mirrors: vec![("docker.io".to_owned(), "https://m:5000/".to_owned())],
        ca: Some(HOSTILE.to_owned()),
        wait_for_services: None,
        pull_timeout: Duration::from_mins(1),
        min_free_space: 0,
        init: true,
        debug_services: false,
    }
}

fn with(engine: ContainerEngine) -> ContainerJob {
    ContainerJob { engine, ..job() }
}

#[test]
fn every_shell_reads_the_whole_script() {
    for (shell, engine) in
        SHELLS.into_iter().flat_map(|shell| ContainerEngine::ALL.map(|engine| (shell, engine)))
    {
        let text = script(
            &ContainerName::parse("greenroom-a1").unwrap(),
            &with(engine),
            &["/b 'x"],
            JobNetwork::Own,
        );
        let mut reader = Command::new(shell[0]);
        reader.args(&shell[1..]).arg("-n").stdin(Stdio::piped()).stderr(Stdio::piped());
        let Ok(mut reader) = reader.spawn() else { continue };
        reader.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
        let ended = reader.wait_with_output().unwrap();
        assert!(ended.status.success(), "{shell:?}: {}", String::from_utf8_lossy(&ended.stderr));
    }
}

/// The input that a played engine gets to create a service: its arguments and a variable.
fn created(job: &ContainerJob) -> String {
    let text =
        script(&ContainerName::parse("greenroom-a1").unwrap(), job, &["/b 'x"], JobNetwork::of(job, 1));
    let functions = text.split("# Prepares the containers").next().unwrap();
    let play = "net=10.89.0 work=/dev/null/x shared=/run/greenroom init= resolvers='--dns 192.0.2.53' \n\
                export PATH=\"$PLAYED:$PATH\"\n(create 1 2>/dev/null)\n";
    let dir = tempfile::tempdir().unwrap();
    let engine = dir.path().join(job.engine.program());
    std::fs::write(&engine, "#!/bin/sh\nprintf '<%s>' \"$@\"; printf '[%s]' \"$A\"\n").unwrap();
    std::fs::set_permissions(&engine, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let ended = Command::new("sh")
        .args(["-c", &format!("{functions}{play}")])
        .env("PLAYED", dir.path())
        .output()
        .unwrap();
    String::from_utf8(ended.stdout).unwrap()
}

#[test]
fn what_a_job_names_reaches_docker_unchanged() {
    let mut job = with(ContainerEngine::Docker);
    job.services[0].container.entrypoint = Some(vec!["/e'".to_owned(), "b c".to_owned()]);
    let output = created(&job);
    for part in [
        "<create><--name><greenroom-a1-1><--cidfile></run/greenroom/greenroom-a1-1.id><--pull><never>",
        "<--log-driver><json-file><--log-opt><max-size=10m>",
        "<--network><greenroom-a1><--ip><10.89.0.3><--add-host><build:10.89.0.2><--add-host><db:10.89.0.3>",
        "<--entrypoint></e'><--user><a b>",
        "<--gpus><\"device=0,1\"><--ulimit><nofile=1:2><--tmpfs></t>",
        "<--privileged><--init><--volume></b 'x:/b 'x>",
        &format!("<b c><{HOSTILE}>[{HOSTILE}]"),
    ] {
        assert!(output.contains(part), "{part}\n{output}");
    }
}

#[test]
fn docker_gets_the_registrys_credentials_the_mirrors_name_and_the_certificates() {
    let mut job = with(ContainerEngine::Docker);
    job.ca = Some("PEM".to_owned());
    job.job.image = "docker.io/library/bb:1".to_owned();
    let text = script(&ContainerName::parse("greenroom-a1").unwrap(), &job, &[], JobNetwork::of(&job, 1));
    for part in [
        "printf %s '{\"auths\":{\"https://index.docker.io/v1/\":",
        "printf %s '{\"auths\":{\"h:1\":",
        "\n0) echo 'm:5000/library/bb:1' ;;\n*) ;;\n",
        "mkdir -p /etc/docker/certs.d/'h:1' && printf %s 'PEM' >/etc/docker/certs.d/'h:1'/greenroom.crt",
        "mkdir -p /etc/docker/certs.d/'m:5000' && printf %s 'PEM' >/etc/docker/certs.d/'m:5000'/greenroom.crt",
    ] {
        assert!(text.contains(part), "{part}\n{text}");
    }
    assert!(!text.contains("podman"), "{text}");
}

#[test]
fn what_a_job_names_reaches_the_engine_unchanged_and_no_secret_is_an_argument() {
    let output = created(&job());
    for part in [
        "<--pids-limit=-1><--dns><192.0.2.53><--sysctl><net.ipv4.ip_unprivileged_port_start=0>",
        "<--sysctl><net.ipv4.ping_group_range=0 2147483647><--network><greenroom-a1><--ip><10.89.0.3><--add-host><build:10.89.0.2>",
        "<--add-host><build:10.89.0.2><--add-host><db:10.89.0.3>",
        "<--entrypoint><[\"/e'\"]><--user><a b><--shm-size><1048576b><--cpus><1.5><--add-host><a:1.2.3.4>",
        "<--device><nvidia.com/gpu=0><--device><nvidia.com/gpu=1><--ulimit><nofile=1:2><--tmpfs></t>",
        "<--privileged><--init><--volume></b 'x:/b 'x><--volume><greenroom-a1-volume-0:/certs/client>",
        "<--volume></a b:/c:ro><--env><A>",
        &format!("<{HOSTILE}>[{HOSTILE}]"),
    ] {
        assert!(output.contains(part), "{part}\n{output}");
    }
}

/// The lines of the script that concern a Docker daemon among the services.
fn docker(image: &str, change: impl FnOnce(&mut ContainerJob)) -> Vec<String> {
    let mut job = job();
    job.ca = Some("PEM".to_owned());
    job.services[0].container = ContainerSpec { command: None, ..spec(image) };
    change(&mut job);
    let text = script(&ContainerName::parse("greenroom-a1").unwrap(), &job, &[], JobNetwork::of(&job, 1));
    let lines = text.lines().filter(|line| line.contains("a1-1.docker\""));
    lines
        .map(|line| line.trim().trim_end_matches(" \\").replace("\"$shared/greenroom-a1-1.docker\"", "DIR"))
        .collect()
}

#[test]
fn a_docker_daemon_gets_mirrors_and_certificates_of_the_pool() {
    let certificates = [
        "mkdir -p DIR",
        "mkdir -p DIR/certs.d/'h:1' && printf %s 'PEM' >DIR/certs.d/'h:1'/ca.crt",
        "mkdir -p DIR/certs.d/'m:5000' && printf %s 'PEM' >DIR/certs.d/'m:5000'/ca.crt",
        "--volume DIR/certs.d:/etc/docker/certs.d:ro",
    ];
    let settings = [
        "printf %s '{\"registry-mirrors\":[\"https://m:5000\"]'\"${inner:+,\\\"mtu\\\":$inner}}\" >DIR/daemon.json",
        "--volume DIR/daemon.json:/etc/docker/daemon.json:ro",
    ];
    let [dir, own, mirror, mounted] = certificates;
    let all = vec![dir, settings[0], own, mirror, settings[1], mounted];
    assert_eq!(docker("docker:dind", |_| ()), all);
    let arguments = |words: &[&str]| Some(words.iter().map(|word| (*word).to_owned()).collect());
    let both = arguments(&["--registry-mirror=https://x", "--mtu=1300"]);
    assert_eq!(docker("docker:dind", |job| job.services[0].container.command = both), certificates);
    assert_eq!(docker("docker:dind", |job| job.ca = None), [dir, settings[0], settings[1]]);
    let own_files = "/srv/docker:/etc/docker".to_owned();
    assert!(docker("docker:dind", |job| job.volumes.push(own_files)).is_empty());
    assert!(docker("postgres:16", |_| ()).is_empty());
}

#[test]
fn a_variable_that_shell_or_engine_would_take_goes_by_a_file() {
    use super::options::Carrier::{Environment, File, Nothing};
    let long = "x".repeat(100 << 10);
    let longer = "x".repeat(128 << 10);
    for (key, value, podman, docker) in [
        ("A", "x\ny", Environment, Environment),
        ("A", long.as_str(), Environment, Environment),
        ("A", longer.as_str(), Nothing, Nothing),
        ("PATH", "/bin", File, File),
        ("PATH", "/bin\n", Nothing, Nothing),
        ("PATH", long.as_str(), Nothing, Nothing),
        ("LD_PRELOAD", "x", File, File),
        ("CONTAINERS_CONF", "x", File, File),
        ("CONTAINERS_CONF", "x\n", Nothing, Environment),
        ("CONTAINER_SETTINGS", "x", File, File),
        ("CONTAINER_SETTINGS", "x\n", Environment, Environment),
        ("PODMAN_NOTES", "x\n", Nothing, Environment),
        ("STORAGE_RULES", "x\n", Environment, Environment),
        ("STORAGE_OPTS", "x\n", Nothing, Environment),
        ("XDG_MENU", "x\n", Environment, Environment),
        ("XDG_CONFIG_HOME", "x\n", Nothing, Environment),
        ("LC_TEXTS", "x\n", Environment, Environment),
        ("LC_ALL", "x\n", Nothing, Nothing),
        ("BASH_SNIPPET", "x\n", Environment, Environment),
        ("BASH_ENV", "x", File, File),
        ("BASH_ENV", "x\n", Nothing, Nothing),
        ("DOCKER_AUTH_CONFIG", "{\n}", Environment, Environment),
        ("DOCKER_HOST", "x\n", Environment, Nothing),
        ("discovery.type", "single-node", File, File),
        ("A-B", "x\n", Nothing, Nothing),
        ("1A", "x", File, File),
        ("a b", "x", Nothing, Nothing),
        ("", "x", Nothing, Nothing),
        ("A", "\0", Nothing, Nothing),
    ] {
        let of = |engine| options::carrier(engine, key, value);
        let all = (of(ContainerEngine::Podman), of(ContainerEngine::Docker));
        assert_eq!(all, (podman, docker), "{key}");
    }
}

#[test]
fn each_variable_that_a_container_does_not_get_is_named() {
    let mut job = job();
    assert!(options::lost(&job).is_empty());
    let variable = |key: &str| (key.into(), Secret::new("hunter2\n".into()));
    job.services[0].container.environment = ["my-config", "FINE", "BASH_ENV"].map(variable).into();
    let lost = options::lost(&job);
    let said = "service `db` does not get `my-config`, `BASH_ENV`: Podman takes no line breaks";
    assert!(lost.len() == 1 && lost[0].starts_with(said) && !lost[0].contains("hunter2"), "{lost:?}");
}

#[test]
fn the_user_decides_the_umask_and_the_entrypoint_whether_it_starts_ahead() {
    let facts = |user: &str, entrypoint: &[&str]| ImageFacts {
        bytes: 0,
        user: Some(user.to_owned()),
        entrypoint: Some(entrypoint.iter().map(|word| (*word).to_owned()).collect()),
        digest: None,
    };
    for (user, chosen, root) in [
        ("", None, true),
        ("0:5", None, true),
        ("app", None, false),
        ("app", Some("root"), true),
        ("", Some("5"), false),
    ] {
        assert_eq!(facts(user, &[]).runs_as_root(chosen), root, "{user} {chosen:?}");
    }
    assert!(facts("", &[]).starts_a_shell(None) && ImageFacts::default().starts_a_shell(None));
    assert!(!facts("", &["/e"]).starts_a_shell(None));
    assert!(facts("", &["/e"]).starts_a_shell(Some(&[String::new()])));
    assert!(!facts("", &[]).starts_a_shell(Some(&["/e".to_owned()])));
}

/// The outcome of these lines, and what was told meanwhile.
fn outcome(
    lines: &str,
    errors: &str,
    status: u32,
) -> (Result<ImageFacts, ContainerError>, Vec<ContainerProgress>) {
    outcome_of(&job(), lines, errors, status)
}

fn outcome_of(
    job: &ContainerJob,
    lines: &str,
    errors: &str,
    status: u32,
) -> (Result<ImageFacts, ContainerError>, Vec<ContainerProgress>) {
    let mut told = Vec::new();
    let now = || Stamp { wall_ms: 0, manager: ManagerId(1), boot: BootId(1), uptime_ms: 0 };
    let mut tell = |event| told.push(event);
    let mut watcher = Watcher::new(job, &now, &mut tell);
    for (stream, text) in [(Stream::Stdout, lines), (Stream::Stderr, errors)] {
        let written = futures_util::FutureExt::now_or_never(watcher.write(stream, text.as_bytes()));
        written.unwrap().unwrap();
    }
    let result = watcher.outcome(&StageEnd::Exited(status));
    (result.map(|(facts, _)| facts), told)
}

#[test]
fn the_worst_failure_decides_whom_it_concerns() {
    let error = |lines: &str| outcome(lines, "", 1).0.unwrap_err();
    let refused = "failed 0 always 3 dial tcp: connection refused\n";
    let missing = "failed 1 always 1 manifest unknown\n";
    let full = "failed 1 always 1 write /x: no space left on device\n";
    assert!(
        matches!(error(refused), ContainerError::Unreached(why) if why.contains("cannot reach registry `h:1`"))
    );
    assert!(
        matches!(error(&[refused, missing].concat()), ContainerError::Impossible(why) if why.contains("`db`"))
    );
    assert!(matches!(error(&[refused, full].concat()), ContainerError::Unreached(_)));
    let sees = |lines: &str, sentence: &str| match error(lines) {
        ContainerError::Doubtful { kind, message } => {
            assert_eq!(message, format!("the instance cannot {sentence}"));
            kind
        }
        other => panic!("{other:?}"),
    };
    let unsound = "unsound host the disk is full: 3 MiB free in /v\n";
    let measured = "run containers: the disk is full: 3 MiB free in /v";
    for before in ["", full, missing, "unstarted 1 Error: no such program\n"] {
        assert_eq!(sees(&[before, unsound].concat(), measured), CheckKind::Engine, "{before}");
    }
    assert!(
        matches!(error(&[refused, "late\n"].concat()), ContainerError::Unreached(why) if why.contains("pull_timeout"))
    );
    let absent = "failed 0 never 1 absent\n";
    assert!(
        matches!(error(&[refused, absent].concat()), ContainerError::Unreached(_)),
        "the registry explains more"
    );
    assert!(
        matches!(error("foreign 0 arm64 amd64\n"), ContainerError::Impossible(why) if why.contains("is for arm64"))
    );
    assert!(matches!(error("broken create Error: invalid container path\n"), ContainerError::Unavailable(_)));
    let network = "connect containers by a network: no iptables";
    assert_eq!(sees("broken network no iptables\n", network), CheckKind::Network);
    assert_eq!(sees("broken engine no memory\n", "run containers: no memory"), CheckKind::Engine);
    let quoted = "broken create Error: database overlay netavark: no space left on device\n";
    assert!(matches!(error(quoted), ContainerError::Unavailable(_)), "a text convicts nobody");
}

/// The progress that the job log shows of these lines, each of which comes at its second.
fn shown(lines: &[(u64, &str)]) -> Vec<ContainerProgress> {
    let job = job();
    let mut told = Vec::new();
    let second = std::cell::Cell::new(0);
    let now = || Stamp { wall_ms: 0, manager: ManagerId(1), boot: BootId(1), uptime_ms: second.get() * 1000 };
    let mut tell = |event| told.push(event);
    let mut watcher = Watcher::new(&job, &now, &mut tell);
    for (at, line) in lines {
        second.set(*at);
        let line = format!("{line}\n");
        let written = futures_util::FutureExt::now_or_never(watcher.write(Stream::Stdout, line.as_bytes()));
        written.unwrap().unwrap();
    }
    told
}

#[test]
fn a_pull_that_goes_on_is_shown_every_ten_seconds_with_or_without_data() {
    let mut lines = vec![(0, "pulling 0 always 1"), (0, "pulling 1 always 1"), (0, "image 1 [1,\"\",null]")];
    lines.extend((1..25).map(|second| (second, "")));
    lines.push((25, "bytes 0 2048"));
    lines.extend((26..=30).map(|second| (second, "")));
    lines.push((31, "failed 0 always 1 toomanyrequests"));
    lines.extend((32..50).map(|second| (second, "")));
    let received: Vec<_> = shown(&lines)
        .into_iter()
        .filter_map(|event| match event {
            ContainerProgress::Received { image, bytes, after } => Some((image, bytes, after.as_secs())),
            _ => None,
        })
        .collect();
    let of = |bytes, after| ("bb".to_owned(), bytes, after);
    assert_eq!(received, [of(None, 10), of(None, 20), of(Some(2 << 20), 30)]);
}

#[test]
fn a_guest_that_reports_without_end_fills_no_memory() {
    let job = job();
    let mut told = 0_usize;
    let now = || Stamp { wall_ms: 0, manager: ManagerId(1), boot: BootId(1), uptime_ms: 0 };
    let mut tell = |_| told += 1;
    let mut watcher = Watcher::new(&job, &now, &mut tell);
    for round in 0..200 {
        let lines: Vec<String> = (0..50)
            .map(|line| {
                let number = 2 + 50 * round + line;
                format!("removed 1 a{number}\npulling {number} always 1\nstarted {number}\nimage {number} [1,\"\",null]\n")
            })
            .collect();
        let lines = lines.concat();
        let written = futures_util::FutureExt::now_or_never(watcher.write(Stream::Stdout, lines.as_bytes()));
        written.unwrap().unwrap();
    }
    assert!(watcher.held() <= 200, "{}", watcher.held());
    assert_eq!((watcher.seen().removed.len(), watcher.seen().found.len()), (200, 0));
    drop(watcher);
    assert_eq!(told, 200);
}

/// A job whose service has the job's image, perhaps with a change.
fn same_image(change: impl FnOnce(&mut ContainerSpec)) -> ContainerJob {
    let mut job = job();
    job.services[0].container = spec("bb");
    change(&mut job.services[0].container);
    job
}

#[test]
fn containers_that_want_an_image_in_the_same_way_share_its_pull() {
    let pulls = |job: &ContainerJob| {
        let text = script(&ContainerName::parse("greenroom-a1").unwrap(), job, &[], JobNetwork::of(job, 1));
        let lines = text.lines().filter_map(|line| line.strip_prefix("pull '")?.split_once('\''));
        lines.map(|(numbers, _)| numbers.to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(pulls(&job()), ["0", "1"]);
    assert_eq!(pulls(&same_image(|_| ())), ["0 1"]);
    assert_eq!(pulls(&same_image(|service| service.platform = None)), ["0", "1"]);
    assert_eq!(pulls(&same_image(|service| service.login = None)), ["0", "1"]);
    assert_eq!(pulls(&same_image(|service| service.policies = vec![PullPolicy::Always])), ["0", "1"]);
}

#[test]
fn a_shared_pull_is_told_once_for_each_name_of_the_image() {
    let lines = "pulling 0 always 1\nimage 0 [1,\"\",null]\nimage 1 [1,\"\",null]\ndone\n";
    let told = |job: &ContainerJob| {
        let names = outcome_of(job, lines, "", 0).1.into_iter().map(|event| match event {
            ContainerProgress::Pulling { image, .. } => format!("pulling {image}"),
            ContainerProgress::Pulled { image, .. } => image,
            other => format!("{other:?}"),
        });
        names.collect::<Vec<_>>().join(", ")
    };
    assert_eq!(told(&same_image(|_| ())), "pulling bb, bb");
    assert_eq!(told(&same_image(|service| service.called = "h:1/bb".to_owned())), "pulling bb, bb, h:1/bb");
}

#[test]
fn what_a_script_saw_of_images_is_told_whatever_becomes_of_the_job() {
    let mut job = same_image(|_| ());
    job.job.platform = None;
    let digest = format!("sha256:{}", "0a".repeat(32));
    let image = format!("removed 9 h:1/old\nimage 0 [7,\"\",null,\"{digest}\"]\nimage 1 [7,\"\",null]\n");
    let now = || Stamp { wall_ms: 0, manager: ManagerId(1), boot: BootId(1), uptime_ms: 0 };
    let mut tell = |_| ();
    let mut watcher = Watcher::new(&job, &now, &mut tell);
    let text = format!("{image}broken network no iptables\n");
    let written = futures_util::FutureExt::now_or_never(watcher.write(Stream::Stdout, text.as_bytes()));
    written.unwrap().unwrap();
    let seen = watcher.seen();
    // The service's is for a platform that it names.
    let found: Vec<_> =
        seen.found.iter().map(|found| (&*found.name, found.digest.as_deref(), found.bytes)).collect();
    assert_eq!(found, [("h:1/bb", Some(digest.as_str()), 7)]);
    assert_eq!(seen.removed, ["h:1/old".into()]);
}

#[test]
fn an_image_that_cannot_be_described_is_the_jobs_fault() {
    // An exposed port with a line break in its name comes between.
    let (result, _) = outcome("image 0 /tcp\ndone\n", "", 0);
    assert!(
        matches!(&result, Err(ContainerError::Impossible(why)) if why.contains("image `bb` describes itself")),
        "{result:?}"
    );
}

#[test]
fn a_script_that_says_nothing_has_the_instance_checked() {
    let (result, told) = outcome("image 0 [1,\"\",null]\n", "sudo: a password is required\n", 1);
    assert_eq!(
        result.unwrap_err().to_string(),
        "the instance could not prepare the job's containers: the script ended with exit status 1 (sudo: a password is \
         required)"
    );
    assert_eq!(told, [ContainerProgress::Present { image: "bb".to_owned(), digest: None }]);
}

#[test]
fn a_service_that_cannot_start_is_told_whatever_its_error_quotes() {
    let image = "image 0 [1,\"\",null]\nimage 1 [1,\"\",null]\n";
    let (result, told) = outcome(&format!("{image}unstarted 1 Error: no such program\ndone\n"), "", 0);
    assert!(
        result.is_ok() && matches!(told.last(), Some(ContainerProgress::ServiceUnstarted { .. })),
        "{told:?}"
    );
    let quotes =
        "crun: executable file `/opt/database` not found in $PATH: netavark: no space left on device";
    let (result, _) = outcome(&format!("{image}unstarted 1 Error: {quotes}\ndone\n"), "", 0);
    assert!(result.is_ok(), "{result:?}");
    let unsound = "unsound network `podman network create` failed: no iptables\n";
    let (result, _) = outcome(&format!("{image}unstarted 1 Error: netavark: No such file\n{unsound}"), "", 1);
    assert!(matches!(result, Err(ContainerError::Doubtful { kind: CheckKind::Network, .. })), "{result:?}");
}
