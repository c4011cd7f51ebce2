//! The keys of SSH certificate authorities that a table states, and the name in their certificates.

use greenroom_core::endpoint::without_comment;
use greenroom_keys::table::Table;
use greenroom_keys::value_error::ValueError;
use russh::keys::{Algorithm, PublicKey};

/// The key `host_key_ca` of a provider's table; mistakes are reported.
pub fn of_table(table: &Table<'_>) -> Vec<String> {
    let keys = table.texts("host_key_ca").or_default();
    table.check_each("host_key_ca", &keys, |key| read(key).map(drop));
    keys.iter().filter_map(|(key, _)| read(key).ok()).collect()
}

/// The key `host_key_name`, which a table may have in addition.
pub fn name_of_table(table: &Table<'_>) -> Option<String> {
    let name = table.parsed("host_key_name", table.text("host_key_name"), |name| {
        let is_one = !name.is_empty() && !name.contains(|c: char| c == ',' || c.is_whitespace());
        if is_one { Ok(name) } else { Err(ValueError::value(name, "one name, as in a certificate")) }
    });
    name.into_value()
}

/// Reads one key, without its comment.
pub fn read(text: &str) -> Result<String, ValueError> {
    let text = text.trim();
    let key = PublicKey::from_openssh(text)
        .map_err(|_| ValueError::entry(text, "a public key such as `ssh-ed25519 AAAA…`"))?;
    match key.algorithm() {
        Algorithm::Ed25519 | Algorithm::Ecdsa { .. } => Ok(without_comment(text)),
        other => Err(ValueError::entry(format!("{other} …"), "an ssh-ed25519 or ECDSA key")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_keys_that_can_be_verified_are_read() {
        let key = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJdD7y3aLq454yWBdwLWbieU1ebz9/cu7/QEXn9OIeZJ";
        assert_eq!(read(&format!(" {key} ca@example\n")).as_deref(), Ok(key));
        let rsa = "ssh-rsa AAAAB3NzaC1yc2EAAAADAQABAAAAQQDJ0bMQ9cBmTZGXhkFMcc6DXNm4G3kmzEjDfR8tVNN9ZkJAY2nI\
                   k2mQmA7Tn0V3wZGcOrRgEhFIUOrpX8FQ8RVb";
        assert!(read(rsa).is_err_and(|why| why.to_string().contains("ssh-rsa")), "{:?}", read(rsa));
        assert!(read("ssh-ed25519 AAAA").is_err_and(|why| why.to_string().contains("expected a public key")));
    }
}
