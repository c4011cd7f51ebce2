//! Sections with one mistake each.

use std::os::unix::fs::PermissionsExt as _;

use super::*;

/// A correct section for one pool with 4 slots; `EXE` stands for an executable called greenroom.
const RIGHT: &str = r#"
concurrent = 4
[[runners]]
name = "ci"
executor = "custom"
limit = 4
[runners.custom]
config_exec = "EXE"
config_args = ["config"]
prepare_exec = "EXE"
prepare_args = ["prepare"]
run_exec = "EXE"
run_args = ["run"]
cleanup_exec = "EXE"
cleanup_args = ["cleanup"]
graceful_kill_timeout = 60
"#;

struct Bench {
    home: tempfile::TempDir,
    pools: BTreeMap<PoolName, PoolNeeds>,
}

impl Bench {
    fn new() -> Self {
        let home = tempfile::tempdir().unwrap();
        for (name, mode) in [("greenroom", 0o755), ("dull/greenroom", 0o644)] {
            let path = home.path().join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(&path, "").unwrap();
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
        }
        let needs = PoolNeeds {
            slots: 4,
            shell: "bash",
            acquire_timeout: Duration::from_mins(30),
            stop_grace: Duration::from_secs(10),
            pull_timeout: None,
        };
        Self { home, pools: BTreeMap::from([(PoolName::new("linux"), needs)]) }
    }

    /// The correct section with one text replaced.
    fn with(&self, old: &str, new: &str) -> Vec<Finding> {
        assert!(RIGHT.contains(old), "{old}");
        self.check(&RIGHT.replacen(old, new, 1))
    }

    fn check(&self, text: &str) -> Vec<Finding> {
        let path = self.home.path().join("config.toml");
        let home = self.home.path().display().to_string();
        std::fs::write(&path, text.replace("EXE", &format!("{home}/greenroom")).replace("HOME", &home))
            .unwrap();
        let facts = RunnerFacts {
            path: &path,
            config: Path::new("/etc/greenroom/greenroom.toml"),
            pools: &self.pools,
        };
        check(&facts)
    }
}

/// Mistake, code, and a part of the finding.
const MISTAKES: &[(&str, &str, &str, &str)] = &[
    ("concurrent = 4", "concurrent = ", "runner-config-invalid", "is not valid TOML"),
    ("executor = \"custom\"", "executor = \"shell\"", "runner-stanza-missing", "executor = \"custom\""),
    ("prepare_exec = \"EXE\"", "", "runner-exec-missing", "runner `ci` has no `prepare_exec`"),
    ("config_exec = \"EXE\"", "config_exec = \"\"", "runner-exec-missing", "no `config_exec`"),
    ("cleanup_exec = \"EXE\"", "", "runner-cleanup-missing", "no `cleanup_exec`"),
    ("run_exec = \"EXE\"", "run_exec = \"bin/greenroom\"", "runner-exec-relative", "`bin/greenroom`"),
    ("run_exec = \"EXE\"", "run_exec = \"greenroom\"", "runner-exec-relative", "job's directory"),
    ("run_exec = \"EXE\"", "run_exec = \"/no/such/greenroom\"", "runner-exec-broken", "does not exist"),
    ("run_exec = \"EXE\"", "run_exec = \"HOME/dull/greenroom\"", "runner-exec-broken", "is not executable"),
    ("run_exec = \"EXE\"", "run_exec = \"HOME/dull\"", "runner-exec-broken", "is not a file"),
    ("[\"prepare\"]", "[]", "runner-args", "`prepare_args` are []"),
    ("[\"prepare\"]", "[\"cleanup\"]", "runner-args", "this calls another command"),
    ("[\"run\"]", "[\"run\", \"extra\"]", "runner-args", "unexpected argument"),
    ("[\"config\"]", "[\"--config\", \"/x.toml\", \"config\"]", "runner-other-config", "`--config /x.toml`"),
    ("[\"config\"]", "[\"config\", \"--pool\", \"mac\"]", "runner-unknown-pool", "`--pool mac`"),
    ("graceful_kill_timeout = 60", "", "runner-kill-timeout", "600 s"),
    ("graceful_kill_timeout = 60", "graceful_kill_timeout = 0", "runner-kill-timeout", "600 s"),
    ("graceful_kill_timeout = 60", "graceful_kill_timeout = 300", "runner-kill-timeout", "300 s"),
    (
        "graceful_kill_timeout = 60",
        "graceful_kill_timeout = 21",
        "runner-kill-timeout-short",
        "can take 22 s",
    ),
    (
        "graceful_kill",
        "prepare_exec_timeout = 600\ngraceful_kill",
        "runner-prepare-timeout",
        "10m, but a job may wait 30m",
    ),
    ("concurrent = 4\n", "concurrent = 10\n", "", ""),
    ("limit = 4", "limit = 0", "", ""),
    (
        "limit = 4",
        "limit = 3",
        "runner-too-few-jobs",
        "accepts 3 jobs (`limit`), but pool `linux` has 4 slots",
    ),
    ("limit = 4", "shell = \"pwsh\"\nlimit = 4", "runner-shell", "\"pwsh\""),
];

#[test]
fn a_right_stanza_has_no_finding() {
    assert_eq!(Bench::new().check(RIGHT), []);
}

#[test]
fn each_mistake_has_its_code_and_names_the_key() {
    let bench = Bench::new();
    for (old, new, code, part) in MISTAKES {
        let found = bench.with(old, new);
        let codes: Vec<&str> = found.iter().map(|f| f.code).collect();
        let expected: Vec<&str> = Some(*code).into_iter().filter(|c| !c.is_empty()).collect();
        assert_eq!(codes, expected, "{old} → {new}: {found:?}");
        assert!(found.iter().all(|f| f.message.contains(part)), "{old} → {new}: {found:?}");
    }
}

