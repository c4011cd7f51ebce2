//! Commands on a local instance, by the system's own `ssh` and by russh.

use std::io::{Read, Write};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use greenroom::provider::find;
use greenroom_core::endpoint::Endpoint;
use greenroom_harness::provider::{Fixture, leave_nothing, request, running};
use greenroom_ports::finding::Severity;
use greenroom_testkit::pace::Pace;
use greenroom_testkit::skipped::skipped;
use russh::client::{Config, Handle, Handler, connect};
use russh::keys::{HashAlg, PrivateKey, PrivateKeyWithHashAlg, PublicKey, PublicKeyOrCertificate};
use russh::{Channel, ChannelMsg, Sig};

use super::{GREENROOM, LocalFixture};

/// A fixture whose instances are served by OpenSSH; `None` if the doctor reports that this is impossible.
fn openssh() -> Option<LocalFixture> {
    let table = "server = \"openssh\"";
    let fixture = LocalFixture::with(table);
    let doctor = find("local").unwrap().doctor;
    let text = format!("allow_root = true\n{table}");
    let found = doctor(&fixture.context(Path::new(GREENROOM)), &text.parse().unwrap());
    let obstacle = found.into_iter().find(|one| one.severity == Severity::Error);
    if let Some(obstacle) = &obstacle {
        skipped(obstacle);
    }
    obstacle.is_none().then_some(fixture)
}

/// A running instance, and how `ssh` reaches it.
struct Guest {
    fixture: LocalFixture,
    endpoint: Endpoint,
}

impl Guest {
    async fn launch(fixture: LocalFixture) -> Self {
        let provider = fixture.build("");
        let request = request(&fixture, 1);
        provider.launch(&request).await.unwrap();
        let endpoint = running(&fixture, &*provider, &request.instance).await;
        let line = format!("[{}]:{} {}\n", endpoint.address, endpoint.port, endpoint.host_key);
        std::fs::write(fixture.state_dir().join("known_hosts"), line).unwrap();
        Self { fixture, endpoint }
    }

    async fn end(self) {
        leave_nothing(&self.fixture).await;
    }

    fn console(&self) -> String {
        let dir = self.fixture.instance_dir(&request(&self.fixture, 1).instance);
        std::fs::read_to_string(dir.join("console.log")).unwrap()
    }

    fn ssh_as(&self, user: &str, key: &Path) -> Command {
        let mut ssh = Command::new("ssh");
        ssh.args(["-F", "none", "-T", "-o", "BatchMode=yes", "-o", "IdentitiesOnly=yes"]);
        ssh.args(["-o", "StrictHostKeyChecking=yes", "-o", "GlobalKnownHostsFile=/dev/null", "-o"]);
        ssh.arg(format!("UserKnownHostsFile={}", self.fixture.state_dir().join("known_hosts").display()));
        ssh.arg("-i").arg(key).args(["-p", &self.endpoint.port.to_string(), "-l", user]);
        ssh.arg(&self.endpoint.address);
        ssh
    }

    fn ssh(&self) -> Command {
        self.ssh_as(&self.endpoint.user, &self.fixture.client_key())
    }

    /// Runs a command of `/bin/sh`: OpenSSH passes it to the account's own shell first.
    fn run(&self, command: &str) -> Output {
        let command = format!("exec /bin/sh -c '{}'", command.replace('\'', r"'\''"));
        self.ssh().arg(command).stdin(Stdio::null()).output().unwrap()
    }

    fn spawn(&self, command: &str) -> Child {
        let mut ssh = self.ssh();
        ssh.arg(command).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    }
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

/// Bytes without a short period.
fn noise(length: usize) -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut bytes = Vec::with_capacity(length + 8);
    while bytes.len() < length {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend(state.to_le_bytes());
    }
    bytes.truncate(length);
    bytes
}

/// Holds for every server of Greenroom, embedded or not.
fn commands_work(guest: &Guest) {
    for code in [0, 1, 3, 127, 254] {
        let exit = guest.run(&format!("exit {code}"));
        assert_eq!(exit.status.code(), Some(code), "{exit:?}\n{}", guest.console());
    }
    let both = guest.run("echo out; echo err >&2; exit 9");
    assert_eq!((text(&both.stdout), text(&both.stderr), both.status.code()), ("out\n", "err\n", Some(9)));
    let late = guest.run("(sleep 0.3; echo late) & exit 4");
    assert_eq!((text(&late.stdout), late.status.code()), ("late\n", Some(4)));

    let mut script = guest.spawn("sh");
    script.stdin.take().unwrap().write_all(b"x='it''s'\necho \"$x $0\"\nexit 6\n").unwrap();
    let script = script.wait_with_output().unwrap();
    assert_eq!((text(&script.stdout), script.status.code()), ("its sh\n", Some(6)));

    let sent = noise(10_000_000);
    let mut cat = guest.spawn("cat");
    let mut stdin = cat.stdin.take().unwrap();
    let copy = sent.clone();
    let writer = std::thread::spawn(move || stdin.write_all(&copy).unwrap());
    let got = cat.wait_with_output().unwrap();
    writer.join().unwrap();
    assert!(got.stdout == sent, "{} bytes came back", got.stdout.len());
}

