//! Kind: connections that never log in keep no login away. Tried on the server of pods; provider `local` has the same one.

#![cfg(test)]

use std::io::Read as _;
use std::net::SocketAddr;

use greenroom_ports::connector::{Connector as _, StageEnd};
use tokio::net::{TcpSocket, TcpStream};

use crate::served::{Server, WITHIN};

/// Opens so many silent connections from an address of the loopback interface.
async fn silent(source: &str, port: u16, count: usize) -> Vec<TcpStream> {
    let mut all = Vec::new();
    for _ in 0..count {
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind(SocketAddr::new(source.parse().unwrap(), 0)).unwrap();
        all.push(socket.connect(SocketAddr::from(([127, 0, 0, 1], port))).await.unwrap());
    }
    all
}

/// The connections that the server has closed: the greeting ends.
fn closed(all: Vec<TcpStream>) -> usize {
    let is_closed = |stream: TcpStream| {
        let mut stream = stream.into_std().unwrap();
        stream.set_nonblocking(true).unwrap();
        let mut buffer = [0; 256];
        loop {
            match stream.read(&mut buffer) {
                Ok(0) => return true,
                Ok(_) => {}
                Err(error) => return error.kind() != std::io::ErrorKind::WouldBlock,
            }
        }
    };
    all.into_iter().map(is_closed).filter(|closed| *closed).count()
}

/// Another pod opens 100 connections to a job's pod and stays silent: Greenroom logs in.
#[tokio::test]
async fn a_login_comes_beside_silent_connections_of_another_source() {
    let Some(server) = Server::start(&[]).await else { return };
    let others = silent("127.0.0.2", server.at.port, 100).await;
    server.ssh.check(&server.id, &server.at, WITHIN).await.unwrap();
    let more = silent("127.0.0.3", server.at.port, 100).await;
    server.ssh.check(&server.id, &server.at, WITHIN).await.unwrap();
    assert!(closed(others) + closed(more) >= 100);
}

/// A process of the pod itself opens 100 connections, and with a port-forward Greenroom comes from the same address.
#[tokio::test]
async fn a_login_comes_beside_silent_connections_of_its_own_source() {
    let Some(server) = Server::start(&[]).await else { return };
    let own = silent("127.0.0.1", server.at.port, 100).await;
    for _ in 0..3 {
        server.ssh.check(&server.id, &server.at, WITHIN).await.unwrap();
    }
    drop(own);
}

/// A job runs while silent connections come: its connection has logged in, so it is not the one that is closed.
#[tokio::test]
async fn a_session_survives_silent_connections_that_come_after_it() {
    let Some(server) = Server::start(&[]).await else { return };
    let mark = tempfile::tempdir().unwrap();
    let (begun, go) = (mark.path().join("begun"), mark.path().join("go"));
    let script =
        format!("touch {}; until [ -e {} ]; do sleep 0.05; done; echo over\n", begun.display(), go.display());
    let flood = async {
        crate::connector::support::eventually("the job runs", || begun.exists()).await;
        let all = silent("127.0.0.1", server.at.port, 160).await;
        std::fs::write(&go, "").unwrap();
        all
    };
    let ((end, kept), all) = tokio::join!(server.run(&script), flood);
    assert_eq!(end.unwrap(), StageEnd::Exited(0), "{kept:?}");
    assert!(kept.out().contains("over"));
    drop(all);
}
