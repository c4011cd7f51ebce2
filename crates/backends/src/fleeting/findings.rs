//! Findings of `doctor` from the plugin's answers.

use greenroom_core::failure::ErrorClass;
use greenroom_core::ids::PoolName;
use greenroom_core::own_key::{OwnKey, OwnKeyCause};
use greenroom_ports::finding::{Finding, Severity};
use greenroom_ports::provider::{Demand, ProviderError};

use super::group::GroupInfo;
use super::own_keys::KeyMaker;
use super::settings::{HostKeyCheck, Settings};

/// Findings from an update: its failure, the description of the group, and the number of instances that no launch requested.
pub(super) fn of_group(
    pool: &PoolName,
    settings: &Settings,
    failure: Option<&ProviderError>,
    info: Option<&GroupInfo>,
    foreign: usize,
    demand: &Demand,
) -> Vec<Finding> {
    let mut found = Vec::new();
    let mut find = |code, severity, message: String, remedy: Option<String>| {
        found.push(Finding { code, severity, message, remedy });
    };
    if let Some(error) = failure {
        let (code, remedy) = match error.class() {
            ErrorClass::Invalid => {
                ("fleeting-config", "correct `plugin_config`, as the plugin's documentation describes it")
            }
            _ => ("fleeting-list", "read the plugin's log in keeper.log, and check its credentials"),
        };
        let message = format!("the plugin of pool `{pool}` fails: {error}");
        find(code, Severity::Error, message, Some(remedy.to_owned()));
    }
    let Some(info) = info else { return found };
    if let Some(max) = info.max_size.filter(|max| *max < demand.max_instances) {
        let message = format!(
            "pool `{pool}` may have {} instances, and its plugin allows {max} in group {}",
            demand.max_instances, info.id
        );
        let remedy = format!("set `max_instances` to {max}, or enlarge the group");
        find("fleeting-max-size", Severity::Warning, message, Some(remedy));
    }
    if foreign > 0 {
        let message = format!(
            "group {} of pool `{pool}` has instances that Greenroom did not request ({foreign}): they use its room and are left alone",
            info.id
        );
        let remedy = if settings.adopt {
            "none is needed: `adopt` is set, so the next launches use them".to_owned()
        } else {
            "remove them, or set `adopt = true` to use them for jobs; a group must be Greenroom's alone"
                .to_owned()
        };
        find(
            "fleeting-foreign",
            if settings.adopt { Severity::Note } else { Severity::Warning },
            message,
            Some(remedy),
        );
    }
    if demand.idle_stopped > 0 && !info.suspends {
        let message =
            format!("`idle_stopped` of pool `{pool}` has no effect: its plugin cannot suspend instances");
        let remedy =
            "remove it, or raise `idle_count`; some plugins have a setting or a newer version that can";
        find("fleeting-suspends", Severity::Warning, message, Some(remedy.to_owned()));
    }
    if settings.host_keys == HostKeyCheck::FirstUse {
        let message = format!(
            "pool `{pool}` accepts the host key of an instance's first connection: nothing verifies it"
        );
        let remedy =
            "sign the image's host keys and set `host_keys = \"ca\"`, or set `host_keys = \"command\"`";
        find("fleeting-first-use", Severity::Note, message, Some(remedy.to_owned()));
    }
    if !info.version.is_empty() {
        let message = format!("pool `{pool}` is served by version {} of its plugin", info.version);
        find("fleeting-version", Severity::Note, message, None);
    }
    found
}

