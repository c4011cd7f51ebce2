//! A step of the test suite: its name, its lane, what it runs, and under which conditions.

use std::time::Duration;

use clap::ValueEnum;

/// The time limit of a step that names no other. It is for a step that never ends, so it is generous.
const LIMIT: Duration = Duration::from_hours(1);

/// A step of the test suite.
#[must_use]
#[derive(Debug, Clone, Copy)]
pub struct Step {
    pub name: &'static str,
    pub lane: Lane,
    pub action: Action,
    /// Variables for the processes of this step.
    pub env: &'static [(&'static str, &'static str)],
    /// Parts of a machine without which the step is left out.
    pub needs: &'static [Need],
    /// True if failed tests get a second try. Steps with real processes do, because they share the machine with others.
    pub repeats_failed: bool,
    /// True if the step is left out of `--full`, which has a longer one in its place.
    pub not_in_full: bool,
    /// The time after which the step is killed.
    pub limit: Duration,
}

/// Steps that run one after another, beside the other lanes of their group in [`GROUPS`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lane {
    /// Steps before all others.
    First,
    /// Programs of this machine: the default build, then the two others, which are ready by then.
    Programs,
    /// Hosts, containers and virtual machines.
    Hosts,
    /// Clouds and clusters.
    Clouds,
    /// Steps after the lanes of every change.
    Last,
    /// `--full`: steps that mostly wait, for hours.
    Kills,
    /// `--full`: steps that compute.
    Search,
}

/// Groups of lanes in their order. The lanes of a group run concurrently.
pub const GROUPS: &[&[Lane]] = &[
    &[Lane::First],
    &[Lane::Programs, Lane::Hosts, Lane::Clouds],
    &[Lane::Last],
    &[Lane::Kills, Lane::Search],
];

impl Lane {
    /// True for the lanes that only `--full` has.
    pub const fn is_full(self) -> bool {
        matches!(self, Self::Kills | Self::Search)
    }

    /// The name of the lane in messages.
    pub const fn label(self) -> &'static str {
        match self {
            Self::First => "first",
            Self::Programs => "programs",
            Self::Hosts => "hosts",
            Self::Clouds => "clouds",
            Self::Last => "last",
            Self::Kills => "kills",
            Self::Search => "search",
        }
    }
}

/// A part of a machine that `scripts/test` may fail to install.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Need {
    /// Podman with its networks and registries.
    Containers,
    /// QEMU and the programs that build images.
    Machines,
    /// The packages of the cloud emulator.
    Emulator,
    /// The programs of a Kubernetes cluster.
    Cluster,
    /// `rpmbuild`.
    Rpmbuild,
    /// A linter of shell or Python.
    Linters,
}

/// The work of a [`Step`].
#[derive(Debug, Clone, Copy)]
pub enum Action {
    /// Runs test programs of a build.
    Suite(Suite),
    /// Waits for a build, and fails if it failed or printed a word: a warning is an error.
    Build(Build),
    /// Runs a program, after a build if the program uses one.
    Program { command: &'static [&'static str], after: Option<Build> },
    /// Runs a suite of Python's `unittest`. The names of failed tests are further arguments.
    Unittest(&'static [&'static str]),
    /// Lints the languages whose linters are installed.
    Lint,
    /// Fails if a process that a test started still runs.
    NothingLeft,
}

/// A build of this workspace. Each has its own programs, and all have the libraries in common.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Build {
    /// All programs without features.
    Plain,
    /// The providers with libraries of their own, places where tests kill processes, and a plugin for tests.
    Backends,
    /// The optimized simulation.
    Simulation,
}

impl Build {
    /// The name of the build's directory and files.
    pub const fn label(self) -> &'static str {
        match self {
            Self::Plain => "plain",
            Self::Backends => "backends",
            Self::Simulation => "sim",
        }
    }
}

/// Builds in the order in which they are made: the longest first, once the tests of the plain one can start.
pub const BUILDS: &[Build] = &[Build::Plain, Build::Backends, Build::Simulation];

/// The packages of a [`Suite`], and what of them is built.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Packages {
    /// The root package.
    Root,
    /// The root package and crates, by the names of their folders.
    RootAnd(&'static [&'static str]),
    /// A crate, by the name of its folder.
    Crate(&'static str),
    /// The whole workspace.
    All,
}

/// Test programs of a build, and which of their tests run.
#[must_use]
#[derive(Debug, Clone, Copy)]
pub struct Suite {
    pub build: Build,
    pub packages: Packages,
    /// True if the unit tests of the libraries run.
    pub lib: bool,
    /// Integration tests.
    pub tests: &'static [&'static str],
    /// Programs whose unit tests run.
    pub bins: &'static [&'static str],
    /// Parts of the names of tests; none for all tests.
    pub filters: &'static [&'static str],
    pub skips: &'static [&'static str],
    /// True if the ignored tests run instead of the others.
    pub ignored: bool,
    /// The highest number of runs of each program: a failure is the last run.
    pub runs: u32,
}

