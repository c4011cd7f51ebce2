//! Instances that are virtual machines on this machine, through QEMU.

pub mod image;