#[tokio::test]
async fn commands_scripts_and_ten_megabytes_both_ways() {
    let guest = Guest::launch(LocalFixture::new()).await;
    commands_work(&guest);
    guest.end().await;
}

#[tokio::test]
async fn openssh_serves_the_same() {
    let Some(fixture) = openssh() else { return };
    let guest = Guest::launch(fixture).await;
    commands_work(&guest);
    // A daemon that made a session of its own is found by its cookie.
    let home = guest.run("setsid sleep 600 >/dev/null 2>&1 </dev/null & echo $HOME");
    assert!(text(&home.stdout).starts_with(guest.fixture.state_dir().to_str().unwrap()), "{home:?}");
    guest.end().await;
}

#[tokio::test]
async fn input_that_nobody_reads_stops_neither_output_nor_other_channels() {
    let guest = Guest::launch(LocalFixture::new()).await;
    let sent = noise(12_000_000);

    // No byte is read back before all are sent: more than all windows and pipes on the way can hold.
    let mut cat = guest.spawn("cat");
    cat.stdin.take().unwrap().write_all(&sent).unwrap();
    let mut got = Vec::new();
    cat.stdout.take().unwrap().read_to_end(&mut got).unwrap();
    assert!(got == sent, "{} bytes came back", got.len());
    assert!(cat.wait().unwrap().success());

    // One connection: a program that never reads, and a second channel that responds all the same.
    let session = client(&guest).await;
    let deaf = session.channel_open_session().await.unwrap();
    deaf.exec(true, "exec sleep 600").await.unwrap();
    deaf.data(sent.as_slice()).await.unwrap();
    let (begun, pace) = (Instant::now(), Pace::watch());
    let (output, end) = ended(exec(&session, "echo here").await).await;
    assert_eq!((text(&output), end), ("here\n", Some(End::Code(0))));
    let took = begun.elapsed();
    assert!(took < pace.stretched(Duration::from_secs(5)), "{took:?}");
    guest.end().await;
}

#[tokio::test]
async fn a_peer_that_does_not_read_holds_the_program_back() {
    let guest = Guest::launch(LocalFixture::new()).await;
    let mut flood = guest.spawn("echo $$ >&2; exec dd if=/dev/zero bs=64k count=3000 2>/dev/null");
    let mut first = [0; 32];
    let read = flood.stderr.as_mut().unwrap().read(&mut first).unwrap();
    let pid: u32 = text(&first[..read]).trim().parse().unwrap();
    // Blocked: its written bytes no longer increase, and are far from all.
    let written = || {
        let io = std::fs::read_to_string(format!("/proc/{pid}/io")).unwrap_or_default();
        let line = io.lines().find(|line| line.starts_with("wchar"));
        line.and_then(|line| line.split(' ').nth(1)?.parse::<u64>().ok()).unwrap_or(u64::MAX)
    };
    let mut last = 0;
    let mut still = 0;
    greenroom_harness::provider::until("the program stands still", Duration::from_secs(20), async || {
        let now = written();
        still = if now == last && now > 0 { still + 1 } else { 0 };
        last = now;
        (still > 30).then_some(())
    })
    .await;
    assert!(last < 20_000_000, "{last} bytes were taken from the program");
    let mut got = Vec::new();
    flood.stdout.take().unwrap().read_to_end(&mut got).unwrap();
    assert_eq!(got.len(), 3000 * 65_536);
    assert!(flood.wait().unwrap().success());
    guest.end().await;
}

