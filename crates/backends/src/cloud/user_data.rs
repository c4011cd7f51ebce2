//! User data for a machine's first boot: its host key, the authorized key, and its lifetime.
//!
//! So Greenroom knows the host key before the first connection, and a machine whose manager is lost still shuts
//! itself down. Nothing here is secret from the jobs of the machine: they are root on it.

use std::fmt::Write as _;
use std::time::Duration;

use greenroom_core::text::quoted;
use greenroom_ports::provider::LaunchRequest;
use serde_json::json;

use super::settings::UserData;

/// The text for the image's own first-boot program. After `lifetime`, the machine powers itself off; `None` if the
/// cloud terminates it, or if its lifetime is unlimited.
pub fn text(kind: UserData, request: &LaunchRequest, user: &str, lifetime: Option<Duration>) -> String {
    match kind {
        UserData::CloudInit => cloud_config(request, user, lifetime),
        UserData::Script => script(request, user, lifetime),
    }
}

/// JSON is valid YAML, so keys need no further quoting.
fn cloud_config(request: &LaunchRequest, user: &str, lifetime: Option<Duration>) -> String {
    let keys = &request.keys;
    let authorized = json!([keys.authorized_key.trim()]);
    let mut account = json!({ "name": user, "ssh_authorized_keys": authorized });
    if user != "root" {
        account["shell"] = json!("/bin/bash");
        account["sudo"] = json!("ALL=(ALL) NOPASSWD:ALL");
    }
    let mut config = json!({
        "users": [account],
        "disable_root": user != "root",
        "ssh_pwauth": false,
        "ssh_deletekeys": true,
        "ssh_keys": { "ed25519_private": keys.host_key, "ed25519_public": keys.host_key_public.trim() },
    });
    if let Some(lifetime) = lifetime {
        config["bootcmd"] = json!([power_off_after(lifetime)]);
    }
    format!("#cloud-config\n{config}\n")
}

/// The script `user_data.sh`, with its values before it.
fn script(request: &LaunchRequest, user: &str, lifetime: Option<Duration>) -> String {
    let keys = &request.keys;
    let private = quoted(keys.host_key.trim());
    let public = quoted(keys.host_key_public.trim());
    let authorized = quoted(keys.authorized_key.trim());
    let end = lifetime.map(|lifetime| power_off_after(lifetime) + "\n").unwrap_or_default();
    format!(
        "#!/bin/sh\nset -u\n{end}private={private}\npublic={public}\nuser={}\nauthorized={authorized}\n{}",
        quoted(user),
        include_str!("user_data.sh"),
    )
}

/// Powers off after `lifetime`, by whichever means the image has. The time starts anew with each boot: a machine that
/// jobs reboot lives longer, but not forever.
fn power_off_after(lifetime: Duration) -> String {
    let seconds = lifetime.as_secs().max(1);
    let mut line = format!("systemd-run --on-active={seconds}s systemctl poweroff 2>/dev/null || ");
    let minutes = seconds.div_ceil(60);
    write!(line, "shutdown -P +{minutes} 2>/dev/null || ").expect("writing to a String cannot fail");
    line + &format!("(sleep {seconds}; poweroff -f) </dev/null >/dev/null 2>&1 &")
}

#[cfg(test)]
pub(crate) mod tests {
    use greenroom_core::ids::{Generation, InstanceId, OwnerId, PoolName};
    use greenroom_core::inventory::Tags;
    use greenroom_ports::provider::InstanceKeys;

    use super::*;

    pub(crate) fn launch_request(pool: &str, owner: &str, number: u32) -> LaunchRequest {
        let tags = Tags {
            pool: PoolName::new(pool),
            owner: OwnerId::new(owner),
            generation: Generation::new("c0ffee"),
            number,
        };
        let instance = InstanceId::launched(&tags.pool, &tags.generation, number);
        let keys = InstanceKeys {
            authorized_key: "ssh-ed25519 AAAAuser".to_owned(),
            host_key: "-----BEGIN OPENSSH PRIVATE KEY-----\nsecret\n-----END OPENSSH PRIVATE KEY-----\n"
                .to_owned(),
            host_key_public: "ssh-ed25519 AAAAhost\n".to_owned(),
        };
        let token = instance.token(1);
        LaunchRequest { instance, token, tags, offering: None, keys, lifetime: None, order: None }
    }

    fn request() -> LaunchRequest {
        launch_request("linux", "owner", 1)
    }

    #[test]
    fn cloud_init_reads_both_keys_and_the_end() {
        let text = text(UserData::CloudInit, &request(), "ci", Some(Duration::from_hours(2)));
        let config: serde_json::Value =
            serde_json::from_str(text.strip_prefix("#cloud-config\n").unwrap()).unwrap();
        assert_eq!(config["ssh_keys"]["ed25519_private"], request().keys.host_key);
        assert_eq!(config["ssh_keys"]["ed25519_public"], "ssh-ed25519 AAAAhost");
        assert_eq!(config["users"][0]["ssh_authorized_keys"][0], "ssh-ed25519 AAAAuser");
        assert_eq!((&config["users"][0]["name"], &config["disable_root"]), (&json!("ci"), &json!(true)));
        assert!(config["bootcmd"][0].as_str().unwrap().contains("--on-active=7200s"));
    }

    #[test]
    fn root_is_let_in_only_where_it_is_the_user() {
        let text = text(UserData::CloudInit, &request(), "root", None);
        let config: serde_json::Value =
            serde_json::from_str(text.strip_prefix("#cloud-config\n").unwrap()).unwrap();
        assert_eq!((&config["disable_root"], &config["users"][0]["sudo"]), (&json!(false), &json!(null)));
        assert_eq!(config["bootcmd"], json!(null));
    }

    #[test]
    fn a_script_is_one_for_any_shell() {
        for lifetime in [None, Some(Duration::from_secs(90))] {
            let text = text(UserData::Script, &request(), "ci", lifetime);
            assert_eq!(text.contains("shutdown -P +2"), lifetime.is_some());
            let mut shell = std::process::Command::new("sh");
            let mut shell = shell.args(["-n"]).stdin(std::process::Stdio::piped()).spawn().unwrap();
            std::io::Write::write_all(&mut shell.stdin.take().unwrap(), text.as_bytes()).unwrap();
            assert!(shell.wait().unwrap().success(), "{text}");
        }
    }
}
