//! `network = "internet"`, tried from within a guest, in a network of the test's own.
//!
//! The network is two namespaces with a cable between them. One is the runner host. The other one has the addresses of
//! an internet (from the ranges for documentation), of a private network, of a metadata service and of a name server.

#![cfg(test)]

use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::unix::process::CommandExt as _;
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use greenroom::provider::find;
use greenroom_harness::here::kill;
use greenroom_harness::provider::{gone, leave_nothing, until};
use greenroom_testkit::skipped::skipped;
use rustix::process::Signal;

use crate::fixture::{Guest, VmFixture};
use crate::images::{folder, turn};
use crate::isolation::status;

/// The variable that is set for the test that runs inside.
const INSIDE: &str = "GREENROOM_TEST_INTERNET";

/// Makes the network, and runs the arguments on its runner host.
const NETWORK: &str = r#"
set -e
mount --make-rprivate /
mount -t tmpfs none /run
resolv=$(readlink -m /etc/resolv.conf)
mkdir -p "$(dirname "$resolv")"
[ -e "$resolv" ] || : > "$resolv"
echo "nameserver 10.66.0.53" > /run/name-server
mount --bind /run/name-server "$resolv"
ip netns add far
ip link set lo up
ip link add near type veth peer name far netns far
ip address add 198.51.100.2/24 dev near
ip address add 2001:db8::2/64 dev near nodad
ip link set near up
ip -n far link set lo up
ip -n far address add 198.51.100.1/24 dev far
ip -n far address add 2001:db8::1/64 dev far nodad
ip -n far link set far up
for address in 203.0.113.1 10.66.0.1 10.66.0.5 10.66.0.6 10.66.0.9 10.66.0.53 10.77.0.1 100.64.0.1 192.168.7.1 \
    169.254.169.254; do
    ip -n far address add "$address/32" dev lo
done
ip route add default via 198.51.100.1
exec "$@"
"#;

fn succeeds(program: &str, arguments: &[&str]) -> bool {
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}

#[test]
fn a_guest_reaches_the_internet_and_nothing_near() {
    if !rustix::process::geteuid().is_root() {
        return skipped("this is not root");
    }
    let namespaces = ["--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"];
    if !succeeds("unshare", &[&namespaces[..], &["ip", "netns", "list"]].concat()) {
        return skipped(
            "network namespaces cannot be made (`unshare --net --mount --pid --fork ip netns list`)",
        );
    }
    if let Some(why) = greenroom_testkit::skipped::nft_obstacle() {
        return skipped(why);
    }
    // The image is built with the network of this machine.
    folder();
    let _turn = turn();
    let mut command = Command::new("unshare");
    command.args(namespaces).args(["sh", "-c", NETWORK, "sh"]).arg(std::env::current_exe().unwrap());
    command.args(["--exact", "internet::inside", "--nocapture"]).env(INSIDE, "1").stdin(Stdio::null());
    let output = command.output().unwrap();
    let printed = [output.stdout, output.stderr].concat();
    let printed = String::from_utf8_lossy(&printed);
    assert!(output.status.success() && printed.contains("1 passed"), "{}: {printed}", output.status);
}

/// Starts a server on each of two ports of all addresses; it says which address was reached.
fn serve() -> [u16; 2] {
    [0, 0].map(|port| serve_at(SocketAddr::new(IpAddr::V6(std::net::Ipv6Addr::UNSPECIFIED), port)))
}

fn serve_at(address: SocketAddr) -> u16 {
    let listener = TcpListener::bind(address).unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let own = stream.local_addr().unwrap().ip().to_canonical();
            drop(stream.write_all(format!("{own}\n").as_bytes()));
            drop(stream.shutdown(std::net::Shutdown::Write));
            drop(stream.read(&mut [0; 64]));
        }
    });
    port
}

