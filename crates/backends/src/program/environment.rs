//! The operator's part of a program: its file, variables and secrets; and the findings of `doctor` about them.

use std::ffi::OsString;
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use fs_err as fs;
use greenroom_core::ids::PoolName;
use greenroom_keys::problem::{Place, Problem, join};
use greenroom_keys::table::Table;
use greenroom_keys::value_error::{Got, ValueError};
use greenroom_ports::finding::{Finding, Severity};

/// Variables that every program gets, if they are set here. They name places and languages.
const ALWAYS: &[&str] = &["PATH", "HOME", "USER", "LOGNAME", "LANG", "LC_ALL", "LC_CTYPE", "TZ", "TMPDIR"];
/// Largest secret.
const MAX_SECRET: u64 = 64 << 10;

/// The sources of the program's variables.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ProgramEnvironment {
    /// Further variables of this process.
    pub named: Vec<String>,
    /// Variables with the contents of files, read for each call.
    pub secrets: Vec<(String, PathBuf)>,
}

/// The reason the file of a secret cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum SecretError {
    #[error("the secret `{}` cannot be read", file.display())]
    Read {
        file: PathBuf,
        #[source]
        cause: io::Error,
    },
    #[error("the secret `{}` cannot be read: it is not a file of at most 64 KiB", .0.display())]
    NotAFile(PathBuf),
    #[error("the secret `{}` cannot be read: it contains a zero byte", .0.display())]
    ZeroByte(PathBuf),
}

impl ProgramEnvironment {
    /// The keys `env` and `secrets` of a provider table. `is_allowed`: whether a variable may be the operator's.
    pub fn of(table: &Table<'_>, is_allowed: impl Fn(&str) -> bool) -> Self {
        let allowed = |name: &str| {
            let is_one = is_name(name) && is_allowed(name);
            if is_one { Ok(()) } else { Err(ValueError::entry(name, "the name of an environment variable")) }
        };
        let named = table.texts("env").or_default();
        table.check_each("env", &named, allowed);
        let secrets = table.map("secrets").or_default();
        for (name, file) in &secrets {
            let place = || Place::value_of(join(&table.path("secrets"), name));
            let checked = table.parsed("secrets", Got::Good(name.as_str(), place()), allowed);
            if !checked.is_bad() && !file.starts_with('/') {
                // The value is not repeated: it may be the secret itself.
                let title = format!("`secrets.{name}` is not an absolute path");
                let help = "write the secret into a file of mode 600, and name the file";
                table.report(Problem::new(title).at(place(), "here").help(help));
            }
        }
        let secrets = secrets.into_iter().map(|(name, file)| (name, PathBuf::from(file))).collect();
        Self { named: named.into_iter().map(|(name, _)| name).collect(), secrets }
    }

    /// The variables now.
    pub fn variables(&self) -> Result<Vec<(String, OsString)>, SecretError> {
        let named = ALWAYS.iter().copied().chain(self.named.iter().map(String::as_str));
        let set = named.filter_map(|name| Some((name.to_owned(), std::env::var_os(name)?)));
        let mut all: Vec<_> = set.collect();
        for (name, file) in &self.secrets {
            all.push((name.clone(), secret(file)?.into()));
        }
        Ok(all)
    }

    /// The secrets now, without those that cannot be read.
    pub fn secret_values(&self) -> impl Iterator<Item = String> {
        self.secrets.iter().filter_map(|(_, file)| secret(file).ok())
    }

    /// Named variables that this process does not have.
    pub fn missing(&self) -> impl Iterator<Item = &str> {
        self.named.iter().map(String::as_str).filter(|name| std::env::var_os(name).is_none())
    }
}

fn is_name(name: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || c == '_';
    !name.starts_with(|c: char| c.is_ascii_digit()) && !name.is_empty() && name.chars().all(plain)
}

/// The content of a file, without the end of its last line.
fn secret(file: &Path) -> Result<String, SecretError> {
    let failed = |cause| SecretError::Read { file: file.to_owned(), cause };
    let known = std::fs::metadata(file).map_err(failed)?;
    if !known.is_file() || known.len() > MAX_SECRET {
        return Err(SecretError::NotAFile(file.to_owned()));
    }
    let text = std::fs::read_to_string(file).map_err(failed)?;
    let text = text.trim_end_matches(['\n', '\r']);
    if text.contains('\0') {
        return Err(SecretError::ZeroByte(file.to_owned()));
    }
    Ok(text.to_owned())
}

/// A provider's codes of these findings.
#[derive(Debug)]
pub struct ProgramCodes {
    /// The program does not exist, or cannot be executed.
    pub program: &'static str,
    pub writable: &'static str,
    pub variable: &'static str,
    pub secret: &'static str,
    pub secret_mode: &'static str,
}

/// A program that runs with the keeper's rights. `what` it is, and the key that names it.
pub fn program_finding(file: &Path, what: &str, key: &str, codes: &ProgramCodes) -> Option<Finding> {
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
pub fn unreadable_secret(file: &Path, what: &str, codes: &ProgramCodes) -> Option<Finding> {
    let why = fs::File::open(file).err()?;
    let message = format!("{what} cannot be read: {why}");
    let remedy = format!("write it into `{}`, readable for the keeper's account", file.display());
    Some(Finding { code: codes.secret, severity: Severity::Error, message, remedy: Some(remedy) })
}

/// A file with a secret, `what`, that other users can read.
pub fn exposed_secret(file: &Path, what: &str, codes: &ProgramCodes) -> Option<Finding> {
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
pub fn environment_findings(
    pool: &PoolName,
    environment: &ProgramEnvironment,
    codes: &ProgramCodes,
) -> Vec<Finding> {
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
    let unreadable = environment.secrets.iter().filter_map(|(name, file)| {
        unreadable_secret(file, &format!("the secret `{name}` of pool `{pool}`"), codes)
    });
    let what = format!("a secret of pool `{pool}`");
    let exposed = environment.secrets.iter().filter_map(|(_, file)| exposed_secret(file, &what, codes));
    missing.chain(unreadable).chain(exposed).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_named_variables_and_secrets_are_passed_on() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("token");
        fs::write(&file, "s3cret\n").unwrap();
        let named = vec!["CARGO_PKG_NAME".to_owned(), "GREENROOM_TEST_UNSET".to_owned()];
        let secrets = vec![("TOKEN".to_owned(), file.clone())];
        let environment = ProgramEnvironment { named, secrets };
        let all = environment.variables().unwrap();
        let value = |name: &str| all.iter().find(|(known, _)| known == name).map(|(_, value)| value.clone());
        assert_eq!(value("TOKEN"), Some("s3cret".into()));
        assert_eq!(value("PATH"), std::env::var_os("PATH"));
        assert_eq!(value("CARGO_MANIFEST_DIR"), None, "not named");
        assert_eq!(environment.missing().collect::<Vec<_>>(), ["GREENROOM_TEST_UNSET"]);
        fs::remove_file(&file).unwrap();
        assert!(environment.variables().unwrap_err().to_string().contains("cannot be read"));
    }
}
