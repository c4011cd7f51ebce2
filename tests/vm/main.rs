//! Virtual machines for real: images that are built and booted, the provider's machines, and whole jobs on pools of
//! them. QEMU emulates where there is no KVM.
#![expect(clippy::print_stderr, reason = "figures, and what a failed test leaves to read")]
#![expect(unreachable_pub, reason = "the modules of a test have interfaces, though no crate exports them")]
#![expect(clippy::panic, reason = "a wait past its deadline fails the test and says what was seen")]

#[path = "../hosts/cleaned.rs"]
mod cleaned;
mod clones;
mod commands;
mod containers;
mod ends;
mod fixture;
mod foreign;
#[path = "../contract/provider/here.rs"]
mod here;
mod image;
mod images;
mod internet;
mod isolation;
mod jobs;
mod kills;
mod kinds;
mod machine;
#[path = "../jobs/onslaught.rs"]
mod onslaught;
#[path = "../support/units.rs"]
mod package_units;
#[path = "../jobs/place.rs"]
#[expect(dead_code, reason = "jobs on virtual machines use a part of it")]
mod place;
#[path = "../jobs/processes.rs"]
#[expect(dead_code, reason = "jobs on virtual machines use a part of it")]
mod processes;
#[path = "../contract/provider/suite.rs"]
mod provider;
#[path = "../containers/images.rs"]
mod published;
mod service;
#[path = "../jobs/setting.rs"]
mod setting;
mod stores;
#[path = "../support/service.rs"]
mod support_service;
mod sweep;
mod templates;
mod warm;

mod contract {
    use crate::fixture::VmFixture;
    use crate::provider::provider_contract;

    provider_contract!(VmFixture::new());
}
