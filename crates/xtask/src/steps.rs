//! The table of the steps. docs/development.md describes each; `cargo test --test docs` compares the two.

use crate::step::Lane::{Clouds, First, Hosts, Kills, Last, Programs, Search};
use crate::step::{Build, Need, Packages, Step, Suite};

/// A package as on a machine that has built nothing: a clone of the last commit, and no crate.
const PACKAGE_FROM_NOTHING: &str = r#"set -e
mkdir -p target
work=$(mktemp -d "$PWD/target/nothing-XXXXXX")
trap 'rm -rf "$work"' EXIT
trap 'exit 130' INT TERM
git clone --quiet --no-hardlinks . "$work/clone"
env -u RUSTC_WORKSPACE_WRAPPER -u CARGO_INCREMENTAL -u CARGO_TARGET_DIR CARGO_HOME="$work/cargo" \
  nice -n 5 "$work/clone/scripts/package""#;

/// The steps of the test suite, in the order of their lanes.
pub const STEPS: &[Step] = &[
    Step::program("format", First, &["cargo", "fmt", "--all", "--check"]),
    Step::lint("shell and Python", First),
    Step::unittest("benchmark tools", First, &["scripts/bench", "--self-test"]),
    Step::build("build and lints", First, Build::Plain),
    // What the default build is enough for, then what needs the two others, which are ready by then.
    Step::suite(
        "house rules",
        Programs,
        Suite::tests(&["architecture", "dependencies", "docs", "providers"]),
    )
    .once(),
    Step::suite("core and units", Programs, Suite::units(Packages::All, &["guest", "xtask"])),
    Step::suite("state directory, processes", Programs, Suite::tests(&["host"])),
    Step::suite("adapters' contracts", Programs, Suite::tests(&["contract"]).skip(&["served::"])),
    Step::suite("runner recordings", Programs, Suite::tests(&["runner_recordings"])),
    Step::suite("commands", Programs, Suite::tests(&["commands", "operators"])),
    Step::suite("conformance kit", Programs, Suite::tests(&["kit"])),
    Step::suite("jobs through the binary", Programs, Suite::tests(&["jobs"])),
    Step::suite("external programs", Programs, Suite::backends(&["external"])),
    Step::suite("webhooks over HTTPS", Programs, Suite::backends(&["webhooks"])),
    Step::suite("plugins from registries", Programs, Suite::backends(&["plugins"])),
    Step::suite("fleeting plugins", Programs, Suite::backends(&["fleeting"])),
    Step::suite(
        "simulation, a seed twice",
        Programs,
        Suite::tests(&["seeds"]).in_crate("sim").only(&["the_same_seed"]),
    )
    .once(),
    Step::simulation("simulation", Programs, &["scripts/sim", "--seeds", "0..300"]),
    // What the default build is enough for on hosts, in containers and on machines.
    Step::suite("jobs in containers", Hosts, Suite::tests(&["containers"])).needs(&[Need::Containers]),
    Step::suite("services under systemd", Hosts, Suite::tests(&["service"])),
    Step::suite("packages", Hosts, Suite::tests(&["packages"])),
    Step::suite("hosts: provider static", Hosts, Suite::tests(&["hosts"]).skip(&["hostile"])),
    Step::suite("hosts: hostile jobs", Hosts, Suite::tests(&["hosts"]).only(&["hostile"]))
        .env(&[("GREENROOM_HOSTILE", "3")]),
    Step::suite("virtual machines", Hosts, Suite::tests(&["vm"]).skip(&["jobs::"])).needs(&[Need::Machines]),
    Step::suite("jobs on virtual machines", Hosts, Suite::tests(&["vm"]).only(&["jobs::"]))
        .needs(&[Need::Machines]),
    Step::suite("the README's way to a job", Hosts, Suite::tests(&["readme"])).needs(&[Need::Machines]),
    // What the second program does in clouds and clusters.
    Step::unittest("clouds: the emulator", Clouds, &["tests/lab/test"]).needs(&[Need::Emulator]),
    Step::build("build and lints, with clouds", Clouds, Build::Backends),
    Step::suite(
        "clouds: units",
        Clouds,
        Suite::units(Packages::RootAnd(&["backends"]), &[]).of(Build::Backends),
    )
    .needs(&[Need::Emulator]),
    Step::suite("clouds: contracts, jobs, faults", Clouds, Suite::backends(&["clouds"]))
        .needs(&[Need::Emulator]),
    Step::suite("pods of a cluster", Clouds, Suite::backends(&["kubernetes"]).skip(&["real::"])),
    Step::suite(
        "pods: their SSH server",
        Clouds,
        Suite::backends(&["contract"]).with_bins(&["greenroom-server"]).only(&[
            "account::",
            "served::",
            "situation_logins::",
        ]),
    ),
    // On a cluster that was built already; --full builds it, and runs all of `real::`.
    Step::suite(
        "ten jobs on a real cluster",
        Clouds,
        Suite::backends(&["kubernetes"]).only(&["real::jobs::"]),
    )
    .not_in_full(),
    Step::suite("store, crash points", Clouds, Suite::backends(&["contract"]).only(&["crash_point"])),
    Step::nothing_left("nothing left running", Last),
    // What --full adds: first what mostly waits, for hours.
    Step::suite("hosts: hostile jobs, 50 times", Kills, Suite::tests(&["hosts"]).only(&["hostile"]))
        .env(&[("GREENROOM_HOSTILE", "50")])
        .minutes(480),
    Step::suite(
        "jobs beyond their limits, 50 times",
        Kills,
        Suite::tests(&["jobs"]).only(&["beyond_a_limit"]),
    )
    .env(&[("GREENROOM_HOSTILE", "50")])
    .minutes(480),
    Step::suite(
        "hosts: jobs that mislead, 50 times",
        Kills,
        Suite::tests(&["hosts"]).only(&["situation_blame"]).times(50),
    )
    .minutes(480),
    Step::suite(
        "hosts: files of root, 50 times",
        Kills,
        Suite::tests(&["hosts"]).only(&["files_of_root"]).times(50),
    )
    .minutes(480),
    Step::suite(
        "instances that flood, 50 times",
        Kills,
        Suite::tests(&["contract"]).only(&["floods"]).times(50),
    )
    .minutes(480),
    Step::suite(
        "pods: what cannot be made, 50 times",
        Kills,
        Suite::backends(&["kubernetes"]).only(&["situation_orders"]).times(50),
    )
    .minutes(480),
    Step::suite(
        "pods: silent connections, 50 times",
        Kills,
        Suite::backends(&["contract"]).only(&["situation_logins::"]).times(50),
    )
    .minutes(480),
    Step::suite(
        "jobs in containers: mislead and disturb, 50 times",
        Kills,
        Suite::tests(&["containers"]).only(&["situation_apart", "situation_blame"]).times(50),
    )
    .needs(&[Need::Containers])
    .minutes(480),
    Step::suite("500 kills", Kills, Suite::tests(&["jobs"]).only(&["kill"]))
        .env(&[("GREENROOM_KILLS", "500")])
        .minutes(240),
    Step::suite(
        "jobs in containers: Docker",
        Kills,
        Suite::tests(&["containers"]).only(&["docker::"]).ignored(),
    )
    .needs(&[Need::Containers])
    .minutes(120),
    Step::suite(
        "jobs in containers: PostgreSQL",
        Kills,
        Suite::tests(&["containers"]).only(&["postgres::"]).ignored(),
    )
    .needs(&[Need::Containers, Need::Machines]),
    Step::suite(
        "other images",
        Kills,
        Suite::tests(&["vm"])
            .only(&["kinds::", "foreign::", "warm::", "jobs::containers::", "jobs::docker::"])
            .skip(&["docker_in_docker_costs"])
            .ignored(),
    )
    .needs(&[Need::Machines])
    .minutes(480),
    Step::program("a new server", Kills, &["scripts/new-server"])
        .again()
        .needs(&[Need::Machines])
        .minutes(120),
    Step::program("a new server, init first", Kills, &["scripts/new-server", "--init-first"])
        .again()
        .needs(&[Need::Machines])
        .minutes(120),
    Step::suite("each step of a launch killed", Kills, Suite::backends(&["vm"]).only(&["sweep::"]))
        .needs(&[Need::Machines])
        .minutes(240),
    Step::suite("20 jobs, 60 kills on machines", Kills, Suite::tests(&["vm"]).only(&["jobs::"]))
        .env(&[("GREENROOM_VM_JOBS", "20"), ("GREENROOM_KILLS", "60")])
        .needs(&[Need::Machines])
        .minutes(480),
    // Then what computes.
    Step::suite(
        "pods: their SSH server, through links",
        Search,
        Suite::backends(&["contract"]).only(&[
            "linked::guest",
            "linked::stopping",
            "linked::unbegun",
            "link::",
        ]),
    )
    .env(&[("GREENROOM_TEST_SERVER", "1")]),
    Step::suite(
        "pods: six minutes of silence",
        Search,
        Suite::backends(&["kubernetes"]).only(&["silence::"]).ignored(),
    ),
    Step::suite("a Kubernetes cluster", Search, Suite::tests(&["cluster"]))
        .needs(&[Need::Cluster])
        .minutes(240),
    Step::suite("pods of a real cluster", Search, Suite::backends(&["kubernetes"]).only(&["real::"]))
        .env(&[("GREENROOM_JOBS", "60")])
        .needs(&[Need::Cluster])
        .minutes(480),
    Step::suite("clouds: storms of half an hour", Search, Suite::backends(&["clouds"]).only(&["storm"]))
        .env(&[("GREENROOM_STORM", "1800")])
        .needs(&[Need::Emulator])
        .minutes(480),
    Step::suite("clouds: all faults and crashes", Search, Suite::backends(&["clouds"]).only(&["matrix::"]))
        .env(&[("GREENROOM_MATRIX", "all")])
        .needs(&[Need::Emulator])
        .minutes(720),
    Step::program("the package, from nothing", Search, &["bash", "-c", PACKAGE_FROM_NOTHING])
        .needs(&[Need::Rpmbuild])
        .minutes(240),
    Step::program(
        "documentation of the code",
        Search,
        &["cargo", "doc", "--quiet", "--workspace", "--no-deps"],
    )
    .env(&[("RUSTDOCFLAGS", "-D warnings")]),
    Step::simulation("simulation, 5,000 seeds", Search, &["scripts/sim", "--seeds", "0..5000"]).minutes(240),
    Step::program("seeded bugs", Search, &["scripts/sim", "--planted"]).minutes(720),
    Step::program("mutants of the core", Search, &["scripts/mutants"]).minutes(720),
];

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::step::{Action, GROUPS};

    #[test]
    fn each_step_has_its_own_name_and_the_table_has_the_order_of_the_lanes() {
        let names: BTreeSet<&str> = STEPS.iter().map(|step| step.name).collect();
        assert_eq!(names.len(), STEPS.len());
        let lanes: Vec<_> = GROUPS.iter().copied().flatten().collect();
        let places = STEPS.iter().map(|step| lanes.iter().position(|lane| **lane == step.lane).unwrap());
        assert!(places.is_sorted());
    }

    #[test]
    fn what_compiles_or_computes_is_not_repeated() {
        for step in STEPS {
            let computes = matches!(step.action, Action::Build(_) | Action::Lint | Action::NothingLeft)
                || step.needed_build() == Some(Build::Simulation);
            assert!(!(computes && step.repeats_failed), "{}", step.name);
        }
    }
}
