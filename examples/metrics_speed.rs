//! The duration of a scrape: `metrics_speed PROGRAM` fills 20 pools with 50 instances each, starts `PROGRAM keep --metrics`,
//! and prints the times of its scrapes.
//!
//! The configuration has another pool, so the keeper leaves the 20 alone. Scrapes are further apart than the endpoint
//! keeps its last answer: each reads all pools.

#[path = "parts/booted.rs"]
mod booted;

use std::error::Error;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use booted::booted;
use greenroom_core::endpoint::Endpoint;
use greenroom_core::event::{Change, Event};
use greenroom_core::ids::{Generation, InstanceId, PoolName};
use greenroom_core::policy::Policy;
use greenroom_core::time::{ManagerId, Stamp};
use greenroom_manager::file_store::{self, Options};
use greenroom_manager::runner_host::{StateDir, SystemClock};
use greenroom_ports::clock::Clock;
use greenroom_ports::store::Store;

type Outcome<T> = Result<T, Box<dyn Error>>;

const POOLS: u32 = 20;
const INSTANCES: u32 = 50;
const SCRAPES: usize = 40;
/// Longer than an answer serves further scrapes.
const APART: Duration = Duration::from_millis(600);

#[expect(clippy::print_stdout, reason = "the figures are the output")]
fn main() -> Outcome<()> {
    let program = std::env::args().nth(1).ok_or("usage: metrics_speed PROGRAM")?;
    let home = std::env::temp_dir().join(format!("greenroom-metrics-{}", std::process::id()));
    std::fs::create_dir(&home)?;
    let state = home.join("state");
    StateDir::open(&state)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    for pool in 0..POOLS {
        runtime.block_on(fill(&state, &PoolName::parse(&format!("pool-{pool}"))?))?;
    }
    let mut keeper = keep(&program, &home)?;
    let measured = scrapes(&state);
    keeper.kill()?;
    keeper.wait()?;
    std::fs::remove_dir_all(&home)?;
    let (first, mut times, bytes) = measured?;
    times.sort();
    let at = |part: usize| times[(times.len() - 1) * part / 100].as_secs_f64() * 1e3;
    println!(
        "{POOLS} pools of {INSTANCES} instances, {bytes} bytes: first scrape {:.1} ms, then {:.1} ms (p95 {:.1}, {:.1}–{:.1})",
        first.as_secs_f64() * 1e3,
        at(50),
        at(95),
        at(0),
        at(100)
    );
    Ok(())
}

fn keep(program: &str, home: &Path) -> Outcome<Child> {
    let config = format!(
        "state_dir = \"{}\"\n[pool.other]\nmax_instances = 1\n[pool.other.provider]\nkind = \"local\"\nallow_root = true\n",
        home.join("state").display()
    );
    let path = home.join("greenroom.toml");
    std::fs::write(&path, config)?;
    let mut command = Command::new(program);
    command.arg("--config").arg(path).args(["keep", "--metrics", "127.0.0.1:0"]);
    Ok(command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn()?)
}

/// The time of the first scrape, those of the others, and the length of a response.
fn scrapes(state: &Path) -> Outcome<(Duration, Vec<Duration>, usize)> {
    let file = state.join("metrics-address");
    let begun = Instant::now();
    let address = loop {
        match std::fs::read_to_string(&file) {
            Ok(text) if text.ends_with('\n') => break text.trim().to_owned(),
            _ if begun.elapsed() > Duration::from_secs(30) => return Err("no metrics are served".into()),
            _ => std::thread::sleep(Duration::from_millis(20)),
        }
    };
    let mut times = Vec::new();
    let mut bytes = 0;
    for _ in 0..=SCRAPES {
        let begun = Instant::now();
        let mut stream = TcpStream::connect(&address)?;
        stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: bench\r\n\r\n")?;
        let mut text = String::new();
        stream.read_to_string(&mut text)?;
        times.push(begun.elapsed());
        if text.matches("greenroom_jobs_waiting{").count() <= POOLS as usize {
            return Err(format!("pools are missing: {text}").into());
        }
        bytes = text.len();
        std::thread::sleep(APART);
    }
    Ok((times.remove(0), times, bytes))
}

/// Records idle instances.
async fn fill(state: &Path, pool: &PoolName) -> Outcome<()> {
    let store = file_store::open_dir(state)?.pool(pool, Options { compact_at: 0, ..Options::default() })?;
    let now = SystemClock::new(ManagerId(1))?.now();
    let generation = Generation::new("beacb0a7");
    let policy = Policy { max_instances: INSTANCES, ..Policy::default() };
    let mut events = vec![
        Change::PolicySet { policy: policy.into() }.at(now),
        Change::GenerationBegun { generation: generation.clone() }.at(now),
    ];
    for number in 1..=INSTANCES {
        events.extend(boot(
            &InstanceId::new(format!("{pool}-{generation}-{number}")),
            &generation,
            number,
            now,
        ));
    }
    store.transact(&mut |_| events.clone()).await?;
    store.compact().await?;
    Ok(())
}

fn boot(instance: &InstanceId, generation: &Generation, number: u32, now: Stamp) -> [Event; 4] {
    let endpoint = Endpoint {
        address: "192.0.2.1".to_owned(),
        port: 22,
        user: "ci".to_owned(),
        host_key: format!("ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAI{number:043}"),
        metadata: None,
        key: None,
        jump: None,
        forward: None,
    };
    booted(instance, (generation, number), endpoint, now)
}
