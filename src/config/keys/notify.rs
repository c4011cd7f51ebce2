//! The keys of `[notify]`.

use greenroom_keys::Applies::Start;
use greenroom_keys::Takes::{Duration, Text, Texts};
use greenroom_keys::Unset::{Value, Words};
use greenroom_keys::{KeyTable, key};

pub(in crate::config) const NOTIFY: KeyTable = KeyTable {
    header: "[notify]",
    about: "Notices for operators: the circuit breaker opened, an orphan was found, a host went out of service, the keeper crashes \
            repeatedly. [notices.md](notices.md) describes the payload.",
    keys: &[
        key("command", Texts, Words("none"), Start)
            .means("Program and arguments that get each notice as JSON on standard input.")
            .interacts("The program has 30 seconds; exit status 0 means that the notice is delivered."),
        key("webhook", Text, Words("none"), Start)
            .means("`https://` or `http://` URL that each notice is posted to as JSON.")
            .interacts("HTTPS needs `greenroom-backends` in the directory of `greenroom`, and uses the system's certificates or those \
                        of `SSL_CERT_FILE`."),
        key("min_interval", Duration(1), Value("\"10m\""), Start)
            .means("Shortest time between two notices about the same condition, which ends in between."),
    ],
};
