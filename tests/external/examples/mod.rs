//! The examples of `examples/providers/`, each against something real, or a stand-in made from its documented interface.

mod docker_machine;
mod hetzner;
mod kit;
mod libvirt;
mod openstack;
mod page;
mod podman;
mod pools;
mod program;
mod promises;
mod skerry;
mod standin;
