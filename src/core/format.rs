//! The version of the state's files.

/// The format that this version writes: journals, snapshots, `job` files and launch specs.
pub const FORMAT: u32 = 2;

/// What an operator does about files of an older format.
pub const OUTDATED_REMEDY: &str =
    "run `greenroom pool drain --wait` of the version that wrote it, then move the state directory away";

/// Why a file of an older format is refused.
pub fn outdated(file: &str, found: u32) -> String {
    format!("{file} has format {found}, from before the first release; this version reads format {FORMAT}")
}

/// Why a file of a newer format is refused.
pub fn newer(file: &str, found: u32) -> String {
    format!("{file} was written by a newer version (format {found}, this one knows {FORMAT})")
}
