//! What a pod says: its log, its events, and its host key.

use std::fmt::Write as _;

use greenroom_core::failure::ErrorClass;
use greenroom_ports::provider::ProviderError;
use k8s_openapi::List;
use k8s_openapi::api::core::v1::{Event, Pod};

use super::Kubernetes;
use super::client::{Call, encoded};
use super::condition::JOB;
use super::machines::handle;
use crate::cloud::machine::Handle;

/// Lines of a container's log, and the most bytes of all of a console.
const LINES: u32 = 200;
const CONSOLE: usize = 60 * 1024;
/// Bytes in which the first line of a log ends.
const FIRST: u32 = 4096;
/// What stands before the host key in that line.
const HOST_KEY: &str = "greenroom-host-key ";

/// The pod of a handle; `NotFound` if another has its name.
pub(super) async fn pod(api: &Kubernetes, machine: &Handle) -> Result<Pod, ProviderError> {
    let pod: Pod =
        api.connection.call(&Call::get(api.path(&format!("pods/{}", machine.name)))).await?.read()?;
    if handle(&pod).as_ref() != Some(machine) {
        let why = format!("pod `{}` is another one than that of the launch", machine.name);
        return Err(ProviderError::new(ErrorClass::NotFound, why));
    }
    Ok(pod)
}

/// The events of a pod, the oldest first.
pub(super) async fn events(api: &Kubernetes, uid: &str) -> Result<Vec<Event>, ProviderError> {
    let selector = encoded(&format!("involvedObject.uid={uid}"));
    let path = api.path(&format!("events?fieldSelector={selector}&limit=100"));
    let list: List<Event> = api.connection.call(&Call::get(path)).await?.read()?;
    let mut events = list.items;
    events
        .sort_by_key(|event| event.last_timestamp.as_ref().or(event.first_timestamp.as_ref()).map(|at| at.0));
    Ok(events)
}

/// The logs of a pod's containers and its events.
pub(super) async fn text(api: &Kubernetes, machine: &Handle) -> Result<String, ProviderError> {
    let pod = pod(api, machine).await?;
    let spec = pod.spec.as_ref();
    let init = spec.and_then(|spec| spec.init_containers.as_ref()).into_iter().flatten();
    let names: Vec<&str> = init.map(|container| container.name.as_str()).chain([JOB]).collect();
    let mut text = String::new();
    for name in &names {
        // A container that has not started has no log.
        let limits = format!("tailLines={LINES}&limitBytes={CONSOLE}");
        let Ok(log) = log(api, machine, name, &limits).await else { continue };
        if !log.is_empty() && names.len() > 1 {
            // Writing to a string cannot fail.
            writeln!(text, "container `{name}`:").ok();
        }
        text.push_str(&log);
        if !text.is_empty() && !text.ends_with('\n') {
            text.push('\n');
        }
        // A job chooses the number of services, and what they write.
        text = tail(&text, CONSOLE).to_owned();
    }
    // Without its events, the log is still useful.
    let events = events(api, &machine.zone).await.unwrap_or_default();
    for event in &events {
        let part = |part: &Option<String>| part.clone().unwrap_or_default();
        writeln!(text, "event {}: {}", part(&event.reason), part(&event.message)).ok();
    }
    Ok(tail(&text, CONSOLE).to_owned())
}

/// The host key that a pod has printed as its first line. Its jobs may write later lines.
pub(super) async fn host_key(api: &Kubernetes, machine: &Handle) -> Result<String, ProviderError> {
    let text = log(api, machine, JOB, &format!("limitBytes={FIRST}")).await.map_err(|error| {
        let class =
            if *error.class() == ErrorClass::Denied { ErrorClass::Denied } else { ErrorClass::Transient };
        ProviderError::new(
            class,
            format!("the log with the pod's host key cannot be read: {}", error.failure.message),
        )
    })?;
    key_in(&text).ok_or_else(|| {
        ProviderError::new(ErrorClass::Transient, "the first line of the pod's log is not its host key yet")
    })
}

async fn log(
    api: &Kubernetes,
    machine: &Handle,
    container: &str,
    limits: &str,
) -> Result<String, ProviderError> {
    let path = api.path(&format!("pods/{}/log?container={container}&{limits}", machine.name));
    let answer = api.connection.call(&Call::get(path)).await?;
    Ok(String::from_utf8_lossy(&answer.body).into_owned())
}

fn key_in(log: &str) -> Option<String> {
    // A line without its end may be cut off.
    let (first, _) = log.split_once('\n')?;
    let mut words = first.strip_prefix(HOST_KEY)?.split_ascii_whitespace();
    let (kind, key) = (words.next()?, words.next()?);
    let is_key = kind == "ssh-ed25519" && key.starts_with("AAAA") && words.next().is_none();
    is_key.then(|| format!("{kind} {key}"))
}

/// The last `most` bytes, from the beginning of a line.
fn tail(text: &str, most: usize) -> &str {
    if text.len() <= most {
        return text;
    }
    let mut from = text.len() - most;
    while !text.is_char_boundary(from) {
        from += 1;
    }
    let rest = &text[from..];
    rest.split_once('\n').map_or(rest, |(_, lines)| lines)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_first_line_shows_the_host_key() {
        for (log, expected) in [
            ("greenroom-host-key ssh-ed25519 AAAAkey\nServer listening\n", Some("ssh-ed25519 AAAAkey")),
            ("greenroom-host-key ssh-ed25519 AAAAk", None),
            ("x\ngreenroom-host-key ssh-ed25519 AAAAforged\n", None),
            ("greenroom-host-key ssh-rsa AAAAkey\n", None),
            ("greenroom-host-key ssh-ed25519 AAAAkey more\n", None),
            ("", None),
        ] {
            assert_eq!(key_in(log).as_deref(), expected, "{log}");
        }
    }

    #[test]
    fn the_tail_of_a_text_begins_with_a_line() {
        assert_eq!(tail("short", 10), "short");
        assert_eq!(tail("first\nsecond\nthird\n", 12), "third\n");
        assert_eq!(tail("éééé", 3), "é");
    }
}
