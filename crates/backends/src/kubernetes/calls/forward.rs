//! The process of a port-forward: connects its standard streams, a socket, with a port of a pod.
//!
//! The process ends with either side, and with the process that started it. It judges no silence: the SSH session's keep-alive
//! does.

use std::io;
use std::os::fd::AsFd as _;
use std::process::ExitCode;
use std::time::Duration;

use futures_util::{Sink, SinkExt as _, Stream, StreamExt as _};
use greenroom_core::text::{clean_line, with_causes};
use greenroom_ports::forward::{LONGEST, OPEN, Refusal, Request};
use greenroom_ports::provider::ProviderError;
use hyper_util::client::legacy;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use k8s_openapi::api::core::v1::Pod;
use kube::client::ConfigExt as _;
use kube::{Api, Client, Config};
use rustix::process::Signal;
use tokio::io::{
    AsyncBufReadExt as _, AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, BufReader,
};
use tokio::net::UnixStream;
use tokio::time::timeout;
use tokio_tungstenite::tungstenite::{Error, Message};
use tower::ServiceBuilder;

use super::client::{config, encoded, no_client, server};
use super::errors::of_transport;
use crate::cloud::api::CallKind;

/// Limit to connect, including credentials from a program that the kubeconfig names.
const CONNECT_WITHIN: Duration = Duration::from_secs(40);
/// Limit to tell the API server that the connection is over.
const CLOSE_WITHIN: Duration = Duration::from_millis(500);
/// Maximum length of a reason, in characters.
const MAX_REASON: usize = 400;
/// Bytes of a frame to the pod, with the number of its channel.
const FRAME: usize = 32 * 1024;
/// The channels of the one forwarded port. The first frame of each repeats the port's number.
const DATA: u8 = 0;
const ERRORS: u8 = 1;

/// The hidden command.
pub(in crate::kubernetes) fn main() -> ExitCode {
    match begin() {
        Ok(()) => ExitCode::SUCCESS,
        // The other process finds no answer.
        Err(_) => ExitCode::FAILURE,
    }
}

fn begin() -> io::Result<()> {
    // RACE: if that process has just died, the answer cannot be written.
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
    let socket = std::os::unix::net::UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?);
    socket.set_nonblocking(true)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async { Box::pin(serve(UnixStream::from_std(socket)?)).await })
}

async fn serve(socket: UnixStream) -> io::Result<()> {
    let (reader, mut writer) = socket.into_split();
    let mut reader = BufReader::with_capacity(FRAME, reader);
    let mut line = Vec::new();
    (&mut reader).take(LONGEST).read_until(b'\n', &mut line).await?;
    let request: Request = serde_json::from_slice(&line)?;
    let late = |_| Refusal::Way(format!("no port-forward within {} s", CONNECT_WITHIN.as_secs()));
    let opened = timeout(CONNECT_WITHIN, open(&request)).await.map_err(late).flatten();
    let (mut frames, beginning) = match opened {
        Ok(opened) => opened,
        Err(refusal) => return writer.write_all(&serde_json::to_vec(&refusal)?).await,
    };
    writer.write_all(&[&[OPEN], beginning.as_slice()].concat()).await?;
    let (mut to_pod, mut from_pod) = (&mut frames).split();
    tokio::select! {
        sent = send(&mut reader, &mut to_pod) => sent?,
        received = receive(&mut from_pod, &mut writer) => received?,
    }
    let _told = timeout(CLOSE_WITHIN, to_pod.close()).await;
    Ok(())
}

/// Sends until the session closes its side, after which it waits for nothing.
async fn send(
    from: &mut (impl AsyncRead + Unpin),
    to: &mut (impl Sink<Message, Error = Error> + Unpin),
) -> io::Result<()> {
    let mut frame = vec![DATA; FRAME];
    loop {
        let read = from.read(&mut frame[1..]).await?;
        if read == 0 {
            return Ok(());
        }
        to.send(Message::binary(frame[..=read].to_vec())).await.map_err(io::Error::other)?;
    }
}

/// Receives until the API server closes the forward, reports an error of the pod's, or is lost.
async fn receive(
    from: &mut (impl Stream<Item = Result<Message, Error>> + Unpin),
    to: &mut (impl AsyncWrite + Unpin),
) -> io::Result<()> {
    while let Some(Ok(message)) = from.next().await {
        match message {
            Message::Binary(frame) => match frame.split_first() {
                Some((&DATA, data)) => to.write_all(data).await?,
                // The port's number, if the pod has been faster; or why the forward ends.
                Some((&ERRORS, text)) if text.len() <= 2 => {}
                Some(_) | None => return Ok(()),
            },
            Message::Close(_) => return Ok(()),
            _ => {}
        }
    }
    Ok(())
}

