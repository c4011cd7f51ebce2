//! Ends of machines: terminations, a deletion without the program, a lifetime, and the clean-up of everything that the kit has
//! made.

use std::collections::BTreeMap;
use std::process::Stdio;
use std::time::{Duration, Instant};

use greenroom_core::ids::{InstanceId, PoolName};
use greenroom_core::time::Pretty;
use greenroom_providers::conformance::ends::CallForOne;
use greenroom_providers::conformance::subject::is_alive;
use greenroom_providers::conformance::verdict::{Judged, failed, poll, skipped};
use serde_json::json;

use super::guest::is_reached;
use super::{LaunchedMachine, LiveRun, OWNERS, POOLS};
use crate::cloud::tags;
use crate::external::kit::cheap::NO_MACHINE;
use crate::external::kit::port::{TestMachine, full_name};
use crate::external::kit::program::ProgramReply;
use crate::external::kit::read;
use crate::external::protocol::NOT_FOUND;
use crate::external::protocol::answers::{ListedState, MachineAnswer, ResourceAnswer, ResourcesAnswer};

/// How long a login on a machine that is gone may take to fail.
const REACHED_WITHIN: Duration = Duration::from_secs(5);
/// Limit of the command that deletes a machine without the program.
const DELETED_WITHIN: Duration = Duration::from_mins(2);
/// The lifetime of the machine that has to end by itself.
const LIFETIME: Duration = Duration::from_secs(30);

impl LiveRun<'_> {
    /// The terminations of the first machine, while the others run.
    pub(super) async fn check_ends(&self, first: &LaunchedMachine, others: &[LaunchedMachine]) {
        self.session.outcomes.check("terminate-unknown-live", self.unknown(first)).await;
        let begun = Instant::now();
        let ended = self.subject().ends(&first.machine).await;
        let is_ended = self.session.outcomes.record("terminate", ended, begun);
        self.session.outcomes.check("terminate-ends", self.really_ended(first, is_ended)).await;
        self.session.outcomes.check("terminate-repeated", self.repeated_end(first, is_ended)).await;
        self.session.outcomes.check("terminate-spares-others", self.spared(others)).await;
    }

    /// A machine ID that nothing has, while a machine runs.
    async fn unknown(&self, first: &LaunchedMachine) -> Judged {
        // Certainly not the ID of a machine that exists: other machines of the account must be safe.
        let name = format!("{}-greenroom-kit-none", first.machine);
        for id in [InstanceId::new(NO_MACHINE), InstanceId::new(name)] {
            self.subject().refuses_unknown(CallForOne::Terminate, &id).await?;
        }
        match self.subject().living(&first.launch).await?.first() {
            Some(_) => Ok(()),
            None => failed(format!("`{}` no longer runs", first.machine)),
        }
    }

    async fn really_ended(&self, first: &LaunchedMachine, is_ended: bool) -> Judged {
        if !is_ended {
            return skipped("the machine is not gone, see `terminate`");
        }
        self.subject().is_not_running(first.pool(), &first.machine).await?;
        let Some(endpoint) = self.endpoint_of_first.borrow().clone() else { return Ok(()) };
        if is_reached(self.connector, &first.launch, &endpoint, REACHED_WITHIN).await {
            return failed(format!("`{}` still accepts the login at {}", first.machine, endpoint.place()));
        }
        Ok(())
    }

    async fn repeated_end(&self, first: &LaunchedMachine, is_ended: bool) -> Judged {
        if !is_ended {
            return skipped("the machine is not gone, see `terminate`");
        }
        self.subject().stays_gone(&first.machine).await
    }

    async fn spared(&self, others: &[LaunchedMachine]) -> Judged {
        if others.is_empty() {
            return skipped("no other machine runs");
        }
        self.subject().spares(others.iter().map(|other| (other.pool(), &other.machine))).await
    }

    /// A machine that the operator's own tool deletes.
    pub(super) async fn check_deleted_elsewhere(&self, made: Option<LaunchedMachine>) {
        self.session.outcomes.check("deleted-elsewhere", self.deleted_elsewhere(made)).await;
    }

    async fn deleted_elsewhere(&self, made: Option<LaunchedMachine>) -> Judged {
        let Some(program) = &self.options.delete_with else {
            return skipped("no command deletes a machine: name one with `--delete-with`");
        };
        let Some(made) = made else { return skipped("no machine is left for it") };
        self.watch.forget(&made.machine);
        let mut command = tokio::process::Command::new(program);
        command
            .arg(made.machine.as_str())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .kill_on_drop(true);
        let status = tokio::time::timeout(DELETED_WITHIN, command.status()).await;
        let name = program.display();
        match status {
            Ok(Ok(status)) if status.success() => {}
            Ok(Ok(status)) => return skipped(format!("`{name}` failed: {status}")),
            Ok(Err(error)) => return skipped(format!("`{name}` cannot be started: {error}")),
            Err(_) => return skipped(format!("`{name}` did not end within {}", Pretty(DELETED_WITHIN))),
        }
        let ended = poll(self.options.end_timeout, async || {
            let listed = self.subject().listed(made.pool(), &made.machine).await?;
            Ok((!listed.is_some_and(|listed| is_alive(&listed))).then_some(()))
        });
        if ended.await?.is_none() {
            return failed(format!("`{}` was deleted, and is still listed as running", made.machine));
        }
        self.subject().goes(&made.machine).await
    }
}

