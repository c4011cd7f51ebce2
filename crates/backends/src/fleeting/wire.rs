//! The plugins' protocol: its messages, and calls over a Unix socket.

use std::path::{Path, PathBuf};
use std::time::Duration;

use hyper_util::rt::TokioIo;
use prost::{Enumeration, Message};
use tokio::net::UnixStream;
use tonic::client::Grpc;
use tonic::codegen::http::Uri;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::transport::{self, Endpoint};
use tonic::{Request, Status, Streaming};
use tonic_prost::ProstCodec;
use tower::service_fn;

/// The time by which the plugin's context outlives the caller's patience: the caller reports the time limit first.
const GRACE: Duration = Duration::from_secs(1);

/// The longest message, in bytes. One with 5,000 instances has less than 1 MiB.
const LONGEST: usize = 16 << 20;
/// The service's name, in front of each method.
pub const SERVICE: &str = "proto.InstanceGroup";
/// The one capability that exists.
pub const SUSPEND_RESUME: &str = "suspend_resume";
pub const STREAM_STDIO: &str = "/plugin.GRPCStdio/StreamStdio";
pub const HEALTH: &str = "/grpc.health.v1.Health/Check";
pub const SHUTDOWN: &str = "/plugin.GRPCController/Shutdown";

/// A connection to one plugin process. Clones share it.
#[derive(Debug, Clone)]
pub struct PluginClient {
    channel: transport::Channel,
}

impl PluginClient {
    /// Connects at the first call. No keep-alive pings: Go's servers hang up on them.
    pub fn new(socket: &Path) -> Self {
        let socket = socket.to_owned();
        let connect = service_fn(move |_: Uri| dial(socket.clone()));
        // The name is sent as the authority, which plugins do not check.
        let channel = Endpoint::from_static("http://localhost").connect_with_connector_lazy(connect);
        Self { channel }
    }

    /// A call with one answer. The plugin is told the time limit.
    pub async fn unary<M, R>(&self, path: &'static str, message: M, limit: Duration) -> Result<R, Status>
    where
        M: Message + 'static,
        R: Message + Default + 'static,
    {
        let mut grpc = self.ready().await?;
        let mut request = Request::new(message);
        request.set_timeout(limit + GRACE);
        let codec = ProstCodec::<M, R>::default();
        let answer = grpc.unary(request, PathAndQuery::from_static(path), codec).await?;
        Ok(answer.into_inner())
    }

    /// A call with a stream of answers. `None`: it lasts as long as the plugin.
    pub async fn streaming<M, R>(
        &self,
        path: &'static str,
        message: M,
        limit: Option<Duration>,
    ) -> Result<Streaming<R>, Status>
    where
        M: Message + 'static,
        R: Message + Default + 'static,
    {
        let mut grpc = self.ready().await?;
        let mut request = Request::new(message);
        if let Some(limit) = limit {
            request.set_timeout(limit + GRACE);
        }
        let codec = ProstCodec::<M, R>::default();
        let answer = grpc.server_streaming(request, PathAndQuery::from_static(path), codec).await?;
        Ok(answer.into_inner())
    }

    async fn ready(&self) -> Result<Grpc<transport::Channel>, Status> {
        let grpc = Grpc::new(self.channel.clone());
        let mut grpc = grpc.max_decoding_message_size(LONGEST).max_encoding_message_size(LONGEST);
        grpc.ready().await.map_err(|error| Status::from_error(Box::new(error)))?;
        Ok(grpc)
    }
}

async fn dial(socket: PathBuf) -> std::io::Result<TokioIo<UnixStream>> {
    UnixStream::connect(socket).await.map(TokioIo::new)
}

#[derive(Clone, PartialEq, Message)]
pub struct Empty {}

#[derive(Clone, PartialEq, Message)]
pub struct InitRequest {
    /// A JSON object.
    #[prost(bytes = "vec", tag = "1")]
    pub config: Vec<u8>,
    /// Plugins crash without it.
    #[prost(message, optional, tag = "2")]
    pub settings: Option<Settings>,
}

#[derive(Clone, PartialEq, Message)]
pub struct Settings {
    /// Plugins crash without it.
    #[prost(message, optional, tag = "1")]
    pub connector_config: Option<ConnectorConfig>,
}

#[derive(Clone, PartialEq, Message)]
pub struct ConnectorConfig {
    #[prost(string, tag = "1")]
    pub os: String,
    #[prost(string, tag = "2")]
    pub arch: String,
    #[prost(string, tag = "3")]
    pub protocol: String,
    #[prost(string, tag = "4")]
    pub username: String,
    #[prost(string, tag = "5")]
    pub password: String,
    #[prost(bytes = "vec", tag = "6")]
    pub key: Vec<u8>,
    #[prost(bool, tag = "7")]
    pub use_static_credentials: bool,
    /// In nanoseconds.
    #[prost(int64, tag = "8")]
    pub keepalive: i64,
    /// In nanoseconds.
    #[prost(int64, tag = "9")]
    pub timeout: i64,
    #[prost(int64, tag = "10")]
    pub protocol_port: i64,
}

#[derive(Clone, PartialEq, Message)]
pub struct InitResponse {
    #[prost(string, tag = "1")]
    pub id: String,
    #[prost(uint32, tag = "2")]
    pub max_size: u32,
    #[prost(string, tag = "3")]
    pub version: String,
    #[prost(string, tag = "4")]
    pub build_info: String,
    #[prost(string, repeated, tag = "5")]
    pub capabilities: Vec<String>,
}

#[derive(Clone, PartialEq, Message)]
pub struct UpdateResponse {
    #[prost(string, tag = "1")]
    pub instance: String,
    /// `State::try_from` reads it. The generated getter would turn a number that it does not know into `Creating`.
    #[prost(enumeration = "State", tag = "2")]
    pub state: i32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Enumeration)]