/// A name server: `git.corp` is 10.66.0.9, all other names are 203.0.113.1.
fn answer_names() {
    let socket = UdpSocket::bind(("10.66.0.53", 53)).unwrap();
    std::thread::spawn(move || {
        let mut bytes = [0; 512];
        while let Ok((length, peer)) = socket.recv_from(&mut bytes) {
            let query = &bytes[..length];
            // The name ends with an empty label; type and class follow.
            let end = 12 + query[12..].iter().position(|byte| *byte == 0).unwrap() + 5;
            let is_address = query[end - 4..end - 2] == [0, 1];
            let last = if query[12..end].starts_with(b"\x03git\x04corp\0") {
                [10, 66, 0, 9]
            } else {
                [203, 0, 113, 1]
            };
            let mut answer = query[..2].to_vec();
            answer.extend([0x81, 0x80, 0, 1, 0, u8::from(is_address), 0, 0, 0, 0]);
            answer.extend(&query[12..end]);
            if is_address {
                answer.extend([0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 60, 0, 4]);
                answer.extend(last);
            }
            drop(socket.send_to(&answer, peer));
        }
    });
}

/// Starts the servers at the far end of the cable; returns their two ports.
fn serve_far() -> [u16; 2] {
    let (send, ports) = mpsc::channel();
    std::thread::spawn(move || {
        let far = std::fs::File::open("/run/netns/far").unwrap();
        let kind = Some(rustix::thread::LinkNameSpaceType::Network);
        rustix::thread::move_into_link_name_space(std::os::fd::AsFd::as_fd(&far), kind).unwrap();
        answer_names();
        serve_at((Ipv4Addr::UNSPECIFIED, 80).into());
        send.send(serve()).unwrap();
    });
    ports.recv().unwrap()
}

/// The targets that the guest reaches, each as `ADDRESS/PORT`.
fn reached(guest: &Guest<'_>, targets: &[(&str, u16)]) -> Vec<String> {
    let all: Vec<String> = targets.iter().map(shown).collect();
    let reads = "timeout 20 bash -c \"exec 3<>/dev/tcp/$target && cat <&3\" </dev/null >/dev/null 2>&1";
    let script = format!("for target in {}; do {reads}; echo $? $target; done", all.join(" "));
    let ends = guest.says(&script);
    // A job that waits for its own time limit does not learn what is wrong.
    assert!(!ends.contains("124 "), "not refused, but not answered either: {ends}");
    ends.lines().filter_map(|end| end.strip_prefix("0 ")).map(str::to_owned).collect()
}

fn shown((address, port): &(&str, u16)) -> String {
    format!("{address}/{port}")
}

/// True if this process reaches an address.
fn is_reachable(address: &str, port: u16) -> bool {
    let mut text = String::new();
    let address: IpAddr = address.parse().unwrap();
    let stream = TcpStream::connect_timeout(&(address, port).into(), Duration::from_secs(20));
    stream.and_then(|mut stream| stream.read_to_string(&mut text)).is_ok()
        && text.trim() == address.to_string()
}

/// Greenroom's rules, if there are any.
fn rules() -> Option<String> {
    let output = Command::new("nft").args(["list", "table", "inet", "greenroom"]).output().unwrap();
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).into_owned())
}

fn uid(fixture: &VmFixture, guest: &Guest<'_>) -> u32 {
    let qemu = fixture.qemu(&guest.id).unwrap();
    status(qemu, "Uid").split_whitespace().next().unwrap().parse().unwrap()
}

fn codes(fixture: &VmFixture, table: &toml::Table) -> Vec<&'static str> {
    let findings = (find("qemu").unwrap().doctor)(&fixture.context(), table);
    findings.iter().map(|finding| finding.code).collect()
}

