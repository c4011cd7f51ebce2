//! Runs the steps: lane by lane, with a second try of failed tests.

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use crate::build::{self, Builds, Dirs, EndedBuild};
use crate::leftover::OwnProcesses;
use crate::output::{self, FailedTest, TestOutput};
use crate::process::{Ended, ProcessEnd, ProcessError, Processes, Program};
use crate::report::{StepCase, StepFailure, StepReport};
use crate::setting::Setting;
use crate::step::{Action, BUILDS, GROUPS, Lane, Need, Step, Suite};

/// The time limit of the build of a cluster.
const CLUSTER_LIMIT: Duration = Duration::from_hours(2);

/// A process of a step, which may have tests.
struct Unit<'a> {
    /// The name of the process in messages.
    label: String,
    words: Vec<String>,
    dir: PathBuf,
    env: Vec<(String, String)>,
    tests: UnitTests<'a>,
    runs: u32,
}

/// The way in which the tests of a process are read and selected.
#[derive(Clone, Copy)]
enum UnitTests<'a> {
    Libtest(&'a Suite),
    Unittest,
    None,
}

/// A [`Unit`] that has ended.
struct EndedUnit {
    ended: Ended,
    tests: TestOutput,
    text: String,
}

/// A run of steps.
pub struct Run<'a> {
    setting: Setting,
    dirs: Dirs,
    env: Vec<(String, String)>,
    log: &'a Path,
    processes: &'a Processes,
    builds: Builds,
    own_processes: OwnProcesses,
    /// The output for a line for each ended step; one lane writes at a time.
    out: Mutex<&'a mut (dyn Write + Send)>,
    reports: Mutex<Vec<StepReport>>,
    skipped_parts: Mutex<Vec<String>>,
}

impl std::fmt::Debug for Run<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Run")
            .field("setting", &self.setting)
            .field("dirs", &self.dirs)
            .finish_non_exhaustive()
    }
}

/// The results of a [`Run`]: the steps that were run, and the parts that could not be.
#[derive(Debug)]
pub struct Results {
    pub reports: Vec<StepReport>,
    pub skipped_parts: Vec<String>,
}

impl<'a> Run<'a> {
    /// A run that keeps the output of steps in files of the folder `log`.
    pub fn new(
        setting: Setting,
        dirs: Dirs,
        env: Vec<(String, String)>,
        log: &'a Path,
        processes: &'a Processes,
        out: &'a mut (dyn Write + Send),
    ) -> Self {
        Self {
            setting,
            own_processes: OwnProcesses::new(&dirs.target),
            dirs,
            env,
            log,
            processes,
            builds: Builds::default(),
            out: Mutex::new(out),
            reports: Mutex::default(),
            skipped_parts: Mutex::default(),
        }
    }

    /// Runs the wanted steps. `all` are the steps of every change that this machine can run.
    pub fn run(self, wanted: &[&Step], all: &[&Step]) -> Results {
        let has_vendors = !self.setting.missing.contains(&Need::Emulator);
        let planned: Vec<_> = BUILDS
            .iter()
            .filter(|build| wanted.iter().any(|step| step.needed_build() == Some(**build)))
            .map(|build| (*build, build::command(*build, wanted, all, has_vendors)))
            .collect();
        thread::scope(|scope| {
            // The kernel sends the death signal when the thread ends that has started the process. So a thread that starts processes
            // lives as long as they do.
            scope.spawn(|| self.builds.make(&planned, &self.dirs, &self.env, self.log, self.processes));
            for group in GROUPS {
                self.run_group(group, wanted);
            }
        });
        Results {
            reports: self.reports.into_inner().unwrap_or_else(PoisonError::into_inner),
            skipped_parts: self.skipped_parts.into_inner().unwrap_or_else(PoisonError::into_inner),
        }
    }

