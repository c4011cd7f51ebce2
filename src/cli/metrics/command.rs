//! The command `metrics`: prints the metrics, or replaces a file of the textfile collector.

use std::fs;
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use super::source::Source;
use crate::cli::args::GlobalOptions;
use crate::cli::error::CliError;
use crate::cli::ui;
use crate::core::metrics::Format;

/// The collector runs as another user.
const MODE: u32 = 0o644;

/// False if the state of a pool cannot be read.
pub(in crate::cli) async fn print(
    place: &GlobalOptions,
    output: Option<&Path>,
    openmetrics: bool,
) -> Result<bool, CliError> {
    let (metrics, is_sound) = Source::open(place)?.read().await?;
    let text = metrics.render(if openmetrics { Format::OpenMetrics } else { Format::Text });
    match output {
        None => ui::out(&text),
        Some(path) => replace(path, &text).map_err(|error| {
            CliError::system(error).help("name a file in a directory that this user can write")
        })?,
    }
    Ok(is_sound)
}

/// Replaces a file in one step: a reader sees the old text or the new one.
fn replace(path: &Path, text: &str) -> std::io::Result<()> {
    let path = std::path::absolute(path)?;
    let (Some(dir), Some(name)) = (path.parent(), path.file_name().and_then(|name| name.to_str())) else {
        return Err(std::io::Error::other(format!("`{}` names no file", path.display())));
    };
    let begin = format!(".{name}.");
    remove_left(dir, &begin);
    // The collector reads names that end in `.prom`; this one does not.
    let fresh = dir.join(format!("{begin}{}", std::process::id()));
    let write = || {
        let mut file = fs_err::File::create(&fresh)?;
        file.set_permissions(fs::Permissions::from_mode(MODE))?;
        file.write_all(text.as_bytes())?;
        fs_err::rename(&fresh, &path)
    };
    let written = write();
    if written.is_err() {
        fs::remove_file(&fresh).ok();
    }
    written
}

/// Removes what killed processes left.
fn remove_left(dir: &Path, begin: &str) {
    let is_left = |path: &PathBuf| {
        let name = path.file_name().and_then(|name| name.to_str());
        let pid = name.and_then(|name| name.strip_prefix(begin)).and_then(|pid| pid.parse::<u32>().ok());
        pid.is_some_and(|pid| !Path::new(&format!("/proc/{pid}")).exists())
    };
    let entries = fs::read_dir(dir).into_iter().flatten().flatten().map(|entry| entry.path());
    for left in entries.filter(is_left) {
        fs::remove_file(left).ok();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_replaced_readable_for_all_and_nothing_is_left() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("greenroom.prom");
        // No process has this number.
        fs::write(dir.path().join(".greenroom.prom.4294967295"), "killed").unwrap();
        replace(&path, "one\n").unwrap();
        replace(&path, "two\n").unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "two\n");
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, MODE);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
        let error = replace(&dir.path().join("none/x.prom"), "").unwrap_err().to_string();
        assert!(error.contains("none/"), "{error}");
        replace(Path::new("/"), "").unwrap_err();
    }
}
