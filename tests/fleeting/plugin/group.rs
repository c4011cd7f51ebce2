//! The calls of the group, and what faults make of them.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, OnceLock};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use greenroom_backends::fleeting::wire::{
    Any, Channel, ConnectInfoResponse, ConnectorConfig, Empty, IncreaseRequest, IncreaseResponse,
    InitRequest, InitResponse, InstanceRequest, InstancesRequest, InstancesResponse, RpcStatus,
    SUSPEND_RESUME, State, StdioData, UpdateResponse,
};
use greenroom_providers::launch::random;
use prost::Message as _;
use russh::keys::key::safe_rng;
use russh::keys::ssh_key::LineEnding;
use russh::keys::{Algorithm, PrivateKey};
use serde_json::Value;
use tokio::sync::mpsc;
use tonic::{Code, Status};

use super::faults::{Chance, Faults};
use super::machines::{Boot, Machines};
use super::output;

/// Pieces of output that wait for the host.
const WAITING: usize = 16;

/// The plugin's state after `Init`.
struct Begun {
    machines: Machines,
    connector: ConnectorConfig,
    /// A private key, which its instances let in.
    key: PrivateKey,
    /// A file with a key instead, in any format; its public half is beside it.
    key_file: Option<PathBuf>,
    /// A file with the private key that certifies host keys.
    host_ca: Option<PathBuf>,
    suspends: bool,
    /// The ids that this process has made.
    created: Mutex<Vec<String>>,
}

pub struct Group {
    faults: Faults,
    /// True if the plugin crashes after its work.
    crashes: AtomicBool,
    begun: OnceLock<Begun>,
    /// The sending and the receiving end of what it prints.
    printed: mpsc::Sender<StdioData>,
    pub stdio: Mutex<Option<mpsc::Receiver<StdioData>>>,
}

impl Group {
    pub fn new(faults: Faults) -> Self {
        let (printed, stdio) = mpsc::channel(WAITING);
        Self {
            faults,
            crashes: AtomicBool::new(false),
            begun: OnceLock::new(),
            printed,
            stdio: Mutex::new(Some(stdio)),
        }
    }

    fn begun(&self) -> Result<&Begun, Status> {
        self.begun.get().ok_or_else(|| Status::unknown("not initialized"))
    }

    /// The faults that every call may have.
    async fn faults_of(&self, method: &str) -> Result<(), Status> {
        match self.faults.chance(method) {
            Some(Chance::Error) => return Err(Status::unknown("chance is against this call")),
            Some(Chance::Crash) => output::crash(),
            Some(Chance::CrashAfter) => self.crashes.store(true, Ordering::Relaxed),
            None => {}
        }
        let fault = |kind: &str| self.faults.take(&format!("{method}-{kind}"));
        if fault("unimplemented").is_some() {
            return Err(Status::unimplemented(format!("unknown method {method}")));
        }
        if fault("crash").is_some() {
            output::crash();
        }
        if fault("hang").is_some() {
            std::future::pending::<()>().await;
        }
        if let Some(delay) = self.faults.number(&format!("{method}-delay")) {
            tokio::time::sleep(Duration::from_millis(delay)).await;
        }
        fault("error").map_or(Ok(()), |why| Err(Status::unknown(why)))
    }

    fn crash_after(&self, method: &str) {
        let by_chance = self.crashes.load(Ordering::Relaxed);
        if by_chance || self.faults.take(&format!("done-{method}-crash")).is_some() {
            output::crash();
        }
    }

    pub async fn init(&self, request: InitRequest) -> Result<InitResponse, Status> {
        let config: Value = serde_json::from_slice(&request.config)
            .map_err(|error| Status::unknown(format!("unmarshaling config: {error}")))?;
        let Some(directory) = config["dir"].as_str().map(Path::new) else {
            return Err(Status::unknown("the key `dir` is missing"));
        };
        self.faults.set_directory(directory);
        self.faults_of("init").await?;
        // Go plugins crash, too.
        let connector = request.settings.and_then(|settings| settings.connector_config);
        let Some(connector) = connector else { output::crash() };
        if connector.use_static_credentials
            && let Some(why) = self.faults.take("init-no-static")
        {
            return Err(Status::unknown(why));
        }
        let own = (self.faults.take("init-own-key").is_some() && !connector.use_static_credentials)
            || self.faults.take("init-ignores-key").is_some();
        let key = if connector.key.is_empty() || own {
            new_key()
        } else {
            PrivateKey::from_openssh(&connector.key)
                .map_err(|error| Status::unknown(format!("key: {error}")))?
        };
        let suspends = config["suspends"].as_bool().unwrap_or(false);
        let begun = Begun {
            machines: Machines::new(directory, config["platform"].as_bool().unwrap_or(false)),
            connector,
            key,
            key_file: config["key_file"].as_str().map(PathBuf::from),
            host_ca: config["host_ca"].as_str().map(PathBuf::from),
            suspends,
            created: Mutex::default(),
        };
        if self.begun.set(begun).is_err() {
            return Err(Status::unknown("initialized twice"));
        }
        output::log("info", "initialized", &[("dir", &directory.display().to_string())]);
        Ok(InitResponse {
            id: format!("test {}", directory.display()),
            max_size: self.faults.number("max-size").unwrap_or(100),
            version: "1.2.3".to_owned(),
            build_info: "test".to_owned(),
            capabilities: if suspends { vec![SUSPEND_RESUME.to_owned()] } else { Vec::new() },
        })
    }

