//! Provider `kubernetes` on a stand-in for an API server: its contract, what clusters do to pods, and whole jobs.
//!
//! Pods of the stand-in (cluster/) are processes with an sshd each, in namespaces of their own.
#![expect(unreachable_pub, reason = "the modules of a test have interfaces, though no crate exports them")]
#![expect(clippy::panic, reason = "a wait past its deadline fails the test and says what was seen")]

#[path = "../cluster/api.rs"]
#[expect(dead_code, reason = "a part of it is of the cluster's own tests")]
mod api;
#[path = "../cluster/cluster.rs"]
#[expect(dead_code, reason = "a part of it is of the cluster's own tests")]
mod cluster;
mod contract;
mod doctor;
mod endings;
mod fidelity;
mod fixture;
mod forward;
#[path = "../clouds/http.rs"]
mod http;
mod idle;
mod jobs;
mod launches;
mod manifests;
mod orders;
mod real;
mod silence;
#[path = "../situations/kubernetes/gone.rs"]
mod situation_gone;
#[path = "../situations/kubernetes/orders.rs"]
mod situation_orders;
mod standin;
