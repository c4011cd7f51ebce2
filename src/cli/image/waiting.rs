//! Pools whose launches have failed without the image that was just built launch again immediately.

use std::path::Path;

use greenroom_manager::runner_host::Role;
use greenroom_providers::qemu;

use crate::cli::args::GlobalOptions;
use crate::cli::context::Context;
use crate::cli::error::CliError;
use crate::cli::locate::read_config;
use crate::cli::ui;
use crate::config::{PoolConfig, ProviderTable};

/// Ends the launch back-off of the pools that boot this image. Without a configuration, there are no such pools.
pub(super) async fn launch_again(place: &GlobalOptions, images: &Path, image: &str) -> Result<(), CliError> {
    if !read_config(place).is_ok_and(|read| read.is_some()) {
        return Ok(());
    }
    let context = Context::open(place, Role::Operator)?;
    let config = context.config()?;
    for pool in config.pools.values().filter(|pool| boots(pool, &config.state_dir, images, image)) {
        if !context.engine(&pool.name)?.retry_launches().await?.is_empty() {
            ui::err(&format!("pool `{}` launches again: its last launch had failed\n", pool.name));
        }
    }
    Ok(())
}

/// True if the pool's machines boot this image of this directory.
fn boots(pool: &PoolConfig, state_dir: &Path, images: &Path, image: &str) -> bool {
    let ProviderTable { kind, table, .. } = &pool.provider;
    kind == qemu::REGISTRATION.kind && qemu::boots(&pool.name, table, state_dir, images, image)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;

    #[test]
    fn a_pool_boots_an_image_by_its_name_and_its_directory() {
        let boots = |provider: &str, images: &str, image: &str| {
            let text = format!("[pool.one]\nmax_instances = 1\n[pool.one.provider]\n{provider}\n");
            let config = Config::parse(&text, "greenroom.toml").unwrap();
            let pool = config.pools.values().next().unwrap();
            super::boots(pool, Path::new("/state"), Path::new(images), image)
        };
        let usual = "kind = \"qemu\"";
        assert!(boots(usual, "/state/images", "light") && !boots(usual, "/state/images", "heavy"));
        assert!(!boots(usual, "/elsewhere", "light") && !boots("kind = \"local\"", "/state/images", "light"));
        let other = "kind = \"qemu\"\nimage = \"heavy\"\nimages = \"/elsewhere\"";
        assert!(boots(other, "/elsewhere", "heavy") && !boots(other, "/state/images", "heavy"));
        let disk = "kind = \"qemu\"\nimage = \"/state/images/light\"";
        assert!(!boots(disk, "/state/images", "light"), "a disk of the operator's");
        let wrong = "kind = \"qemu\"\nvcpu = 2";
        assert!(!boots(wrong, "/state/images", "light"), "a table that does not build");
    }
}
