//! The keeper: whether one reconciles the pools, also after a reboot.

use std::path::{Path, PathBuf};
use std::time::Duration;

use greenroom_core::ids::PoolName;
use greenroom_core::time::Stamp;
use greenroom_ports::finding::Finding;

use super::code;
use crate::cli::read_model::KeeperStatus;
use crate::cli::ui::plural;
use crate::cli::when::{When, whole};

/// A keeper that is this late is not delayed: it hangs.
const LATE: Duration = Duration::from_mins(1);

/// The directories of systemd units.
pub const UNIT_DIRS: &[&str] = &[
    "/etc/systemd/system",
    "/run/systemd/system",
    "/usr/local/lib/systemd/system",
    "/usr/lib/systemd/system",
];

/// The facts about the keeper.
#[derive(Debug)]
pub struct KeeperFacts {
    pub keeper: KeeperStatus,
    /// Waiting jobs, and instances in a transition that only a keeper completes.
    pub waiting: usize,
    pub under_way: usize,
    /// The moments when the next passes were due, by pool.
    pub next_passes: Vec<(PoolName, Stamp)>,
    /// True if systemd manages the runner host.
    pub has_systemd: bool,
    /// Units that run `greenroom keep`.
    pub units: Vec<PathBuf>,
    /// True if systemd starts one of these units by itself.
    pub enabled: bool,
}

pub(super) fn check(facts: &KeeperFacts, when: &When) -> Vec<Finding> {
    let mut found = Vec::new();
    match &facts.keeper {
        KeeperStatus::Absent if facts.waiting + facts.under_way > 0 => {
            let jobs = plural(facts.waiting, "waiting job");
            let instances = plural(facts.under_way, "instance");
            let what = format!("no keeper is running, but there is work: {jobs}, {instances} in transition");
            found.push(code::KEEPER_MISSING.found(what, start(facts)));
        }
        KeeperStatus::Unknown(problem) => {
            let what = format!("cannot determine whether a keeper is running: {problem}");
            found.push(
                code::KEEPER_UNKNOWN.found(what, "run doctor as the user that owns the state directory"),
            );
        }
        KeeperStatus::Absent => {}
        KeeperStatus::Runs => {
            found.extend(facts.next_passes.iter().filter_map(|(pool, at)| silent(pool, *at, when)));
        }
    }
    found.extend(no_service(facts));
    found.extend(disabled(facts));
    found
}

fn start(facts: &KeeperFacts) -> String {
    match facts.units.first().and_then(|unit| unit.file_name()) {
        Some(unit) => format!("run `systemctl start {}`", unit.to_string_lossy()),
        None => "run `greenroom reap`, which starts one".to_owned(),
    }
}

fn silent(pool: &PoolName, meant: Stamp, when: &When) -> Option<Finding> {
    let late = when.now().since(meant);
    (late > LATE).then(|| {
        let what = format!(
            "the keeper has missed the reconcile pass of pool `{pool}` that was due {} ago",
            whole(late)
        );
        code::KEEPER_STALLED.found(
            what,
            "read keeper.log in the state directory, then stop the keeper; the next call starts a new one",
        )
    })
}

/// The finding that no service runs a keeper. Without systemd, a running keeper may be a service of another service
/// manager.
fn no_service(facts: &KeeperFacts) -> Option<Finding> {
    let is_fine = !facts.units.is_empty() || (!facts.has_systemd && facts.keeper.is_running());
    (!is_fine).then(|| {
        let what = "no service runs `greenroom keep`: a background keeper stops together with the runner's service, and \
                    its instances keep running";
        let remedy = if facts.has_systemd {
            "install the unit `greenroom.service` of the package (docs/install.md), then run `systemctl enable --now \
             greenroom`"
        } else {
            "run `greenroom keep` as a service of its own, beside the runner"
        };
        code::KEEPER_NO_SERVICE.found(what, remedy)
    })
}

fn disabled(facts: &KeeperFacts) -> Option<Finding> {
    let unit = facts.units.first().filter(|_| facts.has_systemd && !facts.enabled)?;
    let unit = unit.file_name()?.to_string_lossy();
    let what = format!(
        "the unit `{unit}` runs `greenroom keep`, but is not enabled: after a reboot, no service does"
    );
    Some(code::KEEPER_UNIT_DISABLED.found(what, format!("run `systemctl enable --now {unit}`")))
}

/// True if another unit pulls in one of these: `systemctl enable` makes a link in a directory such as
/// `multi-user.target.wants`.
pub fn is_enabled(units: &[PathBuf], dirs: &[&Path]) -> bool {
    let pulls =
        |dir: &Path| dir.extension().is_some_and(|e| e == "wants" || e == "requires" || e == "upholds");
    let entries = dirs.iter().filter_map(|dir| std::fs::read_dir(dir).ok()).flatten().filter_map(Result::ok);
    let pulling: Vec<PathBuf> = entries.map(|entry| entry.path()).filter(|path| pulls(path)).collect();
    let mut names = units.iter().filter_map(|unit| unit.file_name());
    names.any(|name| pulling.iter().any(|dir| dir.join(name).symlink_metadata().is_ok()))
}

/// Units in these directories whose `ExecStart` runs `greenroom keep`.
pub fn units(dirs: &[&Path]) -> Vec<PathBuf> {
    let mut found: Vec<PathBuf> = Vec::new();
    for dir in dirs {
        let Ok(entries) = std::fs::read_dir(dir) else { continue };
        let paths = entries.filter_map(Result::ok).map(|entry| entry.path());
        found.extend(
            paths.filter(|path| path.extension().is_some_and(|e| e == "service")).filter(|p| keeps(p)),
        );
    }
    found.sort_unstable();
    found
}

