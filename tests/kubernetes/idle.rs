//! A TCP proxy that cuts idle connections, as load balancers do: each direction by itself has to carry something in time.

use std::io::{Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::Duration;

/// A proxy that cuts idle connections. It serves until its process ends.
#[derive(Debug)]
pub struct IdleProxy {
    pub port: u16,
    cuts: Arc<AtomicU32>,
}

impl IdleProxy {
    pub fn new(upstream: SocketAddr, limit: Duration) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let port = listener.local_addr().expect("an address").port();
        let cuts = Arc::<AtomicU32>::default();
        let all = Arc::clone(&cuts);
        thread::spawn(move || {
            for client in listener.incoming().flatten() {
                // The client sees that the connection closes.
                let Ok(server) = TcpStream::connect(upstream) else { continue };
                for (from, to) in [(&client, &server), (&server, &client)] {
                    let (Ok(from), Ok(to)) = (from.try_clone(), to.try_clone()) else { continue };
                    let cuts = Arc::clone(&all);
                    thread::spawn(move || carry(from, to, limit, &cuts));
                }
            }
        });
        Self { port, cuts }
    }

    /// The number of connections that the proxy has cut.
    pub fn cuts(&self) -> u32 {
        self.cuts.load(Ordering::Relaxed)
    }
}

/// One direction. Its end, or a silence longer than the limit, closes both.
fn carry(mut from: TcpStream, mut to: TcpStream, limit: Duration, cuts: &AtomicU32) {
    let mut buffer = [0; 16 * 1024];
    from.set_read_timeout(Some(limit)).expect("a limit");
    loop {
        match from.read(&mut buffer) {
            Ok(0) => break,
            Ok(read) => {
                if to.write_all(&buffer[..read]).is_err() {
                    break;
                }
            }
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
                cuts.fetch_add(1, Ordering::Relaxed);
                break;
            }
            Err(_) => break,
        }
    }
    for stream in [from, to] {
        // The other direction may have closed it.
        let _closed = stream.shutdown(Shutdown::Both);
    }
}
