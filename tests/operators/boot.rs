//! `doctor --boot` on provider `local`: how long a boot takes, why it fails, and that nothing of it stays.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::process::{Child, ChildStdout, Stdio};

use rustix::process::Signal;

use crate::{Home, Said, ended, signal};

/// Lines for the tables of the pool and its provider.
fn home(pool: &str, provider: &str) -> Home {
    let home = Home::new();
    let text = format!(
        "state_dir = \"{}\"\n[pool.linux]\nmax_instances = 2\nidle_count = 0\n{pool}\n[pool.linux.provider]\nkind = \
         \"local\"\nallow_root = true\n{provider}\n[timing]\nprobe_interval = \"20ms\"\npass_interval = \"300ms\"\n",
        home.path("state").display()
    );
    fs::write(home.path("greenroom.toml"), text).unwrap();
    home
}

fn boot(home: &Home) -> Said {
    home.run(&["doctor", "--boot", "linux"])
}

/// The stages, without their times.
fn stages(said: &Said) -> Vec<&str> {
    said.out.lines().filter_map(|line| line.get(22..)).collect()
}

/// The remains of boots in the state directory, and instances of any owner.
fn remains(home: &Home) -> Vec<String> {
    let names = |dir: &str| {
        let entries = fs::read_dir(home.path(dir)).into_iter().flatten();
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect::<Vec<String>>()
    };
    let boots = names("state").into_iter().filter(|name| name.starts_with("boot-"));
    let instances = names("state/instances/linux").into_iter().filter(|name| !name.starts_with('.'));
    boots.chain(instances).collect()
}

/// A boot that has come as far as this stage.
fn begun(home: &Home, stage: &str) -> (Child, BufReader<ChildStdout>) {
    let mut command = home.command(&["doctor", "--boot", "linux"]);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut out = BufReader::new(child.stdout.take().unwrap());
    let mut line = String::new();
    while !line.contains(stage) {
        line.clear();
        assert!(out.read_line(&mut line).unwrap() > 0, "it ended before: {stage}");
    }
    (child, out)
}

#[test]
fn a_boot_is_timed_stage_by_stage_and_leaves_nothing() {
    let home = home("ready_command = \"true\"", "boot_delay = \"300ms\"");
    let said = boot(&home);
    assert_eq!((said.code, said.err.as_str()), (0, ""), "{said:?}");
    assert!(
        said.out.starts_with("    AFTER       TOOK  STAGE\n     0 ms       0 ms  launch of linux-"),
        "{said:?}"
    );
    let mut stages = stages(&said);
    // Here an instance has its address in the moment in which it answers: which is seen first is chance.
    stages.retain(|stage| *stage != "has an address, 127.0.0.1");
    let expected = [
        "STAGE",
        "launch of linux-",
        "launch accepted",
        "reachable by SSH",
        "ready command passed",
        "a command ran: Linux ",
        "termination requested",
        "gone",
    ];
    assert_eq!(stages.len(), expected.len(), "{said:?}");
    for (stage, expected) in stages.iter().zip(expected) {
        assert!(stage.starts_with(expected), "{stage}: {said:?}");
    }
    assert_eq!(remains(&home), [""; 0]);
    // The pool itself has noticed nothing.
    let status = home.json(&["pool", "status", "--json"]);
    assert_eq!(status["pools"][0]["instance_count"], 0, "{status}");
    assert!(!home.path("state/generations").exists());
}

#[test]
fn a_boot_beside_a_keeper_takes_none_of_its_instances() {
    let home = Home::new();
    let keeper = home.keep();
    let ready = home.ready().unwrap();
    assert_eq!(boot(&home).code, 0);
    assert_eq!(home.ready(), Some(ready.clone()));
    assert_eq!(remains(&home), [ready]);
    drop(keeper);
}

#[test]
fn a_boot_that_fails_says_why_and_quotes_the_console() {
    let home = home("ready_command = \"echo no disk >&2; exit 3\"", "");
    let said = boot(&home);
    assert_eq!(said.code, 1, "{said:?}");
    assert!(said.out.contains("  given up: its ready command failed: exit status 3: no disk\n"), "{said:?}");
    assert!(
        said.out.contains("\nthe boot failed: its ready command failed: exit status 3: no disk\n"),
        "{said:?}"
    );
    assert!(said.out.contains("\nthe last lines of its console:\n  | "), "{said:?}");
    assert_eq!(remains(&home), [""; 0]);
}

