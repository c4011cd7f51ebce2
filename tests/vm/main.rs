//! Virtual machines for real: images that are built and booted. QEMU emulates where there is no KVM.
#![expect(clippy::print_stderr, reason = "a test that cannot run here says so")]

mod commands;
mod image;
mod images;
mod machine;
mod service;
#[path = "../support/settled.rs"]
mod settled;
#[path = "../support/service.rs"]
mod support_service;
#[path = "../support/systemd.rs"]
mod systemd;
