//! User data for a machine's first boot: its host key, the authorized key, and its lifetime.
//!
//! So Greenroom knows the host key before the first connection, and a machine whose manager is lost still shuts
//! itself down. Nothing here is secret from the jobs of the machine: they are root on it.

use std::fmt::Write as _;
use std::time::Duration;

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

fn script(request: &LaunchRequest, user: &str, lifetime: Option<Duration>) -> String {
    let keys = &request.keys;
    let private = keys.host_key.trim();
    let public = keys.host_key_public.trim();
    let authorized = keys.authorized_key.trim();
    let end = lifetime.map(|lifetime| power_off_after(lifetime) + "\n").unwrap_or_default();
    format!(
        r#"#!/bin/sh
set -u
{end}umask 077
mkdir -p /etc/ssh
rm -f /etc/ssh/ssh_host_*_key /etc/ssh/ssh_host_*_key.pub
cat >/etc/ssh/ssh_host_ed25519_key <<'END_OF_KEY'
{private}
END_OF_KEY
echo '{public}' >/etc/ssh/ssh_host_ed25519_key.pub
chmod 644 /etc/ssh/ssh_host_ed25519_key.pub
if ! id {user} >/dev/null 2>&1; then
  useradd --create-home --shell /bin/bash {user} || adduser -D -s /bin/sh {user}
  # No password fits, but the account is not locked: an sshd without PAM would let nobody in.
  usermod -p '*' {user} || echo '{user}:*' | chpasswd -e
fi
home=$(getent passwd {user} | cut -d: -f6)
mkdir -p "$home/.ssh"
echo '{authorized}' >>"$home/.ssh/authorized_keys"
chmod 700 "$home/.ssh"
chmod 600 "$home/.ssh/authorized_keys"
chown -R {user}: "$home/.ssh"
if [ {user} != root ] && [ -d /etc/sudoers.d ]; then
  echo '{user} ALL=(ALL) NOPASSWD:ALL' >/etc/sudoers.d/90-greenroom
  chmod 440 /etc/sudoers.d/90-greenroom
fi
systemctl try-restart ssh.service sshd.service 2>/dev/null || rc-service sshd restart 2>/dev/null || true
"#
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
