//! Findings about a pool with a plugin that need no call of it.

use greenroom_ports::finding::{Finding, Severity};
use greenroom_providers::mistakes;
use greenroom_providers::registration::BuildContext;

use super::artifact::Digest;
use super::artifact::lock_file::LockFile;
use super::locate::{Installed, LocateError, Located, PluginPlaces, locate, versions};
use super::settings::{HostKeyCheck, Settings};
use crate::cloud::delegated;
use crate::program::environment::{
    ProgramCodes, environment_findings, exposed_secret, program_finding, unreadable_secret,
};
use greenroom_core::text::with_causes;

const CODES: ProgramCodes = ProgramCodes {
    program: "fleeting-program",
    writable: "fleeting-writable",
    variable: "fleeting-variable",
    secret: "fleeting-secret",
    secret_mode: "fleeting-secret-mode",
};

pub(super) fn of_table(context: &BuildContext, table: &toml::Table) -> Vec<Finding> {
    match Settings::read(&context.pool, table) {
        Ok(settings) => of_settings(context, &settings),
        Err(problems) => mistakes::findings("fleeting-table", &problems),
    }
}

/// For a program without the calls.
pub(super) fn without_calls(context: &BuildContext, table: &toml::Table) -> Vec<Finding> {
    delegated::without_calls("fleeting-backends", context, of_table(context, table))
}

fn of_settings(context: &BuildContext, settings: &Settings) -> Vec<Finding> {
    let pool = &context.pool;
    let places = PluginPlaces::of_process();
    let located = locate(&settings.plugin, &places);
    let mut found = installed_plugin(pool.as_str(), located.as_ref(), &places);
    if let Ok(located) = &located {
        let what = format!("the plugin of pool `{pool}`");
        found.extend(program_finding(&located.program, &what, "plugin", &CODES));
    }
    if let HostKeyCheck::Command(file) = &settings.host_keys {
        let what = format!("the program of pool `{pool}` that prints host keys");
        found.extend(program_finding(file, &what, "host_key_command", &CODES));
    }
    found.extend(environment_findings(pool, &settings.environment, &CODES));
    if let Some(file) = &settings.key_file {
        found.extend(unreadable_secret(file, &format!("the key of pool `{pool}`"), &CODES));
    }
    if let Some(file) = &settings.password_file {
        let what = format!("the password of pool `{pool}`");
        found.extend(unreadable_secret(file, &what, &CODES));
        found.extend(exposed_secret(file, &what, &CODES));
    }
    found
}

/// Compares the plugin that a pool uses with the lock file, and with the other installed versions.
///
/// Reads the whole program: some tens of megabytes.
fn installed_plugin(
    pool: &str,
    located: Result<&Located, &LocateError>,
    places: &PluginPlaces,
) -> Vec<Finding> {
    let found = match located {
        Ok(found) => found,
        Err(missing) => {
            let message = format!("pool `{pool}` cannot start its plugin: {missing}");
            return vec![finding("fleeting-plugin-missing", Severity::Error, message, missing.help())];
        }
    };
    let (Some(installed), Some(directory)) = (&found.installed, &places.plugins) else { return Vec::new() };
    let mut findings = Vec::new();
    match LockFile::read(directory) {
        Ok(locked) => findings.extend(changed(pool, installed, &locked)),
        Err(error) => {
            let remedy = format!("repair it, or remove it: `rm {}`", error.path().display());
            findings.push(finding("fleeting-plugin-lock", Severity::Warning, with_causes(&error), remedy));
        }
    }
    let newest = versions(directory, &installed.plugin).into_iter().rfind(|one| one.version.is_release());
    if let Some(newest) = newest.filter(|newest| newest.version > installed.version) {
        let name = installed.plugin.short();
        let used = &installed.version;
        let newest = &newest.version;
        let message = format!("pool `{pool}` uses {name} {used}, although {newest} is installed");
        let remedy = format!("allow the newer version in `plugin`, such as `{name}:{newest}`");
        findings.push(finding("fleeting-plugin-newer", Severity::Note, message, remedy));
    }
    findings
}