#[test]
fn a_runner_that_takes_too_many_jobs_is_told_the_limit() {
    let bench = Bench::new();
    let found = bench.check(&RIGHT.replace("concurrent = 4", "concurrent = 9").replace("limit = 4", ""));
    assert_eq!(
        found[0].to_string(),
        "warning [runner-too-many-jobs]: runner `ci` accepts 9 jobs (`concurrent`), but pool `linux` has 4 slots \
         (`max_instances` × `capacity_per_instance`): further jobs wait while their timeout runs\n  \
         help: set `limit = 4` under `[[runners]]`"
    );
    let found =
        bench.check(&RIGHT.replace("concurrent = 4", "concurrent = 9").replace("limit = 4", "limit = 6"));
    assert_eq!(found[0].code, "runner-too-many-jobs");
}

#[test]
fn a_missing_concurrent_is_one() {
    let found = Bench::new().check(&RIGHT.replace("concurrent = 4", ""));
    let codes: Vec<&str> = found.iter().map(|f| f.code).collect();
    assert_eq!(codes, ["runner-too-few-jobs"]);
    assert!(found[0].message.contains("accepts 1 job (`concurrent`)"), "{}", found[0].message);
}

#[test]
fn a_named_pool_counts_alone_and_all_of_them_otherwise() {
    let mut bench = Bench::new();
    let small = PoolNeeds { slots: 2, ..bench.pools[&PoolName::new("linux")].clone() };
    bench.pools.insert(PoolName::new("arm"), small);
    let found = bench.check(RIGHT);
    assert!(found[0].message.contains("pools `arm`, `linux` have 6 slots"), "{found:?}");
    let named = RIGHT.replace("[\"prepare\"]", "[\"prepare\", \"--pool\", \"linux\"]");
    assert_eq!(bench.check(&named), []);
}

/// A pool with containers.
fn with_containers() -> Bench {
    let mut bench = Bench::new();
    bench.pools.values_mut().for_each(|needs| needs.pull_timeout = Some(Duration::from_mins(15)));
    bench
}

#[test]
fn jobs_in_containers_need_scripts_that_dash_can_read() {
    let bench = with_containers();
    let found = bench.check(RIGHT);
    assert_eq!(found.iter().map(|found| found.code).collect::<Vec<_>>(), ["runner-dash"]);
    assert!(found[0].message.starts_with("runner `ci`: jobs of pool `linux`"), "{found:?}");
    for set in ["[runners.feature_flags]\nFF_POSIXLY_CORRECT_ESCAPES = true\n", ""] {
        let line =
            if set.is_empty() { "environment = [\"A=1\", \"FF_POSIXLY_CORRECT_ESCAPES=1\"]\n" } else { "" };
        let text =
            format!("{}{set}", RIGHT.replace("[runners.custom]\n", &format!("{line}[runners.custom]\n")));
        assert_eq!(bench.check(&text), []);
    }
    let off = format!("{RIGHT}[runners.feature_flags]\nFF_POSIXLY_CORRECT_ESCAPES = false\n");
    assert_eq!(bench.check(&off)[0].code, "runner-dash");
}

#[test]
fn the_limit_of_prepare_includes_the_pulls_of_containers() {
    let found = with_containers().with("graceful_kill", "prepare_exec_timeout = 2700\ngraceful_kill");
    let expected = "runner `ci`: `prepare_exec_timeout` is 45m, but a job may wait 45m for its instance and its images \
                    (`acquire_timeout` + `pull_timeout`)";
    assert!(found.iter().any(|found| found.message == expected), "{found:?}");
}

#[test]
fn other_executors_and_other_drivers_are_none_of_our_business() {
    let other = "[[runners]]\nexecutor = \"custom\"\n[runners.custom]\nrun_exec = \"/opt/other/run\"\n";
    let found = Bench::new().check(&format!("{RIGHT}{other}[[runners]]\nexecutor = \"docker\"\n"));
    assert_eq!(found, []);
}

#[test]
fn an_unreadable_file_is_a_note_and_a_broken_one_shows_no_token() {
    let bench = Bench::new();
    let nowhere = Path::new("/no/such/config.toml");
    let facts = RunnerFacts { path: nowhere, config: nowhere, pools: &bench.pools };
    let found = check(&facts);
    assert_eq!(found[0].code, "runner-config-unreadable");
    let broken = bench.check("[[runners]]\ntoken = \"glrt-SECRET\" oops\n");
    assert_eq!(broken[0].code, "runner-config-invalid");
    assert!(!broken[0].to_string().contains("SECRET"), "{}", broken[0]);
}

/// One finding of each code.
pub(in crate::cli::doctor) fn provoked() -> Vec<Finding> {
    let bench = Bench::new();
    let mut all: Vec<Finding> = MISTAKES.iter().flat_map(|(old, new, ..)| bench.with(old, new)).collect();
    all.extend(bench.check(&RIGHT.replace("concurrent = 4", "concurrent = 9").replace("limit = 4", "")));
    all.extend(bench.check(&RIGHT.replace("concurrent = 4", "")));
    all.extend(with_containers().check(RIGHT));
    let nowhere = Path::new("/no/such/config.toml");
    all.extend(check(&RunnerFacts { path: nowhere, config: nowhere, pools: &bench.pools }));
    all
}
