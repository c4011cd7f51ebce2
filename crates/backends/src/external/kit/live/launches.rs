//! Launches of the kit: the first one, repeated, concurrent, refused and interrupted ones.

use std::time::{Duration, Instant};

use greenroom_core::ids::{Generation, InstanceId, OwnerId, PoolName};
use greenroom_core::inventory::Tags;
use greenroom_core::text::hex;
use greenroom_core::time::Pretty;
use greenroom_ports::provider::{InstanceKeys, LaunchRequest};
use serde_json::{Value, json};

use super::ends::full_name;
use super::lists::not_identified;
use super::{LaunchedMachine, LiveRun, OWNERS, POOLS, TestMachine};
use crate::cloud::settings::UserData;
use crate::cloud::{tags, user_data};
use crate::external::kit::program::{ProgramRefusal, ProgramReply};
use crate::external::kit::{KitSession, refused, unusable};
use crate::external::protocol::answers::{HostKeySource, MachineAnswer, MachineIdentity};
use crate::external::protocol::{INVALID, NO_CAPACITY, QUOTA};
use crate::program::kit::{CheckVerdict, Judged, failed, skipped};

/// Between two lists that look for the machine of a launch that is under way.
const LIST_INTERVAL: Duration = Duration::from_millis(20);
/// Between two looks at the process table.
const SCAN_INTERVAL: Duration = Duration::from_millis(20);

/// A launch, and the machine that comes of it.
#[derive(Debug)]
pub(super) struct TestLaunch {
    pub(super) pool: String,
    pub(super) instance: InstanceId,
    pub(super) keys: InstanceKeys,
    /// The fields of the launch.
    pub(super) fields: Value,
    identity: MachineIdentity,
}

/// Parameters of a launch.
#[derive(Debug)]
pub(super) struct TestLaunchSpec<'a> {
    pub(super) pool: &'a str,
    pub(super) owner: &'a str,
    pub(super) generation: &'a str,
    pub(super) number: u32,
    pub(super) user: &'a str,
    pub(super) offering: Option<&'a str>,
    pub(super) identity: MachineIdentity,
    pub(super) host_key: HostKeySource,
}

impl TestLaunchSpec<'_> {
    pub(super) fn instance(&self) -> InstanceId {
        InstanceId::launched(&PoolName::new(self.pool), &Generation::new(self.generation), self.number)
    }
}

impl TestLaunch {
    pub(super) fn new(origin: &TestLaunchSpec<'_>, keys: InstanceKeys) -> Self {
        let instance = origin.instance();
        let owner = OwnerId::new(origin.owner);
        let own = Tags {
            pool: PoolName::new(origin.pool),
            owner: owner.clone(),
            generation: Generation::new(origin.generation),
            number: origin.number,
        };
        let token = hex(&tags::token_digest(&owner, &instance.token(1)))[..40].to_owned();
        let mut labels: serde_json::Map<String, Value> =
            tags::written(&own).into_iter().map(|(name, value)| (name.to_owned(), json!(value))).collect();
        labels.insert("greenroom-token".to_owned(), json!(token));
        let request = LaunchRequest {
            token: token.clone(),
            instance: instance.clone(),
            tags: own,
            offering: None,
            keys: keys.clone(),
            lifetime: None,
            order: None,
        };
        let mut fields = json!({
            "instance": instance.as_str(),
            "name": full_name(instance.as_str(), &owner),
            "token": token,
            "tags": labels,
            "user": origin.user,
            "authorized_key": keys.authorized_key.trim(),
            "user_data": user_data::text(UserData::CloudInit, &request, origin.user, None),
            "lifetime_s": 3600,
        });
        if origin.host_key == HostKeySource::Launch {
            fields["host_key"] = json!(keys.host_key);
            fields["host_key_public"] = json!(keys.host_key_public.trim());
        }
        if let Some(offering) = origin.offering {
            fields["offering"] = json!(offering);
        }
        Self { pool: origin.pool.to_owned(), instance, keys, fields, identity: origin.identity }
    }

    /// Its machine, once the ID is known.
    pub(super) fn known(&self, machine: &str) -> TestMachine {
        TestMachine {
            pool: self.pool.clone(),
            machine: machine.to_owned(),
            instance: self.instance.to_string(),
            name: self.fields["name"].as_str().unwrap_or_default().to_owned(),
        }
    }

