//! A platform with machines: a directory for each, in which programs write requests, and an sshd for each.

#![cfg(test)]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

/// The running machines, by directory.
type Running = BTreeMap<PathBuf, Machine>;
/// The number of machines that were ever made of each instance.
type Made = BTreeMap<String, u32>;

struct Machine {
    instance: String,
    launched: Instant,
    sshd: Option<Child>,
    broken: bool,
}

/// Ends with all its machines.
pub struct Platform {
    pub dir: tempfile::TempDir,
    running: Arc<Mutex<Running>>,
    made: Arc<Mutex<Made>>,
    end: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Drop for Platform {
    fn drop(&mut self) {
        self.end.store(true, Ordering::Relaxed);
        self.thread.take().map(JoinHandle::join);
        for machine in self.running.lock().unwrap().values_mut() {
            machine.stop();
        }
    }
}

impl Machine {
    fn stop(&mut self) {
        if let Some(mut sshd) = self.sshd.take() {
            sshd.kill().unwrap();
            sshd.wait().unwrap();
        }
    }
}

impl Platform {
    pub fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        for name in ["machines", "faults"] {
            fs::create_dir(dir.path().join(name)).unwrap();
        }
        let (running, made) = (Arc::<Mutex<Running>>::default(), Arc::<Mutex<Made>>::default());
        let end = Arc::<AtomicBool>::default();
        let (root, shared, over) = (dir.path().to_owned(), Arc::clone(&running), Arc::clone(&end));
        let count = Arc::clone(&made);
        let thread = std::thread::spawn(move || {
            while !over.load(Ordering::Relaxed) {
                serve(&root, &mut shared.lock().unwrap(), &mut count.lock().unwrap());
                std::thread::sleep(Duration::from_millis(5));
            }
        });
        Self { dir, running, made, end, thread: Some(thread) }
    }

    /// Writes a fault, which the program or the platform reads.
    pub fn fault(&self, name: &str, content: &str) {
        fs::write(self.dir.path().join("faults").join(name), content).unwrap();
    }

    /// The instances whose machine runs.
    pub fn living(&self) -> BTreeSet<String> {
        let running = self.running.lock().unwrap();
        let living = running.values().filter(|machine| machine.sshd.is_some());
        living.map(|machine| machine.instance.clone()).collect()
    }

    pub fn made(&self) -> BTreeMap<String, u32> {
        self.made.lock().unwrap().clone()
    }

    /// The directories of all machines.
    pub fn remains(&self) -> Vec<String> {
        let entries = fs::read_dir(self.dir.path().join("machines")).unwrap();
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
    }

    /// All machines are gone together, with everything that runs there.
    pub fn lose_all(&self) {
        for (dir, mut machine) in std::mem::take(&mut *self.running.lock().unwrap()) {
            if let Some(sshd) = &machine.sshd {
                // A stopped server accepts no connection meanwhile.
                signal(sshd.id(), Signal::STOP);
                for pid in descendants(sshd.id()) {
                    signal(pid, Signal::KILL);
                }
            }
            machine.stop();
            fs::write(dir.join("end"), "").unwrap();
        }
    }

    /// Kills the machine of an instance.
    pub fn power_cut(&self, instance: &str) {
        let mut running = self.running.lock().unwrap();
        let machine = running.values_mut().find(|machine| machine.instance == instance).unwrap();
        machine.stop();
        machine.broken = true;
    }
}

/// The processes that this one started, and theirs.
fn descendants(pid: u32) -> Vec<u32> {
    let stat = |entry: fs::DirEntry| {
        let stat = fs::read_to_string(entry.path().join("stat")).ok()?;
        let parent = stat.rsplit_once(") ")?.1.split(' ').nth(1)?.parse().ok()?;
        Some((entry.file_name().to_str()?.parse().ok()?, parent))
    };
    let all: Vec<(u32, u32)> = fs::read_dir("/proc").unwrap().flatten().filter_map(stat).collect();
    let mut found = vec![pid];
    let mut next = 0;
    while let Some(parent) = found.get(next).copied() {
        found.extend(all.iter().filter(|(_, of)| *of == parent).map(|(child, _)| *child));
        next += 1;
    }
    found.split_off(1)
}

fn signal(pid: u32, signal: Signal) {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw).unwrap();
    // It may have ended by itself.
    let _gone = kill_process(pid, signal);
}