#[tokio::test]
#[ignore = "a gibibyte takes too long for every day"]
async fn a_gibibyte_goes_both_ways_in_little_memory() {
    const BLOCK: usize = 1 << 20;
    let guest = Guest::launch(LocalFixture::new()).await;
    let block = noise(BLOCK);
    let begun = Instant::now();
    let mut cat = guest.spawn("cat");
    let mut stdin = cat.stdin.take().unwrap();
    let copy = block.clone();
    let writer = std::thread::spawn(move || (0..1024).for_each(|_| stdin.write_all(&copy).unwrap()));
    let mut stdout = cat.stdout.take().unwrap();
    let mut got = vec![0; BLOCK];
    for number in 0..1024 {
        stdout.read_exact(&mut got).unwrap();
        assert!(got == block, "block {number}");
    }
    assert_eq!(stdout.read(&mut got).unwrap(), 0);
    writer.join().unwrap();
    assert!(cat.wait().unwrap().success());
    let pid = guest.fixture.server(&request(&guest.fixture, 1).instance).unwrap();
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")?.trim().strip_suffix(" kB"));
    let peak: u64 = peak.unwrap().trim().parse().unwrap();
    println!("1 GiB each way in {:?}, {peak} kB at most", begun.elapsed());
    assert!(peak < 100_000, "{peak} kB");
    guest.end().await;
}

#[tokio::test]
async fn only_the_one_key_and_the_one_user_get_in() {
    let guest = Guest::launch(LocalFixture::new()).await;
    let host_key = guest.fixture.state_dir().join("host");
    let (user, key) = (guest.endpoint.user.clone(), guest.fixture.client_key());
    for (user, key) in [(user.as_str(), host_key.as_path()), ("nobody-at-all", key.as_path())] {
        let refused = guest.ssh_as(user, key).arg("true").stdin(Stdio::null()).output().unwrap();
        assert_eq!(refused.status.code(), Some(255), "{user}");
        assert!(text(&refused.stderr).contains("Permission denied (publickey)"), "{refused:?}");
    }
    assert!(guest.run("true").status.success());
    guest.end().await;
}

#[tokio::test]
async fn a_program_sees_its_own_home_and_nothing_of_ours() {
    let guest = Guest::launch(LocalFixture::new()).await;
    let dir = guest.fixture.instance_dir(&request(&guest.fixture, 1).instance);
    let output = guest.run("echo $HOME; pwd; echo $USER; env");
    let lines: Vec<&str> = text(&output.stdout).lines().collect();
    let home = dir.join("home");
    let work = dir.join("work").canonicalize().unwrap();
    assert_eq!(lines[..3], [home.to_str().unwrap(), work.to_str().unwrap(), guest.endpoint.user.as_str()]);
    let names: Vec<&str> = lines[3..].iter().filter_map(|line| line.split('=').next()).collect();
    assert!(super::has_something_to_hide(), "the test judges nothing");
    let known =
        ["PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LC_ALL", "LC_CTYPE", "TZ", "PWD", "SHLVL", "_"];
    let foreign = |name: &&&str| !known.contains(*name) && !name.starts_with("GREENROOM_LOCAL");
    assert_eq!(names.iter().filter(foreign).collect::<Vec<_>>(), Vec::<&&str>::new());
    guest.end().await;
}

// ---- what ssh's command line cannot do: several channels, signals, refusals ----

struct OneHost(PublicKey);

impl Handler for OneHost {
    type Error = russh::Error;

    async fn check_server_key(&mut self, key: &PublicKeyOrCertificate) -> Result<bool, Self::Error> {
        let PublicKeyOrCertificate::PublicKey { key, .. } = key else { return Ok(false) };
        Ok(key.key_data() == self.0.key_data())
    }
}

async fn client(guest: &Guest) -> Handle<OneHost> {
    let host = PublicKey::from_openssh(&guest.endpoint.host_key).unwrap();
    let at = (guest.endpoint.address.as_str(), guest.endpoint.port);
    let mut session = connect(Arc::new(Config::default()), at, OneHost(host)).await.unwrap();
    let key = PrivateKey::from_openssh(std::fs::read(guest.fixture.client_key()).unwrap()).unwrap();
    let key = PrivateKeyWithHashAlg::new(Arc::new(key), None::<HashAlg>);
    let answer = session.authenticate_publickey(guest.endpoint.user.as_str(), key).await.unwrap();
    assert!(answer.success());
    session
}

async fn exec(session: &Handle<OneHost>, command: &str) -> Channel<russh::client::Msg> {
    let channel = session.channel_open_session().await.unwrap();
    channel.exec(true, command).await.unwrap();
    channel
}

#[derive(Debug, PartialEq, Eq)]
enum End {
    Code(u32),
    Signal(String),
}