    /// True if a listed machine is this launch's, by what it shows.
    pub(super) fn is(&self, listed: &MachineAnswer) -> bool {
        self.compare(listed).is_ok()
    }

    /// Compares what a machine shows with the launch.
    pub(super) fn compare(&self, listed: &MachineAnswer) -> Judged {
        let machine = &listed.machine;
        match self.identity {
            MachineIdentity::Names => {
                let name = listed.name.as_deref();
                let wanted = self.fields["name"].as_str();
                if name == wanted {
                    return Ok(());
                }
                let name = name.unwrap_or("none");
                let wanted = wanted.unwrap_or_default();
                failed(format!("the machine `{machine}` has the name `{name}`, not `{wanted}`"))
            }
            MachineIdentity::Tags => {
                for (tag, wanted) in self.fields["tags"].as_object().into_iter().flatten() {
                    let wanted = wanted.as_str().unwrap_or_default();
                    match listed.tags.get(tag) {
                        Some(value) if value == wanted => {}
                        Some(value) => {
                            let came = format!(
                                "the machine `{machine}` has the tag `{tag}` = `{value}`, not `{wanted}`"
                            );
                            return failed(came);
                        }
                        None => return failed(format!("the machine `{machine}` lacks the tag `{tag}`")),
                    }
                }
                Ok(())
            }
        }
    }
}

impl LiveRun<'_> {
    /// The first machine; `None`: there is none, and no further check makes sense.
    pub(super) async fn check_launch(&self) -> Option<LaunchedMachine> {
        let begun = Instant::now();
        let made = async {
            let launch = self.new_launch(POOLS[0], OWNERS[0]).await?;
            let machine = self.launch(&launch).await?;
            Ok(LaunchedMachine { launch, machine })
        };
        let made = match made.await {
            Ok(made) => made,
            Err(verdict) => {
                self.session.outcomes.record("launch", Err(verdict), begun);
                return None;
            }
        };
        self.session.outcomes.record("launch", Ok(()), begun);
        self.session.outcomes.check("launch-listed", self.listed(&made)).await;
        Some(made)
    }

    async fn listed(&self, made: &LaunchedMachine) -> Judged {
        match self.appears(&made.launch).await? {
            Some(listed) if listed.machine == made.machine => Ok(()),
            Some(listed) => {
                failed(format!("`launch` answered `{}`, but the list has `{}`", made.machine, listed.machine))
            }
            None => {
                let within = Pretty(self.appears_within());
                failed(format!("no list within {within} has `{}`, which `launch` answered", made.machine))
            }
        }
    }

    /// Repeats the first launch.
    pub(super) async fn check_repeated(&self, first: &LaunchedMachine) {
        self.session.outcomes.check("launch-repeated", self.repeated(first)).await;
    }

    async fn repeated(&self, first: &LaunchedMachine) -> Judged {
        self.idempotent()?;
        let again = self.launch(&first.launch).await?;
        if again != first.machine {
            return failed(format!("the first launch answered `{}`, the repeat `{again}`", first.machine));
        }
        self.stays_single(&first.launch).await
    }

    /// Greenroom never repeats a launch of a program that cannot recognise it.
    fn idempotent(&self) -> Judged {
        if self.known.idempotent_launch {
            return Ok(());
        }
        skipped(
            "the program answers `\"idempotent_launch\": false`: Greenroom repeats no launch that may have created a machine",
        )
    }

    /// Three launches concurrently: two with one token, and one of another pool. The machines that came of them.
    pub(super) async fn check_concurrent(&self) -> Vec<LaunchedMachine> {
        let begun = Instant::now();
        let launches = async {
            Ok((self.new_launch(POOLS[0], OWNERS[1]).await?, self.new_launch(POOLS[1], OWNERS[0]).await?))
        };
        let (twin, other) = match launches.await {
            Ok(both) => both,
            Err(verdict) => {
                self.session.outcomes.record("launch-concurrent", Err(verdict), begun);
                return Vec::new();
            }
        };
        let again = async {
            match self.idempotent() {
                Ok(()) => Some(self.launch(&twin).await),
                Err(_) => None,
            }
        };
        let (one, again, apart) = tokio::join!(self.launch(&twin), again, self.launch(&other));
        let judged = self.judge_concurrent(&twin, &one, again, &apart).await;
        self.session.outcomes.record("launch-concurrent", judged, begun);
        let made = |launch: TestLaunch, machine: Judged<String>| {
            machine.ok().map(|machine| LaunchedMachine { launch, machine })
        };
        [made(twin, one), made(other, apart)].into_iter().flatten().collect()
    }

    async fn judge_concurrent(
        &self,
        twin: &TestLaunch,
        one: &Judged<String>,
        again: Option<Judged<String>>,
        apart: &Judged<String>,
    ) -> Judged {
        let one = one.clone()?;
        let apart = apart.clone()?;
        if one == apart {
            return failed(format!("launches with two tokens answered the same ID `{one}`"));
        }
        let Some(again) = again.transpose()? else { return Ok(()) };
        if one != again {
            return failed(format!("two launches with one token answered `{one}` and `{again}`"));
        }
        self.stays_single(twin).await
    }

    /// A launch of an offering that the program does not have.
    pub(super) async fn check_refused_offering(&self) {
        self.session.outcomes.check("offering-unknown", self.refused_offering()).await;
    }

    async fn refused_offering(&self) -> Judged {
        if self.known.offerings.is_empty() {
            return skipped("the program has no offerings");
        }
        let mut launch = self.new_launch(POOLS[0], OWNERS[0]).await?;
        launch.fields["offering"] = json!("greenroom-kit-no-such-offering");
        let reply = self.session.call("launch", &launch.pool, &launch.fields).await;
        if let ProgramReply::Answer(answer) = &reply
            && let Some(machine) = answer["machine"].as_str()
        {
            self.note(machine, &launch);
        }
        let refusal = refused("launch", reply)?;
        if refusal.code != INVALID {
            return failed(format!("`launch` ended with {refusal}"));
        }
        match self.appears(&launch).await? {
            Some(listed) => {
                failed(format!("`launch` was refused, but the list has its machine `{}`", listed.machine))
            }
            None => Ok(()),
        }
    }

    /// A refused launch ends the check that needed it. Greenroom believes that 11 and 12 made nothing, also as the answer
    /// to a repeat.
    pub(super) async fn judge_refusal(
        &self,
        launch: &TestLaunch,
        refusal: &ProgramRefusal,
    ) -> Judged<String> {
        let refused = format!("`launch` was refused with {refusal}");
        if !matches!(refusal.code, NO_CAPACITY | QUOTA) {
            return failed(refused);
        }
        let begun = Instant::now();
        match self.appears(launch).await? {
            None => failed(refused),
            Some(listed) => {
                let came = format!("{refused}, but the list has its machine `{}`", listed.machine);
                self.session.outcomes.record("launch-refusal", failed(came), begun);
                skipped("a launch was refused although it had created a machine, see `launch-refusal`")
            }
        }
    }

    /// No launch has been refused wrongly, of those that were repeated.
    pub(super) fn check_refusals(&self) {
        self.session.outcomes.record("launch-refusal", self.idempotent(), Instant::now());
    }
}

