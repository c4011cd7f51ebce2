//! An operator's rounds and commands.

use std::collections::BTreeSet;

use greenroom_core::ids::{InstanceId, Location, PoolName};
use greenroom_core::instance::Phase;

use super::check;
use super::process::{Exit, Proc, Shared};
use super::provider::HERE;
use super::rig::{Command, Order, Starter};
use super::world::World;
use crate::exec::Channel;

/// The time between two rounds.
const ROUND_MS: u64 = 180_000;

/// An operator who looks every few minutes: returns hosts to service, sometimes unbinds one, and drops the records of
/// what was launched in another account.
pub fn begin(world: &Shared, starter: &Starter) {
    let starter = starter.clone();
    Starter::outside(world, "operator".to_owned(), 0, None, |proc| async move {
        let mut left = BTreeSet::new();
        for round in 1_u32.. {
            proc.pause(ROUND_MS).await;
            // A command on a machine without power would be one of an earlier boot.
            proc.until(&[Channel::Work(1)], None, |world| world.managers[0].on.then_some(())).await;
            if round.is_multiple_of(3) {
                unbind(&proc, &starter).await;
            }
            return_hosts(&proc, &starter).await;
            left = forget_elsewhere(&proc, &starter, &left).await;
        }
    });
}

async fn unbind(proc: &Proc, starter: &Starter) {
    let bound = bound_host(&proc.world.borrow());
    let Some((pool, instance)) = bound else { return };
    let command = Command::Unbind { pool, instance };
    let pid = starter.start(&proc.world, command, "pool resume --unbind".to_owned(), 0, None);
    proc.until(&[Channel::Exit(pid)], None, |world| world.exit_of(pid)).await;
}

/// The static host without jobs that has been bound for the longest time, of a pool where cleaning unbinds none.
fn bound_host(world: &World) -> Option<(PoolName, InstanceId)> {
    let pools =
        world.ledgers[0].journals.iter().filter(|(pool, _)| !world.config[*pool].policy.clean_unbinds);
    let hosts = pools.flat_map(|(pool, j)| j.state().instances.values().map(move |host| (pool, host)));
    let bound =
        hosts.filter(|(_, host)| host.is_static() && host.holders.is_empty() && host.domain.is_some());
    let longest = bound.min_by_key(|(_, host)| (host.released.map(|at| at.wall_ms), host.id.clone()));
    longest.map(|(pool, host)| (pool.clone(), host.id.clone()))
}

async fn return_hosts(proc: &Proc, starter: &Starter) {
    let aside: Vec<_> = {
        let world = proc.world.borrow();
        let pools = world.ledgers[0].journals.iter();
        let all = pools.flat_map(|(pool, j)| j.state().instances.values().map(move |i| (pool, i)));
        let aside = all.filter(|(_, i)| matches!(i.phase, Phase::OutOfService { .. }));
        aside.map(|(pool, i)| (pool.clone(), i.id.clone())).collect()
    };
    for (pool, instance) in aside {
        if let Some(host) = proc.world.borrow_mut().cloud.machines.get_mut(&instance) {
            host.begins_no_stage = false;
            host.engine_broken = false;
            host.sick = None;
            host.fails_early = false;
        }
        command(proc, starter, &pool, Order::Return(instance)).await;
    }
}

/// Forgets what reports have shown in the other account for two rounds. The operator knows that this account has
/// nothing. Returns the pools whose reports show it now.
async fn forget_elsewhere(proc: &Proc, starter: &Starter, before: &BTreeSet<PoolName>) -> BTreeSet<PoolName> {
    let shown: BTreeSet<PoolName> = {
        let world = proc.world.borrow();
        let directory = world.managers[0].directory.borrow();
        let here = Location::new(HERE);
        let left = directory.reports.iter().filter(|(_, report)| report.elsewhere() == Some(&here));
        left.map(|(pool, _)| pool.clone()).collect()
    };
    for pool in shown.intersection(before) {
        command(proc, starter, pool, Order::ForgetElsewhere).await;
    }
    shown
}

/// An operator's command. Those for a whole pool are repeated until they succeed.
pub async fn command(proc: &Proc, starter: &Starter, pool: &PoolName, order: Order) {
    let name = match order {
        Order::Drain => "pool drain",
        Order::Resume | Order::Return(_) => "pool resume",
        Order::ForgetElsewhere => "pool resume --forget-elsewhere",
    };
    loop {
        let on = proc.until(&[Channel::Work(1)], None, |world| world.managers[0].on.then_some(()));
        on.await;
        let command = Command::Order { pool: pool.clone(), order: order.clone() };
        let pid = starter.start(&proc.world, command, name.to_owned(), 0, None);
        let exit = proc.until(&[Channel::Exit(pid)], None, |world| world.exit_of(pid)).await;
        let succeeded = exit == Some(Exit::Code(0));
        {
            let mut world = proc.world.borrow_mut();
            world.truth.excused = world.now;
            if succeeded {
                check::ordered(&mut world, pool, &order);
            }
        }
        // An instance may have changed meanwhile.
        if succeeded || !matches!(order, Order::Drain | Order::Resume) {
            return;
        }
        proc.pause(1_000).await;
    }
}
