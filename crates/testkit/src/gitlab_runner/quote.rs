//! ANSI-C quoting, the way the runner writes scripts: `$'…'`.

use std::fmt::Write as _;

/// Quotes any bytes for bash; plain text stays as it is.
pub(super) fn ansi_c(bytes: &[u8]) -> String {
    let plain = |byte: &u8| byte.is_ascii_alphanumeric() || b"_-./:=,@%+".contains(byte);
    if !bytes.is_empty() && bytes.iter().all(plain) {
        return String::from_utf8_lossy(bytes).into_owned();
    }
    let mut quoted = String::from("$'");
    for &byte in bytes {
        match byte {
            b'\n' => quoted.push_str("\\n"),
            b'\r' => quoted.push_str("\\r"),
            b'\t' => quoted.push_str("\\t"),
            b'\\' => quoted.push_str("\\\\"),
            b'\'' => quoted.push_str("\\'"),
            0x20..=0x7e => quoted.push(byte.into()),
            _ => write!(quoted, "\\x{byte:02X}").expect("a String takes everything"),
        }
    }
    quoted.push('\'');
    quoted
}
