//! Whether a launch of Greenroom created a machine.
//!
//! Tags do not prove it: a copy that a person makes in the cloud's console bears them, too.

use super::ledger::Entry;
use super::machine::Machine;

/// Attempts of a launch whose tokens are compared if its launch spec is gone.
const ATTEMPTS: u32 = 1000;

/// True if the launch spec names the machine, or if the machine shows the token of a launch of its instance.
/// `shown`: a token as machines show it.
pub(super) fn is_launched<O>(
    machine: &Machine,
    entry: Option<&Entry<O>>,
    shown: impl Fn(&str) -> String,
) -> bool {
    match entry.and_then(|entry| entry.made.as_ref()) {
        Some(made) if *made == machine.handle => return true,
        // A name that was used again, or a copy in another place: the token was copied, too.
        Some(made) if made.name == machine.handle.name => return false,
        Some(_) | None => {}
    }
    let Some(token) = &machine.token else { return false };
    let is_token = |known: &str| shown(known) == *token;
    entry.is_some_and(|entry| is_token(&entry.token))
        || (1..=ATTEMPTS).any(|attempt| is_token(&machine.instance.token(attempt)))
}

#[cfg(test)]
mod tests {
    use super::super::ledger::tests::entry;
    use super::super::machine::tests::machine;
    use super::super::machine::{Handle, MachineState};
    use super::*;

    #[test]
    fn a_launch_is_proven_by_its_token_or_by_its_answer_and_never_by_tags() {
        let shown = |token: &str| format!("owner {token}");
        let one = machine("x", MachineState::Running);
        let of_other = Machine { token: Some("owner y/1".to_owned()), ..one.clone() };
        let without = Machine { token: None, ..one.clone() };
        let late = Machine { token: Some("owner x/5000".to_owned()), ..one.clone() };
        let spec = entry("x/5000");
        let answered = Entry { made: Some(one.handle.clone()), ..entry("x/1") };
        let elsewhere = Handle { name: "i-other".to_owned(), zone: String::new() };
        let again = Handle { zone: "elsewhere".to_owned(), ..one.handle.clone() };
        let used_again = Entry { made: Some(again), ..entry("x/1") };
        let of_another = Entry { made: Some(elsewhere), ..entry("x/1") };
        for (machine, entry, launched) in [
            (&one, None, true),
            (&one, Some(&spec), true),
            (&of_other, None, false),
            (&without, None, false),
            (&of_other, Some(&spec), false),
            (&of_other, Some(&of_another), false),
            (&without, Some(&answered), true),
            (&one, Some(&used_again), false),
            (&late, None, false),
            (&late, Some(&spec), true),
        ] {
            assert_eq!(is_launched(machine, entry, shown), launched, "{machine:?} {entry:?}");
        }
    }
}
