//! A server that misbehaves in one way.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on says where")]

use std::collections::HashMap;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use russh::keys::key::safe_rng;
use russh::keys::{Algorithm, PrivateKey};
use russh::server::{self, Auth, ChannelOpenHandle, Handle, Handler, Msg, Session};
use russh::{Channel, ChannelId, Disconnect, Sig};
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;
use tokio::task::JoinHandle;

/// The host key of all these servers.
pub(crate) static HOST: LazyLock<PrivateKey> =
    LazyLock::new(|| PrivateKey::random(&mut safe_rng(), Algorithm::Ed25519).unwrap());

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Trick {
    // Before SSH begins.
    Silent,
    HangsUp,
    Garbage,
    EndlessBanner,
    EndlessLine,
    SilentAfterId,
    HangsUpAfterId,
    HugePacket,
    GarbagePacket,
    /// Announces a packet and sends only its beginning.
    SilentAfterLength,
    // Until a session runs.
    NeverAuthenticates,
    Disconnects,
    RefusesSessions,
    NeverOpens,
    RefusesCommands,
    /// Does not answer the request to run a command.
    NeverStarts,
    /// Answers it, reads the script and sends nothing more.
    NeverSpeaks,
    // While it runs.
    ClosesWithoutStatus,
    EndsBeforeTheShell,
    DropsConnection,
    DropsAfterStatus,
    GoesSilent,
    TwoStatuses,
    StatusOnly,
    OddSignal,
    // After the shell has answered its first line, where it has one.
    FloodsOutput,
    FloodsBoth,
    FloodsUnknownStream,
    FloodsRequests,
    OpensChannels,
    /// Ends the marked line with this.
    Names(&'static str),
    NamesWithoutEnd,
    /// A silent script: longer than a start may take.
    NamesAndRests,
    NamesAndStalls,
    NamesAndRefuses,
    // While a shell waits for a script.
    WaitingFloods,
    WaitingEnds,
    /// Global requests and channels, without end.
    WaitingAsks,
    WaitingOpens,
}

impl Trick {
    /// True if the shell starts as it should.
    fn begins(self) -> bool {
        matches!(
            self,
            Self::TwoStatuses
                | Self::StatusOnly
                | Self::OddSignal
                | Self::OpensChannels
                | Self::FloodsRequests
                | Self::GoesSilent
                | Self::FloodsOutput
                | Self::FloodsBoth
                | Self::FloodsUnknownStream
                | Self::NamesAndRests
                | Self::NamesAndStalls
                | Self::NamesAndRefuses
        ) || self.is_on_a_waiting_shell()
    }

    /// True if it applies to the waiting shell: then each session works like the first.
    fn is_on_a_waiting_shell(self) -> bool {
        matches!(self, Self::WaitingFloods | Self::WaitingEnds | Self::WaitingAsks | Self::WaitingOpens)
    }
}

/// Serves until the task is aborted.
pub(crate) async fn serve(trick: Trick) -> (u16, JoinHandle<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let serving = tokio::spawn(async move {
        let mut connections = tokio::task::JoinSet::new();
        while let Ok((stream, _)) = listener.accept().await {
            connections.spawn(connection(trick, stream));
        }
    });
    (port, serving)
}

async fn connection(trick: Trick, mut stream: TcpStream) {
    const ID: &[u8] = b"SSH-2.0-trick\r\n";
    let id_and = |more: &[u8]| [ID, more].concat();
    // The client hangs up in the middle, which is expected.
    let _written = match trick {
        Trick::Silent => stream.write_all(b"").await,
        Trick::HangsUp => return,
        Trick::Garbage => endlessly(&mut stream, &[0xd5; 4096]).await,
        Trick::EndlessBanner => endlessly(&mut stream, &b"welcome\r\n".repeat(400)).await,
        Trick::EndlessLine => endlessly(&mut stream, &[b'x'; 4096]).await,
        Trick::SilentAfterId => stream.write_all(ID).await,
        Trick::HangsUpAfterId => {
            let _written = stream.write_all(ID).await;
            let _ended = stream.shutdown().await;
            // All data of the client is read, in any number of pieces, so that it sees a regular end and no reset.
            let _read = tokio::io::copy(&mut stream, &mut tokio::io::sink()).await;
            return;
        }
        Trick::HugePacket => stream.write_all(&id_and(&[0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0])).await,
        Trick::GarbagePacket => {
            stream.write_all(&id_and(&[[0, 0, 1, 0, 4, 20].as_slice(), &[7; 254]].concat())).await
        }
        Trick::SilentAfterLength => stream.write_all(&id_and(&[0, 0, 1, 0, 4, 20])).await,
        _ => return ssh(trick, stream).await,
    };
    std::future::pending::<()>().await;
}

async fn endlessly(stream: &mut TcpStream, what: &[u8]) -> std::io::Result<()> {
    loop {
        stream.write_all(what).await?;
    }
}

async fn ssh(trick: Trick, stream: TcpStream) {
    // Dropping it closes the connection without a message.
    let cut = stream.into_std().unwrap();
    let stream = TcpStream::from_std(cut.try_clone().unwrap()).unwrap();
    let config = server::Config {
        keys: vec![HOST.clone()],
        auth_rejection_time: Duration::ZERO,
        nodelay: true,
        ..server::Config::default()
    };
    let server = Server { trick, sessions: 0, cut: Arc::new(cut), answered: HashMap::new() };
    if let Ok(running) = server::run_stream(Arc::new(config), stream, server).await {
        // How it ends does not matter to the server.
        let _ended = running.await;
    }
}

struct Server {
    trick: Trick,
    sessions: u32,
    cut: Arc<std::net::TcpStream>,
    /// The shells that are to answer their first lines.
    answered: HashMap<ChannelId, Arc<Notify>>,
}

impl Handler for Server {
    type Error = russh::Error;

    async fn auth_publickey(
        &mut self,
        _: &str,
        _: server::VerifiedPublicKey<'_>,
    ) -> Result<Auth, Self::Error> {
        if self.trick == Trick::NeverAuthenticates {
            std::future::pending::<()>().await;
        }
        Ok(Auth::Accept)
    }

    async fn channel_open_session(
        &mut self,
        _: Channel<Msg>,
        reply: ChannelOpenHandle,
        session: &mut Session,
    ) -> Result<(), Self::Error> {
        self.sessions += 1;
        match self.trick {
            Trick::Disconnects => {
                session.disconnect(Disconnect::ByApplication, "go\x1b[2J\r\n away\x07", "en")?;
            }
            Trick::RefusesSessions => {}
            Trick::NamesAndRefuses if self.sessions > 1 => {}
            Trick::NeverOpens => std::future::pending().await,
            _ => reply.accept().await,
        }
        Ok(())
    }

    async fn exec_request(
        &mut self,
        id: ChannelId,
        command: &[u8],
        session: &mut Session,
    ) -> Result<(), Self::Error> {
        match self.trick {
            Trick::RefusesCommands => return session.channel_failure(id),
            Trick::NeverStarts => return Ok(()),
            // A second command, which is the stop's, is started and never answered.
            trick if self.sessions > 1 && !trick.is_on_a_waiting_shell() => {
                return session.channel_success(id);
            }
            _ => session.channel_success(id)?,
        }
        let mark = mark(command);
        let answered = Arc::<Notify>::default();
        self.answered.insert(id, Arc::clone(&answered));
        tokio::spawn(play(self.trick, id, session.handle(), (mark, answered), Arc::clone(&self.cut)));
        Ok(())
    }

    async fn data(&mut self, id: ChannelId, data: &[u8], session: &mut Session) -> Result<(), Self::Error> {
        if let Some(answer) = answer(data)
            && let Some(answered) = self.answered.get(&id)
        {
            session.data(id, answer.into_bytes())?;
            answered.notify_one();
        } else if self.trick == Trick::FloodsRequests
            && let Some(answered) = self.answered.remove(&id)
        {
            // The script comes: what follows takes longer than a start may.
            for _ in 0..50_000 {
                session.keepalive_request()?;
            }
            answered.notify_one();
        } else if self.trick == Trick::GoesSilent {
            // The whole connection, answers to keep-alives included.
            std::future::pending::<()>().await;
        }
        Ok(())
    }
}

/// The mark that the client expects before the session's number, which the server can read.
fn mark(command: &[u8]) -> String {
    let command = String::from_utf8_lossy(command);
    command
        .split_once("echo ")
        .and_then(|(_, rest)| rest.split_once("$$"))
        .map_or("?", |(mark, _)| mark)
        .to_owned()
}

/// The answer of a shell to its first line.
fn answer(line: &[u8]) -> Option<String> {
    Some(std::str::from_utf8(line).ok()?.strip_prefix("echo greenroom-shell-")?).map(|rest| {
        format!("greenroom-shell-{}", rest.replace("\"\"", "").replace("${BASH_VERSION:+bash}", "bash"))
    })
}

async fn play(
    trick: Trick,
    id: ChannelId,
    to: Handle,
    (mark, answered): (String, Arc<Notify>),
    cut: Arc<std::net::TcpStream>,
) {
    let done = async |code| {
        let _gone = to.exit_status_request(id, code).await;
        let _gone = to.eof(id).await;
        let _gone = to.close(id).await;
    };
    let stderr = async |text: String| {
        let _gone = to.extended_data(id, 1, text.into_bytes()).await;
    };
    if trick.begins() {
        stderr(format!("{mark}4711\n")).await;
        answered.notified().await;
    }
    if trick == Trick::FloodsRequests {
        answered.notified().await;
    }
    match trick {
        Trick::ClosesWithoutStatus => {
            let _gone = to.close(id).await;
        }
        Trick::EndsBeforeTheShell => {
            let _gone = to.exit_signal_request(id, Sig::KILL, false, String::new(), String::new()).await;
            let _gone = to.close(id).await;
        }
        Trick::DropsConnection | Trick::DropsAfterStatus => {
            let _gone = to.data(id, "hello").await;
            if trick == Trick::DropsAfterStatus {
                let _gone = to.exit_status_request(id, 0).await;
            }
            tokio::time::sleep(Duration::from_millis(200)).await;
            cut.shutdown(std::net::Shutdown::Write).unwrap();
        }
        Trick::TwoStatuses => {
            let _gone = to.exit_status_request(id, 42).await;
            done(0).await;
        }
        Trick::StatusOnly => {
            let _gone = to.exit_status_request(id, 7).await;
        }
        Trick::OddSignal => {
            let name = format!("BOOM\x1b[31m\n{}", "x".repeat(100_000));
            let _gone =
                to.exit_signal_request(id, Sig::Custom(name), false, String::new(), String::new()).await;
            let _gone = to.close(id).await;
        }
        Trick::FloodsOutput | Trick::FloodsBoth | Trick::FloodsUnknownStream => {
            let ext = if trick == Trick::FloodsBoth { 1 } else { 99 };
            loop {
                let sent = match trick {
                    Trick::FloodsUnknownStream => Ok(()),
                    _ => to.data(id, vec![b'x'; 32_000]).await.map_err(drop),
                };
                let more = match trick {
                    Trick::FloodsOutput => Ok(()),
                    _ => to.extended_data(id, ext, vec![b'y'; 32_000]).await.map_err(drop),
                };
                if sent.and(more).is_err() {
                    return;
                }
            }
        }
        Trick::OpensChannels => {
            open_channels(&to).await;
            done(0).await;
        }
        Trick::Names(_) | Trick::NamesWithoutEnd => {
            let endless = "9".repeat(100_000);
            let word = if let Trick::Names(number) = trick { format!("{number}\n") } else { endless };
            stderr(format!("{mark}{word}")).await;
            answered.notified().await;
            done(0).await;
        }
        Trick::NamesAndRests => {
            tokio::time::sleep(Duration::from_secs(4)).await;
            done(0).await;
        }
        Trick::WaitingFloods => {
            let flood = vec![b'x'; 32_000];
            while to.extended_data(id, 1, flood.clone()).await.and(to.data(id, flood.clone()).await).is_ok() {
            }
        }
        Trick::WaitingAsks | Trick::WaitingOpens => {
            let mut askers = tokio::task::JoinSet::new();
            for _ in 0..8 {
                askers.spawn(ask_endlessly(trick, id, to.clone()));
            }
            while askers.join_next().await.is_some() {}
        }
        Trick::GoesSilent | Trick::NeverSpeaks | Trick::NamesAndStalls | Trick::NamesAndRefuses => {}
        _ => done(0).await,
    }
}

/// The client takes none of them.
async fn open_channels(to: &Handle) {
    for n in 0..2000_u32 {
        let refused = match n % 3 {
            0 => to.channel_open_session().await.is_err(),
            1 => to.channel_open_forwarded_tcpip("h", 1, "o", 2).await.is_err(),
            _ => to.channel_open_agent().await.is_err(),
        };
        assert!(refused, "the client took a channel");
    }
}

/// Asks without end, until the channel is gone.
async fn ask_endlessly(trick: Trick, id: ChannelId, to: Handle) {
    while to.data(id, Vec::new()).await.is_ok() {
        let refused = match trick {
            Trick::WaitingAsks => to.forward_tcpip("h".to_owned(), 1).await.is_err(),
            _ => to.channel_open_agent().await.is_err(),
        };
        assert!(refused, "the client does what it is asked");
    }
}