/// An open forward, and the first bytes that the pod sent. An SSH server speaks first, so that a pod in which none answers is
/// refused with its reason.
async fn open(
    request: &Request,
) -> Result<
    (impl Stream<Item = Result<Message, Error>> + Sink<Message, Error = Error> + Unpin, Vec<u8>),
    Refusal,
> {
    let Request { to, port } = request;
    let config = config(to.context.as_deref(), &to.kubeconfig).await.map_err(of_way)?;
    let client = client(config).map_err(of_way)?;
    let pods: Api<Pod> = Api::namespaced(client.clone(), &to.namespace);
    let pod = pods.get(&to.pod).await.map_err(|error| match &error {
        kube::Error::Api(status)
            if status.code == 404 && status.reason == "NotFound" && is_of_pod(status) =>
        {
            Refusal::Pod("the pod no longer exists".to_owned())
        }
        _ => of_call(&error),
    })?;
    if pod.metadata.uid.as_deref() != Some(to.uid.as_str()) {
        return Err(Refusal::Pod("another pod has its name now".to_owned()));
    }
    let path = format!("/api/v1/namespaces/{}/pods", encoded(&to.namespace));
    let forward = kube::core::Request::new(path).portforward(&to.pod, &[*port]);
    let forward = forward.map_err(|error| Refusal::Way(with_causes(&error)))?;
    let connection = client.connect(forward).await.map_err(|error| match &error {
        // The API server answers for a node that it cannot reach, and for a pod that is gone.
        kube::Error::Api(status) if status.code == 404 || status.code >= 500 => {
            Refusal::Pod(format!("{}: {}", status.reason, status.message))
        }
        _ => of_call(&error),
    })?;
    let mut frames = connection.into_stream();
    let beginning = beginning(&mut frames).await?;
    Ok((frames, beginning))
}

fn is_of_pod(status: &kube::core::Status) -> bool {
    status.details.as_ref().is_some_and(|details| details.kind == "pods")
}

/// Waits for the first bytes of the pod.
async fn beginning(
    frames: &mut (impl Stream<Item = Result<Message, Error>> + Unpin),
) -> Result<Vec<u8>, Refusal> {
    let mut data = false;
    let mut errors = false;
    while let Some(message) = frames.next().await {
        let message = message
            .map_err(|error| Refusal::Way(format!("the port-forward broke: {}", with_causes(&error))))?;
        match message {
            Message::Binary(frame) => match frame.split_first() {
                Some((&DATA, bytes)) if data => return Ok(bytes.to_vec()),
                Some((&ERRORS, text)) if errors => {
                    return Err(Refusal::Pod(clean_line(text, MAX_REASON)));
                }
                Some((&DATA, _)) => data = true,
                Some((&ERRORS, _)) => errors = true,
                Some(_) | None => break,
            },
            Message::Close(_) => break,
            _ => {}
        }
    }
    Err(Refusal::Pod("the API server closed the port-forward before an SSH server answered".to_owned()))
}

/// A client that sends small frames immediately: an SSH session has many, and each would wait for an acknowledgement.
fn client(config: Config) -> Result<Client, ProviderError> {
    let server = server(&config);
    let no_client = |error: kube::Error| no_client(&server, &error);
    let mut tcp = HttpConnector::new();
    tcp.enforce_http(false);
    tcp.set_nodelay(true);
    tcp.set_connect_timeout(config.connect_timeout);
    let https = config.rustls_https_connector_with_connector(tcp).map_err(no_client)?;
    let service = ServiceBuilder::new()
        .layer(config.base_uri_layer())
        .option_layer(config.auth_layer().map_err(no_client)?)
        .layer(config.extra_headers_layer().map_err(no_client)?)
        .map_err(tower::BoxError::from)
        .service(legacy::Client::builder(TokioExecutor::new()).build(https));
    Ok(Client::new(service, config.default_namespace))
}

fn of_way(error: ProviderError) -> Refusal {
    Refusal::Way(error.failure.message)
}

/// A failed call.
fn of_call(error: &kube::Error) -> Refusal {
    match error {
        kube::Error::Api(status) => {
            let line = format!("{}: {}", status.reason, status.message);
            Refusal::Way(clean_line(line.as_bytes(), MAX_REASON))
        }
        _ => of_way(of_transport(error, CallKind::Existing)),
    }
}
