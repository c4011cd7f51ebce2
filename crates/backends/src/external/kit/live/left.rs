//! What is left of the kit's machines: before a run, and after it. A list may have machines of others, which are never touched.

use std::collections::BTreeMap;
use std::time::Instant;

use greenroom_core::ids::{OwnerId, PoolName};
use serde_json::json;

use super::ends::Step;
use super::{Known, Live, OWNERS, POOLS};
use crate::cloud::tags;
use crate::external::kit::reply::Reply;
use crate::external::kit::session::read;
use crate::external::protocol::answers::{MachineAnswer, ResourceAnswer, ResourcesAnswer, State};
use crate::external::protocol::exit::NOT_FOUND;
use crate::program::kit::check::{Judged, failed};
use crate::program::kit::poll::poll;

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

/// The name of a launch's machine.
pub(super) fn full_name(instance: &str, owner: &OwnerId) -> String {
    format!("{instance}-{owner}")
}

impl Live<'_> {
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
    async fn machines(&self, pool: &str) -> Judged<Vec<Known>> {
        let list = self.list(pool).await?;
        if !list.complete {
            return failed(format!("the list of `{pool}` is not complete"));
        }
        let existing = list.machines.iter().filter(|listed| listed.state != State::Gone);
        Ok(existing.filter_map(|listed| self.kits(pool, listed)).collect())
    }

    /// A listed machine, if this run has made it or if it shows that the kit has.
    fn kits(&self, pool: &str, listed: &MachineAnswer) -> Option<Known> {
        let made = self.made.borrow();
        if let Some(known) = made.iter().rfind(|known| known.machine == listed.machine) {
            return (known.pool == pool).then(|| known.clone());
        }
        let (instance, name) = of_kit(pool, &listed.tags, listed.name.as_deref())?;
        Some(Known { pool: pool.to_owned(), machine: listed.machine.clone(), instance, name })
    }

    /// The kit's other resources in a pool.
    async fn others(&self, pool: &str) -> Judged<Vec<ResourceAnswer>> {
        if !self.known.verbs.contains("resources") {
            return Ok(Vec::new());
        }
        let answer = self.session.answer("resources", pool, &json!({})).await?;
        let all: ResourcesAnswer = read("resources", &answer)?;
        let made = self.made.borrow();
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
        let mut all = self.made.borrow().clone();
        for known in &all {
            self.forget(&known.machine);
        }
        for pool in POOLS {
            // A list that fails is reported below.
            all.extend(self.machines(pool).await.unwrap_or_default());
        }
        all.sort();
        all.dedup();
        let mut open = Vec::new();
        for known in &all {
            self.forget(&known.machine);
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
                    self.forget(&known.machine);
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
        if !self.known.verbs.contains("delete") {
            return Ok(());
        }
        for resource in self.others(pool).await? {
            let fields = json!({ "kind": resource.kind, "id": resource.id });
            match self.session.call("delete", pool, &fields).await {
                Reply::Refused(refusal) if refusal.code != NOT_FOUND && !refusal.may_pass() => {
                    return failed(format!("`delete` of `{}` was refused with {refusal}", resource.id));
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Terminates a machine until it is gone; false if it is not gone in time.
    async fn ends(&self, known: &Known) -> bool {
        let gone = poll(self.options.end_timeout, async || {
            let step = self.terminate(&known.pool, &known.fields()).await?;
            Ok((step != Step::Stopping).then_some(()))
        });
        matches!(gone.await, Ok(Some(())))
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
