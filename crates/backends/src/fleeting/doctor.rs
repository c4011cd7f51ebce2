//! Findings about a pool with a plugin that need no call of it.

use greenroom_ports::finding::Finding;
use greenroom_providers::mistakes;
use greenroom_providers::registration::BuildContext;

use super::artifact::doctor as artifact;
use super::locate::{Places, locate};
use super::settings::{HostKeys, Settings};
use crate::cloud::doctor;
use crate::program::doctor as program;

pub(super) fn of_table(context: &BuildContext, table: &toml::Table) -> Vec<Finding> {
    match Settings::read(&context.pool, table) {
        Ok(settings) => of_settings(context, &settings),
        Err(problems) => mistakes::findings("fleeting-table", &problems),
    }
}

/// For a program without the calls.
pub(super) fn without_calls(context: &BuildContext, table: &toml::Table) -> Vec<Finding> {
    doctor::without_calls("fleeting-backends", context, of_table(context, table))
}

const CODES: program::Codes = program::Codes {
    program: "fleeting-program",
    writable: "fleeting-writable",
    variable: "fleeting-variable",
    secret: "fleeting-secret",
    secret_mode: "fleeting-secret-mode",
};

fn of_settings(context: &BuildContext, settings: &Settings) -> Vec<Finding> {
    let (pool, places) = (&context.pool, Places::of_process());
    let located = locate(&settings.plugin, &places);
    let mut found = artifact::installed_plugin(pool.as_str(), located.as_ref(), &places);
    if let Ok(located) = &located {
        let what = format!("the plugin of pool `{pool}`");
        found.extend(program::program(&located.program, &what, "plugin", &CODES));
    }
    if let HostKeys::Command(file) = &settings.host_keys {
        let what = format!("the program of pool `{pool}` that prints host keys");
        found.extend(program::program(file, &what, "host_key_command", &CODES));
    }
    found.extend(program::environment(pool, &settings.environment, &CODES));
    if let Some(file) = &settings.key_file {
        found.extend(program::readable(file, &format!("the key of pool `{pool}`"), &CODES));
    }
    if let Some(file) = &settings.password_file {
        let what = format!("the password of pool `{pool}`");
        found.extend(program::readable(file, &what, &CODES));
        found.extend(program::exposed(file, &what, &CODES));
    }
    found
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;
    use std::path::Path;

    use fs_err as fs;

    use super::*;

    #[test]
    fn each_defect_has_a_finding_and_a_good_table_has_none() {
        let dir = tempfile::tempdir().unwrap();
        let context = greenroom_harness::here::build_context(dir.path());
        let codes = |table: &str| -> Vec<&str> {
            let found = of_table(&context, &table.parse().unwrap());
            found.into_iter().map(|finding| finding.code).collect()
        };
        let file = |name: &str| dir.path().join(name);
        let (plugin, command, secret) = (file("plugin"), file("command"), file("secret"));
        let table = format!("plugin = '{}'\nhost_keys = \"first-use\"\n", plugin.display());
        assert_eq!(codes("plugin = 1"), ["fleeting-table", "fleeting-table"]);
        assert_eq!(codes(&table), ["fleeting-plugin-missing"]);
        fs::write(&plugin, "#!/bin/sh\n").unwrap();
        let mode =
            |path: &Path, mode| fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
        mode(&plugin, 0o644);
        assert_eq!(codes(&table), ["fleeting-plugin-missing"]);
        mode(&plugin, 0o757);
        assert_eq!(codes(&table), ["fleeting-writable"]);
        mode(&plugin, 0o755);
        assert_eq!(codes(&table), Vec::<&str>::new());
        let with_command = table.replace("first-use", "command");
        let with_command = format!("{with_command}host_key_command = '{}'", command.display());
        assert_eq!(codes(&with_command), ["fleeting-program"]);
        assert_eq!(codes(&format!("{table}env = \"GREENROOM_TEST_UNSET\"")), ["fleeting-variable"]);
        let with_secret = format!("{table}secrets = {{ T = '{}' }}", secret.display());
        assert_eq!(codes(&with_secret), ["fleeting-secret"]);
        fs::write(&secret, "s").unwrap();
        mode(&secret, 0o644);
        assert_eq!(codes(&with_secret), ["fleeting-secret-mode"]);
        mode(&secret, 0o600);
        assert_eq!(codes(&with_secret), Vec::<&str>::new());
        assert_eq!(codes(&format!("{table}key_file = '/nowhere/at/all'")), ["fleeting-secret"]);
        assert_eq!(codes(&format!("{table}password_file = '/nowhere/at/all'")), ["fleeting-secret"]);
        let with_password = format!("{table}password_file = '{}'", secret.display());
        assert_eq!(codes(&with_password), Vec::<&str>::new());
        mode(&secret, 0o644);
        assert_eq!(codes(&with_password), ["fleeting-secret-mode"]);
    }
}
