//! Findings about a pool with an external program that need no call of it.

use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use fs_err as fs;

use super::settings::Settings;
use crate::port::finding::{Finding, Severity};
use crate::provider::cloud::doctor;
use crate::provider::{BuildContext, mistakes};

pub(super) fn of_table(context: &BuildContext, table: &toml::Table) -> Vec<Finding> {
    match Settings::read(&context.pool, table) {
        Ok(settings) => of_settings(context, &settings),
        Err(problems) => mistakes::findings("external-table", &problems),
    }
}

/// For a program without the calls.
pub(super) fn without_calls(context: &BuildContext, table: &toml::Table) -> Vec<Finding> {
    doctor::without_calls("external-backends", context, of_table(context, table))
}

fn of_settings(context: &BuildContext, settings: &Settings) -> Vec<Finding> {
    let mut found = Vec::new();
    let (pool, program) = (&context.pool, settings.program.display());
    let mut find = |code, severity, message: String, remedy: String| {
        found.push(Finding { code, severity, message, remedy: Some(remedy) });
    };
    match fs::metadata(&settings.program) {
        Err(error) => {
            let message = format!("the program of pool `{pool}` cannot be read: {error}");
            let remedy = "install it, or correct `program`".to_owned();
            find("external-program", Severity::Error, message, remedy);
        }
        Ok(known) if !known.is_file() || known.permissions().mode() & 0o111 == 0 => {
            let message = format!("`{program}`, the program of pool `{pool}`, cannot be executed");
            find("external-program", Severity::Error, message, format!("run `chmod +x {program}`"));
        }
        Ok(known) if known.permissions().mode() & 0o002 != 0 => {
            let message = format!("every user can change `{program}`, which runs with Greenroom's rights");
            find("external-writable", Severity::Error, message, format!("run `chmod o-w {program}`"));
        }
        Ok(_) => {}
    }
    if !settings.directory.is_dir() {
        let message = format!("`{}`, where the program runs, does not exist", settings.directory.display());
        let remedy = "create it, or correct `directory`".to_owned();
        find("external-directory", Severity::Error, message, remedy);
    }
    for name in settings.environment.missing() {
        let message = format!("the variable `{name}`, which `env` of pool `{pool}` names, is not set here");
        let remedy = format!("set `{name}` for the service of `greenroom keep`, or use `secrets`");
        find("external-variable", Severity::Warning, message, remedy);
    }
    for (name, file) in &settings.environment.secrets {
        if let Err(why) = readable(file) {
            let message = format!("the secret `{name}` of pool `{pool}` cannot be read: {why}");
            let remedy = format!("write it into `{}`, readable for the keeper's account", file.display());
            find("external-secret", Severity::Error, message, remedy);
        }
    }
    for file in settings.environment.exposed() {
        let message = format!("`{}`, a secret of pool `{pool}`, can be read by others", file.display());
        let remedy = format!("run `chmod 600 {}`", file.display());
        find("external-secret-mode", Severity::Warning, message, remedy);
    }
    found
}

fn readable(file: &Path) -> std::io::Result<()> {
    fs::File::open(file).map(drop)
}

#[cfg(test)]
mod tests {
    use std::rc::Rc;

    use super::*;
    use crate::core::ids::PoolName;
    use crate::port::clock::tests::ManualClock;

    #[test]
    fn each_defect_has_a_finding_and_a_good_table_has_none() {
        let dir = tempfile::tempdir().unwrap();
        let context = BuildContext {
            pool: PoolName::new("linux"),
            state_dir: dir.path().to_owned(),
            program: "/bin/true".into(),
            containers: false,
            clock: Rc::new(ManualClock::default()),
            host_keys: Rc::new(crate::port::host_keys::Unconnected),
        };
        let codes = |table: &str| -> Vec<&str> {
            let found = of_table(&context, &table.parse().unwrap());
            found.into_iter().map(|finding| finding.code).collect()
        };
        let (program, secret) = (dir.path().join("machines"), dir.path().join("secret"));
        let table = format!("program = '{}'\n", program.display());
        assert_eq!(codes("program = 1"), ["external-table"]);
        assert_eq!(codes(&table), ["external-program"]);
        fs::write(&program, "#!/bin/sh\n").unwrap();
        let mode =
            |path: &Path, mode| fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
        mode(&program, 0o644);
        assert_eq!(codes(&table), ["external-program"]);
        mode(&program, 0o757);
        assert_eq!(codes(&table), ["external-writable"]);
        mode(&program, 0o755);
        assert_eq!(codes(&table), Vec::<&str>::new());
        assert_eq!(codes(&format!("{table}directory = \"/nowhere/at/all\"")), ["external-directory"]);
        assert_eq!(codes(&format!("{table}env = \"GREENROOM_TEST_UNSET\"")), ["external-variable"]);
        let with_secret = format!("{table}secrets = {{ T = '{}' }}", secret.display());
        assert_eq!(codes(&with_secret), ["external-secret"]);
        fs::write(&secret, "s").unwrap();
        mode(&secret, 0o644);
        assert_eq!(codes(&with_secret), ["external-secret-mode"]);
        mode(&secret, 0o600);
        assert_eq!(codes(&with_secret), Vec::<&str>::new());
    }
}
