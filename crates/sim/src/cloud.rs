//! The actual state of the provider.
//!
//! Has every instance that exists, of any owner, and what really happens to it. Requests arrive some time after they
//! were sent, and are carried out even if the sender has died by then.

use std::collections::BTreeMap;

use greenroom_core::endpoint::Endpoint;
use greenroom_core::ids::{InstanceId, PoolName};
use greenroom_core::inventory::{Listed, StaticHost, Status, Tags};
use greenroom_core::order::LaunchOrder;
use greenroom_core::time::{BootId, ManagerId, Stamp};
use greenroom_ports::provider::LaunchRequest;

use super::orders;

/// The fate of a launched [`Machine`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BootPlan {
    /// The duration of the boot; `None`: forever.
    pub takes: Option<u64>,
    /// True if the instance's ready command passes.
    pub passes: bool,
    /// The duration of a termination.
    pub goes: u64,
    /// The time for which no call shows the instance.
    pub hidden: u64,
}

/// One instance that exists.
#[derive(Debug, Clone)]
pub struct Machine {
    pub id: InstanceId,
    pub pool: PoolName,
    /// The tags of the launch; `None`: a static host.
    pub tags: Option<Tags>,
    pub token: String,
    /// True if this owner launched the instance, not a twin or another owner.
    pub owned: bool,
    pub made: u64,
    pub plan: BootPlan,
    /// The moment from which the instance responds, unless it is down; `None`: not yet known, or never.
    pub up: Option<u64>,
    pub down: bool,
    /// `up` is the end of a reboot, or of a resume.
    pub rebooted: bool,
    /// The moment from which the instance is suspended; before, it is suspending.
    pub asleep: Option<u64>,
    /// The moments of the last suspension and of the resume after it.
    pub slept: Option<(u64, u64)>,
    /// The number of resumes: after each, the instance has another address.
    pub resumes: u32,
    /// True while the instance is being deleted.
    pub going: bool,
    /// True if the instance's record was lost, and not by Greenroom: the instance does not count against the limit.
    pub orphaned: bool,
    /// True if the instance responds, but begins no stages.
    pub begins_no_stage: bool,
    /// True if the instance responds, but its engine starts no containers.
    pub engine_broken: bool,
    /// The moment when a job filled the instance's disk.
    pub sick: Option<u64>,
    /// True if the first stage of each job fails here.
    pub fails_early: bool,
    /// True if a script used up the instance's memory or disk, which ended the script.
    pub used_up: bool,
    pub host_key: String,
    /// The order that the instance was made of, if a job ordered it.
    pub order: Option<LaunchOrder>,
}

impl Machine {
    /// True if it responds.
    pub fn answers(&self, now: u64) -> bool {
        !self.down && !self.going && self.asleep.is_none() && self.up.is_some_and(|at| at <= now)
    }

    pub fn address(&self) -> String {
        if self.resumes == 0 { self.id.to_string() } else { format!("{}+{}", self.id, self.resumes) }
    }

    fn status(&self, now: u64) -> Status {
        if self.down || self.going {
            return Status::Stopping;
        }
        // A stale list shows it as it was.
        if self.slept.is_some_and(|(from, until)| from <= now && now < until) {
            return Status::Suspended;
        }
        match self.asleep {
            Some(at) if at <= now => return Status::Suspended,
            Some(_) => return Status::Stopping,
            None => {}
        }
        // A provider reports `Running` when the machine has power, which is before it responds. While a machine
        // reboots, some report that and some do not.
        let reboots = self.rebooted && self.up.is_some_and(|at| at > now && at.is_multiple_of(2));
        if now < self.made + 3_000 || reboots {
            return Status::Starting;
        }
        Status::Running
    }
}

/// An action of the cloud that will happen without a call, at a moment that [`Cloud::take_due`] waits for.
#[derive(Debug, Clone)]
pub enum Due {
    Launch {
        request: Box<LaunchRequest>,
        plan: BootPlan,
        lie: bool,
    },
    Terminate {
        id: InstanceId,
    },
    /// An instance is suspended. `takes`: how long that takes; `None`: forever.
    Suspend {
        id: InstanceId,
        takes: Option<u64>,
    },
    Resume {
        id: InstanceId,
        takes: Option<u64>,
    },
    Gone {
        id: InstanceId,
    },
}

