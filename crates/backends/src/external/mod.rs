//! The provider `external`: a program of the operator's creates the machines.

use std::rc::Rc;

use greenroom_keys::KeyTable;
use greenroom_ports::finding::{Finding, Severity};
use greenroom_providers::first_pool::{FirstPool, Nothing};
use greenroom_providers::mistakes;
use greenroom_providers::registration::{BuildContext, Built, Calls, Registration};

use crate::cloud::delegated;
use crate::cloud::delegated::DelegatedCloud;
use crate::cloud::settings::LIFETIME;
use crate::program::environment::{ProgramCodes, environment_findings, program_finding};

#[cfg(feature = "external")]
mod calls;
pub mod kit;
pub mod process;
pub mod protocol;
mod settings;

use settings::Settings;

/// Checks tables, without the calls.
pub const REGISTRATION: Registration = Registration {
    kind: "external",
    example: include_str!("example.toml"),
    calls: Calls::Delegated,
    environment: &[],
    build: build_without_calls,
    guest_dirs: None,
    lifetime: Some(LIFETIME),
    suspends: false,
    engines: true,
    cloud_init: true,
    orders: None,
    reaches: None,
    static_hosts: None,
    doctor: without_calls,
    first_pool: FirstPool {
        name: "machines",
        about: "machines by a program of yours",
        comments: &[],
        look: |_| Box::new(Nothing),
    },
};

/// For docs/configuration.md.
pub const KEYS: &[KeyTable] = settings::TABLES;

/// The registration of a program that makes the calls.
#[cfg(feature = "external")]
pub const WITH_CALLS: Registration =
    Registration { calls: Calls::Here, build: calls::build, doctor: of_table, ..REGISTRATION };
#[cfg(not(feature = "external"))]
pub const WITH_CALLS: Registration = REGISTRATION;
const CODES: ProgramCodes = ProgramCodes {
    program: "external-program",
    writable: "external-writable",
    variable: "external-variable",
    secret: "external-secret",
    secret_mode: "external-secret-mode",
};

fn build_without_calls(context: &BuildContext, table: &toml::Table) -> Built {
    Ok(Rc::new(DelegatedCloud::new(&Settings::read(&context.pool, table)?.common.offerings)))
}

pub(super) fn of_table(context: &BuildContext, table: &toml::Table) -> Vec<Finding> {
    match Settings::read(&context.pool, table) {
        Ok(settings) => of_settings(context, &settings),
        Err(problems) => mistakes::findings("external-table", &problems),
    }
}

/// For a program without the calls.
pub(super) fn without_calls(context: &BuildContext, table: &toml::Table) -> Vec<Finding> {
    delegated::without_calls("external-backends", context, of_table(context, table))
}

fn of_settings(context: &BuildContext, settings: &Settings) -> Vec<Finding> {
    let pool = &context.pool;
    let what = format!("the program of pool `{pool}`");
    let mut found = Vec::from_iter(program_finding(&settings.program, &what, "program", &CODES));
    if !settings.directory.is_dir() {
        found.push(Finding {
            code: "external-directory",
            severity: Severity::Error,
            message: format!("`{}`, where the program runs, does not exist", settings.directory.display()),
            remedy: Some("create it, or correct `directory`".to_owned()),
        });
    }
    found.extend(environment_findings(pool, &settings.environment, &CODES));
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
        let program = dir.path().join("machines");
        let secret = dir.path().join("secret");
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
