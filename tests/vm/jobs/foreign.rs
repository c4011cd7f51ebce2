//! A whole job on a disk that greenroom did not make.

use std::time::Duration;

use super::{Machines, machines};
use crate::foreign;

#[test]
#[ignore = "makes a disk of its own"]
fn a_job_passes_on_a_cloud_image() {
    let mut setting = machines().provider("image", foreign::disk()).provider("memory", "512M");
    setting = setting.timing("launch_timeout", "10m");
    setting.patience = Duration::from_mins(5);
    let place = Machines::open(setting);
    let said =
        place.order(&["try", "echo \"$(whoami) on $(hostname): $(cloud-init status)\"; git --version"]);
    assert!(said.contains("root on pool-"), "{said}");
    assert!(said.contains("status: done") && said.contains("git version 2"), "{said}");
    place.expect_nothing_left(0);
}