/// Everything that the provider has: each [`Machine`], and each action that is [`Due`] later.
#[derive(Debug, Default)]
pub struct Cloud {
    pub machines: BTreeMap<InstanceId, Machine>,
    /// Instances that are gone, with the time: stale lists still show them.
    pub past: BTreeMap<InstanceId, (Machine, u64)>,
    due: BTreeMap<(u64, u64), Due>,
    next: u64,
}

/// A `Stamp` with the provider's own wall clock, which is independent of the machines' boots.
pub fn cloud_time(ms: u64) -> Stamp {
    Stamp {
        wall_ms: super::world::EPOCH_MS + i64::try_from(ms).unwrap_or(i64::MAX),
        manager: ManagerId(1),
        boot: BootId(0),
        uptime_ms: 0,
    }
}

impl Cloud {
    pub fn later(&mut self, at: u64, due: Due) {
        self.next += 1;
        self.due.insert((at, self.next), due);
    }

    pub fn next_due(&self) -> Option<u64> {
        self.due.keys().next().map(|(at, _)| *at)
    }

    /// The next thing that is due by now, with its moment.
    pub fn take_due(&mut self, now: u64) -> Option<(u64, Due)> {
        let (key, _) = self.due.first_key_value()?;
        if key.0 > now {
            return None;
        }
        let key = *key;
        self.due.remove(&key).map(|due| (key.0, due))
    }

    /// A launch arrives. False if an instance of that name has another token.
    pub fn make(&mut self, request: &LaunchRequest, plan: BootPlan, at: u64, owned: bool) -> bool {
        if self.recognizes(request) {
            return true;
        }
        if self.machines.contains_key(&request.instance) {
            return false;
        }
        let machine = Machine {
            id: request.instance.clone(),
            pool: request.tags.pool.clone(),
            tags: Some(request.tags.clone()),
            token: request.token.clone(),
            owned,
            made: at,
            plan,
            up: plan.takes.map(|takes| at + takes),
            down: false,
            rebooted: false,
            asleep: None,
            slept: None,
            resumes: 0,
            going: false,
            orphaned: false,
            begins_no_stage: false,
            engine_broken: false,
            sick: None,
            fails_early: false,
            used_up: false,
            host_key: request.keys.host_key_public.clone(),
            order: request.order.clone(),
        };
        self.machines.insert(request.instance.clone(), machine);
        true
    }

    /// True if a launch with this token has created an instance, even if it is gone.
    pub fn recognizes(&self, request: &LaunchRequest) -> bool {
        let living = self.machines.get(&request.instance);
        let gone = self.past.get(&request.instance).map(|(gone, _)| gone);
        living.or(gone).is_some_and(|machine| machine.token == request.token)
    }

    /// A static host of the operator's.
    pub fn install(&mut self, pool: &PoolName, name: &str, plan: BootPlan) {
        let id = InstanceId::new(name);
        let machine = Machine {
            id: id.clone(),
            pool: pool.clone(),
            tags: None,
            token: String::new(),
            owned: false,
            made: 0,
            plan,
            up: Some(0),
            down: false,
            rebooted: false,
            asleep: None,
            slept: None,
            resumes: 0,
            going: false,
            orphaned: false,
            begins_no_stage: false,
            engine_broken: false,
            sick: None,
            fails_early: false,
            used_up: false,
            host_key: format!("ssh-ed25519 fixed-{name}"),
            order: None,
        };
        self.machines.insert(id, machine);
    }

    /// An instance of another owner in the same account, with the same pool name.
    pub fn stranger(&mut self, pool: &PoolName, plan: BootPlan) {
        let tags = Tags {
            pool: pool.clone(),
            owner: greenroom_core::ids::OwnerId::new("somebody"),
            generation: greenroom_core::ids::Generation::new("else"),
            number: 1,
        };
        self.install(pool, &format!("{pool}-else-1"), plan);
        let id = InstanceId::new(format!("{pool}-else-1"));
        if let Some(machine) = self.machines.get_mut(&id) {
            machine.tags = Some(tags);
        }
    }

