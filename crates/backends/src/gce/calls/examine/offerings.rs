//! Checks that the images and machine types of the offerings exist and fit together.

use std::collections::BTreeMap;

use google_cloud_compute_v1::Result as Answer;
use google_cloud_compute_v1::model::{Image, MachineType};

use super::super::super::findings::Facts;
use super::super::super::resource;
use super::super::ComputeEngine;
use super::super::client::{Catalogue, answer};
use super::{is_forbidden, message};

/// Maximum number of offerings to look up: each is a call.
const MAX_OFFERINGS: usize = 24;

/// Existing machine types, by zone and name.
pub(super) type Types = BTreeMap<(String, String), MachineType>;

/// Looks up images and types of the offerings; returns the types.
pub(super) async fn look_up(engine: &ComputeEngine, catalogue: &Catalogue, facts: &mut Facts) -> Types {
    let mut types: BTreeMap<_, Answer<MachineType>> = BTreeMap::new();
    let mut images: BTreeMap<_, Answer<Image>> = BTreeMap::new();
    for offering in engine.settings.common.offerings.iter().take(MAX_OFFERINGS) {
        let key = (offering.place.clone(), offering.machine_type.clone());
        if !images.contains_key(&offering.image) {
            images.insert(offering.image.clone(), image(engine, catalogue, &offering.image).await);
        }
        if !types.contains_key(&key) {
            let get = catalogue.machine_types.get().set_project(&engine.settings.project);
            let get = get.set_zone(&offering.place).set_machine_type(&offering.machine_type);
            types.insert(key.clone(), answer(get.send()).await);
        }
        let (image, kind) = (&images[&offering.image], &types[&key]);
        if let Some(error) = image.as_ref().err().or(kind.as_ref().err()) {
            if is_forbidden(error) {
                facts.denied.push(("get its images and machine types", message(error)));
            } else {
                facts.refused.push((offering.name.to_string(), message(error)));
            }
        } else if let (Ok(image), Ok(kind)) = (image, kind) {
            let wrong = mismatch(image, kind, engine.settings.common.disk_gib);
            facts.refused.extend(wrong.map(|why| (offering.name.to_string(), why)));
        }
    }
    facts.denied.dedup();
    types.into_iter().filter_map(|(key, kind)| Some((key, kind.ok()?))).collect()
}

async fn image(engine: &ComputeEngine, catalogue: &Catalogue, named: &str) -> Answer<Image> {
    let image = resource::Image::parse(named).expect("settings have only images that are read");
    let project = image.project.as_ref().unwrap_or(&engine.settings.project);
    if image.is_family {
        let newest = catalogue.images.get_from_family().set_project(project).set_family(&image.name);
        answer(newest.send()).await
    } else {
        answer(catalogue.images.get().set_project(project).set_image(&image.name).send()).await
    }
}

/// Why the image cannot be used with the type, or on the disk.
fn mismatch(image: &Image, kind: &MachineType, disk_gib: Option<u32>) -> Option<String> {
    let of_image = image.architecture.as_ref().and_then(|architecture| architecture.name());
    let of_kind = kind.architecture.as_ref().and_then(|architecture| architecture.name());
    if let (Some(of_image), Some(of_kind)) = (of_image, of_kind)
        && of_image != of_kind
    {
        return Some(format!("the image is for {of_image}, but the machine type is {of_kind}"));
    }
    let (least, wanted) = (image.disk_size_gb?, i64::from(disk_gib?));
    (wanted < least).then(|| format!("`disk` is {wanted} GiB, but the image needs {least}"))
}

#[cfg(test)]
mod tests {
    use google_cloud_compute_v1::model::{image, machine_type};

    use super::*;

    #[test]
    fn an_image_that_does_not_fit_is_told() {
        let image = Image::new().set_architecture(image::Architecture::Arm64).set_disk_size_gb(10);
        let arm = MachineType::new().set_architecture(machine_type::Architecture::Arm64);
        let x86 = MachineType::new().set_architecture(machine_type::Architecture::X8664);
        assert_eq!(mismatch(&image, &arm, None), None);
        assert_eq!(mismatch(&image, &MachineType::new(), Some(10)), None);
        let reason = mismatch(&image, &x86, None);
        assert_eq!(reason.as_deref(), Some("the image is for ARM64, but the machine type is X86_64"));
        let reason = mismatch(&image, &arm, Some(8));
        assert_eq!(reason.as_deref(), Some("`disk` is 8 GiB, but the image needs 10"));
    }
}
