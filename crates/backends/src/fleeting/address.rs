//! Addresses as plugins report them.

use super::group::ConnectInfo;

/// The address to connect to, and the port that stands with it. `None`: there is none yet.
pub fn of(info: &ConnectInfo, external: bool) -> Option<(String, Option<u16>)> {
    let (outer, inner) = (info.external_address.trim(), info.internal_address.trim());
    let chosen = if inner.is_empty() || (external && !outer.is_empty()) { outer } else { inner };
    (!chosen.is_empty()).then(|| split(chosen))
}

/// An address may contain a port; one of IPv6 may stand without brackets.
fn split(text: &str) -> (String, Option<u16>) {
    if let Some((host, rest)) = text.strip_prefix('[').and_then(|inner| inner.split_once(']')) {
        return (host.to_owned(), rest.strip_prefix(':').and_then(|port| port.parse().ok()));
    }
    match text.split_once(':') {
        Some((host, port)) if !port.contains(':') => match port.parse() {
            Ok(port) => (host.to_owned(), Some(port)),
            Err(_) => (text.to_owned(), None),
        },
        _ => (text.to_owned(), None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_with_ports_and_brackets() {
        for (text, host, port) in [
            ("10.0.0.9", "10.0.0.9", None),
            ("10.0.0.9:2222", "10.0.0.9", Some(2222)),
            ("fd00::7", "fd00::7", None),
            ("[fd00::7]", "fd00::7", None),
            ("[fd00::7]:2222", "fd00::7", Some(2222)),
            ("vm-1.example", "vm-1.example", None),
            ("vm-1.example:22", "vm-1.example", Some(22)),
        ] {
            assert_eq!(split(text), (host.to_owned(), port), "{text}");
        }
    }

    #[test]
    fn the_external_address_is_used_where_it_is_wanted_or_the_only_one() {
        for (outer, inner, external, chosen) in [
            ("1.1.1.1", "10.0.0.1", false, Some("10.0.0.1")),
            ("1.1.1.1", "10.0.0.1", true, Some("1.1.1.1")),
            ("", "10.0.0.1", true, Some("10.0.0.1")),
            ("1.1.1.1", "", false, Some("1.1.1.1")),
            ("", "", true, None),
        ] {
            let info = ConnectInfo {
                external_address: outer.to_owned(),
                internal_address: inner.to_owned(),
                ..ConnectInfo::default()
            };
            let found = of(&info, external).map(|(host, _)| host);
            assert_eq!(found.as_deref(), chosen, "{outer} {inner} {external}");
        }
    }
}