fn keeps(unit: &Path) -> bool {
    let Ok(text) = std::fs::read_to_string(unit) else { return false };
    let starts = text.lines().filter_map(|line| line.trim().strip_prefix("ExecStart="));
    starts.into_iter().any(|command| {
        let mut words = command.split_whitespace();
        let program = words.next().unwrap_or_default().trim_start_matches(['@', '-', ':', '+', '!']);
        Path::new(program).file_name().is_some_and(|name| name == "greenroom")
            && words.any(|word| word == "keep")
    })
}

#[cfg(test)]
pub(super) mod tests {
    use greenroom_ports::host_error::HostError;

    use super::*;
    use crate::cli::fixture::{at, pool, when};

    fn calm() -> KeeperFacts {
        KeeperFacts {
            keeper: KeeperStatus::Runs,
            waiting: 0,
            under_way: 0,
            next_passes: vec![(pool(), at(290.0))],
            has_systemd: true,
            units: vec!["/etc/systemd/system/greenroom.service".into()],
            enabled: true,
        }
    }

    fn problems() -> Vec<(KeeperFacts, &'static str)> {
        let unknown = KeeperStatus::Unknown(HostError::Io { what: "cannot open `keeper.lock`".into() });
        vec![
            (
                KeeperFacts { keeper: KeeperStatus::Absent, waiting: 2, under_way: 1, ..calm() },
                "error [keeper-missing]: no keeper is running, but there is work: 2 waiting jobs, 1 instance in \
                 transition\n  help: run `systemctl start greenroom.service`",
            ),
            (
                KeeperFacts { next_passes: vec![(pool(), at(0.0))], ..calm() },
                "error [keeper-stalled]: the keeper has missed the reconcile pass of pool `linux` that was due 5m ago\n  \
                 help: read keeper.log in the state directory, then stop the keeper; the next call starts a new one",
            ),
            (
                KeeperFacts { keeper: unknown, ..calm() },
                "warning [keeper-unknown]: cannot determine whether a keeper is running: cannot open `keeper.lock`\n  \
                 help: run doctor as the user that owns the state directory",
            ),
            (
                KeeperFacts { units: vec![], ..calm() },
                "warning [keeper-no-service]: no service runs `greenroom keep`: a background keeper stops together \
                 with the runner's service, and its instances keep running\n  help: install the unit \
                 `greenroom.service` of the package (docs/install.md), then run `systemctl enable --now greenroom`",
            ),
            (
                KeeperFacts { enabled: false, ..calm() },
                "warning [keeper-unit-disabled]: the unit `greenroom.service` runs `greenroom keep`, but is not enabled: \
                 after a reboot, no service does\n  help: run `systemctl enable --now greenroom.service`",
            ),
        ]
    }

    #[test]
    fn a_service_that_looks_in_time_is_fine_and_so_is_a_keeper_without_systemd() {
        assert_eq!(check(&calm(), &when(300.0)), []);
        assert_eq!(check(&KeeperFacts { has_systemd: false, units: vec![], ..calm() }, &when(300.0)), []);
        let settled = KeeperFacts { keeper: KeeperStatus::Absent, ..calm() };
        assert_eq!(check(&settled, &when(600.0)), []);
    }

    #[test]
    fn each_trouble_is_said_once_with_what_helps() {
        for (facts, expected) in problems() {
            let found: Vec<String> = check(&facts, &when(300.0)).iter().map(ToString::to_string).collect();
            assert_eq!(found, [expected]);
        }
    }

    #[test]
    fn without_a_unit_reap_starts_a_keeper() {
        let facts = KeeperFacts {
            keeper: KeeperStatus::Absent,
            waiting: 1,
            units: vec![],
            has_systemd: false,
            ..calm()
        };
        let found = check(&facts, &when(300.0));
        assert_eq!(found[0].remedy.as_deref(), Some("run `greenroom reap`, which starts one"));
        assert!(found[1].remedy.as_ref().unwrap().contains("beside the runner"));
    }

    #[test]
    fn a_unit_is_known_by_what_it_starts() {
        let dir = tempfile::tempdir().unwrap();
        let write = |name: &str, line: &str| {
            std::fs::write(dir.path().join(name), format!("[Service]\n{line}\n")).unwrap();
        };
        write("ours.service", "ExecStart=-/usr/bin/greenroom --config /etc/g.toml keep");
        write("reap.service", "ExecStart=/usr/bin/greenroom reap");
        write("other.service", "ExecStart=/usr/bin/housekeeper keep");
        write("ours.timer", "ExecStart=/usr/bin/greenroom keep");
        let found = units(&[dir.path(), Path::new("/no/such/directory")]);
        assert_eq!(found, [dir.path().join("ours.service")]);

        assert!(!is_enabled(&found, &[dir.path()]));
        let wants = dir.path().join("multi-user.target.wants");
        std::fs::create_dir(&wants).unwrap();
        std::os::unix::fs::symlink("../other.service", wants.join("other.service")).unwrap();
        assert!(!is_enabled(&found, &[dir.path()]));
        std::os::unix::fs::symlink("/elsewhere/ours.service", wants.join("ours.service")).unwrap();
        assert!(is_enabled(&found, &[Path::new("/no/such/directory"), dir.path()]));
    }

    /// One finding of each code.
    pub(in crate::cli::doctor) fn provoked() -> Vec<Finding> {
        problems().iter().flat_map(|(facts, _)| check(facts, &when(300.0))).collect()
    }
}
