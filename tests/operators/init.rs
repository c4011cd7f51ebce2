//! `init`: what it writes, and what it never does.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use greenroom_testkit::program;

use super::PROGRAM;

/// A runner's file as `gitlab-runner register` leaves it, and an operator's comments in it.
const RUNNER: &str = include_str!("../fixtures/runner-config.toml");

/// A machine of its own, as far as `init` looks at one.
struct Machine {
    home: tempfile::TempDir,
}

impl Machine {
    fn new() -> Self {
        let machine = Self { home: tempfile::tempdir().unwrap() };
        fs::create_dir(machine.path("runner")).unwrap();
        machine.write("runner/config.toml", RUNNER);
        fs::set_permissions(machine.path("runner/config.toml"), fs::Permissions::from_mode(0o600)).unwrap();
        machine
    }

    fn path(&self, name: &str) -> PathBuf {
        self.home.path().join(name)
    }

    fn write(&self, name: &str, text: &str) {
        fs::write(self.path(name), text).unwrap();
    }

    fn read(&self, name: &str) -> String {
        fs::read_to_string(self.path(name)).unwrap()
    }

    /// The arguments of a call with the files of this machine.
    fn args(&self, args: &[&str]) -> Vec<String> {
        let path = |name: &str| self.path(name).display().to_string();
        let own = [
            "--config".into(),
            path("etc/greenroom.toml"),
            "--state-dir".into(),
            path("state"),
            "init".into(),
        ];
        let runner = ["--runner-config".into(), path("runner/config.toml")];
        own.into_iter().chain(runner).chain(args.iter().map(|arg| (*arg).to_owned())).collect()
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = program::command(PROGRAM, self.home.path());
        command.args(self.args(args));
        command
    }

    fn init(&self, args: &[&str]) -> Output {
        self.command(args).output().unwrap()
    }

    /// Every file with its text.
    fn files(&self) -> BTreeMap<PathBuf, String> {
        let mut files = BTreeMap::new();
        let mut folders = vec![self.home.path().to_owned()];
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(folder).unwrap() {
                let path = entry.unwrap().path();
                if path.is_dir() {
                    folders.push(path);
                } else {
                    files.insert(path.clone(), fs::read_to_string(&path).unwrap());
                }
            }
        }
        files
    }

    fn names(&self, folder: &str) -> Vec<String> {
        let entries = fs::read_dir(self.path(folder)).unwrap();
        let mut names: Vec<String> =
            entries.map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned()).collect();
        names.sort();
        names
    }
}

const LOCAL: &[&str] = &["--provider", "local", "--set", "allow_root=true"];

