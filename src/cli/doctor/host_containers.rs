//! Static hosts: whether jobs can run in containers there, without root.

use std::time::Duration;

use greenroom_core::container::engine::EnginePlace;
use greenroom_core::ids::PoolName;
use greenroom_core::text::clean_line;
use greenroom_ports::connector::{Connector as _, RemoteCommand};
use greenroom_ports::finding::Finding;
use greenroom_ports::tail::Tail;
use greenroom_providers::registration::NamedHost;
use greenroom_ssh::Ssh;

use super::code;

const SCRIPT: &str = include_str!("host_containers.sh");
/// The first use of an account's engine prepares its storage.
const WITHIN: Duration = Duration::from_mins(1);
/// The length at which an unexpected answer is cut, in bytes.
const SAID: usize = 200;

/// Starts a container as the account of jobs.
pub(super) async fn check(host: &NamedHost, pool: &PoolName, ssh: &Ssh) -> Vec<Finding> {
    let text = &EnginePlace::Account.reader();
    // The first line of the script knows the engine's directory.
    let input = &format!("d=$XDG_RUNTIME_DIR\n{SCRIPT}");
    let command = RemoteCommand { text, input, within: WITHIN, start_within: WITHIN, shared: false };
    let mut output = Tail::default();
    let ended = ssh.command(&host.name, &host.endpoint, command, &mut output).await;
    let problem = match ended {
        Ok(end) => end.to_string(),
        Err(error) => error.to_string(),
    };
    judge(host, pool, &output.text(), &problem)
}

/// The finding that the output of the script leads to. `end`: how the script ended, for one that did not reach its end.
fn judge(host: &NamedHost, pool: &PoolName, said: &str, end: &str) -> Vec<Finding> {
    let subject = format!("host `{}` of pool `{pool}`", host.name);
    let facts: Vec<(&str, &str)> = said.lines().filter_map(|line| line.trim().split_once(' ')).collect();
    let of = |word: &str| facts.iter().find(|(known, _)| *known == word).map(|(_, value)| *value);
    let missing: Vec<&str> =
        facts.iter().filter(|(word, _)| *word == "missing").map(|(_, value)| *value).collect();
    if !missing.is_empty() {
        let what = format!("{subject} lacks what containers without root need: {}", missing.join(", "));
        let remedy = "add it there as root; docs/providers/static.md has the commands";
        return vec![code::HOST_CONTAINERS_MISSING.found(what, remedy)];
    }
    let broken = of("broken").map(str::to_owned);
    let unfinished = || format!("{end}: {}", clean_line(said.as_bytes(), SAID));
    if let Some(why) = broken.or_else(|| of("over").is_none().then(unfinished)) {
        let what = format!("no container runs on {subject}: {why}");
        let remedy = format!("log in there as `{}`, and correct that", host.endpoint.user);
        return vec![code::HOST_CONTAINERS_BROKEN.found(what, remedy)];
    }
    let mut found = Vec::new();
    if let Some(why) = of("network-broken") {
        let what = format!("no container with a network of its own runs on {subject}: {why}");
        found.push(code::HOST_CONTAINERS_NETWORK.found(what, "correct that there: services need it"));
    }
    if of("driver") == Some("vfs") {
        let what = format!("{subject} copies each image whole for each container (`vfs`)");
        let remedy = "set `driver = \"overlay\"` in its /etc/containers/storage.conf; the account's home has to be on \
                      ext4 or xfs";
        found.push(code::HOST_CONTAINERS_STORAGE.found(what, remedy));
    }
    found
}

#[cfg(test)]
pub(super) mod tests {
    use greenroom_core::endpoint::Endpoint;
    use greenroom_core::ids::InstanceId;

    use super::*;

    const SOUND: &str = "driver overlay\nover yes\n";
    /// An output, and the code that it leads to.
    const TABLE: &[(&str, &str)] = &[
        ("missing `newuidmap` (package uidmap)\nbroken Error: no\nover yes\n", "host-containers-missing"),
        ("driver overlay\nbroken Error: no space left\nover yes\n", "host-containers-broken"),
        ("sh: not found\n", "host-containers-broken"),
        ("driver overlay\nnetwork-broken Error: netavark\nover yes\n", "host-containers-network"),
        ("driver vfs\nover yes\n", "host-containers-storage"),
    ];

    fn judged(said: &str) -> Vec<Finding> {
        let endpoint = Endpoint {
            address: "192.0.2.7".into(),
            port: 22,
            user: "ci".into(),
            host_key: String::new(),
            key: None,
            jump: None,
            forward: None,
            metadata: None,
        };
        let host = NamedHost {
            name: InstanceId::new("metal-1"),
            endpoint,
            capacity: None,
            is_jump: false,
            pin: None,
            blocked: None,
        };
        judge(&host, &PoolName::new("metal"), said, "exit status 127")
    }

    /// One finding of each code.
    pub(in crate::cli::doctor) fn provoked() -> Vec<Finding> {
        TABLE.iter().flat_map(|(said, _)| judged(said)).collect()
    }

    #[test]
    fn each_fact_leads_to_one_finding() {
        assert_eq!(judged(SOUND), []);
        for (said, code) in TABLE {
            assert_eq!(judged(said).iter().map(|found| found.code).collect::<Vec<_>>(), [*code], "{said}");
        }
    }

    #[test]
    fn all_that_is_missing_is_named_and_an_answer_without_facts_is_quoted() {
        let found = judged("missing `podman` (package podman)\nmissing /dev/net/tun\nover yes\n");
        assert!(found[0].message.ends_with("need: `podman` (package podman), /dev/net/tun"), "{found:?}");
        let found = judged("sh: not found\n");
        assert!(found[0].message.ends_with("exit status 127: sh: not found"), "{found:?}");
    }
}
