//! Kind: a host name has several addresses, and not all of them work.
//!
//! Each test runs once more in a network namespace with an interface into which packets vanish, and no other route.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on says where")]

use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use greenroom_core::endpoint::Endpoint;
use greenroom_ports::connector::{ConnectError, Connector as _};
use greenroom_testkit::skipped::skipped;

use crate::linked::jump::behind;
use crate::linked::sshd::Sshd;

/// The variable that is set in the namespace: the directory in which `getent` is.
const INSIDE: &str = "GREENROOM_TEST_ADDRESSES";
/// Packets to it vanish.
const DROPS: &str = "192.0.2.9";
/// An address at which nothing listens.
const REFUSES: &str = "127.0.0.2";
/// No route leads there.
const NO_ROUTE: &str = "203.0.113.1";
const NO_IPV6: &str = "2001:db8::1";
const OWN: &str = "127.0.0.1";

const NETWORK: &str = "ip link set lo up && ip link add gone type veth peer name away && \
                       ip addr add 192.0.2.1/24 dev gone && ip link set gone up && ip link set away up && \
                       ip neigh add 192.0.2.9 lladdr 02:00:00:00:00:09 dev gone && exec \"$@\"";

/// Runs the calling test in a namespace; true there.
fn inside(test: &str) -> bool {
    if std::env::var_os(INSIDE).is_some() {
        return true;
    }
    let mut namespace = Command::new("unshare");
    namespace.args(["--net", "sh", "-c", NETWORK, "sh"]);
    let quiet = |command: &mut Command| {
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).status()
    };
    if !quiet(namespace.arg("true")).is_ok_and(|status| status.success()) {
        skipped("network namespaces cannot be made (`unshare --net`)");
        return false;
    }
    let dir = tempfile::tempdir().unwrap();
    // In the place of the program that looks up names: the order of the addresses is the test's.
    let getent = dir.path().join("getent");
    std::fs::write(&getent, "#!/bin/sh\ncat \"${0%/*}/$3\"\n").unwrap();
    std::fs::set_permissions(&getent, std::fs::Permissions::from_mode(0o755)).unwrap();
    let path = format!("{}:{}", dir.path().display(), std::env::var("PATH").unwrap());
    let name = format!("{}::{test}", module_path!().split_once("::").unwrap().1);
    let mut again = Command::new("unshare");
    again.args(["--net", "sh", "-c", NETWORK, "sh"]).arg(std::env::current_exe().unwrap());
    again.args([name.as_str(), "--exact", "--nocapture", "--test-threads=1"]);
    let output = again.env(INSIDE, dir.path()).env("PATH", path).stdin(Stdio::null()).output().unwrap();
    let said = [output.stdout, output.stderr].concat();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&said));
    false
}

/// Gives a name these addresses.
fn name(name: &str, addresses: &[&str]) {
    let lines: Vec<String> = addresses.iter().map(|address| format!("{address} STREAM {name}\n")).collect();
    std::fs::write(Path::new(&std::env::var(INSIDE).unwrap()).join(name), lines.concat()).unwrap();
}

/// The error of a host with these addresses.
async fn error(sshd: &Sshd, addresses: &[&str], within: Duration) -> ConnectError {
    name("broken.test", addresses);
    let at = Endpoint { address: "broken.test".to_owned(), ..sshd.at.clone() };
    sshd.ssh.check(&sshd.id, &at, within).await.unwrap_err()
}

/// The first address of a build host is that of a network that is gone; `ssh` takes the second one after a while.
#[tokio::test]
async fn an_address_that_drops_packets_does_not_hide_one_that_works() {
    if !inside("an_address_that_drops_packets_does_not_hide_one_that_works") {
        return;
    }
    let (sshd, jump) = (Sshd::start().await, Sshd::start().await);
    for addresses in
        [&[DROPS, OWN][..], &[NO_IPV6, OWN], &[REFUSES, OWN], &[NO_ROUTE, DROPS, REFUSES, OWN], &[OWN, DROPS]]
    {
        name("host.test", addresses);
        let at = Endpoint { address: "host.test".to_owned(), ..sshd.at.clone() };
        let begun = Instant::now();
        sshd.ssh.check(&sshd.id, &at, Duration::from_secs(10)).await.unwrap();
        // The kernel gives up an address after two minutes.
        assert!(begun.elapsed() < Duration::from_secs(9), "{addresses:?}: {:?}", begun.elapsed());
    }
    name("jump.test", &[DROPS, OWN]);
    let mut at = behind(&jump, &sshd);
    at.jump.as_mut().unwrap().address = "jump.test".to_owned();
    sshd.ssh.check(&sshd.id, &at, Duration::from_secs(10)).await.unwrap();
}

/// The first address refuses and the last one has no route: the host is down, and the runner host is well.
#[tokio::test]
async fn the_runner_host_is_blamed_only_if_each_error_is_its_own() {
    if !inside("the_runner_host_is_blamed_only_if_each_error_is_its_own") {
        return;
    }
    let sshd = Sshd::start().await;
    let within = Duration::from_secs(5);
    for (addresses, own) in [
        (&[REFUSES, NO_ROUTE][..], false),
        (&[NO_ROUTE, REFUSES], false),
        (&[NO_IPV6, REFUSES], false),
        (&[NO_IPV6], true),
        (&[NO_ROUTE, NO_IPV6], true),
    ] {
        let error = error(&sshd, addresses, within).await;
        assert_eq!(matches!(error, ConnectError::HostFault { .. }), own, "{addresses:?}: {error}");
        let each = if addresses.len() == 1 { 0 } else { addresses.len() };
        let named =
            addresses.iter().filter(|address| error.to_string().contains(&format!("{address}: "))).count();
        assert_eq!(named, each, "{error}");
    }
    let late = error(&sshd, &[DROPS, REFUSES], Duration::from_secs(1)).await;
    let ConnectError::TimedOut { at, .. } = &late else { panic!("{late:?}") };
    let end = format!("({DROPS}: no answer; {REFUSES}: connection refused)");
    assert!(at.ends_with(&end), "{late}");
}