#[repr(i32)]
pub enum State {
    Creating = 0,
    Running = 1,
    Deleting = 2,
    Deleted = 3,
    Timeout = 4,
    Suspending = 5,
    Suspended = 6,
    Resuming = 7,
}

#[derive(Clone, PartialEq, Message)]
pub struct IncreaseRequest {
    #[prost(uint32, tag = "1")]
    pub n: u32,
}

#[derive(Clone, PartialEq, Message)]
pub struct IncreaseResponse {
    #[prost(uint32, tag = "1")]
    pub succeeded: u32,
}

/// The requests of `Decrease`, `Suspend` and `Resume`, which have the same fields.
#[derive(Clone, PartialEq, Message)]
pub struct InstancesRequest {
    #[prost(string, repeated, tag = "1")]
    pub instances: Vec<String>,
}

/// The answers of `Decrease`, `Suspend` and `Resume`, which have the same fields.
#[derive(Clone, PartialEq, Message)]
pub struct InstancesResponse {
    #[prost(string, repeated, tag = "1")]
    pub succeeded: Vec<String>,
}

/// The requests of `ConnectInfo` and `Heartbeat`, which have the same field.
#[derive(Clone, PartialEq, Message)]
pub struct InstanceRequest {
    #[prost(string, tag = "1")]
    pub instance: String,
}

#[derive(Clone, PartialEq, Message)]
pub struct ConnectInfoResponse {
    #[prost(message, optional, tag = "1")]
    pub connector: Option<ConnectorConfig>,
    #[prost(string, tag = "2")]
    pub external_addr: String,
    #[prost(string, tag = "3")]
    pub internal_addr: String,
    /// In seconds since 1970; 0: never.
    #[prost(int64, tag = "4")]
    pub expires: i64,
}

/// A part of the plugin's output since its handshake: at most 1 KiB.
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Bytes as a Go plugin writes and reads them.
    #[test]
    fn the_numbers_are_those_of_the_protocol() {
        let connector = ConnectorConfig {
            os: "o".into(),
            arch: "a".into(),
            protocol: "p".into(),
            username: "u".into(),
            password: "w".into(),
            key: b"k".to_vec(),
            use_static_credentials: true,
            keepalive: 1,
            timeout: 2,
            protocol_port: 3,
        };
        let fields =
            b"\x0a\x01o\x12\x01a\x1a\x01p\x22\x01u\x2a\x01w\x32\x01k\x38\x01\x40\x01\x48\x02\x50\x03";
        assert_eq!(connector.encode_to_vec(), fields);
        let empty = InitRequest {
            config: b"{}".to_vec(),
            settings: Some(Settings { connector_config: Some(ConnectorConfig::default()) }),
        };
        assert_eq!(empty.encode_to_vec(), b"\x0a\x02{}\x12\x02\x0a\x00", "empty settings are present");
        let info = ConnectInfoResponse {
            connector: None,
            external_addr: "e".into(),
            internal_addr: "i".into(),
            expires: 4,
        };
        assert_eq!(info.encode_to_vec(), b"\x12\x01e\x1a\x01i\x20\x04");
        let init = InitResponse::decode(&b"\x0a\x01g\x10\x05\x1a\x01v\x22\x01b\x2a\x01c"[..]).unwrap();
        assert_eq!((init.id.as_str(), init.max_size, init.version.as_str()), ("g", 5, "v"));
        assert_eq!((init.build_info.as_str(), init.capabilities), ("b", vec!["c".to_owned()]));
        let unknown = UpdateResponse::decode(&b"\x0a\x01i\x10\x63"[..]).unwrap();
        assert_eq!((unknown.instance.as_str(), unknown.state), ("i", 99), "an unknown state stays a number");
    }
}
