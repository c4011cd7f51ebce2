//! Whole examinations of real directories.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;

use greenroom_ports::finding::Severity;

use super::*;
use crate::cli::fixture::{EventFixture, pool};

struct Bench {
    home: tempfile::TempDir,
    program: PathBuf,
}

impl Bench {
    fn new() -> Self {
        let home = tempfile::tempdir().unwrap();
        let program = home.path().join("greenroom");
        fs::write(&program, "").unwrap();
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
        let bench = Self { home, program };
        let config =
            "[pool.linux]\nmax_instances = 4\n[pool.linux.provider]\nkind = \"local\"\nallow_root = true\n";
        bench.write("greenroom.toml", config);
        let exec = |name: &str| {
            let program = bench.program.display();
            format!("{name}_exec = \"{program}\"\n{name}_args = [\"{name}\"]\n")
        };
        let execs: String = ["config", "prepare", "run", "cleanup"].map(exec).concat();
        let runner = format!(
            "concurrent = 4\n[[runners]]\nexecutor = \"custom\"\nlimit = 4\n[runners.custom]\n{execs}graceful_kill_timeout = 60\n"
        );
        bench.write("config.toml", &runner);
        bench.write("greenroom.service", "ExecStart=/usr/bin/greenroom keep\n");
        fs::create_dir(bench.path("multi-user.target.wants")).unwrap();
        bench.write("multi-user.target.wants/greenroom.service", "");
        bench
    }

    fn path(&self, name: &str) -> PathBuf {
        self.home.path().join(name)
    }

    fn write(&self, name: &str, text: &str) {
        fs::write(self.path(name), text).unwrap();
        fs::set_permissions(self.path(name), fs::Permissions::from_mode(0o600)).unwrap();
    }

    /// Makes the state directory, with one instance in it.
    async fn used(self) -> Self {
        StateDir::open(&self.path("state")).unwrap();
        let stores = stores::open(&self.path("state"), StoreOptions::default()).unwrap();
        let store = stores.store(&pool()).unwrap();
        let policy = Policy { max_instances: 4, ..Policy::default() };
        let now = SystemClock::new(ManagerId::default()).unwrap().now();
        for event in EventFixture::of(policy).ready(1, 1.0).events.clone() {
            let event = event.change.at(now);
            store.transact(&mut |_| vec![event.clone()]).await.unwrap();
        }
        self
    }

    async fn examine(&self, options: impl FnOnce(&mut DoctorOptions)) -> Result<Examination, CliError> {
        let (config, state) = (self.path("greenroom.toml"), self.path("state"));
        let ground = CheckPaths {
            config: &config,
            state_dir: Some(&state),
            program: &self.program,
            unit_dirs: &[self.home.path()],
            has_systemd: true,
        };
        let mut given = DoctorOptions {
            pin: None,
            clean_script: None,
            boot: None,
            pool: None,
            yes: false,
            runner_config: self.path("config.toml"),
            repair: false,
            new_installation: false,
            take_over: false,
            new_owner: false,
            json: false,
        };
        options(&mut given);
        examine(&ground, &given).await
    }

    /// Without what depends on where tests run.
    async fn codes(&self) -> Vec<&'static str> {
        let examined = self.examine(|_| ()).await.unwrap();
        let of_place = ["state-dir-ephemeral", "state-dir-space"];
        codes(&examined).into_iter().filter(|code| !of_place.contains(code)).collect()
    }
}

#[tokio::test]
async fn a_sound_set_up_has_no_finding_but_its_providers_own() {
    let bench = Bench::new().used().await;
    assert_eq!(bench.codes().await, ["local-no-isolation"]);
    let examined = bench.examine(|_| ()).await.unwrap();
    let expected = [
        "configuration",
        "state directory",
        "providers",
        "pools",
        "attempts",
        "links",
        "keeper",
        "clocks",
        "runner",
    ];
    assert_eq!(examined.checked, expected);
    assert!(!examined.is_bad());
}

#[tokio::test]
async fn a_first_look_makes_nothing() {
    let bench = Bench::new();
    assert_eq!(bench.codes().await, ["state-dir-missing", "local-no-isolation"]);
    assert!(!bench.path("state").exists());
}

#[tokio::test]
async fn a_wrong_configuration_does_not_keep_from_looking_further() {
    let bench = Bench::new().used().await;
    bench.write("greenroom.toml", "[pool.linux]\nmax_instances = \"four\"\n");
    let journal = bench.path("state/pools/linux/journal.jsonl");
    let text = fs::read_to_string(&journal).unwrap();
    fs::write(&journal, text.replacen("launch-answered", "launch-ansWered", 1)).unwrap();
    assert_eq!(bench.codes().await, ["config-invalid", "state-damaged"]);
    assert!(bench.examine(|_| ()).await.unwrap().is_bad());
}

#[tokio::test]
async fn repair_mends_and_then_looks() {
    let bench = Bench::new().used().await;
    let journal = bench.path("state/pools/linux/journal.jsonl");
    let text = fs::read_to_string(&journal).unwrap();
    fs::write(&journal, text.replacen("launch-answered", "launch-ansWered", 1)).unwrap();
    let examined = bench.examine(|o| o.repair = true).await.unwrap();
    assert_eq!(examined.repaired.len(), 1);
    let found = codes(&examined);
    assert!(found.contains(&"state-backup-files") && !found.contains(&"state-damaged"), "{found:?}");
    // The launch whose answer was lost with the damage is in progress again, and no keeper is running.
    assert_eq!(found[0], "keeper-missing");
}

#[tokio::test]
async fn what_cannot_be_mended_is_an_error_of_its_own() {
    let bench = Bench::new();
    let error = bench.examine(|o| o.new_owner = true).await.unwrap_err().for_operator();
    assert!(error.contains("cannot repair") && error.contains("does not exist"), "{error}");
}

#[tokio::test]
async fn a_lost_owner_is_found_and_made_anew_on_demand() {
    let bench = Bench::new().used().await;
    fs::write(bench.path("state/generations"), "0123abcd\n").unwrap();
    fs::remove_file(bench.path("state/owner")).unwrap();
    assert!(bench.codes().await.contains(&"owner-missing"));
    let examined = bench.examine(|o| o.new_owner = true).await.unwrap();
    assert_eq!(examined.repaired.len(), 1);
    assert!(!bench.codes().await.contains(&"owner-missing"));
}

#[tokio::test]
async fn the_text_of_an_examination_shows_no_key() {
    let bench = Bench::new().used().await;
    let examined = bench.examine(|_| ()).await.unwrap();
    for shown in [examined.text(80), examined.json().to_string()] {
        assert!(!shown.contains("SECRET"), "{shown}");
    }
    assert!(examined.findings.iter().all(|f| f.severity < Severity::Error));
}
