//! How large a machine's disk is: as large as what it boots from, or larger.

use std::path::Path;

use super::image::{Image, ImageError};
use super::process::qcow2;
use super::settings::{Settings, Source};

/// The size of what a machine boots from, in bytes.
pub(super) fn of_source(settings: &Settings, state_dir: &Path) -> Result<u64, String> {
    match &settings.source {
        Source::Image(name) => Image::open(&settings.images_dir(state_dir), name)
            .map(|image| image.manifest.disk_bytes)
            .map_err(|error: ImageError| format!("{error}: build one with `greenroom image build {name}`")),
        Source::Foreign(disk) if !disk.is_file() => {
            Err(format!("the boot disk {} does not exist", disk.display()))
        }
        Source::Foreign(disk) => {
            qcow2::virtual_size(disk).map_err(|error| format!("cannot read the boot disk: {error}"))
        }
    }
}

/// The size of the disk of a machine that boots from so many bytes. The error: `disk` is smaller.
pub(super) fn of_machine(settings: &Settings, source: u64) -> Result<u64, String> {
    match settings.disk {
        Some(disk) if disk < source => Err(format!(
            "`disk` is {} MiB, but {} has {} MiB: set `disk` to at least that, or remove it",
            disk >> 20,
            match &settings.source {
                Source::Image(name) => format!("the image `{name}`"),
                Source::Foreign(disk) => format!("the boot disk {}", disk.display()),
            },
            source.div_ceil(1 << 20)
        )),
        disk => Ok(disk.unwrap_or(source)),
    }
}

#[cfg(test)]
mod tests {
    use greenroom_core::ids::PoolName;

    use super::*;

    #[test]
    fn a_disk_that_is_smaller_than_its_image_is_refused_with_both_sizes() {
        let size = |table: &str, source| {
            of_machine(&Settings::read(&PoolName::new("linux"), &table.parse().unwrap()).unwrap(), source)
        };
        assert_eq!(size("", 3 << 30), Ok(3 << 30));
        assert_eq!(size("disk = \"8G\"", 3 << 30), Ok(8 << 30));
        assert_eq!(size("disk = \"3G\"", 3 << 30), Ok(3 << 30));
        let smaller = "`disk` is 1024 MiB, but the image `light` has 3072 MiB: set `disk` to at least that, or remove it";
        assert_eq!(size("disk = \"1G\"\nimage = \"light\"", 3 << 30), Err(smaller.to_owned()));
    }
}
