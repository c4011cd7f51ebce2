//! How a keeper begins and exits: one per state directory, and no wake-up is lost.

use std::time::Duration;

use futures_util::future::LocalBoxFuture;
use futures_util::stream::{FuturesUnordered, StreamExt};
use greenroom_ports::host::Host;
use greenroom_ports::wakeups::WakeReason;

use super::EngineError;
use super::keeper::{Pool, PoolKeeper, RoundEnd};

/// When a keeper exits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeeperMode {
    /// `greenroom keep`: runs until it is stopped.
    AsService,
    /// Started by a call that needed one: runs until all pools are settled.
    UntilSettled,
}

/// Why a keeper exited.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeeperExit {
    /// Another keeper is running.
    Elsewhere,
    Settled,
    /// By SIGTERM, or by SIGQUIT once no attempt was open.
    Stopped,
    /// The executable was replaced; a background keeper has started the new one.
    HandedOver,
    /// The state directory was removed or replaced.
    Evicted,
}

/// Keeps pools until settled or stopped. Pools run concurrently: a slow provider delays its own pool only.
///
/// A starting keeper waits `take_over` for the previous one to exit.
pub async fn keep(
    host: &Host,
    pools: &[Pool],
    keeping: KeeperMode,
    take_over: Duration,
) -> Result<KeeperExit, EngineError> {
    loop {
        let Some(lock) = host.leadership.lock_keeper(take_over).await? else {
            return Ok(KeeperExit::Elsewhere);
        };
        let end = side_by_side(pools, keeping).await;
        drop(lock);
        match end {
            RoundEnd::Stopped(WakeReason::Replaced) => {
                // The service manager restarts a service, which finds the state as after a crash.
                if keeping == KeeperMode::UntilSettled {
                    host.leadership.start_keeper().await?;
                }
                return Ok(KeeperExit::HandedOver);
            }
            RoundEnd::Stopped(WakeReason::Evicted) => return Ok(KeeperExit::Evicted),
            RoundEnd::Stopped(_) => return Ok(KeeperExit::Stopped),
            RoundEnd::Settled | RoundEnd::Woken => {}
        }
        // RACE: a request committed before the unlock saw a living keeper and waits for it. One committed later finds
        // none and starts one. So one check after the unlock is enough.
        if !any_news(pools).await? {
            return Ok(KeeperExit::Settled);
        }
    }
}

async fn any_news(pools: &[Pool]) -> Result<bool, EngineError> {
    for pool in pools {
        if pool.engine.store.load().await?.revision != pool.revision.get() {
            return Ok(true);
        }
    }
    Ok(false)
}

type Round = LocalBoxFuture<'static, (PoolKeeper, RoundEnd)>;

/// Runs every pool; returns when all are settled at the same time, or when the keeper is stopped.
async fn side_by_side(pools: &[Pool], keeping: KeeperMode) -> RoundEnd {
    let mut rounds: FuturesUnordered<Round> = FuturesUnordered::new();
    for pool in pools {
        rounds.push(Box::pin(working(PoolKeeper::new(pool.clone()))));
    }
    let mut asleep = 0;
    while let Some((keeper, end)) = rounds.next().await {
        match end {
            RoundEnd::Stopped(_) => return end,
            RoundEnd::Woken => {
                asleep -= 1;
                rounds.push(Box::pin(working(keeper)));
            }
            RoundEnd::Settled => {
                asleep += 1;
                if asleep == pools.len() && keeping == KeeperMode::UntilSettled {
                    return RoundEnd::Settled;
                }
                rounds.push(Box::pin(sleeping(keeper)));
            }
        }
    }
    RoundEnd::Settled
}

async fn working(mut keeper: PoolKeeper) -> (PoolKeeper, RoundEnd) {
    let end = keeper.until_settled().await;
    (keeper, end)
}

async fn sleeping(mut keeper: PoolKeeper) -> (PoolKeeper, RoundEnd) {
    let end = keeper.until_woken().await;
    (keeper, end)
}