#[test]
fn a_refused_launch_is_not_repeated() {
    let home = home("", "fail_launch = { class = \"denied\", first = 9 }");
    let said = boot(&home);
    assert_eq!(said.code, 1, "{said:?}");
    assert_eq!(said.out.matches("launch refused: denied").count(), 1, "{said:?}");
    assert!(said.out.contains("\nthe boot failed: the launch was refused: denied"), "{said:?}");
    assert_eq!(remains(&home), [""; 0]);
}

#[test]
fn a_boot_that_was_killed_is_finished_off_by_the_next_one() {
    let home = home("", "boot_delay = \"1s\"");
    let (mut child, _out) = begun(&home, "launch accepted");
    signal(&child, Signal::KILL);
    child.wait().unwrap();
    assert_eq!(remains(&home).len(), 2, "{:?}", remains(&home));

    let leaks = home.run(&["pool", "leaks"]);
    assert_eq!(leaks.code, 1, "{leaks:?}");
    assert!(leaks.out.starts_with("orphaned: an interrupted `doctor --boot`: linux-"), "{leaks:?}");
    let words = leaks.out.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(words.contains("a `doctor --boot` launched it: that one or the next terminates it"), "{leaks:?}");
    let dry = home.run(&["pool", "leaks", "--terminate", "--dry-run"]);
    assert!(dry.code == 1 && dry.out.starts_with("would clean up an interrupted `doctor --boot`"), "{dry:?}");
    assert_eq!(remains(&home).len(), 2);

    let again = boot(&home);
    assert_eq!(again.code, 0, "{again:?}");
    assert!(again.out.starts_with("cleaning up an interrupted `doctor --boot`: linux-"), "{again:?}");
    assert_eq!(again.out.matches("  gone\n").count(), 2, "{again:?}");
    assert_eq!(remains(&home), [""; 0]);
}

#[test]
fn pool_leaks_finishes_a_killed_boot_off_as_well() {
    let home = home("", "boot_delay = \"1s\"");
    let (mut child, _out) = begun(&home, "requested");
    signal(&child, Signal::KILL);
    child.wait().unwrap();
    let json = home.json(&["pool", "leaks", "--json"]);
    assert_eq!(json["boots"][0]["pool"], "linux", "{json}");
    assert!(json["boots"][0]["instances"][0].as_str().unwrap().starts_with("linux-"), "{json}");
    let ended = home.run(&["pool", "leaks", "linux", "--terminate"]);
    assert_eq!(ended.code, 0, "{ended:?}");
    assert!(ended.out.ends_with("pool linux: no orphaned resources, 0 recorded\n"), "{ended:?}");
    assert_eq!(remains(&home), [""; 0]);
}

#[test]
fn ctrl_c_terminates_what_was_started() {
    let home = home("", "boot_delay = \"20s\"");
    let (mut child, out) = begun(&home, "launch accepted");
    signal(&child, Signal::INT);
    let rest: Vec<String> = out.lines().map(Result::unwrap).collect();
    assert_eq!(ended(&mut child).code(), Some(2));
    assert!(rest.last().unwrap().ends_with("  gone"), "{rest:?}");
    let err = std::io::read_to_string(child.stderr.take().unwrap()).unwrap();
    assert!(err.contains("interrupted, terminating the instance"), "{err}");
    assert!(err.ends_with("error: interrupted; the instance is terminated\n"), "{err}");
    assert_eq!(remains(&home), [""; 0]);
}

#[test]
fn what_cannot_be_booted_is_said() {
    let home = home("", "");
    let unknown = home.run(&["doctor", "--boot", "linus"]);
    assert_eq!(unknown.code, 2);
    assert!(unknown.err.contains("there is no pool `linus`"), "{unknown:?}");
    let text = fs::read_to_string(home.path("greenroom.toml")).unwrap();
    let hosts = "kind = \"static\"\nuser = \"ci\"\nkey = \"/k\"\n[[pool.linux.provider.host]]\nname = \"a\"\n\
                 address = \"192.0.2.1\"";
    fs::write(home.path("greenroom.toml"), text.replace("kind = \"local\"\nallow_root = true", hosts))
        .unwrap();
    let said = boot(&home);
    assert_eq!(said.code, 2, "{said:?}");
    assert!(said.err.contains("pool `linux` has static hosts, which cannot be booted"), "{said:?}");
}
