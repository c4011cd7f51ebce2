//! The disks of images: read once for each image, because images do not change.

use std::collections::BTreeMap;
use std::rc::Rc;

use aws_sdk_ec2::Client;
use greenroom_core::failure::ErrorClass;
use greenroom_ports::provider::ProviderError;
use tokio::sync::Mutex;

use super::errors;

/// A disk of an image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Disk {
    /// `/dev/xvda`.
    pub(super) device: String,
    pub(super) is_root: bool,
}

/// The images read so far.
#[derive(Debug, Default)]
pub(super) struct Images(Mutex<BTreeMap<String, Rc<[Disk]>>>);

impl Images {
    /// The disks of an image. `Invalid` if the image is missing. Never `Unknown`, because no launch was requested yet.
    pub(super) async fn disks(&self, client: &Client, image: &str) -> Result<Rc<[Disk]>, ProviderError> {
        // Concurrent launches share one call.
        let mut known = self.0.lock().await;
        if let Some(disks) = known.get(image) {
            return Ok(Rc::clone(disks));
        }
        let answer = client.describe_images().image_ids(image).send().await;
        let answer = answer.map_err(|error| definite(errors::read(&error, image)))?;
        let Some(found) = answer.images().first() else {
            let why = format!("image {image} does not exist, or this account may not use it");
            return Err(ProviderError::new(ErrorClass::Invalid, why));
        };
        let root = found.root_device_name().unwrap_or_default();
        let of_ebs = found.block_device_mappings().iter().filter(|disk| disk.ebs().is_some());
        let mut devices: Vec<&str> = of_ebs.filter_map(|disk| disk.device_name()).collect();
        if !root.is_empty() && !devices.contains(&root) {
            devices.push(root);
        }
        let disks: Rc<[Disk]> = devices
            .into_iter()
            .map(|device| Disk { device: device.to_owned(), is_root: device == root })
            .collect();
        known.insert(image.to_owned(), Rc::clone(&disks));
        Ok(disks)
    }
}

fn definite(error: ProviderError) -> ProviderError {
    match error.class() {
        ErrorClass::Unknown => ProviderError::new(ErrorClass::Transient, error.failure.message),
        _ => error,
    }
}