#[tokio::test]
async fn inside() {
    if std::env::var_os(INSIDE).is_none() {
        return;
    }
    let ([far, other], [near, _]) = (serve_far(), serve());
    let table = format!(
        "accel = \"tcg\"\nnetwork = \"internet\"\nallow = [\"10.66.0.5\", \"10.66.0.6:{far}\", \"10.77.0.0/16\", \"git.corp:{far}\"]"
    );
    let fixture = VmFixture::with(&table);
    let (provider, guest) = fixture.one("").await;

    let open = [
        ("203.0.113.1", far),
        ("10.66.0.5", far),
        ("10.66.0.6", far),
        ("10.77.0.1", other),
        ("10.66.0.9", far),
    ];
    let closed = [
        ("10.66.0.6", other),
        ("10.66.0.9", other),
        ("10.66.0.1", far),
        ("10.66.0.53", far),
        ("100.64.0.1", far),
        ("192.168.7.1", far),
        ("169.254.169.254", 80),
        ("198.51.100.2", near),
        ("127.0.0.1", near),
        ("2001:db8::1", far),
    ];
    for (address, port) in open.iter().chain(&closed) {
        assert!(is_reachable(address, *port), "{address} {port}: the test judges nothing");
    }
    // The guest's names for this machine's loopback.
    let mut targets = [&open[..], &closed].concat();
    targets.retain(|(address, _)| *address != "127.0.0.1");
    targets.extend([("10.0.2.2", near), ("10.0.2.2", guest.endpoint.port)]);
    assert_eq!(reached(&guest, &targets), open.iter().map(shown).collect::<Vec<_>>());
    assert_eq!(guest.says("getent ahostsv4 www.example.com | head -n 1 | cut -d ' ' -f 1"), "203.0.113.1");
    // No address of IPv6 but those that a kernel makes up by itself, and no router.
    let addresses = guest.says("cut -c 1-4 /proc/net/if_inet6 2>/dev/null | grep -v -e 0000 -e fe80 || true");
    let routes = guest.says("grep '^0\\{32\\} 00 .*eth0' /proc/net/ipv6_route 2>/dev/null || true");
    assert_eq!((addresses.as_str(), routes.as_str()), ("", ""));

    // Only root may hold the guest's SSH port.
    let connect = format!("exec 3<>/dev/tcp/127.0.0.1/{}", guest.endpoint.port);
    let by = |uid: u32| {
        Command::new("bash").args(["-c", &connect]).uid(uid).stderr(Stdio::null()).status().unwrap()
    };
    assert!(by(0).success() && !by(65534).success() && !by(1_900_001_000).success());

    // Rules that another program removes come back.
    assert!(succeeds("nft", &["flush", "ruleset"]));
    until("the rules are back", Duration::from_mins(2), async || rules().map(drop)).await;
    assert_eq!(reached(&guest, &[("10.66.0.1", far), ("203.0.113.1", far)]), [format!("203.0.113.1/{far}")]);

    // Each machine has a user ID of its own, and its own rules.
    let (_, second) = fixture.nth(2, "").await;
    let (one, two) = (uid(&fixture, &guest), uid(&fixture, &second));
    assert!(
        one != two && [one, two].iter().all(|uid| (1_900_000_000..1_900_001_024).contains(uid)),
        "{one} {two}"
    );
    let has = |uid: u32| rules().is_some_and(|rules| rules.contains(&format!("chain vm-{uid} ")));
    assert!(has(one) && has(two), "{:?}", rules());
    let console = std::fs::read_to_string(fixture.instance_dir(&guest.id).join("console.log")).unwrap();
    assert_eq!(console.matches("installing them again").count(), 1, "{console}");
    guest.gone(&*provider).await;
    assert!(!has(one) && has(two), "{:?}", rules());

    // A killed supervisor leaves its rules to the removal of its machine.
    kill(fixture.supervisor(&second.id).unwrap(), Signal::KILL);
    until("QEMU has exited", Duration::from_mins(1), async || {
        fixture.qemu(&second.id).is_none().then_some(())
    })
    .await;
    assert!(has(two), "{:?}", rules());
    gone(&fixture, &*provider, &second.id).await;
    assert_eq!(rules(), None);

    let found = codes(&fixture, &fixture.table(""));
    assert!(!found.iter().any(|code| code.contains("nft") || code.contains("uids")), "{found:?}");
    let mut table = fixture.table("network = \"open\"");
    table.remove("allow");
    let found = codes(&fixture, &table);
    assert!(found.contains(&"qemu-metadata-reachable"), "{found:?}");
    leave_nothing(&fixture).await;
}