fn local(more: &[&'static str]) -> Vec<&'static str> {
    [LOCAL, more].concat()
}

fn out(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

fn err(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

/// Doctor's own result is of no interest: the files are in place.
#[track_caller]
fn done(output: &Output) -> String {
    let text = out(output);
    assert!(matches!(output.status.code(), Some(0 | 1)), "{output:?}");
    assert!(text.contains("Findings of doctor:"), "{text}");
    text
}

#[track_caller]
fn refused(output: &Output, expected: &[&str]) {
    let text = err(output);
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    assert!(text.contains("help: ") && expected.iter().all(|part| text.contains(part)), "{text}");
}

#[test]
fn a_dry_run_shows_everything_and_changes_nothing() {
    let machine = Machine::new();
    let before = machine.files();
    let output = machine.init(&local(&["--merge-runner", "--dry-run"]));
    let text = out(&output);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    for part in [
        "Found on this machine:",
        "#:schema ./greenroom.schema.json\n",
        "[pool.local.provider]\nkind = \"local\"\n",
        "-concurrent = 1\n+concurrent = 4\n",
        "+    config_exec = \"",
        "   token = …\n",
        "Nothing was changed",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    assert!(!text.contains("glrt") && !text.contains("Findings of doctor:"), "{text}");
    assert_eq!(machine.files(), before);
    assert!(!machine.path("etc").exists());
}

#[test]
fn a_configuration_is_written_once_and_never_again() {
    let machine = Machine::new();
    let text = done(&machine.init(&local(&["--max-instances", "3", "--set", "boot_delay=1s"])));
    assert!(text.contains("`greenroom init --merge-runner`"), "{text}");
    let written = machine.read("etc/greenroom.toml");
    for part in ["\nmax_instances = 3\n", "\nidle_count = 1\n", "\nboot_delay = \"1s\"\n", "state_dir = \""] {
        assert!(written.contains(part), "{part}: {written}");
    }
    assert_eq!(fs::metadata(machine.path("etc/greenroom.toml")).unwrap().mode() & 0o7777, 0o600);
    assert_eq!(machine.names("etc"), ["greenroom.schema.json", "greenroom.toml"]);
    assert_eq!(machine.read("runner/config.toml"), RUNNER, "only on request");
    machine.write("etc/greenroom.toml", &format!("{written}# mine\n"));
    machine.write("etc/greenroom.schema.json", "{ \"$comment\": \"Generated by `greenroom schema`.\" }");
    let again = done(&machine.init(&local(&[])));
    assert!(again.contains("exists and is not changed. Its pools: local."), "{again}");
    assert!(
        machine.read("etc/greenroom.schema.json").contains("max_instances"),
        "a generated file is renewed"
    );
    machine.write("etc/greenroom.schema.json", "{}");
    let more = done(&machine.init(&local(&["--pool", "other"])));
    assert!(
        more.contains("To add pool `other`, append this to it:\n\n") && more.contains("[pool.other]\n"),
        "{more}"
    );
    assert_eq!(machine.read("etc/greenroom.toml"), format!("{written}# mine\n"));
    assert_eq!(machine.read("etc/greenroom.schema.json"), "{}", "a file that is not Greenroom's");
    machine.write("etc/greenroom.toml", "rubbish");
    refused(&machine.init(&local(&[])), &["not valid TOML", "then run init again"]);
    assert_eq!(machine.read("etc/greenroom.toml"), "rubbish");
}

#[test]
fn the_runners_section_is_merged_on_request_and_everything_else_in_its_file_stays() {
    let machine = Machine::new();
    let text = done(&machine.init(&local(&["--merge-runner"])));
    assert!(text.contains("GitLab Runner reloads the file by itself."), "{text}");
    let merged = machine.read("runner/config.toml");
    for line in
        RUNNER.lines().filter(|line| !["concurrent", "    run_exec"].iter().any(|it| line.starts_with(it)))
    {
        assert!(merged.lines().any(|it| it == line), "{line}: {merged}");
    }
    let config = machine.path("etc/greenroom.toml").display().to_string();
    assert!(merged.contains(&format!("    run_args = [\"run\", \"--config\", \"{config}\"]\n")), "{merged}");
    assert!(merged.contains("  executor = \"docker\"\n  [runners.docker]\n"), "the other one: {merged}");
    assert_eq!(machine.read("runner/config.toml.before-greenroom-1"), RUNNER);
    for name in ["config.toml", "config.toml.before-greenroom-1"] {
        assert_eq!(fs::metadata(machine.path("runner").join(name)).unwrap().mode() & 0o7777, 0o600, "{name}");
    }
    let again = done(&machine.init(&["--merge-runner"]));
    assert!(again.contains("calls Greenroom already"), "{again}");
    assert_eq!(machine.read("runner/config.toml"), merged);
    assert_eq!(machine.names("runner").len(), 2);
    refused(
        &machine.init(&["--merge-runner", "--runner", "docker"]),
        &["runner `docker` with another executor, \"docker\"", "--change-executor"],
    );
    done(&machine.init(&["--merge-runner", "--runner", "docker", "--change-executor"]));
    assert_eq!(machine.read("runner/config.toml").matches("executor = \"custom\"").count(), 2);
}

#[test]
fn a_runners_file_that_cannot_be_changed_stops_a_merge_before_anything_is_written() {
    let machine = Machine::new();
    let two = format!("{RUNNER}[[runners]]\n  name = \"third\"\n  executor = \"custom\"\n");
    for (text, expected) in [
        ("concurrent = 4\n", "no runner is registered"),
        ("token = \"glrt-secret\nx = 1\n", "is not valid TOML: line 1"),
        (two.as_str(), "several runners that may call Greenroom: runner `whole machines`, runner `third`"),
        ("[[runners]]\nname = \"a\"\nexecutor = \"shell\"\n", "another executor, \"shell\""),
    ] {
        machine.write("runner/config.toml", text);
        let output = machine.init(&local(&["--merge-runner"]));
        refused(&output, &[expected, "nothing was written"]);
        assert!(!err(&output).contains("glrt"), "{output:?}");
        assert!(!machine.path("etc").exists());
        assert_eq!(machine.read("runner/config.toml"), text);
    }
    fs::remove_file(machine.path("runner/config.toml")).unwrap();
    refused(&machine.init(&local(&["--merge-runner"])), &["there is no runner's configuration"]);
    let text = done(&machine.init(&local(&[])));
    assert!(text.contains("there is no runner's configuration"), "without a merge it is no error: {text}");
}

#[test]
fn a_pool_of_pods_is_written_from_a_kubeconfig() {
    let machine = Machine::new();
    fs::create_dir(machine.path(".kube")).unwrap();
    let contexts = "contexts:\n- context:\n    cluster: a\n    namespace: jobs\n    user: u\n  name: prod\n";
    machine.write(
        ".kube/config",
        &format!("{contexts}current-context: prod\nusers:\n- name: u\n  user:\n    token: glrt\n"),
    );
    let init = |more: &[&str]| {
        machine.init(&[&["--provider", "kubernetes", "--set", "image=ci:12"][..], more].concat())
    };
    let before = machine.files();
    let shown = out(&init(&["--dry-run"]));
    assert!(shown.contains("/.kube/config: prod\n") && shown.contains("\ncontext = \"prod\"\n"), "{shown}");
    assert!(!shown.contains("glrt") && machine.files() == before, "{shown}");
    let text = done(&init(&[]));
    assert!(text.contains("doctor --boot pods\n"), "{text}");
    let written = machine.read("etc/greenroom.toml");
    let kubeconfig = format!("\nkubeconfig = \"{}\"\n", machine.path(".kube/config").display());
    for line in [
        "\n[pool.pods.provider]\nkind = \"kubernetes\"\n",
        "\nnamespace = \"jobs\"\n",
        kubeconfig.as_str(),
        "\nidle_count = 0\n",
    ] {
        assert!(written.contains(line), "{line}: {written}");
    }
}

#[test]
fn without_a_terminal_each_missing_answer_is_named_with_its_flag() {
    let machine = Machine::new();
    for (args, expected) in [
        (&[][..], "--provider KIND"),
        (&["--provider", "static"], "--host [USER@]HOST[:PORT]"),
        (&["--provider", "gce"], "--set project=VALUE"),
        (&["--provider", "kubernetes"], "--set context=VALUE"),
        (&["--provider", "qemu", "--set", "memory=1"], "`memory` must be a size"),
        (&["--provider", "qemu", "--set", "memory=100K"], "128"),
        (&["--provider", "qemu", "--set", "network=proxy"], "proxy"),
        (&["--provider", "qemu", "--max-instances", "0"], "`max_instances` in `[pool.vm]`"),
    ] {
        let output = machine.init(args);
        assert_eq!(output.status.code(), Some(2), "{args:?}: {output:?}");
        assert!(err(&output).contains(expected), "{args:?}: {}", err(&output));
        assert!(!machine.path("etc").exists(), "{args:?}");
    }
}

#[test]
fn a_folder_that_cannot_be_written_is_named_and_what_to_do() {
    let machine = Machine::new();
    // Not even root makes files there.
    let mut command = program::command(PROGRAM, machine.home.path());
    command.args(["--config", "/sys/kernel/greenroom.toml", "init", "--runner-config"]);
    command.arg(machine.path("runner/config.toml")).args(local(&["--merge-runner"]));
    refused(&command.output().unwrap(), &["cannot write `/sys/kernel/greenroom.toml`"]);
    assert_eq!(machine.names("runner"), ["config.toml"]);
    assert_eq!(machine.read("runner/config.toml"), RUNNER);
}

#[test]
fn forty_at_the_same_time_write_each_file_once() {
    let machine = Machine::new();
    let start = |_| {
        let mut command = machine.command(&local(&["--merge-runner"]));
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    };
    let calls: Vec<_> = (0..40).map(start).collect();
    let outputs: Vec<Output> = calls.into_iter().map(|call| call.wait_with_output().unwrap()).collect();
    for output in &outputs {
        done(output);
    }
    let said = |text: &str| outputs.iter().filter(|output| out(output).contains(text)).count();
    assert_eq!(said("Its earlier text is in `"), 1);
    assert_eq!(machine.names("etc"), ["greenroom.schema.json", "greenroom.toml"]);
    assert_eq!(machine.names("runner"), ["config.toml", "config.toml.before-greenroom-1"]);
    assert_eq!(machine.read("runner/config.toml.before-greenroom-1"), RUNNER);
    let merged = machine.read("runner/config.toml");
    assert_eq!(merged.matches("[runners.custom]").count(), 1, "{merged}");
}

/// Plays a person at a terminal: waits for each text, then types what follows it.
const PERSON: &str = r"
import json, os, pty, signal, sys
signal.alarm(120)
answers = json.loads(sys.argv[1])
child, terminal = pty.fork()
if child == 0:
    # Ctrl-C means something, even if the tests run in the background of a shell.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    os.execvp(sys.argv[2], sys.argv[2:])
seen = said = b''
while True:
    try:
        data = os.read(terminal, 4096)
    except OSError:
        break
    if not data:
        break
    seen += data
    said += data
    while answers and answers[0][0].encode() in said:
        said = said.split(answers[0][0].encode(), 1)[1]
        os.write(terminal, answers.pop(0)[1].encode())
os.write(1, seen)
status = os.waitpid(child, 0)[1]
sys.exit(os.waitstatus_to_exitcode(status) if os.WIFEXITED(status) else 100)
";

fn person(machine: &Machine, args: &[&str], answers: &[(&str, &str)]) -> Output {
    let answers = serde_json::to_string(answers).unwrap();
    let mut python = program::command("python3", machine.home.path());
    python.args(["-c", PERSON, &answers, PROGRAM]).args(machine.args(args)).output().unwrap()
}

#[test]
fn a_person_answers_at_a_terminal() {
    let machine = Machine::new();
    let root = rustix::process::geteuid().is_root();
    let mut answers = vec![
        ("[qemu]: ", "locla\n"),
        ("did you mean `local`?", ""),
        ("[qemu]: ", "local\n"),
        ("Name of the pool [local]: ", "mine\n"),
    ];
    answers.extend(root.then_some(("Allow it? [y/N]: ", "y\n")));
    answers.extend([
        ("Instances at most [4]: ", "2\n"),
        ("Spare job slots, kept ready [1]: ", "\n"),
        ("[Y/n]: ", "maybe\n"),
        ("answer `y` or `n`", ""),
        ("[Y/n]: ", "\n"),
        ("stays beside it. [y/N]: ", "y\n"),
    ]);
    let text = done(&person(&machine, &[], &answers));
    assert!(text.contains("GitLab Runner reloads the file by itself."), "{text}");
    assert!(!text.contains("state-dir-missing"), "a new installation has no state: {text}");
    let next =
        format!("Next:\r\n  greenroom --config {} try\r\n", machine.path("etc/greenroom.toml").display());
    assert!(text.ends_with(&next), "what is left to do comes last: {text}");
    let written = machine.read("etc/greenroom.toml");
    assert!(written.contains("[pool.mine]\n") && written.contains("\nmax_instances = 2\n"), "{written}");
    assert!(machine.read("runner/config.toml").contains("concurrent = 2\n"));
}

#[test]
fn a_person_who_mistypes_a_host_or_an_account_is_asked_again() {
    let machine = Machine::new();
    let answers = [
        ("[qemu]: ", "static\n"),
        ("Name of the pool [hosts]: ", "\n"),
        ("Hosts, separated by spaces, each as [USER@]HOST[:PORT]: ", "h1.corp ci@\n"),
        ("`ci@` is not a host", ""),
        ("[USER@]HOST[:PORT]: ", "h1.corp ci@h2.corp:2222\n"),
        ("Account that logs in and runs jobs [ci]: ", "ci@h1.corp\n"),
        ("`ci@h1.corp` cannot be the name of an account", ""),
        ("[ci]: ", "\n"),
        ("hosts_key]: ", "\n"),
        ("[Y/n]: ", "y\n"),
        ("stays beside it. [y/N]: ", "n\n"),
    ];
    let output = person(&machine, &[], &answers);
    let written = machine.read("etc/greenroom.toml");
    assert!(
        written.contains("builds_dir = \"/home/ci/builds\"") && written.contains("port = 2222"),
        "{written}"
    );
    // The hosts are not pinned yet; the commands for that are the last word.
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let text = out(&output);
    let (_, next) = text.split_once("Next:\r\n").expect("what is left to do");
    assert!(next.contains(" doctor --pin h2.corp\r\n") && !next.contains("static-unpinned"), "{text}");
}

#[test]
fn a_person_who_says_no_finds_everything_as_it_was() {
    let machine = Machine::new();
    let before = machine.files();
    let answers = [("[Y/n]: ", "n\n")];
    let output =
        person(&machine, &local(&["--pool", "a", "--max-instances", "1", "--idle-count", "0"]), &answers);
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    assert!(out(&output).contains("nothing was written"), "{output:?}");
    assert_eq!(machine.files(), before);
}

#[test]
fn a_person_chooses_among_runners() {
    let machine = Machine::new();
    let file = RUNNER.replace("executor = \"custom\"", "executor = \"shell\"");
    machine.write("runner/config.toml", &file);
    let args = local(&["--pool", "a", "--max-instances", "1", "--idle-count", "0"]);
    let chosen = [
        ("[Y/n]: ", "y\n"),
        ("Name of the runner: ", "none\n"),
        ("has no runner `none`", ""),
        ("Name of the runner: ", "docker\n"),
    ];
    let no = [("Change that section to call Greenroom? [y/N]: ", "n\n")];
    let text = done(&person(&machine, &args, &[&chosen[..], &no].concat()));
    assert!(text.contains("stays as it is") && text.contains("another executor, \"docker\""), "{text}");
    assert_eq!(machine.read("runner/config.toml"), file);
    let yes = [
        ("Change that section to call Greenroom? [y/N]: ", "y\n"),
        ("+  executor = \"custom\"", ""),
        ("stays beside it. [y/N]: ", "y\n"),
    ];
    done(&person(&machine, &[], &[&chosen[1..], &yes].concat()));
    let merged = machine.read("runner/config.toml");
    assert_eq!(merged.matches("executor = \"custom\"").count(), 1, "{merged}");
    assert!(merged.contains("executor = \"shell\"\n  [runners.custom]\n    run_exec = \"\"\n"), "{merged}");
}

#[test]
fn an_interrupted_call_leaves_nothing() {
    let machine = Machine::new();
    let before = machine.files();
    let args = local(&["--pool", "a", "--max-instances", "1", "--idle-count", "0"]);
    for (question, typed) in [("Write this to", "\x03"), ("[Y/n]: ", "\x04")] {
        let output = person(&machine, &args, &[(question, typed)]);
        assert!(matches!(output.status.code(), Some(2 | 100)), "{output:?}");
        assert_eq!(machine.files(), before);
    }
    // One that was killed while it wrote is cleaned up after.
    fs::create_dir(machine.path("etc")).unwrap();
    for name in ["etc/.greenroom.toml.greenroom-init", "runner/.config.toml.greenroom-init"] {
        machine.write(name, "half");
    }
    done(&machine.init(&local(&["--merge-runner"])));
    let hidden = |folder: &str| machine.names(folder).iter().any(|name| name.starts_with('.'));
    assert!(!hidden("etc") && !hidden("runner"));
}

#[test]
fn hosts_of_ssh_are_offered_and_taken_with_their_settings() {
    let machine = Machine::new();
    fs::create_dir(machine.path(".ssh")).unwrap();
    machine.write(".ssh/config", "Host mac\n  HostName 192.0.2.7\n  User admin\n  IdentityFile ~/.ssh/mac\n");
    let args = [
        "--provider",
        "static",
        "--host",
        "mac",
        "--host",
        "ci@192.0.2.8:2222",
        "--set",
        "key=/k",
        "--dry-run",
    ];
    let text = out(&machine.init(&args));
    let key = machine.path(".ssh/mac").display().to_string();
    assert!(text.contains("in ~/.ssh/config: mac\n"), "{text}");
    assert!(text.contains(&format!("address = \"192.0.2.7\"\nkey = \"{key}\"\nname = \"mac\"\n")), "{text}");
    assert!(text.contains("port = 2222\nuser = \"ci\"\n"), "{text}");
    assert!(!Path::new(&key).exists(), "nothing connects, and no key is read");
}