fn changed(pool: &str, installed: &Installed, locked: &LockFile) -> Option<Finding> {
    // A host has one platform. An entry of another one has another program.
    let of_version = |one: &&super::artifact::lock_file::Locked| {
        one.name == installed.plugin && one.version == installed.version
    };
    let mut entries = locked.entries().iter().filter(of_version).peekable();
    entries.peek()?;
    let digest = Digest::of_file(&installed.program).ok()?;
    if entries.any(|entry| entry.program == digest) {
        return None;
    }
    let program = installed.program.display();
    let message = format!("the plugin of pool `{pool}` is not the one in the lock file: `{program}`");
    let folder = installed.program.parent().unwrap_or(&installed.program).display().to_string();
    let remedy = format!("remove the folder `{folder}`, and run `greenroom plugin install`");
    Some(finding("fleeting-plugin-changed", Severity::Error, message, remedy))
}

fn finding(code: &'static str, severity: Severity, message: String, remedy: String) -> Finding {
    Finding { code, severity, message, remedy: Some(remedy) }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;
    use std::path::Path;

    use fs_err as fs;

    use super::*;
    use crate::fleeting::artifact::lock_file::Locked;
    use crate::fleeting::locate::{PluginSource, locate};

    #[test]
    fn each_defect_has_a_finding_and_a_good_table_has_none() {
        let dir = tempfile::tempdir().unwrap();
        let context = greenroom_harness::here::build_context(dir.path());
        let codes = |table: &str| -> Vec<&str> {
            let found = of_table(&context, &table.parse().unwrap());
            found.into_iter().map(|finding| finding.code).collect()
        };
        let file = |name: &str| dir.path().join(name);
        let plugin = file("plugin");
        let command = file("command");
        let secret = file("secret");
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

    fn install(directory: &Path, version: &str) -> std::path::PathBuf {
        let folder = directory.join("registry.gitlab.com/gitlab-org/fleeting/plugins/aws").join(version);
        std::fs::create_dir_all(&folder).unwrap();
        let program = folder.join("plugin");
        std::fs::write(&program, version).unwrap();
        std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
        program
    }

    #[test]
    fn a_missing_a_changed_and_an_old_plugin_are_reported() {
        let dir = tempfile::tempdir().unwrap();
        let places = PluginPlaces { plugins: Some(dir.path().to_owned()), path: Vec::new() };
        let source = PluginSource::parse("aws:1").unwrap();
        let codes = || -> Vec<&str> {
            let located = locate(&source, &places);
            installed_plugin("linux", located.as_ref(), &places).iter().map(|finding| finding.code).collect()
        };
        assert_eq!(codes(), ["fleeting-plugin-missing"]);
        let program = install(dir.path(), "1.0.0");
        assert_eq!(codes(), Vec::<&str>::new(), "of another installer");
        install(dir.path(), "2.0.0-rc.1");
        assert_eq!(codes(), Vec::<&str>::new(), "no release");
        install(dir.path(), "2.0.0");
        assert_eq!(codes(), ["fleeting-plugin-newer"]);
        let digest = Digest::of_file(&program).unwrap();
        let installed = locate(&source, &places).unwrap().installed.unwrap();
        let entry = Locked {
            name: installed.plugin,
            version: installed.version,
            platform: "linux/amd64".to_owned(),
            reference: "aws:1".to_owned(),
            index: digest.clone(),
            manifest: digest.clone(),
            layer: digest.clone(),
            program: digest,
        };
        LockFile::read(dir.path()).unwrap().record(entry).unwrap();
        assert_eq!(codes(), ["fleeting-plugin-newer"]);
        std::fs::write(&program, "another one").unwrap();
        assert_eq!(codes(), ["fleeting-plugin-changed", "fleeting-plugin-newer"]);
        std::fs::write(dir.path().join("greenroom-plugins.lock"), "rubbish").unwrap();
        assert_eq!(codes(), ["fleeting-plugin-lock", "fleeting-plugin-newer"]);
    }
}
