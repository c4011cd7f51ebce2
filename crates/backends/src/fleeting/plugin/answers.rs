//! What a plugin answers, checked and in the port's terms.

use std::collections::HashMap;

use greenroom_core::text::clean_line;

use crate::fleeting::group::{ConnectInfo, GroupInfo, Seen, Start, State};
use crate::fleeting::wire::messages::{
    self, ConnectInfoResponse, InitResponse, SUSPEND_RESUME, UpdateResponse,
};

/// Most instances of a list.
pub(super) const MOST_INSTANCES: usize = 20_000;
/// Longest id, in bytes.
const LONGEST_ID: usize = 512;
/// From here on, a plugin means that it has no limit: Go's largest numbers arrive cut off.
const UNLIMITED: u32 = i32::MAX as u32;
/// How much of a wrong answer a message shows, in characters.
const SHOWN: usize = 60;

/// The group; an error is the plugin's configuration.
pub(super) fn group(answer: &InitResponse) -> Result<GroupInfo, String> {
    if answer.max_size == 0 {
        return Err("the plugin allows no instance: its maximum is 0".to_owned());
    }
    let suspends = answer.capabilities.iter().any(|one| one == SUSPEND_RESUME);
    Ok(GroupInfo {
        id: clean_line(answer.id.as_bytes(), LONGEST_ID),
        max_size: (answer.max_size < UNLIMITED).then_some(answer.max_size),
        version: clean_line(answer.version.as_bytes(), SHOWN),
        suspends,
        start: Start::default(),
        refusal: None,
    })
}

/// A list that grows as the plugin sends it.
#[derive(Debug, Default)]
pub(super) struct List {
    seen: Vec<Seen>,
    places: HashMap<String, usize>,
}

impl List {
    /// Adds an instance; of an id that comes twice, the last state counts.
    pub(super) fn add(&mut self, answer: UpdateResponse) -> Result<(), String> {
        let UpdateResponse { instance: id, state } = answer;
        if !is_id(&id) {
            return Err(format!(
                "the plugin lists an instance with the unusable id `{}`",
                clean_line(id.as_bytes(), SHOWN)
            ));
        }
        let state = of_number(state);
        if let Some(at) = self.places.get(&id) {
            self.seen[*at].state = state;
            return Ok(());
        }
        if self.seen.len() == MOST_INSTANCES {
            return Err(format!("the plugin lists more than {MOST_INSTANCES} instances"));
        }
        self.places.insert(id.clone(), self.seen.len());
        self.seen.push(Seen { id, state });
        Ok(())
    }

    pub(super) fn all(self) -> Vec<Seen> {
        self.seen
    }
}

/// Ids reach messages and records: printable, and not too long.
fn is_id(id: &str) -> bool {
    !id.is_empty() && id.len() <= LONGEST_ID && clean_line(id.as_bytes(), usize::MAX) == id
}

fn of_number(number: i32) -> State {
    match messages::State::try_from(number) {
        Ok(messages::State::Creating) => State::Creating,
        Ok(messages::State::Running) => State::Running,
        Ok(messages::State::Deleting) => State::Deleting,
        Ok(messages::State::Deleted) => State::Deleted,
        Ok(messages::State::Timeout) => State::Timeout,
        Ok(messages::State::Suspending) => State::Suspending,
        Ok(messages::State::Suspended) => State::Suspended,
        Ok(messages::State::Resuming) => State::Resuming,
        Err(_) => State::Unknown(number),
    }
}

/// The ids that were asked for, each once.
pub(super) fn only_asked(answered: Vec<String>, asked: &[String]) -> Vec<String> {
    let mut kept: Vec<String> = Vec::with_capacity(asked.len().min(answered.len()));
    for id in answered {
        if asked.contains(&id) && !kept.contains(&id) {
            kept.push(id);
        }
    }
    kept
}

