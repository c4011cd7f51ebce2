//! What `--version` prints: version, commit and features.

/// The line of `-V`, and two lines that tell builds of one version apart. `build.rs` decides what the commit is.
pub(super) const LONG: &str = concat!(
    env!("CARGO_PKG_VERSION"),
    "\ncommit: ",
    env!("GREENROOM_BUILD_COMMIT"),
    "\nfeatures: ",
    env!("GREENROOM_BUILD_FEATURES"),
);