async fn ended(mut channel: Channel<russh::client::Msg>) -> (Vec<u8>, Option<End>) {
    let (mut output, mut end) = (Vec::new(), None);
    while let Some(message) = channel.wait().await {
        match message {
            ChannelMsg::Data { data } => output.extend_from_slice(&data),
            ChannelMsg::ExitStatus { exit_status } => end = Some(End::Code(exit_status)),
            ChannelMsg::ExitSignal { signal_name, .. } => end = Some(End::Signal(format!("{signal_name:?}"))),
            _ => {}
        }
    }
    (output, end)
}

#[tokio::test]
async fn many_channels_of_one_connection_do_not_mix() {
    let guest = Guest::launch(LocalFixture::new()).await;
    let session = client(&guest).await;
    let mut channels = Vec::new();
    for number in 0..24 {
        channels.push(exec(&session, &format!("cat; echo {number}; exit {number}")).await);
    }
    for (number, channel) in channels.iter().enumerate() {
        channel.data(format!("to {number}\n").as_bytes()).await.unwrap();
        channel.eof().await.unwrap();
    }
    for (number, channel) in channels.into_iter().enumerate() {
        let (output, end) = ended(channel).await;
        assert_eq!(text(&output), format!("to {number}\n{number}\n"));
        assert_eq!(end, Some(End::Code(u32::try_from(number).unwrap())));
    }
    guest.end().await;
}

#[tokio::test]
async fn a_signal_reaches_the_program_and_its_end_is_told() {
    let guest = Guest::launch(LocalFixture::new()).await;
    let session = client(&guest).await;
    for (signal, name) in [(Sig::TERM, "TERM"), (Sig::KILL, "KILL"), (Sig::INT, "INT")] {
        let mut channel = exec(&session, "echo ready; exec sleep 600").await;
        loop {
            if let Some(ChannelMsg::Data { .. }) = channel.wait().await {
                break;
            }
        }
        channel.signal(signal).await.unwrap();
        assert_eq!(ended(channel).await.1, Some(End::Signal(name.to_owned())));
    }
    let (_, end) = ended(exec(&session, "trap 'exit 7' USR1; kill -USR1 $$; exit 1").await).await;
    assert_eq!(end, Some(End::Code(7)));
    // A broken pipe ends a program there as anywhere: it does not inherit the server's own disposition.
    let (_, end) = ended(exec(&session, "kill -PIPE $$").await).await;
    assert_eq!(end, Some(End::Signal("PIPE".to_owned())));
    guest.end().await;
}

#[tokio::test]
async fn what_is_not_offered_is_refused_and_the_connection_goes_on() {
    let guest = Guest::launch(LocalFixture::new()).await;
    let session = client(&guest).await;
    let refused = |message| assert!(matches!(message, Some(ChannelMsg::Failure)), "{message:?}");
    let mut terminal = session.channel_open_session().await.unwrap();
    terminal.request_pty(true, "xterm", 80, 24, 0, 0, &[]).await.unwrap();
    refused(answer(&mut terminal).await);
    terminal.request_subsystem(true, "sftp").await.unwrap();
    refused(answer(&mut terminal).await);
    terminal.set_env(true, "LD_PRELOAD", "x").await.unwrap();
    refused(answer(&mut terminal).await);
    assert!(session.channel_open_direct_tcpip("127.0.0.1", 22, "127.0.0.1", 1).await.is_err());
    let (output, _) = ended(exec(&session, "echo still here").await).await;
    assert_eq!(text(&output), "still here\n");
    guest.end().await;
}

async fn answer(channel: &mut Channel<russh::client::Msg>) -> Option<ChannelMsg> {
    loop {
        match channel.wait().await {
            Some(ChannelMsg::WindowAdjusted { .. }) => {}
            other => return other,
        }
    }
}

#[tokio::test]
async fn a_killed_client_leaves_the_program_without_streams() {
    let guest = Guest::launch(LocalFixture::new()).await;
    let mut ssh = guest.spawn("echo $$; cat >/dev/null; exit 5");
    let mut first = [0; 32];
    let read = ssh.stdout.as_mut().unwrap().read(&mut first).unwrap();
    let pid: u32 = text(&first[..read]).trim().parse().unwrap();
    ssh.kill().unwrap();
    assert_eq!(ssh.wait().unwrap().signal(), Some(9));
    // `cat` sees the end of its input, and the shell ends by itself; it is waited for.
    greenroom_harness::provider::until("the shell has ended", Duration::from_secs(10), async || {
        (!Path::new(&format!("/proc/{pid}")).exists()).then_some(())
    })
    .await;
    assert_eq!(guest.fixture.living().len(), 1);
    guest.end().await;
}
