//! Messages of the services around the group: a plugin's standard streams, its end, its health, and errors with details.

use prost::{Enumeration, Message};

pub const STREAM_STDIO: &str = "/plugin.GRPCStdio/StreamStdio";
pub const SHUTDOWN: &str = "/plugin.GRPCController/Shutdown";
pub const HEALTH: &str = "/grpc.health.v1.Health/Check";

/// What the plugin has printed since its handshake: at most 1 KiB each.
#[derive(Clone, PartialEq, Message)]
pub struct StdioData {
    #[prost(enumeration = "Channel", tag = "1")]
    pub channel: i32,
    #[prost(bytes = "vec", tag = "2")]
    pub data: Vec<u8>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Enumeration)]
#[repr(i32)]
pub enum Channel {
    Invalid = 0,
    Stdout = 1,
    Stderr = 2,
}

/// The empty service name stands for the whole process.
#[derive(Clone, PartialEq, Message)]
pub struct HealthCheckRequest {
    #[prost(string, tag = "1")]
    pub service: String,
}

#[derive(Clone, PartialEq, Message)]
pub struct HealthCheckResponse {
    #[prost(int32, tag = "1")]
    pub status: i32,
}

/// `google.rpc.Status`, as an error's details have it.
#[derive(Clone, PartialEq, Message)]
pub struct RpcStatus {
    #[prost(int32, tag = "1")]
    pub code: i32,
    #[prost(string, tag = "2")]
    pub message: String,
    #[prost(message, repeated, tag = "3")]
    pub details: Vec<Any>,
}

/// `google.protobuf.Any`.
#[derive(Clone, PartialEq, Message)]
pub struct Any {
    #[prost(string, tag = "1")]
    pub type_url: String,
    #[prost(bytes = "vec", tag = "2")]
    pub value: Vec<u8>,
}
