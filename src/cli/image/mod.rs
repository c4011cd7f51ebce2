//! `image …`: build and manage images of virtual machines.

pub mod args;
pub(super) mod build;
mod manage;
mod stores;
mod waiting;

use greenroom_providers::qemu::image::store::Images;
use greenroom_providers::qemu::image_store::Stores;

use super::args::GlobalOptions;
use super::error::CliError;
use super::locate::state_path;
use args::{ImageCommand, StoreCommand};

/// Runs one command; false if its result is negative.
pub(super) async fn image(place: &GlobalOptions, command: ImageCommand) -> Result<bool, CliError> {
    match command {
        ImageCommand::Build(options) => {
            let (images, name) = (images(place, &options.images)?, options.name.clone());
            build::build(&images, options)?;
            waiting::launch_again(place, images.path(), &name).await?;
            Ok(true)
        }
        ImageCommand::List { images: folder, json } => manage::list(&images(place, &folder)?, json),
        ImageCommand::Check { name, images: folder, json } => {
            manage::check(&images(place, &folder)?, &name, json)
        }
        ImageCommand::Remove { name, images: folder, dry_run } => {
            manage::remove(&images(place, &folder)?, &name, dry_run)
        }
        ImageCommand::Store(command) => {
            let folder = match &command {
                StoreCommand::Build(options) => &options.images,
                StoreCommand::List { images, .. }
                | StoreCommand::Check { images, .. }
                | StoreCommand::Remove { images, .. } => images,
            };
            let stores = Stores::beside(images(place, folder)?.path());
            stores::store(place, &stores, command)
        }
    }
}

/// The named folder, or the one in the state directory.
fn images(place: &GlobalOptions, folder: &args::Folder) -> Result<Images, CliError> {
    let path = match &folder.images {
        Some(given) => std::path::absolute(given)?,
        None => state_path(place)?.join("images"),
    };
    Ok(Images::at(path))
}
