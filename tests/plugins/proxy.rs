//! A server in front of a registry: demands tokens, redirects contents, stalls, and notes each request.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

use base64ct::{Base64, Encoding as _};

use crate::site::ACCOUNT;

const TOKEN: &str = "a-made-up-token";
/// The token that gives others.
pub const IDENTITY_TOKEN: &str = "a-made-up-identity";

/// The server's treatment of requests.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Mode {
    PassOn,
    /// Contents stop after a few bytes, and the connection stays open.
    Stall,
    /// Each request needs a token, which the server itself gives to the account of the tests.
    Token,
    /// Each request needs a token, and contents are elsewhere.
    TokenAndRedirect(String),
}

#[derive(Debug)]
struct Shared {
    mode: Mutex<Mode>,
    upstream: String,
    address: String,
    requests: Mutex<Vec<String>>,
}

/// The running server; it ends with the process.
#[derive(Debug)]
pub struct Proxy {
    shared: Arc<Shared>,
}

impl Proxy {
    pub fn new(upstream: &str, mode: Mode) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("an address").to_string();
        let (upstream, requests) = (upstream.to_owned(), Mutex::default());
        let shared = Arc::new(Shared { mode: Mutex::new(mode), upstream, address, requests });
        let serving = Arc::clone(&shared);
        std::thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let shared = Arc::clone(&serving);
                std::thread::spawn(move || serve(&shared, client));
            }
        });
        Self { shared }
    }

    pub fn address(&self) -> &str {
        &self.shared.address
    }

    pub fn set(&self, mode: Mode) {
        *self.shared.mode.lock().expect("a mode") = mode;
    }

    /// The heads of all requests so far.
    pub fn requests(&self) -> Vec<String> {
        self.shared.requests.lock().expect("requests").clone()
    }
}

/// One request of one connection. What is no plain HTTP is closed.
fn serve(shared: &Shared, client: TcpStream) -> Option<()> {
    let mut reader = BufReader::new(client.try_clone().ok()?);
    if !matches!(reader.fill_buf().ok()?.first(), Some(b'G' | b'P')) {
        return None;
    }
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        (reader.read_line(&mut head).ok()? > 0).then_some(())?;
    }
    shared.requests.lock().expect("requests").push(head.clone());
    let mode = shared.mode.lock().expect("a mode").clone();
    let is_content = head.contains("/blobs/");
    let needs_token = matches!(mode, Mode::Token | Mode::TokenAndRedirect(_));
    match &mode {
        _ if head.starts_with("GET /token?") => give_token(&head, client),
        _ if head.starts_with("POST /token ") => exchange_token(&head, reader, client),
        _ if needs_token && !has(&head, &format!("authorization: Bearer {TOKEN}")) => {
            challenge(shared, client)
        }
        Mode::TokenAndRedirect(to) if is_content => {
            let path = head.split(' ').nth(1)?;
            answer(client, "307 Temporary Redirect", &format!("Location: http://{to}{path}\r\n"), "")
        }
        _ => pass_on(shared, &head, client, is_content && mode == Mode::Stall),
    }
}

fn has(head: &str, line: &str) -> bool {
    head.lines().any(|header| header.eq_ignore_ascii_case(line))
}

/// The repository of the tests, as a client asks for it.
const ASKS_FOR: &str = "service=lab+%26+more&scope=repository%3Ateam%2Fown%3Apull";

/// Answers a client that exchanges an identity token for an access token.
fn exchange_token(head: &str, mut reader: BufReader<TcpStream>, client: TcpStream) -> Option<()> {
    let length = head.lines().find_map(|line| {
        let (name, value) = line.split_once(':')?;
        name.eq_ignore_ascii_case("content-length").then(|| value.trim().parse::<usize>().ok()).flatten()
    })?;
    let mut body = vec![0; length];
    reader.read_exact(&mut body).ok()?;
    let form = String::from_utf8(body).ok()?;
    let expected =
        format!("{ASKS_FOR}&grant_type=refresh_token&client_id=greenroom&refresh_token={IDENTITY_TOKEN}");
    if form == expected && has(head, "content-type: application/x-www-form-urlencoded") {
        return answer(client, "200 OK", "", &format!("{{\"access_token\": \"{TOKEN}\"}}"));
    }
    answer(client, "401 Unauthorized", "", "")
}

fn give_token(head: &str, client: TcpStream) -> Option<()> {
    let pair = Base64::encode_string(format!("{}:{}", ACCOUNT.0, ACCOUNT.1).as_bytes());
    if has(head, &format!("authorization: Basic {pair}")) && head.contains(ASKS_FOR) {
        return answer(client, "200 OK", "", &format!("{{\"token\": \"{TOKEN}\"}}"));
    }
    answer(client, "401 Unauthorized", "", "")
}

fn challenge(shared: &Shared, client: TcpStream) -> Option<()> {
    let demand = format!(
        "WWW-Authenticate: Bearer realm=\"http://{}/token\",service=\"lab & more\",scope=\"repository:team/own:pull\"\r\n",
        shared.address
    );
    answer(client, "401 Unauthorized", &demand, "{}")
}

fn answer(mut client: TcpStream, status: &str, headers: &str, body: &str) -> Option<()> {
    let length = body.len();
    write!(
        client,
        "HTTP/1.1 {status}\r\n{headers}Content-Length: {length}\r\nConnection: close\r\n\r\n{body}"
    )
    .ok()
}

/// Copies the request and the answer. A stalled answer ends with its client.
fn pass_on(shared: &Shared, head: &str, mut client: TcpStream, stalls: bool) -> Option<()> {
    let mut upstream = TcpStream::connect(&shared.upstream).ok()?;
    let kept = head.trim_end().lines().filter(|line| !line.to_ascii_lowercase().starts_with("connection:"));
    let head = kept.collect::<Vec<_>>().join("\r\n");
    write!(upstream, "{head}\r\nConnection: close\r\n\r\n").ok()?;
    let mut content = Vec::new();
    upstream.read_to_end(&mut content).ok()?;
    if stalls {
        let body = content.windows(4).position(|four| four == b"\r\n\r\n")? + 4;
        client.write_all(&content[..body + (content.len() - body) / 2]).ok()?;
        drop(client.read(&mut [0]));
        return Some(());
    }
    client.write_all(&content).ok()
}