    /// The instances, and how the stream ends.
    pub async fn update(&self) -> Result<(Vec<UpdateResponse>, Option<Status>), Status> {
        let begun = self.begun()?;
        self.faults_of("update").await?;
        if let Some(lines) = self.faults.number("flood") {
            self.flood(lines).await;
        }
        let hidden = self.faults.take("update-hides");
        let state: Option<i32> = self.faults.number("update-state");
        let (twice, added) = (self.faults.take("update-twice").is_some(), self.faults.take("update-adds"));
        let mut all = Vec::new();
        let forgets = self.faults.take("update-forgets").is_some();
        let known = |id: &String| !forgets || begun.created.lock().unwrap().contains(id);
        for id in begun.machines.ids().into_iter().filter(known).chain(added) {
            if hidden.as_ref().is_some_and(|hidden| id.starts_with(hidden.as_str())) {
                continue;
            }
            if twice {
                all.push(UpdateResponse { instance: id.clone(), state: State::Creating as i32 });
            }
            let state = state.unwrap_or_else(|| begun.machines.state(&id) as i32);
            all.push(UpdateResponse { instance: id, state });
        }
        let broken = self.faults.number("update-broken").map(|sent| {
            all.truncate(sent);
            Status::unknown("the list broke off")
        });
        Ok((all, broken))
    }

    pub async fn increase(&self, request: IncreaseRequest) -> Result<IncreaseResponse, Status> {
        let begun = self.begun()?;
        self.faults_of("increase").await?;
        let part: Option<u32> = self.faults.number("increase-part");
        let short: Option<u32> = self.faults.number("increase-short");
        for _ in 0..part.or(short).unwrap_or(request.n) {
            let id = format!("i-{}", random()?);
            begun.machines.create(&id, &begun.boot(&id)?);
            begun.created.lock().unwrap().push(id);
        }
        self.crash_after("increase");
        if part.is_some() {
            return Err(Status::unknown("no capacity for the rest"));
        }
        let answer = self.faults.number("increase-answer").or(short);
        Ok(IncreaseResponse { succeeded: answer.unwrap_or(request.n) })
    }

    pub async fn decrease(&self, request: InstancesRequest) -> Result<InstancesResponse, Status> {
        let begun = self.begun()?;
        self.faults_of("decrease").await?;
        let part: Option<usize> = self.faults.number("decrease-part");
        if request.instances.iter().any(|id| !begun.machines.exists(id))
            && self.faults.take("decrease-gone-crash").is_some()
        {
            output::crash();
        }
        if self.faults.take("decrease-ignores").is_some() {
            return Ok(InstancesResponse { succeeded: request.instances });
        }
        let ids = request.instances.into_iter().filter(|id| begun.machines.exists(id));
        let mut succeeded: Vec<String> = ids.take(part.unwrap_or(usize::MAX)).collect();
        let all = self.faults.take("decrease-all").map(|_| begun.machines.ids());
        for id in all.as_ref().unwrap_or(&succeeded) {
            begun.machines.remove(id);
        }
        self.crash_after("decrease");
        if part.is_some() {
            return Err(Status::unknown("the rest is protected"));
        }
        succeeded.extend(self.faults.take("decrease-answer"));
        Ok(InstancesResponse { succeeded })
    }

    pub async fn connect_info(&self, request: InstanceRequest) -> Result<ConnectInfoResponse, Status> {
        let begun = self.begun()?;
        self.faults_of("connect-info").await?;
        let id = &request.instance;
        if !begun.machines.exists(id) {
            // As a plugin of a known cloud does.
            output::crash();
        }
        let told = self.faults.take("address").and_then(|told| {
            let (address, port) = told.split_once(' ')?;
            Some((address.to_owned(), port.parse().ok()?))
        });
        let known = told.or_else(|| begun.machines.address(id));
        let (address, port) = known.ok_or_else(|| Status::unknown("no address yet"))?;
        let mut connector = begun.connector.clone();
        // Static credentials without a key: the password alone.
        if !(connector.use_static_credentials && connector.key.is_empty()) {
            connector.key = begun.private_key()?;
        }
        "linux".clone_into(&mut connector.os);
        "amd64".clone_into(&mut connector.arch);
        connector.protocol_port = port;
        if connector.username.is_empty() {
            connector.username = std::env::var("USER").unwrap_or_else(|_| "root".to_owned());
        }
        if self.faults.take("tell").is_some() {
            let (key, password) = (String::from_utf8_lossy(&connector.key), connector.password.as_str());
            output::log("info", &format!("key is {}", key.replace('\n', "\\n")), &[("Password", password)]);
            eprintln!("{key}{password}");
        }
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
        let lifetime: Option<u64> = self.faults.number("expires");
        let expires = lifetime.map_or(0, |seconds| i64::try_from(now + seconds).unwrap());
        Ok(ConnectInfoResponse {
            connector: Some(connector),
            external_addr: String::new(),
            internal_addr: address,
            expires,
        })
    }

