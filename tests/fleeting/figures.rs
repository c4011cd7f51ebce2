//! The cost of five idle plugins to a keeper. `cargo test --features fleeting,test-plugin --test fleeting -- --ignored
//! --nocapture figures`

#![cfg(test)]

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use greenroom_testkit::program;

use crate::dummy::dummy;
use crate::fixture::{GREENROOM, TEST_PLUGIN};

const POOLS: usize = 5;
/// The time for which the keepers run before the measurement, and the duration of the measurement.
const SETTLED: Duration = Duration::from_secs(20);
const MEASURED: Duration = Duration::from_mins(1);

/// A keeper in a directory of its own; it ends with the figures.
struct Keeper {
    child: Child,
    home: tempfile::TempDir,
}

impl Drop for Keeper {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

/// Processor time and memory of processes, by their program's name.
type Cost = BTreeMap<String, (Duration, u64)>;

impl Keeper {
    /// A keeper with as many pools of this provider, all default timings, and no instance.
    fn start(provider: impl Fn(&Path, usize) -> String) -> Self {
        let home = tempfile::tempdir().unwrap();
        let mut config =
            format!("state_dir = \"{}\"\ndefault_pool = \"pool-0\"\n", home.path().join("state").display());
        for pool in 0..POOLS {
            let provider = provider(home.path(), pool);
            let table = format!(
                "[pool.pool-{pool}]\nmax_instances = 3\nidle_count = 0\n[pool.pool-{pool}.provider]\n"
            );
            config.extend([table, provider, "\n".to_owned()]);
        }
        let file = home.path().join("greenroom.toml");
        fs::write(&file, config).unwrap();
        let mut command = program::command(GREENROOM, home.path());
        command.arg("--config").arg(file).arg("keep").stdout(Stdio::null());
        command.stderr(fs::File::create(home.path().join("log")).unwrap());
        Self { child: command.spawn().unwrap(), home }
    }

    fn cost(&self) -> Cost {
        let mut cost = Cost::new();
        for pid in descendants(self.child.id()) {
            let Some((name, time, memory)) = process(pid) else { continue };
            let sum = cost.entry(name).or_default();
            sum.0 += time;
            sum.1 += memory;
        }
        cost
    }
}

/// A process and all that it started.
fn descendants(of: u32) -> Vec<u32> {
    let mut found = vec![of];
    let mut next = 0;
    while let Some(pid) = found.get(next) {
        let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
        found.extend(children.split_whitespace().filter_map(|child| child.parse::<u32>().ok()));
        next += 1;
    }
    found
}

/// The program of a process, its processor time so far, and its proportional share of memory in KiB.
fn process(pid: u32) -> Option<(String, Duration, u64)> {
    let arguments = fs::read(format!("/proc/{pid}/cmdline")).ok()?;
    let line = String::from_utf8_lossy(&arguments).replace('\0', " ");
    let name = match Path::new(line.split(' ').next()?).file_name()?.to_str()? {
        "greenroom" if line.contains(" keep") => "the keeper",
        "greenroom" => "holders",
        _ => "plugins",
    };
    // The first number of each thread's file is its processor time in nanoseconds.
    let threads = fs::read_dir(format!("/proc/{pid}/task")).ok()?.flatten();
    let of_thread = |thread: fs::DirEntry| {
        let text = fs::read_to_string(thread.path().join("schedstat")).ok()?;
        text.split_whitespace().next()?.parse::<u64>().ok()
    };
    let nanoseconds = threads.filter_map(of_thread).sum();
    let rollup = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).ok()?;
    let memory =
        rollup.lines().find_map(|line| line.strip_prefix("Pss:")?.split_whitespace().next()?.parse().ok())?;
    Some((name.to_owned(), Duration::from_nanos(nanoseconds), memory))
}

fn fleeting(program: &Path, config: &str) -> String {
    format!(
        "kind = \"fleeting\"\nplugin = \"{}\"\nplugin_config = {config}\nhost_keys = \"first-use\"\nuser = \"ci\"",
        program.display()
    )
}

#[test]
#[ignore = "figures"]
fn figures_of_five_idle_plugins() {
    let of_tests = |home: &Path, pool: usize| {
        let dir: PathBuf = home.join(format!("group-{pool}"));
        fs::create_dir_all(dir.join("faults")).unwrap();
        fleeting(Path::new(TEST_PLUGIN), &format!("{{ dir = \"{}\" }}", dir.display()))
    };
    let is_root = Command::new("id").arg("-u").output().unwrap().stdout == b"0\n";
    let mut keepers = vec![
        ("five pools of `local`", Keeper::start(|_, _| format!("kind = \"local\"\nallow_root = {is_root}"))),
        ("five of the tests' plugin", Keeper::start(of_tests)),
    ];
    if let Some(dummy) = dummy() {
        keepers.push((
            "five of GitLab's dummy plugin",
            Keeper::start(|_, _| fleeting(&dummy, "{ MaxSize = 5 }")),
        ));
    }
    std::thread::sleep(SETTLED);
    let (before, begun): (Vec<Cost>, Instant) =
        (keepers.iter().map(|(_, keeper)| keeper.cost()).collect(), Instant::now());
    std::thread::sleep(MEASURED);
    let took = begun.elapsed().as_secs_f64();
    for ((name, keeper), before) in keepers.iter_mut().zip(before) {
        let log = || fs::read_to_string(keeper.home.path().join("log")).unwrap();
        assert!(!before.is_empty() && keeper.child.try_wait().unwrap().is_none(), "{name}: {}", log());
        for (program, (time, memory)) in keeper.cost() {
            let earlier = before.get(&program).map_or(Duration::ZERO, |(time, _)| *time);
            let share = time.saturating_sub(earlier).as_secs_f64() / took * 1000.0;
            eprintln!("{name}: {program}: {share:.2} ms of processor time a second, {} MiB", memory / 1024);
        }
    }
}