    /// Runs lanes concurrently, until all have ended.
    fn run_group(&self, group: &[Lane], wanted: &[&Step]) {
        let mut steps: Vec<&Step> =
            wanted.iter().copied().filter(|step| group.contains(&step.lane)).collect();
        if steps.iter().any(|step| step.needs.contains(&Need::Cluster)) && !self.has_cluster() {
            steps.retain(|step| !step.needs.contains(&Need::Cluster));
        }
        thread::scope(|scope| {
            let lanes: Vec<_> = group
                .iter()
                .map(|lane| {
                    let steps = steps.iter().copied().filter(|step| step.lane == *lane);
                    (lane, scope.spawn(move || steps.for_each(|step| self.run_step(step))))
                })
                .collect();
            for (lane, running) in lanes {
                if running.join().is_err() {
                    let mut report = StepReport::new(&format!("the last steps of `{}`", lane.label()));
                    report.result = Err(StepFailure::Lane);
                    self.add(report);
                }
            }
        });
    }

    /// Builds the programs of the cluster, where they are missing or were built from something else: ten minutes of processor time,
    /// once.
    fn has_cluster(&self) -> bool {
        let unit = self.unit("cluster", &["nice", "-n", "19", "tests/cluster/build"], &[]);
        let (is_built, text) = match self.run_unit("cluster", &unit, None, CLUSTER_LIMIT) {
            Ok(built) => (built.ended.end.is_success(), built.text),
            Err(error) => (false, error.to_string()),
        };
        if !is_built && !self.processes.is_stopping() {
            let reason = text.lines().last().unwrap_or("tests/cluster/build failed").to_owned();
            let mut parts = self.skipped_parts.lock().unwrap_or_else(PoisonError::into_inner);
            parts.push(format!("a Kubernetes cluster: {reason}"));
        }
        is_built
    }

    fn run_step(&self, step: &Step) {
        let begun = Instant::now();
        let mut report = StepReport::new(step.name);
        let result = match step.action {
            Action::Build(build) => match self.builds.wait(build) {
                ended if build::was_stopped(ended.as_deref()) => return,
                Some(ended) => Self::judge_build(&ended, &mut report),
                None => Err(StepFailure::Build),
            },
            Action::NothingLeft => {
                let left = self.own_processes.left(|| self.processes.is_stopping());
                report.output = left.join("\n");
                if left.is_empty() { Ok(()) } else { Err(StepFailure::Leftover(left.len())) }
            }
            Action::Suite(suite) => match self.builds.wait(suite.build) {
                ended if build::was_stopped(ended.as_deref()) => return,
                Some(ended) if ended.is_success() => self.run_suite(step, &suite, &ended, &mut report),
                Some(ended) => {
                    report.output.clone_from(&ended.printed);
                    Err(StepFailure::Build)
                }
                None => Err(StepFailure::Build),
            },
            Action::Program { command, after } => {
                // If this build failed, the program builds once more, and says why.
                let env = after.map(|build| {
                    self.builds.wait(build);
                    self.dirs.variables(build)
                });
                let mut unit = self.unit(step.name, command, step.env);
                unit.env.extend(env.into_iter().flatten());
                self.run_units(step, vec![unit], &mut report)
            }
            Action::Lint => {
                let languages: Vec<&str> = self.setting.languages.iter().map(String::as_str).collect();
                let command = [&["scripts/lint"], &languages[..]].concat();
                self.run_units(step, vec![self.unit(step.name, &command, step.env)], &mut report)
            }
            Action::Unittest(command) => {
                let unit = Unit { tests: UnitTests::Unittest, ..self.unit(step.name, command, step.env) };
                self.run_units(step, vec![unit], &mut report)
            }
        };
        if self.processes.is_stopping() {
            return;
        }
        report.elapsed = begun.elapsed();
        report.result = result;
        self.add(report);
    }

    fn add(&self, report: StepReport) {
        let mut out = self.out.lock().unwrap_or_else(PoisonError::into_inner);
        // A run goes on without a reader.
        out.write_all(report.lines().as_bytes()).and_then(|()| out.flush()).ok();
        drop(out);
        self.reports.lock().unwrap_or_else(PoisonError::into_inner).push(report);
    }

