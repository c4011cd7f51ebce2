//! Finds the security groups of the runner host, if it is an instance of the pool's account and region.

use std::path::Path;

use aws_sdk_ec2::Client;
use aws_sdk_ec2::types::{Instance, InstanceNetworkInterface, Reservation};

/// Where instances of the Nitro system show their ID, to every user. Older ones do not show it.
const ASSET_TAG: &str = "/sys/devices/virtual/dmi/id/board_asset_tag";

/// Empty if they are unknown.
pub(super) async fn groups(client: &Client) -> Vec<String> {
    let Some(id) = instance_id(Path::new(ASSET_TAG)) else { return Vec::new() };
    // EC2 does not know instances of other accounts and regions.
    let Ok(answer) = client.describe_instances().instance_ids(id).send().await else { return Vec::new() };
    let instances = || answer.reservations().iter().flat_map(Reservation::instances);
    let of_interfaces =
        instances().flat_map(Instance::network_interfaces).flat_map(InstanceNetworkInterface::groups);
    let groups = instances().flat_map(Instance::security_groups).chain(of_interfaces);
    groups.filter_map(|group| group.group_id()).map(str::to_owned).collect()
}

fn instance_id(asset_tag: &Path) -> Option<String> {
    let text = fs_err::read_to_string(asset_tag).ok()?;
    let id = text.trim();
    let digits = id.strip_prefix("i-")?;
    (digits.len() >= 8 && digits.bytes().all(|b| b.is_ascii_hexdigit())).then(|| id.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_instance_shows_its_id_and_other_machines_show_other_text() {
        let dir = tempfile::tempdir().unwrap();
        let tag = dir.path().join("board_asset_tag");
        assert_eq!(instance_id(&tag), None);
        for (text, wanted) in [
            ("i-0123456789abcdef0\n", Some("i-0123456789abcdef0")),
            ("\n", None),
            ("Default string\n", None),
            ("i-rack-7\n", None),
        ] {
            fs_err::write(&tag, text).unwrap();
            assert_eq!(instance_id(&tag).as_deref(), wanted, "{text:?}");
        }
    }
}