impl Suite {
    /// Integration tests of the root package.
    pub const fn tests(tests: &'static [&'static str]) -> Self {
        Self {
            build: Build::Plain,
            packages: Packages::Root,
            lib: false,
            tests,
            bins: &[],
            filters: &[],
            skips: &[],
            ignored: false,
            runs: 1,
        }
    }

    /// Unit tests of libraries, with integration tests of their packages.
    pub const fn units(packages: Packages, tests: &'static [&'static str]) -> Self {
        Self { packages, lib: true, ..Self::tests(tests) }
    }

    /// Integration tests in the build with clouds.
    pub const fn backends(tests: &'static [&'static str]) -> Self {
        Self::tests(tests).of(Build::Backends)
    }

    pub const fn of(self, build: Build) -> Self {
        Self { build, ..self }
    }

    pub const fn in_crate(self, name: &'static str) -> Self {
        Self { packages: Packages::Crate(name), ..self }
    }

    pub const fn with_bins(self, bins: &'static [&'static str]) -> Self {
        Self { bins, ..self }
    }

    pub const fn only(self, filters: &'static [&'static str]) -> Self {
        Self { filters, ..self }
    }

    pub const fn skip(self, skips: &'static [&'static str]) -> Self {
        Self { skips, ..self }
    }

    pub const fn ignored(self) -> Self {
        Self { ignored: true, ..self }
    }

    pub const fn times(self, runs: u32) -> Self {
        Self { runs, ..self }
    }

    /// The arguments of the test programs.
    pub fn arguments(&self) -> Vec<String> {
        let mut arguments: Vec<String> = self.filters.iter().map(ToString::to_string).collect();
        for skip in self.skips {
            arguments.extend(["--skip".to_owned(), (*skip).to_owned()]);
        }
        arguments.extend(self.ignored.then(|| "--ignored".to_owned()));
        arguments
    }

    /// The arguments that run these tests alone.
    pub fn arguments_of(&self, names: &[String]) -> Vec<String> {
        let flags = [Some("--exact"), self.ignored.then_some("--ignored")];
        names.iter().cloned().chain(flags.into_iter().flatten().map(str::to_owned)).collect()
    }
}

impl Step {
    const fn new(name: &'static str, lane: Lane, action: Action) -> Self {
        Self {
            name,
            lane,
            action,
            env: &[],
            needs: &[],
            repeats_failed: false,
            not_in_full: false,
            limit: LIMIT,
        }
    }

    /// A step of tests, which get a second try.
    pub const fn suite(name: &'static str, lane: Lane, suite: Suite) -> Self {
        Self { repeats_failed: true, ..Self::new(name, lane, Action::Suite(suite)) }
    }

    /// A step of the cloud emulator's own tests, which get a second try.
    pub const fn unittest(name: &'static str, lane: Lane, command: &'static [&'static str]) -> Self {
        Self { repeats_failed: true, ..Self::new(name, lane, Action::Unittest(command)) }
    }

    /// A step that runs a program once.
    pub const fn program(name: &'static str, lane: Lane, command: &'static [&'static str]) -> Self {
        Self::new(name, lane, Action::Program { command, after: None })
    }

    /// A step that runs a program of the simulation's build once.
    pub const fn simulation(name: &'static str, lane: Lane, command: &'static [&'static str]) -> Self {
        Self::new(name, lane, Action::Program { command, after: Some(Build::Simulation) })
    }

    pub const fn build(name: &'static str, lane: Lane, build: Build) -> Self {
        Self::new(name, lane, Action::Build(build)).minutes(120)
    }

    pub const fn lint(name: &'static str, lane: Lane) -> Self {
        Self::new(name, lane, Action::Lint).needs(&[Need::Linters])
    }

    pub const fn nothing_left(name: &'static str, lane: Lane) -> Self {
        Self::new(name, lane, Action::NothingLeft)
    }

    pub const fn env(self, env: &'static [(&'static str, &'static str)]) -> Self {
        Self { env, ..self }
    }

    pub const fn needs(self, needs: &'static [Need]) -> Self {
        Self { needs, ..self }
    }

    /// A failed test fails the step, without a second try.
    pub const fn once(self) -> Self {
        Self { repeats_failed: false, ..self }
    }

    /// A failed step gets a second try.
    pub const fn again(self) -> Self {
        Self { repeats_failed: true, ..self }
    }

    pub const fn not_in_full(self) -> Self {
        Self { not_in_full: true, ..self }
    }

    pub const fn minutes(self, minutes: u64) -> Self {
        self.seconds(minutes * 60)
    }

    pub const fn seconds(self, seconds: u64) -> Self {
        Self { limit: Duration::from_secs(seconds), ..self }
    }

    /// The build that the step waits for.
    pub const fn needed_build(&self) -> Option<Build> {
        match self.action {
            Action::Suite(suite) => Some(suite.build),
            Action::Build(build) => Some(build),
            Action::Program { after, .. } => after,
            Action::Unittest(_) | Action::Lint | Action::NothingLeft => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_suite_passes_its_filters_and_a_second_try_the_names_alone() {
        let suite = Suite::tests(&["vm"]).only(&["kinds::"]).skip(&["docker"]).ignored();
        assert_eq!(suite.arguments(), ["kinds::", "--skip", "docker", "--ignored"]);
        assert_eq!(
            suite.arguments_of(&["kinds::cloud".to_owned()]),
            ["kinds::cloud", "--exact", "--ignored"]
        );
        assert_eq!(Suite::tests(&["jobs"]).arguments(), [""; 0]);
    }
}
