//! What is on this machine, as each provider sees it. Nothing is started, connected to or changed, and no cloud is called.

use std::ffi::OsString;
use std::fmt::Write as _;
use std::path::Path;

use greenroom_providers::first_pool::{Found, RunnerHost, Suits};
use greenroom_providers::registration::Registration;

use crate::provider;

/// The facts, as far as this user may see them.
#[derive(Debug)]
pub(super) struct Surroundings(Vec<(&'static Registration, Box<dyn Found>)>);

impl Surroundings {
    pub(super) fn look(state_dir: &Path, variable: impl Fn(&str) -> Option<OsString>) -> Self {
        let host = RunnerHost { state_dir, variable: &variable };
        Self(provider::all().iter().map(|known| (known, (known.first_pool.look)(&host))).collect())
    }

    /// What a provider found.
    pub(super) fn of(&self, kind: &str) -> Option<&dyn Found> {
        self.0.iter().find(|(known, _)| known.kind == kind).map(|(_, found)| &**found)
    }

    /// The provider that suits what is here; the first of those that suit alike.
    pub(super) fn suggestion(&self) -> Option<&'static str> {
        let suits = |found: &dyn Found| Some(found.suits()).filter(|suits| *suits > Suits::Unknown);
        let all = self.0.iter().rev().filter_map(|(known, found)| Some((suits(&**found)?, known.kind)));
        all.max_by_key(|(suits, _)| *suits).map(|(_, kind)| kind)
    }

    /// A line for each provider that needs something of this machine.
    pub(super) fn text(&self) -> String {
        let mut text = String::from("Found on this machine:\n");
        for (known, found) in &self.0 {
            if let Some(what) = found.text() {
                writeln!(text, "  {:<10} {what}", known.kind).ok();
            }
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credentials_hosts_and_places_are_found_where_their_tools_keep_them() {
        let home = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| {
            let path = home.path().join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        let look = || {
            let variable = |name: &str| (name == "HOME").then(|| home.path().into());
            Surroundings::look(&home.path().join("state"), variable)
        };
        let nothing = look();
        let text = nothing.text();
        for line in [
            "  kubernetes no kubeconfig\n",
            "  static     no hosts in ~/.ssh/config\n",
            "  aws-ec2    no credentials of this user; the machine itself may have some\n",
        ] {
            assert!(text.contains(line), "{text}");
        }
        assert_eq!(nothing.suggestion(), Some("qemu"));
        write(".ssh/config", "Host build-1\n");
        write(".aws/credentials", "[default]\naws_secret_access_key = hunter2\n");
        write(".aws/config", "[default]\noutput = json\nregion = eu-west-1\n");
        write(".config/gcloud/application_default_credentials.json", "{}");
        write(".config/gcloud/configurations/config_default", "[core]\nproject = my-project\n");
        let found = look();
        let text = found.text();
        assert!(text.contains("/.aws/credentials, eu-west-1\n") && !text.contains("hunter2"), "{text}");
        assert!(text.contains("credentials.json, my-project\n"), "{text}");
        assert!(text.contains("  static     in ~/.ssh/config: build-1\n"), "{text}");
        let without_qemu =
            Surroundings(found.0.into_iter().filter(|(known, _)| known.kind != "qemu").collect());
        assert_eq!(without_qemu.suggestion(), Some("static"));
    }
}
