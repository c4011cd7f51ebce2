//! The program's environment: a few variables of this process, those that the table names, and secrets from files.

use std::ffi::OsString;
use std::path::PathBuf;

use greenroom_keys::got::Got;
use greenroom_keys::problem::{Place, Problem, join};
use greenroom_keys::table::Table;
use greenroom_keys::value_error::ValueError;

/// What every program gets, if it is set here. They name places and languages.
const ALWAYS: &[&str] = &["PATH", "HOME", "USER", "LOGNAME", "LANG", "LC_ALL", "LC_CTYPE", "TZ", "TMPDIR"];
/// Largest secret.
const MAX_SECRET: u64 = 64 << 10;

/// Where the program's variables come from.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Environment {
    /// Further variables of this process.
    pub named: Vec<String>,
    /// Variables with the contents of files, read for each call.
    pub secrets: Vec<(String, PathBuf)>,
}

impl Environment {
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

    /// The variables now; an error names the file that cannot be read.
    pub fn variables(&self) -> Result<Vec<(String, OsString)>, String> {
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
fn secret(file: &PathBuf) -> Result<String, String> {
    let wrong = |why: String| format!("the secret `{}` cannot be read: {why}", file.display());
    let known = std::fs::metadata(file).map_err(|error| wrong(error.to_string()))?;
    if !known.is_file() || known.len() > MAX_SECRET {
        return Err(wrong("it is not a file of at most 64 KiB".to_owned()));
    }
    let text = std::fs::read_to_string(file).map_err(|error| wrong(error.to_string()))?;
    let text = text.trim_end_matches(['\n', '\r']);
    if text.contains('\0') {
        return Err(wrong("it contains a zero byte".to_owned()));
    }
    Ok(text.to_owned())
}

#[cfg(test)]
mod tests {
    use fs_err as fs;

    use super::*;

    #[test]
    fn only_named_variables_and_secrets_are_passed_on() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("token");
        fs::write(&file, "s3cret\n").unwrap();
        let named = vec!["CARGO_PKG_NAME".to_owned(), "GREENROOM_TEST_UNSET".to_owned()];
        let secrets = vec![("TOKEN".to_owned(), file.clone())];
        let environment = Environment { named, secrets };
        let all = environment.variables().unwrap();
        let value = |name: &str| all.iter().find(|(known, _)| known == name).map(|(_, value)| value.clone());
        assert_eq!(value("TOKEN"), Some("s3cret".into()));
        assert_eq!(value("PATH"), std::env::var_os("PATH"));
        assert_eq!(value("CARGO_MANIFEST_DIR"), None, "not named");
        assert_eq!(environment.missing().collect::<Vec<_>>(), ["GREENROOM_TEST_UNSET"]);
        fs::remove_file(&file).unwrap();
        assert!(environment.variables().unwrap_err().contains("cannot be read"));
    }
}