/// When a launch is killed.
#[derive(Debug, Clone, Copy)]
enum KillTime {
    /// Half of the time that the longest launch took.
    HalfTime,
    /// As soon as a list has its machine.
    Listed,
}

impl LiveRun<'_> {
    /// Makes both checks; `identified`: lists show which launch made a machine.
    pub(super) async fn check_interrupted(&self, identified: bool) {
        let begun = Instant::now();
        if !identified {
            self.session.outcomes.record("launch-killed", Err(not_identified()), begun);
            self.session.outcomes.record("launch-answer-lost", Err(not_identified()), begun);
            return;
        }
        let (half, listed, lost) =
            tokio::join!(self.killed(KillTime::HalfTime), self.killed(KillTime::Listed), self.answer_lost());
        self.session.outcomes.record("launch-killed", half.and(listed), begun);
        self.session.outcomes.record("launch-answer-lost", lost, begun);
    }

    async fn killed(&self, moment: KillTime) -> Judged {
        let launch = self.new_launch(POOLS[0], OWNERS[0]).await?;
        let kill = async {
            match moment {
                KillTime::HalfTime => tokio::time::sleep(self.launch_took.get() / 2).await,
                KillTime::Listed => self.until_listed(&launch).await,
            }
        };
        tokio::select! {
            // Dropped, and so killed, unless it ends first.
            _ = self.session.call("launch", &launch.pool, &launch.fields) => {}
            () = kill => {}
        }
        let machine = self.recovered(&launch).await;
        let machine = machine.map_err(|verdict| with(verdict, "after a launch was killed, "))?;
        self.end_interrupted(LaunchedMachine { launch, machine }).await
    }

    /// Ends when a list has the machine. A list that fails proves nothing.
    async fn until_listed(&self, launch: &TestLaunch) {
        while !matches!(self.living(launch).await, Ok(living) if !living.is_empty()) {
            tokio::time::sleep(LIST_INTERVAL).await;
        }
    }

    async fn answer_lost(&self) -> Judged {
        let launch = self.new_launch(POOLS[0], OWNERS[0]).await?;
        let machine = match self.session.call("launch", &launch.pool, &launch.fields).await {
            // Not noted: lists alone show it.
            ProgramReply::Answer(answer) => answer["machine"].as_str().unwrap_or_default().to_owned(),
            ProgramReply::Refused(refusal) => return failed(format!("`launch` was refused with {refusal}")),
            ProgramReply::Unusable(check, _) => return Err(unusable("launch", check)),
        };
        let Some(listed) = self.appears(&launch).await? else {
            self.note(&machine, &launch);
            return failed(format!("no list identifies `{machine}` as the machine of its launch"));
        };
        self.note(&listed.machine, &launch);
        if listed.machine != machine {
            return failed(format!("`launch` answered `{machine}`, but the list has `{}`", listed.machine));
        }
        let found = self.recovered(&launch).await?;
        if found != machine {
            return failed(format!("the launch created `{machine}`, and its repeat answered `{found}`"));
        }
        self.end_interrupted(LaunchedMachine { launch, machine }).await
    }

    /// Recovers a launch that got no answer, as Greenroom does, until there is exactly one machine.
    async fn recovered(&self, launch: &TestLaunch) -> Judged<String> {
        let machine = if self.known.idempotent_launch {
            self.launch(launch).await?
        } else if let Some(listed) = self.appears(launch).await? {
            self.note(&listed.machine, launch);
            listed.machine
        } else {
            self.launch(launch).await?
        };
        match self.appears(launch).await? {
            None => failed(format!("no list has `{machine}`")),
            Some(listed) if listed.machine == machine => self.stays_single(launch).await.map(|()| machine),
            Some(listed) => failed(format!("one launch created `{machine}` and `{}`", listed.machine)),
        }
    }

    /// Ends it at once: it has served.
    async fn end_interrupted(&self, made: LaunchedMachine) -> Judged {
        self.end(&made).await.map(drop)
    }
}

