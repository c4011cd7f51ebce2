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
mod image;
mod images;
mod internet;
mod isolation;
mod jobs;
mod kills;
mod kinds;
mod machine;
#[path = "../support/units.rs"]
mod package_units;
#[path = "../containers/images.rs"]
mod published;
mod service;
mod stores;
#[path = "../support/service.rs"]
mod support_service;
mod sweep;
mod templates;
mod warm;

mod contract {
    use greenroom_harness::provider_contract;

    use crate::fixture::VmFixture;

    provider_contract!(VmFixture::new());
}
