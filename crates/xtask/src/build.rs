//! The builds of the workspace: what Cargo is asked to build, when a build is ready, and the test programs that it has made.
//!
//! All builds have one directory for intermediate files, so Cargo itself reuses the libraries that are identical. Each has a directory
//! of its own for the programs, because the same program differs from feature to feature. Steps run test programs without Cargo:
//! otherwise they would wait for its lock while another build goes on.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde_json::Value;

use crate::process::{Ended, ProcessEnd, ProcessError, Processes, Program};
use crate::step::{Action, Build, Packages, Step, Suite};

/// The time limit of a build.
const LIMIT: Duration = Duration::from_hours(3);

/// Features of the build with clouds, with and without the vendors' libraries.
const ALL_FEATURES: &str = "all-backends,crash-points,test-plugin";
const FEATURES_WITHOUT_VENDORS: &str = "crash-points,external,fleeting,https,kubernetes,test-plugin";

/// The part of a package from which Cargo made a program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TargetKind {
    Lib,
    Test,
    Bin,
}

/// A program of tests that a build has made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TestProgram {
    /// The folder of its package, in which it runs.
    pub folder: PathBuf,
    pub kind: TargetKind,
    pub name: String,
    pub path: PathBuf,
}

/// A program that tests start, and its package's folder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Executable {
    pub folder: PathBuf,
    pub name: String,
    pub path: PathBuf,
}

/// A [`Build`] that has ended.
#[derive(Debug)]
pub struct EndedBuild {
    /// The end of the build process, or the reason for which no build took place.
    pub end: Result<Ended, ProcessError>,
    /// Diagnostics: anything printed is a warning at least.
    pub printed: String,
    pub programs: Vec<TestProgram>,
    pub executables: Vec<Executable>,
}

impl EndedBuild {
    /// The variables by which Cargo tells a test program where the executables of its package are.
    pub fn variables(&self, program: &TestProgram) -> Vec<(String, String)> {
        let text = |path: &Path| path.to_string_lossy().into_owned();
        let own = self.executables.iter().filter(|executable| executable.folder == program.folder);
        let named = own.map(|one| (format!("CARGO_BIN_EXE_{}", one.name), text(&one.path)));
        named.chain([("CARGO_MANIFEST_DIR".to_owned(), text(&program.folder))]).collect()
    }

    pub fn is_success(&self) -> bool {
        self.end.as_ref().is_ok_and(|ended| ended.end.is_success())
    }
}

/// The directories of the builds.
#[derive(Debug, Clone)]
pub struct Dirs {
    pub root: PathBuf,
    pub target: PathBuf,
}

impl Dirs {
    /// The variables that direct Cargo to a build's directories.
    pub fn variables(&self, build: Build) -> Vec<(String, String)> {
        if build == Build::Plain {
            return Vec::new();
        }
        let text = |path: &Path| path.to_string_lossy().into_owned();
        vec![
            ("CARGO_TARGET_DIR".to_owned(), text(&self.target.join(build.label()))),
            ("CARGO_BUILD_BUILD_DIR".to_owned(), text(&self.target)),
        ]
    }
}

/// The command of a build for some steps. `all` are the steps of every change, which a step of the build alone stands for.
pub fn command(build: Build, wanted: &[&Step], all: &[&Step], has_vendors: bool) -> Vec<String> {
    let owned = |words: &[&str]| words.iter().map(ToString::to_string).collect::<Vec<String>>();
    let cargo = ["cargo", "test", "--quiet", "--no-run", "--message-format=json-render-diagnostics"];
    let is_step = wanted.iter().any(|step| matches!(step.action, Action::Build(of) if of == build));
    match build {
        Build::Plain if is_step => owned(&[&cargo[..], &["--workspace", "--all-targets"]].concat()),
        Build::Plain => [owned(&cargo), targets(&suites(build, wanted))].concat(),
        Build::Backends => {
            let features = if has_vendors { ALL_FEATURES } else { FEATURES_WITHOUT_VENDORS };
            // Not behind the tests that run meanwhile: this build is the longest chain.
            let own = owned(&[&cargo[..], &["--features", features]].concat());
            let mut suites = suites(build, wanted);
            suites.extend(self::suites(build, if is_step { all } else { &[] }));
            [own, targets(&suites)].concat()
        }
        Build::Simulation => owned(&["nice", "-n", "5", "scripts/sim", "--build"]),
    }
}

fn suites(build: Build, steps: &[&Step]) -> Vec<Suite> {
    let suite = |step: &&Step| match step.action {
        Action::Suite(suite) if suite.build == build => Some(suite),
        _ => None,
    };
    steps.iter().filter_map(suite).collect()
}

