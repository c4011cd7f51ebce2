//! Virtual machines for real: images that are built and booted, and the provider's machines. QEMU emulates where there
//! is no KVM.
#![expect(clippy::print_stderr, reason = "a test that cannot run here says so")]

mod clones;
mod commands;
mod ends;
mod fixture;
mod image;
mod images;
mod isolation;
mod kills;
mod kinds;
mod machine;
#[path = "../contract/provider/suite.rs"]
mod provider;
mod service;
#[path = "../support/settled.rs"]
mod settled;
#[path = "../support/service.rs"]
mod support_service;
#[path = "../support/systemd.rs"]
mod systemd;
mod templates;

mod contract {
    use crate::fixture::VmFixture;
    use crate::provider::provider_contract;

    provider_contract!(VmFixture::new());
}
