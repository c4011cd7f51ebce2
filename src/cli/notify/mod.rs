//! Notices of a keeper: a thread of its own watches for conditions and delivers notices, so that neither delays a pass.
//!
//! Delivered and waiting notices stand in `notices.json`. A killed keeper repeats at most the delivery that was under way.

mod deliver;
pub(super) mod helper;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;

use greenroom_core::ids::{InstanceId, PoolName};
use greenroom_core::notice::{Condition, Notice, Notices, conditions};
use greenroom_core::text::with_causes;
use greenroom_core::time::Stamp;
use greenroom_manager::runner_host::{KeeperStarts, OnReport, SystemClock, replace_alone};
use greenroom_ports::clock::Clock as _;
use greenroom_ports::store::Stores;
use tokio::sync::{mpsc, oneshot};
use tokio::time::{MissedTickBehavior, interval, timeout};

use super::context::{self, StoreOptions};
use crate::config::Notify;
use deliver::DeliveryError;

const FILE: &str = "notices.json";
/// Reports that wait for the thread. A full queue drops further ones: the next pass of a pool has another.
const REPORTS: usize = 256;
/// The interval at which the thread checks what is due.
const TICK: Duration = Duration::from_secs(1);
/// The time that a delivery under way may still take when the keeper exits.
const LAST_DELIVERY: Duration = Duration::from_secs(5);

/// A pool's pass, as far as notices need it.
type PoolPass = (PoolName, Vec<InstanceId>);

/// The running thread of a [`Watch`]. It ends when this is dropped.
#[derive(Debug)]
pub(super) struct Notifier {
    reports: mpsc::Sender<PoolPass>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Notifier {
    pub(super) fn start(state_path: &Path, notify: Notify, clock: SystemClock) -> Self {
        let (reports, received) = mpsc::channel(REPORTS);
        let (stop, stopped) = oneshot::channel();
        let root = state_path.to_owned();
        if let Some(problem) = notify.webhook.as_ref().and_then(helper::missing) {
            tracing::error!("notices are not delivered: {problem}");
        }
        let work = move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            let watched = runtime.map_err(|error| error.to_string()).and_then(|runtime| {
                let watch = Watch::open(root, notify, clock).map_err(|error| error.to_string())?;
                runtime.block_on(watch.run(received, stopped));
                Ok(())
            });
            if let Err(problem) = watched {
                tracing::error!("notices are not delivered: {problem}");
            }
        };
        let thread = std::thread::Builder::new().name("notices".to_owned()).spawn(work);
        let thread = thread.inspect_err(|error| tracing::error!("notices are not delivered: {error}")).ok();
        Self { reports, stop: Some(stop), thread }
    }

    /// Passes each report on to the thread.
    pub(super) fn on_report(&self) -> OnReport {
        let reports = self.reports.clone();
        Box::new(move |pool, report| {
            // Full or closed: notices are only told.
            reports.try_send((pool.clone(), conditions::orphans(report))).ok();
        })
    }
}

impl Drop for Notifier {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            thread.join().ok();
        }
    }
}

struct Watch {
    root: PathBuf,
    notify: Notify,
    clock: SystemClock,
    stores: Rc<dyn Stores>,
    notices: Notices,
    /// Passes that were reported and not looked at yet.
    seen: BTreeMap<PoolName, Vec<InstanceId>>,
    /// The conditions of each pool since its last pass.
    holding: BTreeMap<PoolName, Vec<Condition>>,
}

impl Watch {
    fn open(
        root: PathBuf,
        notify: Notify,
        clock: SystemClock,
    ) -> Result<Self, greenroom_ports::store::StoreError> {
        let stores = context::open_stores(&root, StoreOptions::default())?;
        let notices = read(&root);
        Ok(Self { root, notify, clock, stores, notices, seen: BTreeMap::new(), holding: BTreeMap::new() })
    }