/// Cargo's arguments that select the targets of some suites.
fn targets(suites: &[Suite]) -> Vec<String> {
    let mut packages = BTreeSet::new();
    let mut targets = BTreeSet::new();
    for suite in suites {
        match suite.packages {
            Packages::Root => packages.extend([Some("greenroom".to_owned())]),
            Packages::RootAnd(crates) => {
                packages.insert(Some("greenroom".to_owned()));
                packages.extend(crates.iter().map(|name| Some(format!("greenroom-{name}"))));
            }
            Packages::Crate(name) => packages.extend([Some(format!("greenroom-{name}"))]),
            Packages::All => packages.extend([None]),
        }
        targets.extend(suite.lib.then(|| vec!["--lib"]));
        targets.extend(suite.tests.iter().map(|name| vec!["--test", name]));
        targets.extend(suite.bins.iter().map(|name| vec!["--bin", name]));
    }
    let is_workspace = packages.contains(&None);
    let packages = packages.into_iter().flatten().flat_map(|name| ["--package".to_owned(), name]);
    let packages = if is_workspace { vec!["--workspace".to_owned()] } else { packages.collect() };
    packages.into_iter().chain(targets.into_iter().flatten().map(str::to_owned)).collect()
}

/// The programs in the messages of Cargo.
pub fn programs(messages: &str) -> (Vec<TestProgram>, Vec<Executable>) {
    let mut programs = Vec::new();
    let mut executables = Vec::new();
    let mut add = |message: Value| -> Option<()> {
        let is_test = message["profile"]["test"].as_bool()?;
        let kind = match message["target"]["kind"].as_array()?.first()?.as_str()? {
            "test" => TargetKind::Test,
            "bin" => TargetKind::Bin,
            "lib" => TargetKind::Lib,
            _ => return None,
        };
        let folder = Path::new(message["manifest_path"].as_str()?).parent()?.to_owned();
        let name = message["target"]["name"].as_str()?.to_owned();
        let path = message["executable"].as_str()?.into();
        if is_test {
            programs.push(TestProgram { folder, kind, name, path });
        } else {
            executables.push(Executable { folder, name, path });
        }
        Some(())
    };
    for message in messages.lines().filter_map(|line| serde_json::from_str(line).ok()) {
        add(message);
    }
    (programs, executables)
}

/// The test programs of a suite, or the first target that has none.
pub fn programs_of<'a>(
    suite: &Suite,
    root: &Path,
    programs: &'a [TestProgram],
) -> Result<Vec<&'a TestProgram>, NoTestProgram> {
    let is_in = |program: &TestProgram| match suite.packages {
        Packages::Root => program.folder == root,
        Packages::RootAnd(crates) => {
            program.folder == root
                || crates.iter().any(|name| program.folder == root.join("crates").join(name))
        }
        Packages::Crate(name) => program.folder == root.join("crates").join(name),
        Packages::All => true,
    };
    let known: Vec<&TestProgram> = programs.iter().filter(|program| is_in(program)).collect();
    let mut found: Vec<&TestProgram> = Vec::new();
    if suite.lib {
        found.extend(known.iter().filter(|program| program.kind == TargetKind::Lib));
        found.sort_by(|a, b| a.folder.cmp(&b.folder));
        if found.is_empty() {
            return Err(NoTestProgram("the unit tests".to_owned()));
        }
    }
    for (kind, names) in [(TargetKind::Test, suite.tests), (TargetKind::Bin, suite.bins)] {
        for name in names {
            let program = known.iter().find(|program| program.kind == kind && program.name == *name);
            found.push(program.ok_or_else(|| NoTestProgram(format!("`{name}`")))?);
        }
    }
    Ok(found)
}

/// A target of a [`Suite`] that a build has not made.
#[derive(Debug, thiserror::Error)]
#[error("the build has no test program of {0}")]
pub struct NoTestProgram(String);

/// Builds that are made one after another, and those that have ended.
#[derive(Debug, Default)]
pub struct Builds {
    ended: Mutex<EndedBuilds>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct EndedBuilds {
    builds: BTreeMap<Build, Arc<EndedBuild>>,
    /// No further build ends.
    is_over: bool,
}

/// Marks the [`Builds`] as over when dropped, so that no step waits for a build that does not come.
struct Over<'a>(&'a Builds);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.ended().is_over = true;
        self.0.changed.notify_all();
    }
}

