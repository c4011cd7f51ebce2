//! Findings of `doctor` about a pool's installed plugin.

use greenroom_ports::finding::{Finding, Severity};

use super::digest::Digest;
use super::lock_file::LockFile;
use crate::fleeting::locate::{Installed, LocateError, Located, Places, versions};

/// Compares the plugin that a pool uses with the lock file, and with the other installed versions.
///
/// Reads the whole program: some tens of megabytes.
pub fn installed_plugin(
    pool: &str,
    located: Result<&Located, &LocateError>,
    places: &Places,
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
            let remedy = format!("repair it, or remove it: `rm {}`", error.path.display());
            findings.push(finding("fleeting-plugin-lock", Severity::Warning, error.to_string(), remedy));
        }
    }
    let newest = versions(directory, &installed.plugin).into_iter().rfind(|one| one.version.is_release());
    if let Some(newest) = newest.filter(|newest| newest.version > installed.version) {
        let (name, used, newest) = (installed.plugin.short(), &installed.version, &newest.version);
        let message = format!("pool `{pool}` uses {name} {used}, although {newest} is installed");
        let remedy = format!("allow the newer version in `plugin`, such as `{name}:{newest}`");
        findings.push(finding("fleeting-plugin-newer", Severity::Note, message, remedy));
    }
    findings
}

fn changed(pool: &str, installed: &Installed, locked: &LockFile) -> Option<Finding> {
    // A host has one platform. An entry of another one has another program.
    let of_version =
        |one: &&super::lock_file::Locked| one.name == installed.plugin && one.version == installed.version;
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

    use super::*;
    use crate::fleeting::artifact::lock_file::Locked;
    use crate::fleeting::locate::{Source, locate};

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
        let places = Places { plugins: Some(dir.path().to_owned()), path: Vec::new() };
        let source = Source::parse("aws:1").unwrap();
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