/// The plugin makes keys of its own, or would without static credentials.
pub(super) fn of_keys(pool: &PoolName, own: Option<&OwnKey>, maker: Option<&KeyMaker>) -> Option<Finding> {
    let code = "fleeting-own-key";
    match (own, maker) {
        (Some(own), _) => Some(Finding {
            code,
            severity: if own.cause == OwnKeyCause::Pending { Severity::Note } else { Severity::Warning },
            message: format!("pool `{pool}`: {own}"),
            remedy: Some(own.remedy().to_owned()),
        }),
        (None, Some(KeyMaker { pool_key, plugin_key, .. })) => Some(Finding {
            code,
            severity: Severity::Note,
            message: format!(
                "the plugin of pool `{pool}` has given the key {plugin_key} for logins instead of the pool's, {pool_key}: \
                 Greenroom starts it with `static_credentials = true`, so that it uses the pool's"
            ),
            remedy: None,
        }),
        (None, None) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fleeting::group::PluginStart;

    fn codes(
        keys: &str,
        max: Option<u32>,
        foreign: usize,
        failure: Option<ErrorClass>,
    ) -> Vec<(&'static str, Severity)> {
        let pool = PoolName::new("linux");
        let table = format!("plugin = \"p\"\n{keys}").parse().unwrap();
        let settings = Settings::read(&pool, &table).unwrap();
        let info = GroupInfo {
            id: "g".to_owned(),
            max_size: max,
            version: String::new(),
            suspends: false,
            start: PluginStart::default(),
            refusal: None,
        };
        let demand = Demand { max_instances: 5, recorded: 0, max_lifetime: None, idle_stopped: 0 };
        let failure = failure.map(|class| ProviderError::new(class, "the text of the plugin"));
        let found = of_group(&pool, &settings, failure.as_ref(), Some(&info), foreign, &demand);
        assert!(failure.is_none() || found[0].message.contains("the text of the plugin"), "{found:?}");
        found.iter().map(|finding| (finding.code, finding.severity)).collect()
    }

    #[test]
    fn a_tier_that_the_plugin_cannot_keep_is_found() {
        let pool = PoolName::new("linux");
        let table = "plugin = \"p\"\nhost_keys = \"command\"\nhost_key_command = \"/c\"".parse().unwrap();
        let settings = Settings::read(&pool, &table).unwrap();
        let found = |suspends, idle_stopped| {
            let info = GroupInfo {
                id: "g".to_owned(),
                max_size: None,
                version: String::new(),
                suspends,
                start: PluginStart::default(),
                refusal: None,
            };
            let demand = Demand { max_instances: 5, recorded: 0, max_lifetime: None, idle_stopped };
            let found = of_group(&pool, &settings, None, Some(&info), 0, &demand);
            found.into_iter().map(|finding| finding.code).collect::<Vec<_>>()
        };
        assert_eq!(found(false, 1), ["fleeting-suspends"]);
        assert!(found(true, 1).is_empty() && found(false, 0).is_empty());
    }

    #[test]
    fn a_plugin_with_a_key_of_its_own_is_a_warning_until_it_is_started_with_the_pools() {
        let pool = PoolName::new("linux");
        let source = Settings::read(&pool, &"plugin = \"p\"\nhost_keys = \"first-use\"".parse().unwrap())
            .unwrap()
            .plugin;
        let maker = KeyMaker::new(&source, "SHA256:pool", "SHA256:own", false);
        for (cause, severity) in [
            (Some(OwnKeyCause::NoUser), Severity::Warning),
            (Some(OwnKeyCause::Pending), Severity::Note),
            (None, Severity::Note),
        ] {
            let pool_key = maker.pool_key.clone();
            let plugin_key = maker.plugin_key.clone();
            let own = cause.map(|cause| OwnKey { pool_key, plugin_key, cause });
            let found = of_keys(&pool, own.as_ref(), Some(&maker)).unwrap();
            assert_eq!((found.code, found.severity), ("fleeting-own-key", severity));
            assert!(
                found.message.contains("SHA256:own") && found.message.contains("SHA256:pool"),
                "{found:?}"
            );
        }
        assert_eq!(of_keys(&pool, None, None), None);
    }

    #[test]
    fn each_mismatch_of_group_and_table_has_a_finding() {
        let command = "host_keys = \"command\"\nhost_key_command = \"/c\"\n";
        let adopt = format!("{command}adopt = true");
        for (keys, max, foreign, failure, expected) in [
            (command, None, 0, None, vec![]),
            (command, Some(5), 0, None, vec![]),
            (command, Some(4), 0, None, vec![("fleeting-max-size", Severity::Warning)]),
            (command, None, 2, None, vec![("fleeting-foreign", Severity::Warning)]),
            (adopt.as_str(), None, 2, None, vec![("fleeting-foreign", Severity::Note)]),
            ("host_keys = \"first-use\"", None, 0, None, vec![("fleeting-first-use", Severity::Note)]),
            (command, None, 0, Some(ErrorClass::Invalid), vec![("fleeting-config", Severity::Error)]),
            (command, None, 0, Some(ErrorClass::Transient), vec![("fleeting-list", Severity::Error)]),
        ] {
            assert_eq!(codes(keys, max, foreign, failure), expected, "{keys} {max:?} {foreign}");
        }
    }
}