    fn judge_build(ended: &EndedBuild, report: &mut StepReport) -> Result<(), StepFailure> {
        report.output.clone_from(&ended.printed);
        match &ended.end {
            Ok(ended) => {
                report.cpu = ended.cpu;
                if !ended.end.is_success() {
                    return Err(StepFailure::Process(ended.end));
                }
            }
            Err(error) => {
                report.output = error.to_string();
                return Err(StepFailure::Build);
            }
        }
        if ended.printed.is_empty() { Ok(()) } else { Err(StepFailure::Warning) }
    }

    fn run_suite(
        &self,
        step: &Step,
        suite: &Suite,
        build: &EndedBuild,
        report: &mut StepReport,
    ) -> Result<(), StepFailure> {
        let programs = build::programs_of(suite, &self.dirs.root, &build.programs)?;
        let unit = |program: &&build::TestProgram| {
            let mut unit = self.unit(&program.name, &[&*program.path.to_string_lossy()], step.env);
            unit.env.extend(build.variables(program));
            Unit { dir: program.folder.clone(), tests: UnitTests::Libtest(suite), runs: suite.runs, ..unit }
        };
        self.run_units(step, programs.iter().map(unit).collect(), report)
    }

    fn unit(&self, label: &str, command: &[&str], env: &[(&str, &str)]) -> Unit<'static> {
        let own = env.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        Unit {
            label: label.to_owned(),
            words: command.iter().map(ToString::to_string).collect(),
            dir: self.dirs.root.clone(),
            env: self.env.iter().cloned().chain(own).collect(),
            tests: UnitTests::None,
            runs: 1,
        }
    }

    /// Runs all processes of a step, each with a second try if it fails. The failure is that of the last one that failed.
    fn run_units(
        &self,
        step: &Step,
        units: Vec<Unit<'_>>,
        report: &mut StepReport,
    ) -> Result<(), StepFailure> {
        let mut result = Ok(());
        for unit in units {
            let log = format!("{}-{}", step.lane.label(), unit.label);
            let first = self.run_unit(&log, &unit, None, step.limit)?;
            report.record(&unit, &first);
            let is_repeatable = matches!(first.ended.end, ProcessEnd::Exited(_) | ProcessEnd::Signaled(_));
            let ended = if first.ended.end.is_success() {
                Ok(())
            } else if step.repeats_failed && is_repeatable {
                self.repeat_failed(step, &log, &unit, &first, report)
            } else {
                report.failed.extend(first.failed_tests(&unit));
                Err(StepFailure::Process(first.ended.end))
            };
            if let Err(failure) = ended {
                result = Err(failure);
            }
        }
        result
    }

    /// Gives the failed tests of a process a second try. Where nobody knows which tests failed, all of the process's get one.
    fn repeat_failed(
        &self,
        step: &Step,
        log: &str,
        unit: &Unit<'_>,
        first: &EndedUnit,
        report: &mut StepReport,
    ) -> Result<(), StepFailure> {
        let names: Vec<String> = first
            .named_failures()
            .iter()
            .flat_map(|tests| tests.iter().map(|test| test.name.clone()))
            .collect();
        let selected = (!names.is_empty()).then_some(names.as_slice());
        let second = self.run_unit(log, unit, selected, step.limit)?;
        report.cpu += second.ended.cpu;
        report.passed += second.tests.passed;
        report.output.push_str(&second.shown());
        if !second.ended.end.is_success() {
            report.failed.extend(second.failed_tests(unit));
            return Err(StepFailure::Process(second.ended.end));
        }
        if second.tests.passed < names.len() {
            report.failed.extend(first.failed_tests(unit));
            return Err(StepFailure::NotRepeated);
        }
        report.flaky.extend(first.failed_tests(unit));
        Ok(())
    }

    /// Runs a process, as often as its suite says or until it fails.
    fn run_unit(
        &self,
        log: &str,
        unit: &Unit<'_>,
        names: Option<&[String]>,
        limit: Duration,
    ) -> Result<EndedUnit, ProcessError> {
        let begun = Instant::now();
        let mut sum = EndedUnit {
            ended: Ended { end: ProcessEnd::Exited(0), cpu: Duration::ZERO },
            tests: TestOutput::default(),
            text: String::new(),
        };
        let arguments = match (unit.tests, names) {
            (UnitTests::Libtest(suite), Some(names)) => suite.arguments_of(names),
            (UnitTests::Libtest(suite), None) => suite.arguments(),
            (UnitTests::Unittest, Some(names)) => names.to_vec(),
            (UnitTests::Unittest | UnitTests::None, _) => Vec::new(),
        };
        for _ in 0..unit.runs {
            let words = [unit.words.clone(), arguments.clone()].concat();
            let left = limit.saturating_sub(begun.elapsed());
            let program = Program { words, dir: &unit.dir, env: unit.env.clone(), limit: left };
            let out = self.log.join(log.replace('/', " "));
            fs::remove_file(&out).ok();
            let ended = build::run_into(self.processes, &program, &out, &out)?;
            let text = build::read(&out);
            let tests = match unit.tests {
                UnitTests::Libtest(_) => output::libtest(&text),
                UnitTests::Unittest => output::unittest(&text),
                UnitTests::None => TestOutput::default(),
            };
            let passed = sum.tests.passed + tests.passed;
            let cpu = sum.ended.cpu + ended.cpu;
            let end = match ended.end {
                // The limit is that of all runs.
                ProcessEnd::TimedOut(_) => ProcessEnd::TimedOut(limit),
                end => end,
            };
            sum = EndedUnit { ended: Ended { end, cpu }, tests: TestOutput { passed, ..tests }, text };
            if !end.is_success() {
                break;
            }
        }
        Ok(sum)
    }
}

