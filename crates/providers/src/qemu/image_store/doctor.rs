//! What doctor says of a pool's image store.

use greenroom_ports::finding::{Finding, Severity};

use super::{ImageStoreError, Stores};
use crate::qemu::doctor::finding;
use crate::qemu::image::Image;
use crate::qemu::settings::{Settings, Source};
use crate::qemu::store_use::{is_old, old};
use crate::registration::BuildContext;

/// The findings about the store that a pool's table names.
pub(in crate::qemu) fn findings(context: &BuildContext, settings: &Settings) -> Vec<Finding> {
    let Some(name) = &settings.image_store else { return Vec::new() };
    let folder = settings.images_dir(&context.state_dir);
    let pool = &context.pool;
    let build = format!("greenroom image store build {name} --images {}", folder.display());
    let mut found = Vec::new();
    match Stores::beside(&folder).open(name) {
        Err(error) => {
            let is_missing = matches!(error, ImageStoreError::Missing { .. });
            let code = if is_missing { "qemu-image-store-missing" } else { "qemu-image-store-damaged" };
            let what = format!("instances of pool `{pool}` start without an image store: {error}");
            found.push(finding(code, Severity::Error, what, format!("{build} IMAGE…")));
        }
        Ok(store) => {
            if let Some(damage) = store.problem() {
                let what = format!(
                    "instances of pool `{pool}` start without an image store: image store `{name}`: {damage}"
                );
                found.push(finding("qemu-image-store-damaged", Severity::Error, what, build));
            } else if is_old(&store.manifest, jiff::Timestamp::now()) {
                let what = format!("image store `{name}` {}", old(&store.manifest));
                found.push(finding("qemu-image-store-old", Severity::Warning, what, build));
            }
        }
    }
    if let Source::Image(image) = &settings.source
        && let Ok(image) = Image::open(&folder, image)
        && !image.manifest.image_store
    {
        let image = image.manifest.name;
        let what = format!(
            "instances of pool `{pool}` start without an image store, because image `{image}` has no support for it"
        );
        let remedy = format!("greenroom image build {image} --containers --images {}", folder.display());
        found.push(finding("qemu-image-store-unsupported", Severity::Error, what, remedy));
    }
    found
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use fs_err as fs;

    use super::*;
    use crate::qemu::doctor::tests::context;
    use crate::qemu::image_store::MANIFEST;
    use crate::qemu::image_store::tests::store;

    fn codes(state: &Path, table: &str) -> Vec<&'static str> {
        let context = BuildContext { state_dir: state.to_owned(), containers: true, ..context() };
        let settings = Settings::read(&context.pool, &table.parse().unwrap()).unwrap();
        findings(&context, &settings).iter().map(|finding| finding.code).collect()
    }

    /// An image of machines, with or without support.
    fn image(images: &Path, has_support: bool) {
        let mut image = crate::qemu::image::tests::image();
        image.manifest.image_store = has_support;
        fs::create_dir_all(images.join("light")).unwrap();
        fs::write(images.join("light/manifest.json"), serde_json::to_vec(&image.manifest).unwrap()).unwrap();
    }

    #[test]
    fn each_reason_to_start_without_a_store_is_found() {
        let state = tempfile::tempdir().unwrap();
        let images = state.path().join("images");
        let table = "image_store = \"ci\"";
        image(&images, true);
        assert_eq!(codes(state.path(), ""), [] as [&str; 0]);
        assert_eq!(codes(state.path(), table), ["qemu-image-store-missing"]);
        let mut store = store(&images, "ci", b"data");
        let mut refreshed = |days: i64| {
            store.manifest.refreshed = jiff::Timestamp::now() - jiff::SignedDuration::from_hours(24 * days);
            fs::write(store.dir.join(MANIFEST), serde_json::to_vec(&store.manifest).unwrap()).unwrap();
        };
        refreshed(15);
        assert_eq!(codes(state.path(), table), ["qemu-image-store-old"]);
        refreshed(13);
        assert_eq!(codes(state.path(), table), [] as [&str; 0]);
        image(&images, false);
        assert_eq!(codes(state.path(), table), ["qemu-image-store-unsupported"]);
        image(&images, true);
        fs::write(store.file(), b"dada").unwrap();
        assert!(store.check().unwrap().is_some());
        assert_eq!(codes(state.path(), table), ["qemu-image-store-damaged"]);
        fs::write(store.dir.join(MANIFEST), b"{").unwrap();
        assert_eq!(codes(state.path(), table), ["qemu-image-store-damaged"]);
    }
}
