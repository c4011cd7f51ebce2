//! A light image that boots, and what becomes of its machines.

use crate::images::light;
use crate::machine::{Identity, Machine, until};

const GREETING: &str = "HELLO 1 light openssh";
const ONE_SEED: &str =
    "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA==";
const ANOTHER_SEED: &str =
    "BBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBA==";

fn one() -> Identity {
    Identity { hostname: "linux-1", machine_id: "1".repeat(32), seed: ONE_SEED }
}

#[test]
fn two_machines_of_one_image_share_no_identity() {
    let image = light();
    let (mut a, mut b) = std::thread::scope(|scope| {
        let other = scope.spawn(|| Machine::boot(&image, GREETING));
        (Machine::boot(&image, GREETING), other.join().expect("a second machine"))
    });
    a.become_one(&one());
    b.become_one(&Identity { hostname: "linux-2", machine_id: "2".repeat(32), seed: ANOTHER_SEED });
    assert_eq!(
        a.says("hostname; cat /etc/hostname /etc/machine-id"),
        format!("linux-1\nlinux-1\n{}", "1".repeat(32))
    );
    assert_eq!(
        b.says("hostname; cat /etc/hostname /etc/machine-id"),
        format!("linux-2\nlinux-2\n{}", "2".repeat(32))
    );
    let random = "head -c 32 /dev/urandom | base64";
    assert_ne!(a.says(random), b.says(random));
    let key =
        "cat /etc/ssh/ssh_host_ed25519_key.pub 2>/dev/null || ssh-keygen -y -f /etc/ssh/ssh_host_ed25519_key";
    assert_eq!(a.says(key).split(' ').nth(1), a.host_key().split(' ').nth(1));
    assert_ne!(a.says(key), b.says(key));
    // The key of one opens no door to the other.
    let stranger = a.ssh(&b.host_key(), "true");
    assert_eq!(stranger.status.code(), Some(255), "{}", String::from_utf8_lossy(&stranger.stderr));
}

#[test]
fn nobody_gets_in_before_the_machine_is_somebody() {
    let mut machine = Machine::boot(&light(), GREETING);
    assert_eq!(machine.ask("PING 1"), "PONG 1");
    assert!(!machine.greets());
    assert_eq!(machine.ask("HOSTNAME a b"), "FAILED HOSTNAME: not a host name");
    assert_eq!(machine.ask("GO"), "FAILED GO without TIME");
    assert_eq!(machine.ask("WARM-UP"), "WARM");
    assert!(!machine.greets(), "warming up lets nobody in");
    machine.become_one(&one());
    assert!(machine.greets());
    assert_eq!(machine.ask("PING 2"), "PONG 2");
}

#[test]
fn a_job_finds_a_whole_machine() {
    let mut machine = Machine::boot_with_disk(&light(), 12 << 30, GREETING);
    machine.say("PROXY http://10.0.2.100:3128");
    machine.become_one(&one());
    let says = |command: &str| machine.says(command);
    assert_eq!(
        says("cat /proc/1/comm; stat -f -c %T / /dev/shm /sys/fs/cgroup"),
        "init\next2/ext3\ntmpfs\ncgroup2fs"
    );
    assert_eq!(
        says("echo $HOME $LANG $http_proxy; git config http.proxy"),
        "/root C.UTF-8 http://10.0.2.100:3128\nhttp://10.0.2.100:3128"
    );
    assert_eq!(
        says("gitlab-runner --version; ls -d /builds /cache"),
        "Version:      19.4.0\n/builds\n/cache"
    );
    // Users of the guest other than root get into every directory that the image adds to Debian's.
    assert_eq!(
        says("stat -c '%a %n' /builds /cache /usr/lib/greenroom /var/log/apt"),
        "755 /builds\n755 /cache\n755 /usr/lib/greenroom\n755 /var/log/apt"
    );
    assert_eq!(
        says("git init -q /builds/a && cd /builds/a && git lfs install --local >/dev/null && echo done"),
        "done"
    );
    let clock: u64 = says("date +%s").parse().expect("seconds");
    let here =
        std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).expect("after 1970").as_secs();
    assert!(here.abs_diff(clock) < 60, "{clock} there, {here} here");
    assert_eq!(
        says("tail -c1 /dev/null; bash -c 'exec 3<>/dev/ptmx; echo pty'; test -e /dev/fd/0 && echo fd"),
        "pty\nfd"
    );
    assert_eq!(says("df --output=size -BG / | tail -n 1").trim(), "12G", "the file system fills the disk");
    // Orphans are reaped by process 1.
    says("for i in 1 2 3; do (sleep 0.1 &) ; done; while pgrep -x sleep >/dev/null; do :; done");
    assert_eq!(says("ps -eo stat= | grep -c ^Z || true"), "0");
    // A job that kills the SSH server harms only itself.
    machine.ssh(&machine.host_key(), "pkill -x sshd");
    until("the SSH server is back", || {
        machine.ssh(&machine.host_key(), "true").status.success().then_some(())
    });
    machine.ssh(&machine.host_key(), "poweroff");
    assert!(machine.ended().success());
}
