//! Findings about a pool with a plugin that need no call of it.

use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use fs_err as fs;

use super::artifact::doctor as artifact;
use super::locate::{Places, locate};
use super::settings::{HostKeys, Settings};
use crate::port::finding::{Finding, Severity};
use crate::provider::cloud::doctor;
use crate::provider::{BuildContext, mistakes};

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

fn of_settings(context: &BuildContext, settings: &Settings) -> Vec<Finding> {
    let pool = &context.pool;
    let mut found = artifact::installed_plugin(pool.as_str(), &settings.plugin, &Places::of_process());
    let mut find = |code, severity, message: String, remedy: String| {
        found.push(Finding { code, severity, message, remedy: Some(remedy) });
    };
    if let Ok(located) = locate(&settings.plugin, &Places::of_process()) {
        check_program("the plugin", &located.program, &mut find);
    }
    if let HostKeys::Command(file) = &settings.host_keys {
        check_program("the program that prints host keys", file, &mut find);
    }
    for name in settings.environment.missing() {
        let message = format!("the variable `{name}`, which `env` of pool `{pool}` names, is not set here");
        let remedy = format!("set `{name}` for the service of `greenroom keep`, or use `secrets`");
        find("fleeting-variable", Severity::Warning, message, remedy);
    }
    let secrets = settings.environment.secrets.iter().map(|(_, file)| file);
    for file in secrets.chain(&settings.key_file) {
        if let Err(why) = fs::File::open(file) {
            let message = format!("a secret of pool `{pool}` cannot be read: {why}");
            let remedy = format!("write it into `{}`, readable for the keeper's account", file.display());
            find("fleeting-secret", Severity::Error, message, remedy);
        }
    }
    for file in settings.environment.exposed() {
        let message = format!("`{}`, a secret of pool `{pool}`, can be read by others", file.display());
        let remedy = format!("run `chmod 600 {}`", file.display());
        find("fleeting-secret-mode", Severity::Warning, message, remedy);
    }
    found
}

/// A program that runs with the keeper's rights.
fn check_program(what: &str, file: &Path, find: &mut impl FnMut(&'static str, Severity, String, String)) {
    let path = file.display();
    let remedy = |change: &str| format!("run `chmod {change} {path}`");
    match fs::metadata(file) {
        Err(error) => {
            let remedy = "install it, or correct its path".to_owned();
            find("fleeting-program", Severity::Error, format!("{what} cannot be read: {error}"), remedy);
        }
        Ok(known) if !known.is_file() || known.permissions().mode() & 0o111 == 0 => {
            let message = format!("`{path}`, {what}, cannot be executed");
            find("fleeting-program", Severity::Error, message, remedy("+x"));
        }
        Ok(known) if known.permissions().mode() & 0o002 != 0 => {
            let message =
                format!("every user can change `{path}`, {what}, which runs with Greenroom's rights");
            find("fleeting-writable", Severity::Error, message, remedy("o-w"));
        }
        Ok(_) => {}
    }
}

#[cfg(test)]
mod tests {
    use std::rc::Rc;

    use super::*;
    use crate::core::ids::PoolName;
    use crate::port::clock::tests::ManualClock;
    use crate::port::host_keys::Unconnected;

    #[test]
    fn each_defect_has_a_finding_and_a_good_table_has_none() {
        let dir = tempfile::tempdir().unwrap();
        let context = BuildContext {
            pool: PoolName::new("linux"),
            state_dir: dir.path().to_owned(),
            program: "/bin/true".into(),
            containers: false,
            clock: Rc::new(ManualClock::default()),
            host_keys: Rc::new(Unconnected),
        };
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
    }
}
