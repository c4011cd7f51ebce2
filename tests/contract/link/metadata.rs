//! Links that listen to the metadata services of their instances, and what that must not cost.

use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::process::{Command, Stdio};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use greenroom_core::endpoint::Endpoint;
use greenroom_core::execution::Shell;
use greenroom_core::metadata::{MetadataAnswers, MetadataService};
use greenroom_ports::connector::{Connector, StageEnd};
use greenroom_ssh::Ssh;
use greenroom_ssh::link::{LinkSettings, Linked};
use greenroom_testkit::metadata_service::{answer, serve};
use greenroom_testkit::skipped::skipped;
use rustix::process::Signal;

use super::{figures, links, only_link, runs, saying, signal};
use crate::linked::sshd::{Set, Sshd};
use crate::linked::support::{Kept, eventually, kill, link_settings, never, stage};

/// The variable that is set for the test that runs in a network of its own.
const INSIDE: &str = "GREENROOM_TEST_METADATA";
const NETWORK: &str = "ip link set lo up && ip address add 169.254.169.254/32 dev lo && exec \"$@\"";
const WITHIN: Duration = Duration::from_secs(30);
const ACTION: &str = r#"{"action": "terminate", "time": "2026-12-01T14:00:00Z"}"#;

/// A guest with a metadata service, and links that know a keeper's mailbox.
pub(super) struct World {
    pub(super) sshd: Sshd,
    pub(super) at: Endpoint,
    pub(super) linked: Rc<Linked>,
    mailbox: UnixDatagram,
}

impl World {
    /// A guest with a metadata service. `service`: host and port; `None`: the address that clouds use.
    pub(super) async fn new(kind: MetadataService, service: Option<&str>, config: &str) -> Self {
        let set_env = service
            .map(|at| format!(" AWS_EC2_METADATA_SERVICE_ENDPOINT=http://{at} GCE_METADATA_HOST={at}"));
        // The server takes only one line of variables.
        let config: &'static str = Box::leak(config.to_owned().into_boxed_str());
        let sshd = Sshd::with_variables(Set { config, ..Set::default() }, &set_env.unwrap_or_default()).await;
        let path = sshd.path("keeper");
        let mailbox = UnixDatagram::bind(&path).unwrap();
        mailbox.set_nonblocking(true).unwrap();
        let settings = LinkSettings { mailbox: Some(path), ..link_settings(sshd.dir.path()) };
        let linked = Rc::new(Linked::new(Ssh::new(sshd.settings.clone()), settings));
        let at = Endpoint { metadata: Some(kind), ..sshd.at.clone() };
        Self { sshd, at, linked, mailbox }
    }

    pub(super) async fn check(&self) {
        self.linked.check(&self.sshd.id, &self.at, WITHIN).await.unwrap();
    }

    async fn run(&self, script: impl AsRef<[u8]>) -> StageEnd {
        let mut kept = Kept::default();
        self.linked
            .run(&self.sshd.id, &self.at, stage(Shell::Bash, script), &mut kept, never())
            .await
            .unwrap()
    }

    async fn answers(&self) -> MetadataAnswers {
        let of = [self.sshd.id.clone()];
        self.linked.metadata(&of).await.remove(&self.sshd.id).unwrap_or_default()
    }