impl LiveRun<'_> {
    /// Launches the machine that has to end by itself, if the program says so.
    pub(super) async fn check_lifetime_begun(&self) -> Judged<(LaunchedMachine, Instant)> {
        if !self.port.known.lifetime {
            return skipped("the program answers `\"lifetime\": false`");
        }
        let mut launch = self.new_launch(POOLS[0], OWNERS[0]).await?;
        launch.lifetime = Some(LIFETIME);
        let made = self.launch(launch).await?;
        // Lists may lack it at any moment from now on.
        self.watch.forget(&made.machine);
        Ok((made, Instant::now()))
    }

    /// Waits for its end.
    pub(super) async fn check_lifetime(&self, mortal: Judged<(LaunchedMachine, Instant)>) {
        self.session.outcomes.check("lifetime", self.lifetime(mortal)).await;
    }

    async fn lifetime(&self, mortal: Judged<(LaunchedMachine, Instant)>) -> Judged {
        let (made, since) = mortal?;
        let left = (LIFETIME + self.options.end_timeout).saturating_sub(since.elapsed());
        let ended = poll(left, async || {
            let lives = !self.subject().living(&made.launch).await?.is_empty();
            Ok((!lives).then_some(()))
        });
        match ended.await? {
            Some(()) => Ok(()),
            None => failed(format!(
                "`{}` still ran {} after its launch with `\"lifetime_s\": {}`",
                made.machine,
                Pretty(since.elapsed()),
                LIFETIME.as_secs()
            )),
        }
    }
}

/// The instance and the name of what shows these tags or this name; `None`: it is not the kit's.
fn of_kit(pool: &str, shown: &BTreeMap<String, String>, name: Option<&str>) -> Option<(String, String)> {
    let tags = tags::read(|tag| shown.get(tag).map(String::as_str));
    let is_owner = |owner: &str| OWNERS.contains(&owner);
    if let Some((instance, tags)) = tags {
        let is_kits = tags.pool == PoolName::new(pool) && is_owner(tags.owner.as_str());
        let name = name.map_or_else(|| full_name(instance.as_str(), &tags.owner), str::to_owned);
        return is_kits.then(|| (instance.to_string(), name));
    }
    let name = name?;
    let (instance, owner) = name.rsplit_once('-')?;
    // `greenroom-kit-2` begins like `greenroom-kit`: what follows the pool has one hyphen.
    let rest = instance.strip_prefix(pool)?.strip_prefix('-')?;
    let is_launch = rest.split_once('-').is_some_and(|(run, number)| {
        run.len() == 8 && run.bytes().all(|byte| byte.is_ascii_hexdigit()) && number.parse::<u32>().is_ok()
    });
    (is_launch && is_owner(owner)).then(|| (instance.to_owned(), name.to_owned()))
}

