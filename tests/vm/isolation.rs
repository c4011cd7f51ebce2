//! The parts of the host that a guest cannot reach, and what it could do if it broke out of QEMU.

#![cfg(test)]

use std::io::{Read, Write};
use std::net::TcpListener;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use greenroom_harness::provider::leave_nothing;
use greenroom_testkit::skipped::skipped;

use crate::fixture::{Guest, VmFixture};

/// A server on this machine's loopback; it counts who gets through and says hello.
struct Server {
    port: u16,
    visits: Arc<AtomicU32>,
}

impl Server {
    fn new() -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        let visits = Arc::new(AtomicU32::new(0));
        let counted = Arc::clone(&visits);
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                counted.fetch_add(1, Ordering::SeqCst);
                let mut stream = stream;
                drop(stream.write_all(b"hello from outside\n"));
                drop(stream.shutdown(std::net::Shutdown::Write));
                drop(stream.read(&mut [0; 64]));
            }
        });
        Self { port, visits }
    }

    fn visits(&self) -> u32 {
        self.visits.load(Ordering::SeqCst)
    }
}

/// The bytes that the guest reads from an address within a few seconds.
fn reads(guest: &Guest<'_>, address: &str, port: u16) -> String {
    guest.says(&format!(
        "timeout 8 bash -c 'exec 3<>/dev/tcp/{address}/{port} && cat <&3' 2>/dev/null || true"
    ))
}

/// An address of this machine beside loopback, if it has one.
fn own_address() -> Option<String> {
    let said = Command::new("hostname").arg("-I").output().ok()?;
    let said = String::from_utf8_lossy(&said.stdout).into_owned();
    said.split_whitespace().find(|address| address.contains('.')).map(str::to_owned)
}

#[tokio::test]
async fn an_isolated_guest_reaches_neither_loopback_nor_network_nor_names() {
    let server = Server::new();
    let fixture = VmFixture::new();
    let (_, guest) = fixture.one("").await;
    let mut addresses = vec!["10.0.2.2".to_owned(), "10.0.2.3".to_owned(), "192.0.2.1".to_owned()];
    addresses.extend(own_address());
    for address in addresses {
        assert_eq!(reads(&guest, &address, server.port), "", "{address} is reached");
    }
    assert_eq!(server.visits(), 0);
    let names = guest.run("timeout 8 getent hosts example.com");
    assert!(!names.status.success(), "names are answered");
    leave_nothing(&fixture).await;
}

#[tokio::test]
async fn an_open_guest_reaches_the_hosts_loopback_as_the_doctor_says() {
    let server = Server::new();
    let fixture = VmFixture::with("network = \"open\"");
    let (_, guest) = fixture.one("").await;
    assert_eq!(
        reads(&guest, "10.0.2.2", server.port),
        "hello from outside",
        "the isolation test judges nothing"
    );
    leave_nothing(&fixture).await;
}

#[tokio::test]
async fn a_guest_with_a_proxy_reaches_that_and_nothing_else() {
    let (proxy, other) = (Server::new(), Server::new());
    let table = format!("network = \"proxy\"\nproxy = \"localhost:{}\"", proxy.port);
    let fixture = VmFixture::with_open_program(&table);
    let (_, guest) = fixture.one("").await;
    for _ in 0..2 {
        assert_eq!(reads(&guest, "10.0.2.100", 3128), "hello from outside");
    }
    assert_eq!(proxy.visits(), 2);
    for (address, port) in [("10.0.2.2", other.port), ("10.0.2.2", proxy.port), ("10.0.2.100", other.port)] {
        assert_eq!(reads(&guest, address, port), "", "{address}:{port} is reached");
    }
    assert_eq!((proxy.visits(), other.visits()), (2, 0));
    assert_eq!(guest.says("bash -lc 'echo $http_proxy'"), "http://10.0.2.100:3128");
    leave_nothing(&fixture).await;
}

/// The value of a field of `/proc/PID/status`.
pub(crate) fn status(pid: u32, field: &str) -> String {
    let text = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
    line.unwrap_or_else(|| panic!("no {field}: {text}")).trim().to_owned()
}

#[tokio::test]
async fn qemu_is_nobody_sandboxed_and_leaves_no_core() {
    let fixture = VmFixture::new();
    let (_, guest) = fixture.one("").await;
    let qemu = fixture.qemu(&guest.id).expect("a QEMU");
    assert_eq!(status(qemu, "Seccomp"), "2");
    assert_eq!(status(qemu, "NoNewPrivs"), "1");
    if rustix::process::geteuid().is_root() {
        let uids = status(qemu, "Uid");
        assert!(uids.split_whitespace().all(|uid| uid != "0"), "{uids}");
        assert_eq!(status(qemu, "Groups"), "");
        assert_eq!(status(qemu, "CapEff"), "0000000000000000");
    } else {
        skipped("only root has rights that QEMU is without");
    }
    let supervisor = fixture.supervisor(&guest.id).expect("a supervisor");
    for pid in [qemu, supervisor] {
        let limits = std::fs::read_to_string(format!("/proc/{pid}/limits")).unwrap();
        let core = limits.lines().find(|line| line.starts_with("Max core file size")).unwrap();
        assert_eq!(core.split_whitespace().skip(4).collect::<Vec<_>>(), ["0", "0", "bytes"], "{core}");
    }
    let environ = std::fs::read(format!("/proc/{qemu}/environ")).unwrap();
    assert_eq!(String::from_utf8_lossy(&environ), "", "QEMU sees an environment");
    leave_nothing(&fixture).await;
}

#[tokio::test]
async fn no_path_of_ours_and_no_secret_is_on_qemus_command_line() {
    let fixture = VmFixture::new();
    let (_, guest) = fixture.one("").await;
    let qemu = fixture.qemu(&guest.id).expect("a QEMU");
    let line = std::fs::read(format!("/proc/{qemu}/cmdline")).unwrap();
    let line = String::from_utf8_lossy(&line);
    assert!(!line.contains(fixture.state_dir().to_str().unwrap()), "{line}");
    assert!(!line.contains(crate::images::folder().to_str().unwrap()), "{line}");
    let keys = greenroom_harness::provider::Fixture::keys(&fixture);
    assert!(!line.contains(keys.host_key.lines().nth(1).unwrap()));
    // No socket on the disk either, beside the holder's.
    let files: Vec<_> = std::fs::read_dir(fixture.instance_dir(&guest.id)).unwrap().flatten().collect();
    for file in &files {
        assert!(file.file_type().unwrap().is_file(), "{file:?}");
    }
    leave_nothing(&fixture).await;
}

#[tokio::test]
async fn only_the_key_that_was_given_gets_in() {
    let fixture = VmFixture::new();
    let (_, guest) = fixture.one("").await;
    assert_eq!(guest.says("echo in"), "in");
    let key = fixture.state_dir().join("client");
    std::fs::rename(&key, fixture.state_dir().join("kept")).unwrap();
    let mut keygen = Command::new("ssh-keygen");
    keygen.args(["-q", "-t", "ed25519", "-N", "", "-f"]).arg(&key);
    std::fs::remove_file(fixture.state_dir().join("client.pub")).unwrap();
    assert!(keygen.status().unwrap().success());
    let refused = guest.run("echo in");
    assert_eq!(refused.status.code(), Some(255), "{refused:?}");
    assert!(String::from_utf8_lossy(&refused.stderr).contains("Permission denied"), "{refused:?}");
    leave_nothing(&fixture).await;
}
