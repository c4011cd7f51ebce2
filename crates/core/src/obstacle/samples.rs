//! An obstacle of each cause, for tests.

use super::{Cause, Obstacle, UnusableHosts};

/// One of each cause, with its sentence about `h1`.
pub fn each() -> Vec<(Obstacle, &'static str)> {
    let of = |cause, detail: &str| Obstacle { cause, at: "a:22".to_owned(), detail: detail.to_owned() };
    vec![
        (of(Cause::NoAddress, "no pin"), "h1 cannot be contacted: no pin"),
        (of(Cause::Silent, "refused"), "h1 does not respond at a:22: refused"),
        (of(Cause::TurnedAway, "penalty"), "h1 closes connections to a:22 before its SSH greeting: penalty"),
        (
            of(Cause::NoGreeting, "10 s"),
            "h1 accepts connections to a:22, but sends no SSH greeting within 10 s",
        ),
        (of(Cause::NoHostKey, "10 s"), "h1 at a:22 greets, but presents no host key within 10 s"),
        (of(Cause::OtherKey, "SHA256:b"), "h1 at a:22 presents another host key: SHA256:b"),
        (of(Cause::LoginDenied, "no such key"), "h1 at a:22 denies the login: no such key"),
        (of(Cause::SlowLogin, "10 s"), "h1 at a:22 does not complete the login within 10 s"),
        (of(Cause::SlowShell, "10 s"), "h1 at a:22 accepts the login, but runs no command within 10 s"),
        (of(Cause::NoStage, "a profile"), "h1 at a:22 accepts the login, but begins no stage: a profile"),
        (of(Cause::Cut, "reset"), "h1 at a:22 ended the connection during the check: reset"),
        (of(Cause::RunnerHost, "no route"), "the runner host cannot connect to h1 at a:22: no route"),
    ]
}

/// Two hosts out of service.
pub fn hosts() -> UnusableHosts {
    let first = "h1, last used by g/p, is out of service: the disk is full".to_owned();
    UnusableHosts { of: 2, out_of_service: 2, unreachable: 0, first, bound: 0 }
}