impl Builds {
    fn ended(&self) -> MutexGuard<'_, EndedBuilds> {
        self.ended.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes the builds, each with its command.
    pub fn make(
        &self,
        planned: &[(Build, Vec<String>)],
        dirs: &Dirs,
        env: &[(String, String)],
        log: &Path,
        processes: &Processes,
    ) {
        let _over = Over(self);
        for (build, words) in planned {
            let stem = log.join(format!("build-{}", build.label()));
            let (messages, diagnostics) = (stem.with_extension("json"), stem.with_extension("err"));
            let env = [env.to_vec(), dirs.variables(*build)].concat();
            let program = Program { words: words.clone(), dir: &dirs.root, env, limit: LIMIT };
            let end = run_into(processes, &program, &messages, &diagnostics);
            let (programs, executables) = programs(&read(&messages));
            let ended = EndedBuild { end, printed: read(&diagnostics), programs, executables };
            self.ended().builds.insert(*build, Arc::new(ended));
            self.changed.notify_all();
        }
    }

    /// Waits for a build; `None` if it is not made, because the run was stopped.
    pub fn wait(&self, build: Build) -> Option<Arc<EndedBuild>> {
        let wants_more = |ended: &mut EndedBuilds| !ended.is_over && !ended.builds.contains_key(&build);
        let ended = self.changed.wait_while(self.ended(), wants_more).unwrap_or_else(PoisonError::into_inner);
        ended.builds.get(&build).cloned()
    }
}

/// Runs a program with its output in new files.
pub fn run_into(
    processes: &Processes,
    program: &Program<'_>,
    out: &Path,
    err: &Path,
) -> Result<Ended, ProcessError> {
    let file = |path: &Path| {
        fs::File::options()
            .append(true)
            .create(true)
            .open(path)
            .map_err(|source| ProcessError::Output { path: path.to_owned(), source })
    };
    processes.run(program, file(out)?, file(err)?)
}

/// The text of a file of output, which may not be UTF-8.
pub fn read(path: &Path) -> String {
    String::from_utf8_lossy(&fs::read(path).unwrap_or_default()).into_owned()
}

