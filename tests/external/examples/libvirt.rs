//! `libvirt` with a real libvirtd of this test: its test driver, and machines of QEMU that print one line each.

use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use greenroom_testkit::skipped::skipped;
use serde_json::{Value, json};

use super::program::{Program, SECRET, example, launch};
use super::promises::{keeps, until};

/// The user that runs libvirtd and the program if this is root: root's own libvirtd would use the machine's
/// directories.
const USER: u32 = 65534;

/// A libvirtd for one user, with a connection that is held open: the test driver forgets everything with its last one.
pub(super) struct Libvirt {
    pub(super) directory: tempfile::TempDir,
    daemon: Child,
    held: Option<Child>,
}

fn missing() -> Option<&'static str> {
    let all = "PATH=$PATH:/usr/sbin && for p in libvirtd virsh qemu-img mformat mcopy qemu-system-x86_64; do command -v $p || exit; done";
    let status = Command::new("sh").args(["-c", all]).stdout(Stdio::null()).stderr(Stdio::null()).status();
    (!status.is_ok_and(|status| status.success()))
        .then_some("libvirt: one of libvirtd, virsh, qemu-img, mtools, QEMU is missing")
}

/// Makes a command run as the user of the libvirtd.
fn drop_root(command: &mut Command) -> &mut Command {
    if rustix::process::getuid().is_root() {
        command.uid(USER).gid(USER);
    }
    command
}

impl Libvirt {
    pub(super) fn begin() -> Option<Self> {
        if let Some(reason) = missing() {
            skipped(reason);
            return None;
        }
        let directory = tempfile::tempdir().expect("a directory");
        let dir = directory.path();
        for name in ["run", "config", "cache", "disks"] {
            fs::create_dir(dir.join(name)).expect("a directory");
        }
        fs::write(dir.join("libvirtd.conf"), "").expect("a file");
        fs::copy(example("libvirt"), dir.join("program")).expect("the program");
        boot_sector(dir);
        for path in
            [dir.to_path_buf(), dir.join("run"), dir.join("config"), dir.join("cache"), dir.join("disks")]
        {
            fs::set_permissions(&path, fs::Permissions::from_mode(0o777)).expect("permissions");
        }
        let mut daemon = Command::new("libvirtd");
        daemon
            .args(["--timeout", "120", "-f"])
            .arg(dir.join("libvirtd.conf"))
            .arg("-p")
            .arg(dir.join("run/pid"));
        daemon.env_clear().env("PATH", path()).env("HOME", dir).env("XDG_RUNTIME_DIR", dir.join("run"));
        daemon.env("XDG_CONFIG_HOME", dir.join("config")).env("XDG_CACHE_HOME", dir.join("cache"));
        daemon.stdin(Stdio::null()).stdout(Stdio::null());
        daemon.stderr(fs::File::create(dir.join("libvirtd.log")).expect("a file"));
        let daemon = drop_root(&mut daemon).spawn().expect("libvirtd starts");
        let mut this = Self { directory, daemon, held: None };
        let began = Instant::now();
        while !this.virsh("test", &["list"]) {
            let ended = this.daemon.try_wait().expect("a child");
            let log = fs::read_to_string(this.log()).unwrap_or_default();
            assert!(ended.is_none(), "libvirtd has ended: {log}");
            assert!(began.elapsed() < Duration::from_mins(2), "libvirtd does not answer: {log}");
            std::thread::sleep(Duration::from_millis(20));
        }
        let mut held = Command::new("virsh");
        held.args(["-q", "-c", &this.uri("test")]).stdin(Stdio::piped()).stdout(Stdio::piped());
        this.held = Some(held.spawn().expect("virsh starts"));
        Some(this)
    }

    fn log(&self) -> std::path::PathBuf {
        self.directory.path().join("libvirtd.log")
    }

    fn uri(&self, driver: &str) -> String {
        let socket = self.directory.path().join("run/libvirt/libvirt-sock");
        let name = if driver == "test" { "default" } else { "session" };
        format!("{driver}+unix:///{name}?socket={}", socket.display())
    }

    fn virsh(&self, driver: &str, arguments: &[&str]) -> bool {
        let mut virsh = Command::new("virsh");
        virsh
            .args(["-q", "-c", &self.uri(driver)])
            .args(arguments)
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        virsh.status().is_ok_and(|status| status.success())
    }

    /// The example with this driver.
    pub(super) fn program(&self, driver: &str) -> Program {
        let dir = self.directory.path();
        let mut settings = json!({
            "image": dir.join("base.qcow2"), "directory": dir.join("disks"), "uri": self.uri(driver), "type": driver,
            "memory_mib": "64", "cpus": "1",
        });
        if driver == "qemu" {
            settings["interface"] = "<interface type=\"user\"/>".into();
        }
        let mut program = Program::new(&dir.join("program"), settings);
        if rustix::process::getuid().is_root() {
            let id = USER.to_string();
            let prefix = ["setpriv", "--reuid", &id, "--regid", &id, "--clear-groups"];
            program.command = prefix.map(Into::into).into_iter().chain(program.command).collect();
        }
        program
            .with("HOME", dir.display().to_string())
            .with("XDG_CACHE_HOME", dir.join("cache").display().to_string())
    }
}

