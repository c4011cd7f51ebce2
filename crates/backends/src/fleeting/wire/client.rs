//! Calls of a plugin over its Unix socket.

use std::path::{Path, PathBuf};
use std::time::Duration;

use hyper_util::rt::TokioIo;
use prost::Message;
use tokio::net::UnixStream;
use tonic::client::Grpc;
use tonic::codegen::http::Uri;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::transport::{Channel, Endpoint};
use tonic::{Request, Status, Streaming};
use tonic_prost::ProstCodec;
use tower::service_fn;

/// How long the plugin's context outlives the caller's patience: the caller reports the time limit first.
const GRACE: Duration = Duration::from_secs(1);

/// The longest message, in bytes. One with 5,000 instances has less than 1 MiB.
const LONGEST: usize = 16 << 20;

/// A connection to one plugin process. Clones share it.
#[derive(Debug, Clone)]
pub struct Client {
    channel: Channel,
}

impl Client {
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

    async fn ready(&self) -> Result<Grpc<Channel>, Status> {
        let grpc = Grpc::new(self.channel.clone());
        let mut grpc = grpc.max_decoding_message_size(LONGEST).max_encoding_message_size(LONGEST);
        grpc.ready().await.map_err(|error| Status::from_error(Box::new(error)))?;
        Ok(grpc)
    }
}

async fn dial(socket: PathBuf) -> std::io::Result<TokioIo<UnixStream>> {
    UnixStream::connect(socket).await.map(TokioIo::new)
}
