//! Virtual machines for real: images that are built and booted. QEMU emulates where there is no KVM.

mod commands;
mod image;
mod images;
mod machine;
