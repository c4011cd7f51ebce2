//! Our own part of a clean: what it is told, and the script itself (clean.sh).

use super::settings::Settings;
use crate::provider::CleanDirs;
use crate::provider::keys::KeyError;

/// The script for `/bin/sh`, `None` where the table wants none. Its one argument is the mark of the host's jobs.
pub(super) fn script(table: &toml::Table, dirs: &CleanDirs<'_>) -> Result<Option<String>, KeyError> {
    let settings = Settings::read(table)?;
    if !settings.clean {
        return Ok(None);
    }
    let told = [
        format!("builds={}", quoted(dirs.builds)),
        format!("cache={}", quoted(dirs.cache.unwrap_or_default())),
        format!("dedicated={}", u8::from(settings.dedicated_user)),
    ];
    Ok(Some(format!("{}\n{}", told.join("\n"), include_str!("clean.sh"))))
}

/// A word of a shell's, whatever is in it.
fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}
