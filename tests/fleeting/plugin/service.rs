//! Leads each call to its function.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use futures_util::stream::{self, BoxStream, StreamExt as _};
use greenroom_backends::fleeting::wire::{
    Empty, HEALTH, HealthCheckRequest, HealthCheckResponse, SHUTDOWN, STREAM_STDIO, StdioData, UpdateResponse,
};
use prost::Message;
use tonic::body::Body;
use tonic::codegen::http;
use tonic::server::{Grpc, NamedService};
use tonic::{Request, Response, Status};
use tonic_prost::ProstCodec;
use tower::service_fn;

use super::group::Group;

/// The answer of a service that serves.
const SERVING: i32 = 1;

/// All services of the plugin.
#[derive(Clone)]
pub struct Service {
    group: Arc<Group>,
}

impl Service {
    pub fn new(group: Arc<Group>) -> Self {
        Self { group }
    }
}

impl NamedService for Service {
    const NAME: &'static str = "proto.InstanceGroup";
}

type Answer = http::Response<Body>;

impl tower::Service<http::Request<Body>> for Service {
    type Response = Answer;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Answer, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        let group = Arc::clone(&self.group);
        Box::pin(async move { Ok(answer(group, request).await) })
    }
}

async fn answer(group: Arc<Group>, request: http::Request<Body>) -> Answer {
    let path = request.uri().path().to_owned();
    if let Some(method) = path.strip_prefix("/proto.InstanceGroup/") {
        let group = &*group;
        return match method {
            "Init" => unary(request, |message| group.init(message)).await,
            "Update" => update(group, request).await,
            "Increase" => unary(request, |message| group.increase(message)).await,
            "Decrease" => unary(request, |message| group.decrease(message)).await,
            "ConnectInfo" => unary(request, |message| group.connect_info(message)).await,
            "Heartbeat" => unary(request, |message| group.heartbeat(message)).await,
            "Suspend" => unary(request, |message| group.suspend(message, true)).await,
            "Resume" => unary(request, |message| group.suspend(message, false)).await,
            _ => Status::unimplemented("unknown method").into_http(),
        };
    }
    match path.as_str() {
        SHUTDOWN => unary(request, |_: Empty| async { Ok(group.shutdown()) }).await,
        HEALTH => {
            let serving = |_: HealthCheckRequest| async { Ok(HealthCheckResponse { status: SERVING }) };
            unary(request, serving).await
        }
        STREAM_STDIO => stdio(&group, request).await,
        _ => Status::unimplemented("unknown service").into_http(),
    }
}

async fn unary<M, R, F>(request: http::Request<Body>, call: impl Fn(M) -> F) -> Answer
where
    M: Message + Default + 'static,
    R: Message + 'static,
    F: Future<Output = Result<R, Status>>,
{
    let service = service_fn(|request: Request<M>| {
        let answer = call(request.into_inner());
        async { answer.await.map(Response::new) }
    });
    Grpc::new(ProstCodec::<R, M>::default()).unary(service, request).await
}

async fn update(group: &Group, request: http::Request<Body>) -> Answer {
    let service = service_fn(|_: Request<Empty>| async {
        let (all, end) = group.update().await?;
        let items = all.into_iter().map(Ok).chain(end.map(Err));
        Ok(Response::new(stream::iter(items.collect::<Vec<Result<UpdateResponse, Status>>>())))
    });
    Grpc::new(ProstCodec::<UpdateResponse, Empty>::default()).server_streaming(service, request).await
}

async fn stdio(group: &Group, request: http::Request<Body>) -> Answer {
    let service = service_fn(|_: Request<Empty>| async {
        let Some(printed) = group.stdio.lock().unwrap().take() else {
            return Err(Status::unknown("the stream is taken"));
        };
        let all = stream::unfold(printed, async |mut printed| Some((Ok(printed.recv().await?), printed)));
        Ok(Response::new(all.boxed() as BoxStream<'static, Result<StdioData, Status>>))
    });
    Grpc::new(ProstCodec::<StdioData, Empty>::default()).server_streaming(service, request).await
}
