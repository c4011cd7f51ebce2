//! Disks with a pool's tags.

use aws_sdk_ec2::types::{Volume, VolumeAttachment, VolumeState, VolumeType};
use greenroom_core::inventory::{Resource, ResourceKind};
use greenroom_core::time::Stamp;

use super::handle;
use super::machines::tags_of;
use crate::cloud::api::Disk;
use crate::cloud::machine::moment;

/// `None` if it is being deleted.
pub(super) fn read(volume: &Volume, now: Stamp) -> Option<Disk> {
    if matches!(volume.state(), Some(VolumeState::Deleting | VolumeState::Deleted)) {
        return None;
    }
    let (instance, tags) = tags_of(volume.tags()).unzip();
    let made = volume.create_time().and_then(|time| time.to_millis().ok());
    let size = volume.size().map(|gib| format!("{gib} GiB"));
    let details = [size.as_deref(), volume.volume_type().map(VolumeType::as_str), volume.availability_zone()];
    let attached = volume.attachments().iter().find_map(VolumeAttachment::instance_id).map(handle);
    let resource = Resource {
        kind: ResourceKind::Volume,
        name: volume.volume_id()?.to_owned(),
        instance,
        tags,
        created: made.map(|at_ms| moment(at_ms, now)),
        detail: Some(details.into_iter().flatten().collect::<Vec<_>>().join(", ")),
    };
    Some(Disk { resource, attached })
}