/// True if a build that was waited for was stopped with the run.
pub fn was_stopped(ended: Option<&EndedBuild>) -> bool {
    ended.is_none_or(|build| build.end.as_ref().is_ok_and(|ended| ended.end == ProcessEnd::Stopped))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::steps::STEPS;

    const ARTIFACTS: &str = r#"{"reason":"compiler-artifact","package_id":"path+file:///src#toy@0.1.0","manifest_path":"/src/Cargo.toml","target":{"kind":["lib"],"crate_types":["lib"],"name":"toy","src_path":"/src/src/lib.rs"},"profile":{"opt_level":"0","test":false},"features":[],"filenames":["/src/target/libtoy.rlib"],"executable":null,"fresh":true}
{"reason":"compiler-artifact","package_id":"path+file:///src#toy@0.1.0","manifest_path":"/src/Cargo.toml","target":{"kind":["lib"],"crate_types":["lib"],"name":"toy","src_path":"/src/src/lib.rs"},"profile":{"opt_level":"0","test":true},"features":[],"filenames":["/src/target/toy-1"],"executable":"/src/target/toy-1","fresh":true}
{"reason":"compiler-artifact","package_id":"path+file:///src#toy@0.1.0","manifest_path":"/src/Cargo.toml","target":{"kind":["bin"],"crate_types":["bin"],"name":"toy","src_path":"/src/src/main.rs"},"profile":{"opt_level":"0","test":false},"features":["x"],"filenames":["/src/target/toy"],"executable":"/src/target/toy","fresh":true}
{"reason":"compiler-artifact","package_id":"path+file:///src#toy@0.1.0","manifest_path":"/src/Cargo.toml","target":{"kind":["test"],"crate_types":["bin"],"name":"jobs","src_path":"/src/tests/jobs.rs"},"profile":{"opt_level":"0","test":true},"features":["x"],"filenames":["/src/target/jobs-2"],"executable":"/src/target/jobs-2","fresh":true}
{"reason":"compiler-artifact","package_id":"path+file:///src/crates/sim#greenroom-sim@0.1.0","manifest_path":"/src/crates/sim/Cargo.toml","target":{"kind":["lib"],"crate_types":["lib"],"name":"greenroom_sim","src_path":"/src/crates/sim/src/lib.rs"},"profile":{"opt_level":"0","test":true},"features":[],"filenames":["/src/target/sim-3"],"executable":"/src/target/sim-3","fresh":true}
{"reason":"build-finished","success":true}
"#;

    #[test]
    fn a_suite_finds_its_test_programs_in_the_messages_of_cargo() {
        let (programs, executables) = programs(ARTIFACTS);
        assert_eq!((programs.len(), executables.len()), (3, 1), "{programs:?}");
        let root = Path::new("/src");
        let paths = |suite: Suite| -> Vec<String> {
            let programs = programs_of(&suite, root, &programs).unwrap();
            programs.iter().map(|program| program.path.display().to_string()).collect()
        };
        assert_eq!(paths(Suite::tests(&["jobs"])), ["/src/target/jobs-2"]);
        let units = paths(Suite::units(Packages::All, &["jobs"]));
        assert_eq!(units, ["/src/target/toy-1", "/src/target/sim-3", "/src/target/jobs-2"]);
        assert_eq!(paths(Suite::units(Packages::RootAnd(&["sim"]), &[])).len(), 2);
        let missing = programs_of(&Suite::tests(&["vm"]), root, &programs).unwrap_err();
        assert_eq!(missing.to_string(), "the build has no test program of `vm`");
        assert!(programs_of(&Suite::tests(&["jobs"]).in_crate("sim"), root, &programs).is_err());
    }

    #[test]
    fn a_test_program_learns_where_the_executables_of_its_package_are() {
        let (programs, executables) = programs(ARTIFACTS);
        let end = Ok(Ended { end: ProcessEnd::Exited(0), cpu: Duration::ZERO });
        let build = EndedBuild { end, printed: String::new(), programs, executables };
        let variables = |at: usize| -> Vec<String> {
            let variables = build.variables(&build.programs[at]);
            variables.into_iter().map(|(name, value)| format!("{name}={value}")).collect()
        };
        assert_eq!(variables(1), ["CARGO_BIN_EXE_toy=/src/target/toy", "CARGO_MANIFEST_DIR=/src"]);
        assert_eq!(variables(2), ["CARGO_MANIFEST_DIR=/src/crates/sim"]);
    }

    fn words(build: Build, names: &[&str], has_vendors: bool) -> String {
        let all: Vec<&Step> = STEPS.iter().filter(|step| !step.lane.is_full()).collect();
        let wanted: Vec<&Step> = STEPS.iter().filter(|step| names.contains(&step.name)).collect();
        assert_eq!(wanted.len(), names.len());
        let words = command(build, &wanted, &all, has_vendors).join(" ");
        words.replace("cargo test --quiet --no-run --message-format=json-render-diagnostics", "BUILD")
    }

    #[test]
    fn a_build_for_some_steps_has_their_targets_only() {
        for (names, expected) in [
            (&["build and lints", "commands"][..], "BUILD --workspace --all-targets"),
            (
                &["commands", "jobs in containers"],
                "BUILD --package greenroom --test commands --test containers --test operators",
            ),
            (
                &["core and units", "runner recordings"],
                "BUILD --workspace --lib --test guest --test runner_recordings --test xtask",
            ),
            (&["simulation, a seed twice"], "BUILD --package greenroom-sim --test seeds"),
        ] {
            assert_eq!(words(Build::Plain, names, true), expected);
        }
        assert_eq!(
            words(Build::Backends, &["clouds: units", "pods: their SSH server"], true),
            "BUILD --features all-backends,crash-points,test-plugin --package greenroom \
             --package greenroom-backends --bin greenroom-server --lib --test contract"
        );
    }

    #[test]
    fn the_step_of_the_build_with_clouds_builds_what_every_change_needs() {
        let with_vendors = words(Build::Backends, &["build and lints, with clouds"], true);
        for suite in ["clouds", "contract", "external", "fleeting", "kubernetes", "plugins", "webhooks"] {
            assert!(with_vendors.contains(&format!("--test {suite}")), "{with_vendors}");
        }
        assert!(!with_vendors.contains("--test vm"), "{with_vendors}");
        let without = words(Build::Backends, &["build and lints, with clouds"], false);
        assert!(without.contains("--features crash-points,external,"), "{without}");
    }

    #[test]
    fn steps_wait_for_their_build_and_not_for_one_that_does_not_come() {
        let place = tempfile::tempdir().unwrap();
        let dirs = Dirs { root: place.path().to_owned(), target: place.path().join("target") };
        let sh = |text: &str| ["sh", "-c", text].map(str::to_owned).to_vec();
        let planned = [
            (Build::Plain, sh("sleep 0.2; echo $CARGO_BUILD_BUILD_DIR; echo warning >&2")),
            (Build::Backends, sh("exit 3")),
        ];
        let builds = Builds::default();
        let processes = Processes::new().unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| builds.make(&planned, &dirs, &[], place.path(), &processes));
            let plain = builds.wait(Build::Plain).unwrap();
            assert!(plain.is_success());
            assert_eq!(plain.printed, "warning\n");
            assert!(!builds.wait(Build::Backends).unwrap().is_success());
            assert!(builds.wait(Build::Simulation).is_none());
        });
        assert_eq!(dirs.variables(Build::Simulation)[0].1, dirs.target.join("sim").to_str().unwrap());
    }
}