/// The verdict with the begin of a sentence.
fn with(verdict: CheckVerdict, begin: &str) -> CheckVerdict {
    match verdict {
        CheckVerdict::Failed(came) => CheckVerdict::Failed(format!("{begin}{came}")),
        other => other,
    }
}

/// Runs a launch, and looks for its private key in the arguments of processes meanwhile.
pub(super) async fn watched<T>(
    session: &KitSession<'_>,
    keys: &InstanceKeys,
    launch: impl Future<Output = T>,
) -> T {
    let secret = keys.host_key.lines().find(|line| !line.starts_with("-----")).unwrap_or_default().to_owned();
    let look = async {
        loop {
            if is_in_arguments(&secret) {
                session.violate(
                    "call-keeps-secrets",
                    "launch",
                    "the host key is in the arguments of a process",
                );
                std::future::pending::<()>().await;
            }
            tokio::time::sleep(SCAN_INTERVAL).await;
        }
    };
    tokio::select! {
        answer = launch => answer,
        () = look => unreachable!("it looks for ever"),
    }
}

fn is_in_arguments(secret: &str) -> bool {
    if secret.is_empty() {
        return false;
    }
    let processes = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    processes
        .filter_map(|entry| std::fs::read(entry.path().join("cmdline")).ok())
        .any(|arguments| arguments.windows(secret.len()).any(|window| window == secret.as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_argument_is_seen_as_long_as_its_process_runs() {
        let secret = format!("greenroom-kit-secret-{}", std::process::id());
        assert!(!is_in_arguments(&secret));
        let mut process = std::process::Command::new("sh")
            .args(["-c", "echo; read line", &secret])
            .stdin(std::process::Stdio::piped())
            .stdout(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        // Until it runs, the process table may show no arguments.
        std::io::Read::read_exact(process.stdout.as_mut().unwrap(), &mut [0]).unwrap();
        assert!(is_in_arguments(&secret));
        process.kill().unwrap();
        process.wait().unwrap();
    }
}