impl EndedUnit {
    /// The output that explains a failure: without the lines of tests that passed.
    fn shown(&self) -> String {
        if self.ended.end.is_success() {
            return String::new();
        }
        let lines = self.text.split_inclusive('\n').filter(|line| !output::is_unremarkable(line.trim_end()));
        lines.collect()
    }

    /// The tests that failed, if the output names all of them.
    fn named_failures(&self) -> Option<&[FailedTest]> {
        let is_known = self.tests.is_complete
            && !self.tests.failed.is_empty()
            && matches!(self.ended.end, ProcessEnd::Exited(_));
        is_known.then_some(&self.tests.failed)
    }

    fn failed_tests(&self, unit: &Unit<'_>) -> Vec<FailedTest> {
        self.named_failures().map_or_else(|| vec![self.as_one_test(unit)], <[FailedTest]>::to_vec)
    }

    /// The whole process as a failed test, because its output does not name those that failed.
    fn as_one_test(&self, unit: &Unit<'_>) -> FailedTest {
        let named = self.tests.failed.iter().flat_map(|test| &test.message);
        let message: Vec<String> = self.tests.first_panic.iter().chain(named).take(6).cloned().collect();
        let last = || self.text.lines().rfind(|line| !line.trim().is_empty()).map(str::to_owned);
        let message = if message.is_empty() { last().into_iter().collect() } else { message };
        FailedTest { name: format!("all of {}", unit.label), message }
    }
}

impl StepReport {
    /// Takes over the first try of a process.
    fn record(&mut self, unit: &Unit<'_>, first: &EndedUnit) {
        self.cpu += first.ended.cpu;
        self.passed += first.tests.passed;
        self.output.push_str(&first.shown());
        let cases = first.tests.cases.iter().cloned();
        self.cases.extend(cases.map(|case| StepCase { program: unit.label.clone(), case }));
        if matches!(unit.tests, UnitTests::None) {
            let is_remark =
                |line: &&str| ["seeds", "killed", "seeded bugs"].iter().any(|word| line.contains(word));
            self.remark = first.text.lines().rfind(is_remark).map(str::to_owned);
        }
    }
}

/// The folder of the builds: what the environment says, or `target`.
pub fn target_dir(root: &Path, set: Option<&OsStr>) -> io::Result<PathBuf> {
    let target = root.join(set.unwrap_or(OsStr::new("target")));
    fs::create_dir_all(&target)?;
    target.canonicalize()
}

#[cfg(test)]
mod tests;
