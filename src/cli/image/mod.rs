//! `image …`: build and manage images of virtual machines.

pub mod args;
pub(super) mod build;
mod stores;

use greenroom_core::text::minute;
use greenroom_keys::near::nearest;
use greenroom_providers::qemu::image::build::on_disk;
use greenroom_providers::qemu::image::store::{Images, ListedImage, StoreError};
use greenroom_providers::qemu::image::{Image, ImageError, Problem};
use greenroom_providers::qemu::image_store::Stores;
use serde_json::{Value, json};

use super::args::GlobalOptions;
use super::context::state_path;
use super::error::CliError;
use super::ui::{self, Rows};
use args::{ImageCommand, StoreCommand};
use build::mib;

/// Runs one command; false if its result is negative.
pub(super) async fn image(place: &GlobalOptions, command: ImageCommand) -> Result<bool, CliError> {
    match command {
        ImageCommand::Build(options) => {
            let images = images(place, &options.images)?;
            let name = options.name.clone();
            build::build(&images, options)?;
            build::launch_again(place, images.path(), &name).await?;
            Ok(true)
        }
        ImageCommand::List { images: folder, json } => list_images(&images(place, &folder)?, json),
        ImageCommand::Check { name, images: folder, json } => {
            check_image(&images(place, &folder)?, &name, json)
        }
        ImageCommand::Remove { name, images: folder, dry_run } => {
            remove_image(&images(place, &folder)?, &name, dry_run)
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

fn list_images(images: &Images, json: bool) -> Result<bool, CliError> {
    let entries = images.list()?;
    let text = if json {
        let all: Vec<Value> = entries.iter().map(entry_json).collect();
        format!("{:#}\n", json!({ "images": all }))
    } else if entries.is_empty() {
        format!("no images in {}; build one with `greenroom image build`\n", images.path().display())
    } else {
        table(&entries)
    };
    ui::out(&text);
    Ok(true)
}

fn table(entries: &[ListedImage]) -> String {
    let mut rows = Rows::new(&["IMAGE", "FLAVOUR", "SSH", "SUITE", "KERNEL", "ENGINE", "SIZE", "BUILT"]);
    for ListedImage { name, image } in entries {
        match image {
            Ok(image) => {
                let about = &image.manifest;
                let size = on_disk(&image.dir).map_or_else(|_| "?".to_owned(), mib);
                let built = minute(about.built);
                let flavour = about.flavour.to_string();
                let ssh = about.ssh.to_string();
                let engine = about.engine.clone().unwrap_or_else(|| "-".to_owned());
                let suite = about.suite.clone();
                let kernel = about.kernel.clone();
                let cells = vec![name.clone(), flavour, ssh, suite, kernel, engine, size, built];
                rows.row(cells, complaints(image));
            }
            Err(error) => rows.row(vec![name.clone()], vec![error.to_string()]),
        }
    }
    rows.render(ui::width())
}

/// The findings of a quick check.
fn complaints(image: &Image) -> Vec<String> {
    match image.check() {
        Ok(problems) => problems.iter().map(ToString::to_string).collect(),
        Err(error) => vec![error.to_string()],
    }
}

fn entry_json(entry: &ListedImage) -> Value {
    match &entry.image {
        Ok(image) => json!({ "name": entry.name, "manifest": image.manifest, "problems": complaints(image) }),
        Err(error) => json!({ "name": entry.name, "manifest": null, "problems": [error.to_string()] }),
    }
}

fn check_image(images: &Images, name: &str, json: bool) -> Result<bool, CliError> {
    let image = images.open(name).map_err(|error| named(images, name, error))?;
    let mut problems = image.check()?;
    problems.extend(image.compare()?);
    let sentences: Vec<String> = problems.iter().map(ToString::to_string).collect();
    let text = if json {
        format!("{:#}\n", json!({ "name": name, "manifest": image.manifest, "problems": sentences }))
    } else if problems.is_empty() {
        let engine = image.manifest.engine.as_ref().map(|engine| format!(", with {engine}"));
        format!("image `{name}` is intact{}\n", engine.unwrap_or_default())
    } else {
        let lines: Vec<String> =
            sentences.iter().map(|sentence| format!("image `{name}`: {sentence}\n")).collect();
        lines.concat()
    };
    ui::out(&text);
    Ok(!problems.iter().any(Problem::prevents_boot))
}

fn remove_image(images: &Images, name: &str, dry_run: bool) -> Result<bool, CliError> {
    let dir = images.path().join(name);
    if dry_run {
        images.open(name).map_err(|error| named(images, name, error))?;
        ui::out(&format!("would remove {}\n", dir.display()));
        return Ok(true);
    }
    images.remove(name).map_err(|error| match error {
        StoreError::Image(error) => named(images, name, error),
        other => CliError::system(other),
    })?;
    ui::out(&format!("removed {}\n", dir.display()));
    Ok(true)
}

/// An error with the nearest name as a suggestion.
fn named(images: &Images, name: &str, error: ImageError) -> CliError {
    let known = images.list().unwrap_or_default();
    let help = match nearest(name, known.iter().map(|entry| entry.name.as_str())) {
        Some(near) => format!("did you mean `{near}`?"),
        None => {
            "list images with `greenroom image list`, or build one with `greenroom image build`".to_owned()
        }
    };
    CliError::system(error).help(help)
}
