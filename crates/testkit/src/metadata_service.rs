//! A small metadata service of both clouds: it requires what they require, and the test chooses its answers.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// Answers a GET of a path, of which it gets the number of the request.
pub type Serve = dyn Fn(u32, &str, &mut TcpStream) + Send + Sync;

pub fn answer(stream: &mut TcpStream, status: &str, body: &str) {
    let length = body.len();
    let text = format!("HTTP/1.1 {status}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{body}");
    // A client may have given up.
    let _gone = stream.write_all(text.as_bytes());
}

/// Serves until the test ends; returns host and port.
pub fn serve(at: &str, serve: impl Fn(u32, &str, &mut TcpStream) + Send + Sync + 'static) -> String {
    let listener = TcpListener::bind(at).expect("the address is free");
    let at = listener.local_addr().expect("it has an address").to_string();
    let (serve, gets): (Arc<Serve>, _) = (Arc::new(serve), Arc::new(AtomicU32::new(0)));
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let serve = Arc::clone(&serve);
            let gets = Arc::clone(&gets);
            std::thread::spawn(move || one_request(stream, &*serve, &gets));
        }
    });
    at
}

fn one_request(mut stream: TcpStream, serve: &Serve, gets: &AtomicU32) {
    let Ok(requests) = stream.try_clone() else { return };
    let mut lines = BufReader::new(requests).lines().map_while(Result::ok);
    let first = lines.next().unwrap_or_default();
    let headers: Vec<String> = lines.take_while(|line| !line.is_empty()).collect();
    let has = |header: &str| headers.iter().any(|line| line == header);
    let words: Vec<&str> = first.split(' ').collect();
    match (words[0], words.get(1).copied().unwrap_or_default()) {
        ("PUT", "/latest/api/token") if has("X-aws-ec2-metadata-token-ttl-seconds: 21600") => {
            answer(&mut stream, "200 OK", "TOKEN==");
        }
        ("GET", path) if has("X-aws-ec2-metadata-token: TOKEN==") || has("Metadata-Flavor: Google") => {
            serve(gets.fetch_add(1, Ordering::SeqCst), path, &mut stream);
        }
        _ => answer(&mut stream, "401 Unauthorized", ""),
    }
}