    async fn run(mut self, mut reports: mpsc::Receiver<PoolPass>, mut stopped: oneshot::Receiver<()>) {
        let mut ticks = interval(TICK);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let root = self.root.clone();
        loop {
            let due = self.notices.due(self.now()).map(|(notice, dropped)| (notice.clone(), dropped));
            let Some((notice, dropped)) = due else {
                if !self.step(&mut ticks, &mut reports, &mut stopped).await {
                    return;
                }
                continue;
            };
            // Conditions are watched during the delivery, too.
            let notify = self.notify.clone();
            let delivery = deliver::deliver(&root, &notify, &notice, dropped);
            tokio::pin!(delivery);
            let (delivered, goes_on) = loop {
                tokio::select! {
                    delivered = &mut delivery => break (Some(delivered), true),
                    goes_on = self.step(&mut ticks, &mut reports, &mut stopped) => if !goes_on {
                        break (timeout(LAST_DELIVERY, &mut delivery).await.ok(), false);
                    },
                }
            };
            self.note(&notice, delivered);
            if !goes_on {
                return;
            }
        }
    }

    /// Waits for the next report or tick, and observes; false when the keeper exits.
    async fn step(
        &mut self,
        ticks: &mut tokio::time::Interval,
        reports: &mut mpsc::Receiver<PoolPass>,
        stopped: &mut oneshot::Receiver<()>,
    ) -> bool {
        tokio::select! {
            _ = &mut *stopped => return false,
            Some((pool, orphans)) = reports.recv() => drop(self.seen.insert(pool, orphans)),
            _ = ticks.tick() => {}
        }
        // RACE: the end of a delivery may interrupt this; the pass is then looked at in the next step.
        while let Some((pool, orphans)) = self.seen.first_key_value().map(|(p, o)| (p.clone(), o.clone())) {
            self.look(&pool, &orphans).await;
            self.seen.remove(&pool);
        }
        let now = self.now();
        let mut all: Vec<Condition> = self.holding.values().flatten().cloned().collect();
        all.extend(conditions::of_keeper(&KeeperStarts::read(&self.root).recent, now));
        if self.notices.observe(&all, self.notify.min_interval, now) {
            self.write();
        }
        true
    }

    /// Updates the conditions of a pool. A state that cannot be read changes none.
    async fn look(&mut self, pool: &PoolName, orphans: &[InstanceId]) {
        let Ok(store) = self.stores.store(pool) else { return };
        let Ok(state) = store.load().await else { return };
        let found = conditions::of_pool(pool.as_str(), &state, orphans, self.now());
        self.holding.insert(pool.clone(), found);
    }

    /// Notes the result of a delivery; `None`: it was interrupted.
    fn note(&mut self, notice: &Notice, delivered: Option<Result<(), DeliveryError>>) {
        let event = notice.condition.kind.word();
        match delivered {
            // The queue was full meanwhile, and its first notice was replaced.
            _ if self.notices.due(self.now()).is_none_or(|(first, _)| first.number != notice.number) => {}
            Some(Ok(())) => {
                self.notices.delivered(self.now());
                // CRASH: a keeper that ends after the line below must not deliver the notice again, so its record comes first.
                self.write();
                tracing::info!("notice {} ({event}) is delivered", notice.number);
                return;
            }
            Some(Err(error)) => {
                let problem = with_causes(&error);
                tracing::warn!("notice {} ({event}) is not delivered: {problem}", notice.number);
                if self.notices.failed(self.now(), &problem).is_some() {
                    tracing::error!("notice {} ({event}) is given up", notice.number);
                }
            }
            None => return,
        }
        self.write();
    }

    fn now(&self) -> Stamp {
        self.clock.now()
    }

    fn write(&self) {
        let text = serde_json::to_vec(&self.notices).unwrap_or_default();
        if let Err(error) = replace_alone(&self.root, FILE, &text) {
            tracing::warn!("cannot write `{FILE}`: {error}");
        }
    }
}

/// Delivered and waiting notices. A file that cannot be parsed counts as none.
pub(super) fn read(root: &Path) -> Notices {
    serde_json::from_slice(&fs::read(root.join(FILE)).unwrap_or_default()).unwrap_or_default()
}
