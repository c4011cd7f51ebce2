//! Quotes commands for a guest's login shell.

use greenroom_core::text::quoted;

/// A command line that hands `script` to `/bin/sh`, whatever the login shell is.
pub(super) fn shell(script: &str) -> String {
    format!("exec /bin/sh -c {}", quoted(script))
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_quoted_text_reaches_the_command_as_it_is(text in "[ -~\n]{0,60}") {
            let out = Command::new("/bin/sh").arg("-c").arg(format!("printf %s {}", quoted(&text))).output().unwrap();
            prop_assert_eq!(String::from_utf8(out.stdout).unwrap(), text);
        }
    }
}
