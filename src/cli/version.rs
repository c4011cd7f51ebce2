//! What `--version` prints: version, commit and features.

/// The line of `-V`, and two lines that tell builds of one version apart. `build.rs` decides what the commit is.
pub(super) const LONG: &str = concat!(
    env!("CARGO_PKG_VERSION"),
    "\ncommit: ",
    env!("GREENROOM_BUILD_COMMIT"),
    "\nfeatures: ",
    env!("GREENROOM_BUILD_FEATURES"),
);

#[cfg(test)]
mod tests {
    #[test]
    fn every_feature_of_this_build_is_named_and_no_other() {
        let built = [
            ("aws-ec2", cfg!(feature = "aws-ec2")),
            ("crash-points", cfg!(feature = "crash-points")),
            ("external", cfg!(feature = "external")),
            ("fleeting", cfg!(feature = "fleeting")),
            ("gce", cfg!(feature = "gce")),
            ("https", cfg!(feature = "https")),
            ("kubernetes", cfg!(feature = "kubernetes")),
            ("server", cfg!(feature = "server")),
            ("test-plugin", cfg!(feature = "test-plugin")),
        ];
        let manifest = include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml"));
        let manifest: toml::Table = manifest.parse().unwrap();
        let features = manifest["features"].as_table().unwrap().keys().map(String::as_str);
        let mut features: Vec<&str> =
            features.filter(|name| !matches!(*name, "backends" | "all-backends")).collect();
        features.sort_unstable();
        assert_eq!(features, built.map(|(name, _)| name), "Cargo.toml has another feature");

        let set: Vec<&str> = built.iter().filter(|(_, is_set)| *is_set).map(|(name, _)| *name).collect();
        let expected = if set.is_empty() { "none".to_owned() } else { set.join(", ") };
        assert_eq!(env!("GREENROOM_BUILD_FEATURES"), expected);
    }
}
