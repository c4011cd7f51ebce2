//! The costs of a stage, in a container and on the guest.

use std::time::{Duration, Instant};

use greenroom_core::execution::Shell;
use greenroom_ports::connector::StageEnd;

use super::world::{Guest, Way, engines, is_inside};
use crate::link::until_ready;
use crate::linked::support::{eventually, never, stage};

const ROUNDS: usize = 20;

fn median(mut times: Vec<Duration>) -> String {
    times.sort();
    format!("{:.1} ms", times[times.len() / 2].as_secs_f64() * 1000.0)
}

#[tokio::test]
#[ignore = "runs in namespaces"]
async fn a_stage() {
    if !is_inside() {
        return;
    }
    let guest = Guest::start().await;
    let name = Guest::create("bash", &[]);
    let idle = async || {
        let name = name.clone();
        eventually("the engine is idle", move || engines(&name).is_empty()).await;
        until_ready(&guest.sshd).await;
    };
    let (mut ahead, mut cold, mut machine) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        guest.beside(&name, "sleep 0.6\n").await;
        until_ready(&guest.sshd).await;
        let begun = Instant::now();
        let (end, _) = guest.run_in(Way::Link, &name, "true\n").await;
        ahead.push(begun.elapsed());
        assert_eq!(end, StageEnd::Exited(0));
        idle().await;
        let begun = Instant::now();
        let (end, _) = guest.run_in(Way::Link, &name, "true\n").await;
        cold.push(begun.elapsed());
        assert_eq!(end, StageEnd::Exited(0));
        idle().await;
        let begun = Instant::now();
        let (end, _) = guest.run(Way::Link, stage(Shell::Bash, "true\n"), never()).await;
        machine.push(begun.elapsed());
        assert_eq!(end.unwrap(), StageEnd::Exited(0));
        until_ready(&guest.sshd).await;
    }
    eprintln!(
        "a stage in a container started ahead {}, not ahead {}, on the guest {}",
        median(ahead),
        median(cold),
        median(machine)
    );
}
