//! Findings about a foreign program and its environment, without a call of it.

use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use fs_err as fs;
use greenroom_core::ids::PoolName;
use greenroom_ports::finding::{Finding, Severity};

use crate::environment::Environment;

/// What a provider calls these findings.
#[derive(Debug)]
pub struct Codes {
    /// It does not exist, or cannot be executed.
    pub program: &'static str,
    pub writable: &'static str,
    pub variable: &'static str,
    pub secret: &'static str,
    pub secret_mode: &'static str,
}

/// A program that runs with the keeper's rights. `what` it is, and the key that names it.
pub fn program(file: &Path, what: &str, key: &str, codes: &Codes) -> Option<Finding> {
    let path = file.display();
    let (code, message, remedy) = match fs::metadata(file) {
        Err(error) => (
            codes.program,
            format!("{what} cannot be read: {error}"),
            format!("install it, or correct `{key}`"),
        ),
        Ok(known) if !known.is_file() || known.permissions().mode() & 0o111 == 0 => {
            (codes.program, format!("`{path}`, {what}, cannot be executed"), format!("run `chmod +x {path}`"))
        }
        Ok(known) if known.permissions().mode() & 0o002 != 0 => (
            codes.writable,
            format!("every user can change `{path}`, which runs with Greenroom's rights"),
            format!("run `chmod o-w {path}`"),
        ),
        Ok(_) => return None,
    };
    Some(Finding { code, severity: Severity::Error, message, remedy: Some(remedy) })
}

/// A file with a secret, `what`, that the keeper has to read.
pub fn readable(file: &Path, what: &str, codes: &Codes) -> Option<Finding> {
    let why = fs::File::open(file).err()?;
    let message = format!("{what} cannot be read: {why}");
    let remedy = format!("write it into `{}`, readable for the keeper's account", file.display());
    Some(Finding { code: codes.secret, severity: Severity::Error, message, remedy: Some(remedy) })
}

/// A file with a secret, `what`, that other users can read.
pub fn exposed(file: &Path, what: &str, codes: &Codes) -> Option<Finding> {
    let mode = fs::metadata(file).ok()?.permissions().mode();
    let message = format!("`{}`, {what}, can be read by others", file.display());
    let remedy = Some(format!("run `chmod 600 {}`", file.display()));
    (mode & 0o077 != 0).then_some(Finding {
        code: codes.secret_mode,
        severity: Severity::Warning,
        message,
        remedy,
    })
}

/// Variables that are not set, and secrets that cannot be read, or that others can.
pub fn environment(pool: &PoolName, environment: &Environment, codes: &Codes) -> Vec<Finding> {
    let warning = |code, message: String, remedy: String| Finding {
        code,
        severity: Severity::Warning,
        message,
        remedy: Some(remedy),
    };
    let missing = environment.missing().map(|name| {
        let message = format!("the variable `{name}`, which `env` of pool `{pool}` names, is not set here");
        let remedy = format!("set `{name}` for the service of `greenroom keep`, or use `secrets`");
        warning(codes.variable, message, remedy)
    });
    let unreadable = environment
        .secrets
        .iter()
        .filter_map(|(name, file)| readable(file, &format!("the secret `{name}` of pool `{pool}`"), codes));
    let what = format!("a secret of pool `{pool}`");
    let exposed = environment.secrets.iter().filter_map(|(_, file)| exposed(file, &what, codes));
    missing.chain(unreadable).chain(exposed).collect()
}