    /// Waits until the links have heard this of a key.
    async fn until_heard(&self, key: &str, expected: &str) {
        let begun = std::time::Instant::now();
        loop {
            let answers = self.answers().await;
            if answers.get(key).map_or("", String::as_str) == expected {
                return;
            }
            assert!(begun.elapsed() < WITHIN, "{answers:?}");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// The script's processes in the guest.
    fn listeners(&self) -> Vec<u32> {
        let home = format!("HOME={}", self.sshd.path("home").display()).into_bytes();
        let entries = std::fs::read_dir("/proc").unwrap().flatten();
        let found = entries.filter_map(|entry| {
            let pid: u32 = entry.file_name().to_str()?.parse().ok()?;
            let read = |name: &str| std::fs::read(entry.path().join(name)).ok();
            let (line, variables) = (read("cmdline")?, read("environ")?);
            let line = String::from_utf8_lossy(&line).into_owned();
            let is_ours = variables.split(|byte| *byte == 0).any(|one| one == home);
            (is_ours && (line.contains("polls=$!") || line.contains("/latest/"))).then_some(pid)
        });
        found.collect()
    }

    pub(super) async fn until_listening(&self) {
        eventually("the script runs", || !self.listeners().is_empty()).await;
    }

    async fn until_none_listens(&self) {
        eventually("the script ends", || self.listeners().is_empty()).await;
    }
}

/// A service that announces what `comes` says, once it is set.
fn announcing(at: &str, comes: &Arc<AtomicBool>) -> String {
    let comes = Arc::clone(comes);
    serve(at, move |_, path, stream| match (path, comes.load(Ordering::SeqCst)) {
        ("/latest/meta-data/spot/instance-action", true) => answer(stream, "200 OK", ACTION),
        ("/computeMetadata/v1/instance/preempted", comes) => {
            answer(stream, "200 OK", if comes { "TRUE" } else { "FALSE" });
        }
        ("/computeMetadata/v1/instance/maintenance-event", _) => answer(stream, "200 OK", "NONE"),
        _ => answer(stream, "404 Not Found", ""),
    })
}

#[test]
fn the_address_of_both_clouds_is_asked() {
    let mut can = Command::new("unshare");
    can.args(["--net", "ip", "link", "set", "lo", "up"]).stderr(Stdio::null());
    if !can.status().is_ok_and(|status| status.success()) {
        return skipped("network namespaces cannot be made (`unshare --net ip link set lo up`)");
    }
    let mut command = Command::new("unshare");
    command.args(["--net", "sh", "-c", NETWORK, "sh"]).arg(std::env::current_exe().unwrap());
    command.args(["--exact", "link::metadata::inside", "--ignored", "--nocapture"]).env(INSIDE, "1");
    let output = command.stdin(Stdio::null()).output().unwrap();
    let printed = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    assert!(output.status.success() && printed.contains("1 passed"), "{printed}");
}

#[tokio::test]
#[ignore = "runs in a network of its own: the_address_of_both_clouds_is_asked"]
async fn inside() {
    if std::env::var_os(INSIDE).is_none() {
        return;
    }
    let comes = Arc::new(AtomicBool::new(false));
    announcing("169.254.169.254:80", &comes);
    let (ec2, gce) = tokio::join!(
        World::new(MetadataService::AwsEc2, None, ""),
        World::new(MetadataService::Gce, None, "")
    );
    tokio::join!(ec2.check(), gce.check());
    gce.until_heard("instance/preempted", "FALSE").await;
    ec2.until_listening().await;
    assert_eq!(ec2.answers().await, MetadataAnswers::new());
    while ec2.mailbox.recv(&mut [0; 16]).is_ok() {}
    // A job uses the connection meanwhile.
    let gate = ec2.sshd.path("gate");
    let script = saying(&ec2.sshd, &format!("until [ -e {} ]; do sleep 0.05; done", gate.display()));
    let hearing = async {
        runs(&ec2.sshd).await;
        comes.store(true, Ordering::SeqCst);
        ec2.until_heard("spot/instance-action", ACTION).await;
        gce.until_heard("instance/preempted", "TRUE").await;
        assert!(figures(&ec2.sshd).await[0].busy);
        std::fs::write(&gate, "").unwrap();
    };
    let (end, ()) = tokio::join!(ec2.run(script), hearing);
    assert_eq!(end, StageEnd::Exited(0));
    assert!(ec2.mailbox.recv(&mut [0; 16]).is_ok(), "the keeper is woken");
    for world in [&ec2, &gce] {
        assert_eq!(links(world.sshd.dir.path()).len(), 1);
        world.linked.discard_keys(&world.sshd.id).await;
        world.until_none_listens().await;
    }
}

#[tokio::test]
async fn the_script_ends_with_its_link_however_that_ends() {
    let service = announcing("127.0.0.1:0", &Arc::new(AtomicBool::new(true)));
    // A service that never answers holds the script up in a request.
    let hanging = serve("127.0.0.1:0", |_, _, _| std::thread::sleep(WITHIN));
    for service in [&service, &hanging] {
        let world = World::new(MetadataService::AwsEc2, Some(service), "").await;
        let ends: [&dyn Fn(u32); 3] = [&|link| signal(link, Signal::TERM), &kill, &|_| world.sshd.cut()];
        for end in ends {
            world.check().await;
            world.until_listening().await;
            end(only_link(&world.sshd));
            eventually("the link ends", || links(world.sshd.dir.path()).is_empty()).await;
            world.until_none_listens().await;
        }
    }
}

#[tokio::test]
async fn a_guest_that_allows_one_session_gives_it_to_the_stages() {
    let service = announcing("127.0.0.1:0", &Arc::new(AtomicBool::new(false)));
    // Without a shell that waits: only the script has a session.
    let world = World::new(MetadataService::Gce, Some(&service), "MaxSessions 1").await;
    world.check().await;
    for _ in 0..2 {
        assert_eq!(world.run("exit 3\n").await, StageEnd::Exited(3));
        tokio::time::sleep(Duration::from_secs(3)).await;
    }
    assert_eq!(world.run("exit 3\n").await, StageEnd::Exited(3));
    assert_eq!(links(world.sshd.dir.path()).len(), 1);
}

#[tokio::test]
async fn a_job_that_forges_and_floods_harms_nothing() {
    let service = announcing("127.0.0.1:0", &Arc::new(AtomicBool::new(false)));
    let world = World::new(MetadataService::Gce, Some(&service), "").await;
    world.check().await;
    world.until_heard("instance/preempted", "FALSE").await;
    let out = format!("/proc/{}/fd/1", world.listeners()[0]);
    assert!(Path::new(&out).exists());
    let forging = format!("printf '1 TRUE\\033[2J\\r\\n' > {out}; sleep 1\n");
    assert_eq!(world.run(forging).await, StageEnd::Exited(0));
    world.until_heard("instance/preempted", "TRUE").await;
    let flooding = format!("timeout 3 yes > {out}; exit 4\n");
    assert_eq!(world.run(flooding).await, StageEnd::Exited(4));
    world.until_none_listens().await;
    assert_eq!(world.run("exit 5\n").await, StageEnd::Exited(5));
    assert_eq!(links(world.sshd.dir.path()).len(), 1);
}

#[tokio::test]
async fn an_instance_without_a_service_is_not_asked() {
    let sshd = Sshd::start().await;
    let linked = Rc::new(Linked::new(Ssh::new(sshd.settings.clone()), link_settings(sshd.dir.path())));
    linked.check(&sshd.id, &sshd.at, WITHIN).await.unwrap();
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert!(linked.metadata(std::slice::from_ref(&sshd.id)).await.is_empty());
    let world = World { at: sshd.at.clone(), mailbox: UnixDatagram::unbound().unwrap(), linked, sshd };
    assert_eq!(world.listeners(), Vec::<u32>::new());
}