impl LiveRun<'_> {
    /// The IDs of machines and other resources of the kit, with their pools.
    pub async fn left(&self) -> Judged<Vec<(&'static str, String)>> {
        let mut left = Vec::new();
        for pool in POOLS {
            left.extend(self.machines(pool).await?.into_iter().map(|known| (pool, known.machine)));
            left.extend(self.others(pool).await?.into_iter().map(|resource| (pool, resource.id)));
        }
        Ok(left)
    }

    /// The kit's machines in a pool that exist.
    async fn machines(&self, pool: &str) -> Judged<Vec<TestMachine>> {
        let list = self.list(pool).await?;
        if !list.complete {
            return failed(format!("the list of `{pool}` is not complete"));
        }
        let existing = list.machines.iter().filter(|listed| listed.state != ListedState::Gone);
        Ok(existing.filter_map(|listed| self.kits(pool, listed)).collect())
    }

    /// A listed machine, if this run has made it or if it shows that the kit has.
    fn kits(&self, pool: &str, listed: &MachineAnswer) -> Option<TestMachine> {
        let made = self.port.made.borrow();
        if let Some(known) = made.iter().rfind(|known| known.machine == listed.machine) {
            return (known.pool == pool).then(|| known.clone());
        }
        let (instance, name) = of_kit(pool, &listed.tags, listed.name.as_deref())?;
        Some(TestMachine { pool: pool.to_owned(), machine: listed.machine.clone(), instance, name })
    }

    /// The kit's other resources in a pool.
    async fn others(&self, pool: &str) -> Judged<Vec<ResourceAnswer>> {
        if !self.port.known.verbs.contains("resources") {
            return Ok(Vec::new());
        }
        let answer = self.session.answer("resources", pool, &json!({})).await?;
        let all: ResourcesAnswer = read("resources", &answer)?;
        let made = self.port.made.borrow();
        let is_kits = |resource: &ResourceAnswer| {
            let of_made = |machine: &String| made.iter().any(|known| known.machine == *machine);
            resource.machine.as_ref().is_some_and(of_made)
                || of_kit(pool, &resource.tags, resource.name.as_deref()).is_some()
        };
        Ok(all.resources.into_iter().filter(is_kits).collect())
    }

    /// Ends everything of the kit. What is left, by ID.
    pub async fn clean_up(&self) -> Vec<String> {
        let begun = Instant::now();
        let mut all = self.port.made.borrow().clone();
        for known in &all {
            self.watch.forget(&InstanceId::new(&known.machine));
        }
        for pool in POOLS {
            // A list that fails is reported below.
            all.extend(self.machines(pool).await.unwrap_or_default());
        }
        all.sort();
        all.dedup();
        let mut open = Vec::new();
        for known in &all {
            if !self.ends(known).await {
                open.push(known.machine.clone());
            }
        }
        let judged = self.nothing_left().await;
        let mut left: Vec<String> = match &judged {
            Ok(left) => left.iter().map(|(_, id)| id.clone()).collect(),
            Err(_) => open,
        };
        left.sort();
        left.dedup();
        let verdict = judged.and_then(|left| match left.first() {
            None => Ok(()),
            Some((pool, id)) => {
                failed(format!("{} left, one of them `{id}` of the pool `{pool}`", count(left.len())))
            }
        });
        self.session.outcomes.record("nothing-left", verdict, begun);
        left
    }

    /// Waits until nothing is left; a late machine is ended, too.
    async fn nothing_left(&self) -> Judged<Vec<(&'static str, String)>> {
        // A machine of a killed launch may appear late.
        let settled = poll(self.appears_within(), async || {
            for pool in POOLS {
                for known in self.machines(pool).await? {
                    self.ends(&known).await;
                }
            }
            Ok(None::<()>)
        });
        settled.await?;
        let empty = poll(self.options.end_timeout, async || {
            for pool in POOLS {
                self.delete_others(pool).await?;
            }
            Ok(self.left().await?.is_empty().then_some(()))
        });
        match empty.await? {
            Some(()) => Ok(Vec::new()),
            None => self.left().await,
        }
    }

    /// Requests the deletion of the kit's resources that are not machines.
    async fn delete_others(&self, pool: &str) -> Judged {
        if !self.port.known.verbs.contains("delete") {
            return Ok(());
        }
        for resource in self.others(pool).await? {
            let fields = json!({ "kind": resource.kind, "id": resource.id });
            match self.session.call("delete", pool, &fields).await {
                ProgramReply::Refused(refusal) if refusal.code != NOT_FOUND && !refusal.may_pass() => {
                    return failed(format!("`delete` of `{}` was refused with {refusal}", resource.id));
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Terminates a machine until it is gone; false if it is not gone in time.
    async fn ends(&self, known: &TestMachine) -> bool {
        self.port.adopt(known.clone());
        self.subject().goes(&InstanceId::new(&known.machine)).await.is_ok()
    }
}

fn count(left: usize) -> String {
    if left == 1 { "1 resource is".to_owned() } else { format!("{left} resources are") }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tagged(pool: &str, owner: &str) -> BTreeMap<String, String> {
        let tags = [(tags::POOL, pool), ("greenroom-owner", owner), ("greenroom-generation", "0a1b2c3d")];
        let number = ("greenroom-number", "7");
        tags.into_iter().chain([number]).map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
    }

    #[test]
    fn only_what_shows_the_kits_pool_and_owner_is_the_kits() {
        let [kit, second] = POOLS;
        let instance = format!("{kit}-0a1b2c3d-7");
        let name = format!("{instance}-{}", OWNERS[0]);
        let expected = Some((instance, name.clone()));
        assert_eq!(of_kit(kit, &tagged(kit, OWNERS[0]), None), expected);
        assert_eq!(of_kit(kit, &tagged(kit, "0123456789abcdef"), None), None, "another owner");
        assert_eq!(of_kit(kit, &tagged("linux", OWNERS[0]), None), None, "another pool");
        let none = BTreeMap::new();
        assert_eq!(of_kit(kit, &none, Some(&name)), expected);
        assert_eq!(of_kit(second, &none, Some(&name)), None);
        let others = [
            "linux-0a1b2c3d-7-0123456789abcdef".to_owned(),
            format!("{kit}-0a1b2c3d-7-0123456789abcdef"),
            format!("{second}-0a1b2c3d-7-{}", OWNERS[0]),
            format!("{kit}-server-{}", OWNERS[0]),
            kit.to_owned(),
        ];
        for other in others {
            assert_eq!(of_kit(kit, &none, Some(&other)), None, "{other}");
        }
        assert_eq!(of_kit(kit, &none, None), None);
    }
}