impl Drop for Libvirt {
    fn drop(&mut self) {
        // Machines of QEMU outlive their libvirtd.
        let script =
            "for name in $(virsh -q -c \"$1\" list --name); do virsh -q -c \"$1\" destroy $name; done";
        drop(Command::new("sh").args(["-c", script, "sh", &self.uri("qemu")]).stdout(Stdio::null()).status());
        for child in self.held.iter_mut().chain([&mut self.daemon]) {
            drop(child.kill());
            drop(child.wait());
        }
    }
}

fn path() -> String {
    std::env::var("PATH").expect("a path") + ":/usr/sbin:/sbin"
}

/// An image whose boot sector prints a word on the serial line, and stops the processor.
fn boot_sector(dir: &Path) {
    // SeaBIOS passes over smaller disks.
    let mut sector = vec![0_u8; 1 << 20];
    let word = b"booted\n";
    // mov dx, 0x3f8; for each letter: mov al, LETTER; out dx, al
    let mut code = vec![0xba, 0xf8, 0x03];
    for letter in word {
        code.extend([0xb0, *letter, 0xee]);
    }
    // hlt; jump back to it
    code.extend([0xf4, 0xeb, 0xfd]);
    sector[..code.len()].copy_from_slice(&code);
    sector[510..512].copy_from_slice(&[0x55, 0xaa]);
    fs::write(dir.join("base.raw"), sector).expect("a file");
    let made = Command::new("qemu-img")
        .args(["convert", "-f", "raw", "-O", "qcow2"])
        .args([dir.join("base.raw"), dir.join("base.qcow2")])
        .status();
    assert!(made.is_ok_and(|status| status.success()), "qemu-img");
}

fn files(dir: &Path) -> Vec<String> {
    let entries = fs::read_dir(dir.join("disks")).expect("a directory");
    entries.map(|entry| entry.expect("an entry").file_name().to_string_lossy().into_owned()).collect()
}

/// One libvirtd for both drivers: it takes seconds to ask QEMU what it can do.
#[test]
fn libvirt_keeps_the_promises_of_a_provider_and_boots_a_machine() {
    let Some(libvirt) = Libvirt::begin() else { return };
    keeps_promises(&libvirt);
    boots_a_machine_in_qemu(&libvirt);
}

fn keeps_promises(libvirt: &Libvirt) {
    let (program, dir) = (libvirt.program("test"), libvirt.directory.path());
    keeps(&program, dir);
    assert_eq!(files(dir), Vec::<String>::new(), "the disks of ended machines");

    let id = program.launch(1);
    let found = until(&program, &id, |found| found.is_some_and(|found| found["address"].is_string()));
    assert!(found["address"].as_str().is_some_and(|address| address.starts_with("192.168.122.")), "{found}");
    // What a launch leaves that is killed before it starts the machine.
    assert!(libvirt.virsh("test", &["destroy", &id]), "virsh destroy");
    fs::remove_file(dir.join("disks").join(format!("{id}.seed"))).expect("it was there");
    assert_eq!(program.list()[0]["state"], "stopped");
    assert_eq!(program.launch(1), id);
    assert_eq!((program.list().len(), &program.list()[0]["state"]), (1, &json!("running")));
    let seed = dir.join("disks").join(format!("{id}.seed"));
    assert!(fs::read(&seed).expect("a file").windows(SECRET.len()).any(|part| part == SECRET.as_bytes()));
    assert_eq!(fs::metadata(&seed).expect("a file").mode() & 0o077, 0, "its content is a secret");
    program.ask("terminate", &json!({ "machine": id }));
}

fn boots_a_machine_in_qemu(libvirt: &Libvirt) {
    let (mut program, dir) = (libvirt.program("qemu"), libvirt.directory.path());
    let id = program.launch(1);
    assert_eq!(program.launch(1), id);
    assert_eq!(program.list()[0]["state"], "running");
    let machine = json!({ "machine": id });
    let began = Instant::now();
    let mut console = Value::Null;
    while !console["text"].as_str().is_some_and(|text| text.contains("booted")) {
        console = program.ask("console", &machine);
        assert!(began.elapsed() < Duration::from_mins(2), "it does not boot: {console}");
        std::thread::sleep(Duration::from_millis(50));
    }
    program.ask("terminate", &machine);
    assert_eq!((program.list(), files(dir)), (Vec::new(), Vec::new()));
    assert_eq!(program.call("console", &machine).code, Some(10));

    program.settings["image"] = "/missing.qcow2".into();
    let called = program.call("launch", &launch(2));
    assert_eq!(called.code, Some(1), "{called:?}");
    assert!(called.log.contains("missing.qcow2"), "{called:?}");
    assert_eq!(program.list()[0]["state"], "stopped", "it is recorded, and has to be terminated");
    program.ask("terminate", &json!({ "machine": launch(2)["name"] }));
    program.settings["directory"] = "/missing".into();
    assert_eq!(program.call("launch", &launch(2)).code, Some(14));
    // An error of virsh is no empty list, and proves no absence.
    program.settings["directory"] = json!(dir.join("disks"));
    program.settings["uri"] = "qemu+unix:///session?socket=/missing".into();
    for (verb, fields) in [("list", json!({})), ("terminate", machine)] {
        let called = program.call(verb, &fields);
        assert!(!matches!(called.code, Some(0 | 10..=16)), "{verb}: {called:?}");
    }
}