pub(super) fn connect_info(answer: ConnectInfoResponse) -> Result<ConnectInfo, String> {
    let connector = answer.connector.unwrap_or_default();
    let port = match connector.protocol_port {
        0 => None,
        port => Some(u16::try_from(port).map_err(|_| format!("the plugin answers with the port {port}"))?),
    };
    let line = |text: &str| clean_line(text.as_bytes(), LONGEST_ID);
    Ok(ConnectInfo {
        os: line(&connector.os),
        arch: line(&connector.arch),
        protocol: line(&connector.protocol),
        username: line(&connector.username),
        password: connector.password,
        key: connector.key,
        port,
        external_address: line(&answer.external_addr),
        internal_address: line(&answer.internal_addr),
        expires: (answer.expires != 0).then_some(answer.expires),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fleeting::wire::messages::ConnectorConfig;

    fn listed(id: &str, state: i32) -> UpdateResponse {
        UpdateResponse { instance: id.to_owned(), state }
    }

    #[test]
    fn a_size_that_go_cut_off_is_no_limit_and_none_is_an_error() {
        let size = |max_size| {
            group(&InitResponse { max_size, ..InitResponse::default() }).map(|group| group.max_size)
        };
        assert_eq!(size(1), Ok(Some(1)));
        assert_eq!(size(i32::MAX as u32 - 1), Ok(Some(i32::MAX as u32 - 1)));
        assert_eq!((size(i32::MAX as u32), size(u32::MAX)), (Ok(None), Ok(None)));
        assert!(size(0).is_err());
    }

    #[test]
    fn unknown_states_stay_numbers_and_the_last_state_of_an_id_counts() {
        let mut list = List::default();
        for (id, state) in [("a", 0), ("b", 1), ("a", 4), ("c", 8), ("d", -1)] {
            list.add(listed(id, state)).unwrap();
        }
        let all: Vec<_> = list.all().into_iter().map(|seen| (seen.id, seen.state)).collect();
        let expected = [
            ("a", State::Timeout),
            ("b", State::Running),
            ("c", State::Unknown(8)),
            ("d", State::Unknown(-1)),
        ];
        assert_eq!(all, expected.map(|(id, state)| (id.to_owned(), state)));
    }

    #[test]
    fn ids_are_printable_and_limited() {
        let mut list = List::default();
        for id in ["i-0abc", "/DC0/vm/a b", "größe", &"x".repeat(LONGEST_ID)] {
            list.add(listed(id, 1)).unwrap();
        }
        for id in ["", " ", "a\nb", "a\u{1b}[0m", "a  b", "\u{202e}a", &"x".repeat(LONGEST_ID + 1)] {
            assert!(list.add(listed(id, 1)).unwrap_err().contains("unusable id"), "{id:?}");
        }
    }

    #[test]
    fn a_list_has_a_limit() {
        let mut list = List::default();
        for n in 0..MOST_INSTANCES {
            list.add(listed(&n.to_string(), 1)).unwrap();
        }
        list.add(listed("0", 2)).unwrap();
        assert!(list.add(listed("one more", 1)).unwrap_err().contains("more than 20000"));
    }

    #[test]
    fn an_answer_has_only_what_was_asked_for() {
        let texts = |all: &[&str]| all.iter().map(ToString::to_string).collect::<Vec<_>>();
        assert_eq!(only_asked(texts(&["b", "x", "b", "a"]), &texts(&["a", "b", "c"])), ["b", "a"]);
    }

    #[test]
    fn ports_and_missing_connectors_are_checked() {
        let of = |protocol_port| {
            let connector = Some(ConnectorConfig { protocol_port, ..ConnectorConfig::default() });
            connect_info(ConnectInfoResponse { connector, ..ConnectInfoResponse::default() })
        };
        assert_eq!((of(0).unwrap().port, of(22).unwrap().port), (None, Some(22)));
        assert!(of(65536).is_err() && of(-1).is_err());
        assert_eq!(connect_info(ConnectInfoResponse::default()).unwrap().expires, None);
    }
}
