//! Host keys that machines made themselves.

use greenroom_core::endpoint;
use greenroom_core::failure::ErrorClass;
use greenroom_ports::provider::ProviderError;

use crate::cloud::machine::Handle;
use crate::external::settings::Settings;

/// What cloud-init writes around the public host keys on a machine's console.
const BEGIN: &str = "-----BEGIN SSH HOST KEY KEYS-----";
const END: &str = "-----END SSH HOST KEY KEYS-----";

/// What a machine's certificate has to be: for its address or its name, signed by an authority of the table's.
pub(super) fn certified(
    settings: &Settings,
    address: Option<&str>,
    machine: &Handle,
) -> Result<String, ProviderError> {
    if settings.host_key_ca.is_empty() {
        let why = "the program expects the operator to state who signs host keys: set `host_key_ca`";
        return Err(ProviderError::new(ErrorClass::Invalid, why));
    }
    let names = match &settings.host_key_name {
        Some(name) => vec![name.as_str()],
        None => address.into_iter().chain([machine.zone.as_str()]).collect(),
    };
    Ok(endpoint::certified(&names, &settings.host_key_ca))
}

/// The host key in a console, Ed25519 if there is one; of several boots, that of the last one. `None`: not printed yet.
pub(super) fn in_console(text: &str) -> Option<String> {
    let begin = text.rfind(BEGIN)? + BEGIN.len();
    let block = &text[begin..];
    let block = &block[..block.find(END)?];
    // Each line may begin with the console's own time.
    let key = |kind: &str| {
        block.lines().find_map(|line| {
            let mut words = line.split_ascii_whitespace().skip_while(|word| *word != kind);
            let (kind, key) = (words.next()?, words.next()?);
            key.starts_with("AAAA").then(|| format!("{kind} {key}"))
        })
    };
    key("ssh-ed25519").or_else(|| key("ecdsa-sha2-nistp256"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_key_of_the_last_boot_is_read_when_it_is_complete() {
        let block = |key: &str| format!("{BEGIN}\nssh-rsa AAAAr x\n[ 9.1] ssh-ed25519 {key} root@a\n{END}\n");
        let text = format!("boot\n{}login:\n{}", block("AAAAold"), block("AAAAnew"));
        assert_eq!(in_console(&text).as_deref(), Some("ssh-ed25519 AAAAnew"));
        assert_eq!(in_console(&text[..text.len() - 5]), None, "cut off");
        assert_eq!(in_console("nothing"), None);
    }
}