    pub async fn heartbeat(&self, request: InstanceRequest) -> Result<Empty, Status> {
        let begun = self.begun()?;
        self.faults_of("heartbeat").await?;
        match begun.machines.state(&request.instance) {
            State::Running => Ok(Empty {}),
            _ => Err(Status::unknown("the instance is not healthy")),
        }
    }

    pub async fn suspend(
        &self,
        request: InstancesRequest,
        suspend: bool,
    ) -> Result<InstancesResponse, Status> {
        let begun = self.begun()?;
        let method = if suspend { "suspend" } else { "resume" };
        self.faults_of(method).await?;
        if !begun.suspends {
            return Err(Status::unknown("not supported"));
        }
        let part: Option<usize> = self.faults.number(&format!("{method}-part"));
        let ids = request.instances.into_iter().filter(|id| begun.machines.exists(id));
        let done = InstancesResponse { succeeded: ids.take(part.unwrap_or(usize::MAX)).collect() };
        for id in &done.succeeded {
            begun.machines.set_suspended(id, suspend);
        }
        if part.is_none() {
            return Ok(done);
        }
        let name = if suspend { "Suspend" } else { "Resume" };
        let detail = Any {
            type_url: format!("type.googleapis.com/proto.{name}Response"),
            value: done.encode_to_vec(),
        };
        let why = "the rest did not change";
        let rpc = RpcStatus { code: Code::Unknown as i32, message: why.to_owned(), details: vec![detail] };
        Err(Status::with_details(Code::Unknown, why, rpc.encode_to_vec().into()))
    }

    /// The controller's call.
    pub fn shutdown(&self) -> Empty {
        if self.faults.take("ignore-shutdown").is_none() {
            std::process::exit(0);
        }
        Empty {}
    }

    async fn flood(&self, lines: u32) {
        for n in 0..lines {
            output::log("info", "flood", &[("line", &n.to_string())]);
            eprintln!("plain flood {n}");
            let data = format!("printed flood {n}\n").into_bytes();
            // The host's duty: without a reader, this waits.
            self.printed.send(StdioData { channel: Channel::Stdout as i32, data }).await.ok();
        }
    }
}

impl Begun {
    fn private_key(&self) -> Result<Vec<u8>, Status> {
        let Some(file) = &self.key_file else {
            let key = self.key.to_openssh(LineEnding::LF);
            return key
                .map(|key| key.as_bytes().to_vec())
                .map_err(|error| Status::unknown(error.to_string()));
        };
        Ok(std::fs::read(file)?)
    }

    fn boot(&self, id: &str) -> Result<Boot, Status> {
        let wrong = |error: &dyn std::fmt::Display| Status::unknown(error.to_string());
        let host = new_key();
        let host_key = host.to_openssh(LineEnding::LF).map_err(|error| wrong(&error))?.to_string();
        let host_certificate = match &self.host_ca {
            Some(ca) => certificate(ca, &host, id).map_err(|error| wrong(&error))?,
            None => String::new(),
        };
        let authorized_key = match &self.key_file {
            None => self.key.public_key().to_openssh().map_err(|error| wrong(&error))?,
            Some(file) => std::fs::read_to_string(file.with_extension("pub"))?,
        };
        Ok(Boot { host_key, host_certificate, authorized_key })
    }
}

fn new_key() -> PrivateKey {
    PrivateKey::random(&mut safe_rng(), Algorithm::Ed25519).unwrap()
}

/// The certificate of a host key, made by OpenSSH.
fn certificate(ca: &Path, host: &PrivateKey, id: &str) -> std::io::Result<String> {
    let dir = std::env::temp_dir().join(format!("cert-{id}"));
    std::fs::create_dir(&dir)?;
    let public = host.public_key().to_openssh().map_err(std::io::Error::other)?;
    std::fs::write(dir.join("host.pub"), public)?;
    let mut sign = Command::new("ssh-keygen");
    sign.args(["-q", "-h", "-I", id, "-s"]).arg(ca).arg(dir.join("host.pub"));
    let signed = sign.status()?.success().then(|| std::fs::read_to_string(dir.join("host-cert.pub")));
    std::fs::remove_dir_all(&dir)?;
    signed.unwrap_or_else(|| Err(std::io::Error::other("ssh-keygen cannot certify the host key")))
}
