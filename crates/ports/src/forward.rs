//! The messages between a connector and the process of a port-forward, over a pair of sockets.
//!
//! The connector starts `greenroom-backends` with `COMMAND`, and writes a request as one line of JSON. The process answers
//! with `OPEN`; what follows, in both directions, is the connection. Or it answers with a refusal as JSON, and exits.

use greenroom_core::endpoint::Forward;
use serde::{Deserialize, Serialize};

/// The command line of the process, which is internal and has no help text.
pub const COMMAND: &str = "forward";

/// The answer of an open forward. A refusal begins otherwise.
pub const OPEN: u8 = b'+';

/// Most bytes of a request or a refusal.
pub const LONGEST: u64 = 64 * 1024;

/// The connection that is needed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Request {
    pub to: Forward,
    pub port: u16,
}

/// The reason why there is no connection, in one line.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Refusal {
    /// The pod is gone, or it or its node does not accept the connection.
    Pod(String),
    /// The API server, the credentials or their rights are at fault. That says nothing about the pod.
    Way(String),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_refusal_begins_like_an_open_forward() {
        for refusal in [Refusal::Pod("it is gone".to_owned()), Refusal::Way(String::new())] {
            let text = serde_json::to_vec(&refusal).unwrap();
            assert_ne!(text[0], OPEN);
            assert_eq!(serde_json::from_slice::<Refusal>(&text).unwrap(), refusal);
        }
    }
}