    /// A termination arrives.
    pub fn begin_end(&mut self, id: &InstanceId, at: u64) {
        let Some(machine) = self.machines.get_mut(id).filter(|m| !m.going) else { return };
        machine.going = true;
        let gone = at + machine.plan.goes;
        self.later(gone, Due::Gone { id: id.clone() });
    }

    /// A suspension arrives.
    pub fn suspend(&mut self, id: &InstanceId, takes: Option<u64>, at: u64) {
        if let Some(machine) = self.machines.get_mut(id).filter(|m| m.answers(at)) {
            machine.asleep = Some(takes.map_or(u64::MAX, |takes| at + takes));
        }
    }

    /// A resume arrives.
    pub fn resume(&mut self, id: &InstanceId, takes: Option<u64>, at: u64) {
        let Some(machine) = self.machines.get_mut(id) else { return };
        let Some(since) = machine.asleep.filter(|since| *since <= at) else { return };
        machine.asleep = None;
        machine.slept = Some((since, at));
        machine.up = takes.map(|takes| at + takes);
        machine.rebooted = true;
        machine.resumes += 1;
    }

    /// An instance is gone permanently.
    pub fn end(&mut self, id: &InstanceId, at: u64) {
        if let Some(machine) = self.machines.remove(id) {
            self.past.insert(id.clone(), (machine, at));
        }
    }

    /// The content of a list that is `lag` behind.
    pub fn listed(&self, pool: &PoolName, now: u64, lag: u64) -> Vec<Listed> {
        let then = now.saturating_sub(lag);
        let entry = |machine: &Machine, status| Listed {
            id: machine.id.clone(),
            tags: machine.tags.clone(),
            status,
            created: machine.tags.is_some().then(|| cloud_time(machine.made)),
            detail: machine.used_up.then(|| "ran out of memory".to_owned()),
            by_job: machine.used_up,
            refused: orders::listed(machine, then),
            static_host: machine.tags.is_none().then(StaticHost::default),
            notice: None,
        };
        let present = self.machines.values().filter(|m| m.made + m.plan.hidden <= then).map(|m| {
            // A stale list shows an instance as it was.
            let fresh = lag == 0 || m.made + lag > now;
            entry(m, if fresh || !m.going { m.status(then) } else { Status::Running })
        });
        let past = self.past.values().filter(|(m, gone)| lag > 0 && m.made <= then && *gone > then);
        let past = past.map(|(m, _)| entry(m, Status::Running));
        let mut listed: Vec<Listed> = present.chain(past).collect();
        listed.retain(|l| self.pool_of(&l.id) == Some(pool));
        listed.sort_by(|a, b| a.id.cmp(&b.id));
        listed
    }

    fn pool_of(&self, id: &InstanceId) -> Option<&PoolName> {
        self.machines.get(id).or_else(|| self.past.get(id).map(|(m, _)| m)).map(|m| &m.pool)
    }

    /// True if calls find an instance.
    pub fn shows(&self, id: &InstanceId, now: u64) -> bool {
        self.machines.get(id).is_some_and(|m| m.made + m.plan.hidden <= now)
    }

    /// True if an instance is gone, and the provider remembers that: for every other one.
    pub fn knows_end(&self, id: &InstanceId) -> bool {
        self.past.get(id).is_some_and(|(_, gone)| gone.is_multiple_of(2))
    }

    /// Address and host key of an instance.
    pub fn endpoint(&self, id: &InstanceId) -> Option<Endpoint> {
        self.machines.get(id).map(|machine| Endpoint {
            address: machine.address(),
            port: 22,
            user: "root".to_owned(),
            host_key: machine.host_key.clone(),
            key: None,
            jump: None,
            forward: None,
            metadata: None,
        })
    }

    /// Instances of a pool that this owner launched and that still cost money.
    pub fn billing<'a>(&'a self, pool: &'a PoolName) -> impl Iterator<Item = &'a Machine> {
        self.machines.values().filter(move |m| m.owned && !m.orphaned && m.pool == *pool)
    }
}
