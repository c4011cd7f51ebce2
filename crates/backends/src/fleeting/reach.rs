//! Where an instance is reached: what the plugin reports, completed by the pool's table.

use greenroom_core::endpoint::Endpoint;

use super::address;
use super::group::ConnectInfo;
use super::settings::Settings;

/// Why an instance cannot be reached.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum NoWay {
    /// It may get an address later.
    NoAddress,
    /// Plugin and table do not fit Greenroom, for this reason.
    Invalid(String),
}

/// Address, port and account, without a host key and without the key of the login.
pub(super) fn endpoint(settings: &Settings, info: &ConnectInfo) -> Result<Endpoint, NoWay> {
    if !matches!(info.protocol.as_str(), "" | "ssh") {
        let why =
            format!("the instance is reached with `{}`, and Greenroom connects with SSH only", info.protocol);
        return Err(NoWay::Invalid(why));
    }
    let (address, port) = address::of(info, settings.use_external_address).ok_or(NoWay::NoAddress)?;
    let named = Some(info.username.clone()).filter(|name| !name.is_empty());
    let user = named.or_else(|| settings.user.clone()).ok_or_else(|| {
        NoWay::Invalid("the plugin reports no account for the login: set `user`".to_owned())
    })?;
    let port = port.or(info.port).unwrap_or(settings.ssh_port);
    Ok(Endpoint {
        address,
        port,
        user,
        host_key: String::new(),
        key: None,
        jump: None,
        forward: None,
        metadata: None,
    })
}

#[cfg(test)]
mod tests {
    use greenroom_core::ids::PoolName;

    use super::*;

    #[test]
    fn the_plugins_words_come_first_and_the_table_completes_them() {
        let read = |more: &str| {
            let table = format!("plugin = \"/p\"\nhost_keys = \"first-use\"\nssh_port = 2022\n{more}");
            Settings::read(&PoolName::new("linux"), &table.parse().unwrap()).unwrap()
        };
        let info = |protocol: &str, address: &str, username: &str, port| ConnectInfo {
            protocol: protocol.to_owned(),
            internal_address: address.to_owned(),
            username: username.to_owned(),
            port,
            ..ConnectInfo::default()
        };
        let (plain, named) = (read(""), read("user = \"ci\""));
        let invalid = |info: &ConnectInfo, text: &str| match endpoint(&plain, info) {
            Err(NoWay::Invalid(why)) => assert!(why.contains(text), "{why}"),
            other => panic!("{other:?}"),
        };
        invalid(&info("winrm", "10.0.0.1", "ci", None), "reached with `winrm`");
        invalid(&info("", "10.0.0.1", "", None), "set `user`");
        assert_eq!(endpoint(&plain, &info("ssh", "", "ci", None)), Err(NoWay::NoAddress));
        for (info, user, port) in [
            (info("ssh", "10.0.0.1", "", None), "ci", 2022),
            (info("", "10.0.0.1", "admin", Some(2200)), "admin", 2200),
            (info("", "10.0.0.1:2222", "admin", Some(2200)), "admin", 2222),
        ] {
            let at = endpoint(&named, &info).unwrap();
            assert_eq!((at.address.as_str(), at.user.as_str(), at.port), ("10.0.0.1", user, port));
        }
    }
}