/// Starts what was requested, and ends what is to end.
fn serve(root: &Path, running: &mut Running, made: &mut Made) {
    let boot = fs::read_to_string(root.join("faults/boot_ms")).unwrap_or_default().parse().unwrap_or(0);
    for dir in fs::read_dir(root.join("machines")).unwrap().map(|entry| entry.unwrap().path()) {
        if dir.join("end").exists() {
            if let Some(mut machine) = running.remove(&dir) {
                machine.stop();
            }
            // A call may be writing into it.
            let _later = fs::remove_dir_all(&dir);
            continue;
        }
        let Ok(request) = fs::read(dir.join("request")) else { continue };
        let request: Value = serde_json::from_slice(&request).unwrap();
        let machine = running.entry(dir.clone()).or_insert_with(|| {
            let instance = request["instance"].as_str().unwrap().to_owned();
            *made.entry(instance.clone()).or_default() += 1;
            Machine { instance, launched: Instant::now(), sshd: None, broken: false }
        });
        let lifetime = request["lifetime_s"].as_u64().map(Duration::from_secs);
        if lifetime.is_some_and(|lifetime| machine.launched.elapsed() >= lifetime) {
            // It ends by itself, whoever still wants it.
            fs::write(dir.join("end"), "").unwrap();
        } else if machine.broken {
            write_state(&dir, &json!({ "state": "stopped", "reason": "lost its power" }));
        } else if machine.sshd.is_none() && machine.launched.elapsed() >= Duration::from_millis(boot) {
            let (sshd, port) = boot_machine(&dir, &request);
            machine.sshd = Some(sshd);
            write_state(&dir, &json!({ "state": "running", "address": "127.0.0.1", "port": port }));
        }
    }
}

fn write_state(dir: &Path, state: &Value) {
    fs::write(dir.join("state.new"), state.to_string()).unwrap();
    fs::rename(dir.join("state.new"), dir.join("state")).unwrap();
}

fn boot_machine(dir: &Path, request: &Value) -> (Child, u16) {
    private(&dir.join("host_key"), &format!("{}\n", request["host_key"].as_str().unwrap().trim()));
    private(&dir.join("authorized_keys"), request["authorized_key"].as_str().unwrap());
    let at = dir.display();
    // With this file, machines accept passwords only. Those of the runner host's accounts are not touched.
    let shadow = dir.ancestors().nth(2).map(|root| root.join("shadow")).filter(|shadow| shadow.exists());
    let (passwords, keys) = if shadow.is_some() { ("yes", "no") } else { ("no", "yes") };
    if rustix::process::getuid().is_root() {
        // The chroot of its unprivileged half, which the service's unit makes at boot.
        fs::create_dir_all("/run/sshd").unwrap();
    }
    loop {
        // RACE: between here and sshd, another process may take the port; sshd exits, and the next port is tried.
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let mut config = format!(
            "Port {port}\nListenAddress 127.0.0.1\nHostKey {at}/host_key\nAuthorizedKeysFile {at}/authorized_keys\n\
             StrictModes no\nPidFile none\nUsePAM no\nPermitRootLogin yes\nPasswordAuthentication {passwords}\n\
             PubkeyAuthentication {keys}\n"
        );
        if let Some(certificate) = request["host_certificate"].as_str().filter(|text| !text.is_empty()) {
            fs::write(dir.join("host_key-cert.pub"), certificate).unwrap();
            config.extend(["HostCertificate ", dir.to_str().unwrap(), "/host_key-cert.pub\n"]);
        }
        fs::write(dir.join("sshd_config"), config).unwrap();
        let log = fs::File::create(dir.join("console")).unwrap();
        let mut sshd = match &shadow {
            None => Command::new("/usr/sbin/sshd"),
            Some(shadow) => with_shadow(shadow, "/usr/sbin/sshd"),
        };
        sshd.args(["-D", "-e", "-f"]).arg(dir.join("sshd_config")).stdin(Stdio::null()).stderr(log);
        let mut sshd =
            sshd.spawn().expect("these tests need OpenSSH's server: `apt-get install openssh-server`");
        while sshd.try_wait().unwrap().is_none() {
            if fs::read_to_string(dir.join("console")).unwrap().contains("Server listening on") {
                return (sshd, port);
            }
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

/// Starts a program in a namespace where this file is the machine's `/etc/shadow`.
fn with_shadow(shadow: &Path, program: &str) -> Command {
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-c", "mount --bind \"$0\" /etc/shadow && exec \"$@\""]);
    command.arg(shadow).arg(program);
    command
}

fn private(path: &Path, text: &str) {
    let mut options = fs::OpenOptions::new();
    let mut file = options.create(true).truncate(true).write(true).mode(0o600).open(path).unwrap();
    std::io::Write::write_all(&mut file, text.as_bytes()).unwrap();
}
