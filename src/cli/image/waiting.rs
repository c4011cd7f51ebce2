//! Pools whose launches have failed without the image that was just built launch again immediately.

use std::path::{Path, PathBuf};

use crate::cli::args::GlobalOptions;
use crate::cli::context::Context;
use crate::cli::error::CliError;
use crate::cli::locate::read_config;
use crate::cli::ui;
use crate::config::ProviderTable;
use crate::host::local::Role;
use crate::provider::qemu::image::DEFAULT_NAME;

/// Ends the launch back-off of the pools that boot this image. Without a configuration, there are no such pools.
pub(super) async fn launch_again(place: &GlobalOptions, images: &Path, image: &str) -> Result<(), CliError> {
    if !read_config(place).is_ok_and(|read| read.is_some()) {
        return Ok(());
    }
    let context = Context::open(place, Role::Operator)?;
    let config = context.config()?;
    let boots = |provider: &ProviderTable| boots(provider, &config.state_dir, images, image);
    for pool in config.pools.values().filter(|pool| boots(&pool.provider)) {
        if !context.engine(&pool.name)?.retry_launches().await?.is_empty() {
            ui::err(&format!("pool `{}` launches again: its last launch had failed\n", pool.name));
        }
    }
    Ok(())
}

/// Whether the provider boots this image of this directory.
fn boots(provider: &ProviderTable, state_dir: &Path, images: &Path, image: &str) -> bool {
    let text = |key: &str| provider.table.get(key).and_then(toml::Value::as_str);
    let folder = text("images").map_or_else(|| state_dir.join("images"), PathBuf::from);
    provider.kind == "qemu" && text("image").unwrap_or(DEFAULT_NAME) == image && folder == images
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pool_boots_an_image_by_its_name_and_its_directory() {
        let provider = |kind: &str, table: &str| ProviderTable {
            kind: kind.to_owned(),
            table: table.parse().unwrap(),
            path: String::new(),
        };
        let boots = |provider: &ProviderTable, images: &str, image: &str| {
            super::boots(provider, Path::new("/state"), Path::new(images), image)
        };
        let usual = provider("qemu", "");
        assert!(boots(&usual, "/state/images", "light") && !boots(&usual, "/state/images", "heavy"));
        assert!(
            !boots(&usual, "/elsewhere", "light") && !boots(&provider("local", ""), "/state/images", "light")
        );
        let other = provider("qemu", "image = \"heavy\"\nimages = \"/elsewhere\"");
        assert!(boots(&other, "/elsewhere", "heavy") && !boots(&other, "/state/images", "heavy"));
    }
}
