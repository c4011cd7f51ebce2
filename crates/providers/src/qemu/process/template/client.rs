//! Gets a template's memory from its holder; starts a holder if there is none.

use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;

use greenroom_core::text::clean_line;
use tokio::net::UnixStream;

use super::holder::{LENT, REFUSED, socket};
use super::{Files, Recipe, Template};
use crate::halt::halt_point;
use crate::launch::{Server, start};
use crate::qemu::process::descriptor;

/// How often a holder may exit while a request reaches it.
const TRIES: u32 = 5;

/// A template to resume from.
#[derive(Debug)]
pub(in crate::qemu::process) struct Lent {
    /// Sealed.
    pub(in crate::qemu::process) memory: OwnedFd,
    /// The rest of the template.
    pub(in crate::qemu::process) files: Files,
    /// As long as it is open, the holder keeps the memory.
    pub(in crate::qemu::process) holder: UnixStream,
}

/// Requests the memory, and waits while the template is built. The error is a message.
pub(in crate::qemu::process) async fn lend(
    template: &Template,
    recipe: &Recipe,
    limit: Duration,
) -> Result<Lent, String> {
    let reply = async {
        for _ in 0..TRIES {
            if let Some(answer) = request(template, recipe).await.map_err(|error| error.to_string())? {
                return answer;
            }
        }
        Err("the holder of the template exits repeatedly".to_owned())
    };
    let late = |_| format!("no template within {} s", limit.as_secs());
    tokio::time::timeout(limit, reply).await.map_err(late)?
}

/// `None`: the holder exited before it answered, or replaced the template.
async fn request(template: &Template, recipe: &Recipe) -> io::Result<Option<Result<Lent, String>>> {
    let stream = match connect(template).await {
        Ok(stream) => stream,
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused) => {
            template.prepare(recipe)?;
            halt_point("template.prepared");
            let server = Server {
                program: "/proc/self/exe".into(),
                arguments: ["instance", "qemu", "template", "--dir"].map(Into::into).to_vec(),
            };
            start(&server, &template.dir).await.map_err(io::Error::other)?;
            match connect(template).await {
                Ok(stream) => stream,
                Err(_) => return Ok(None),
            }
        }
        Err(error) => return Err(error),
    };
    halt_point("template.asked");
    let mut bytes = [0; 512];
    let Ok((read, descriptor)) = descriptor::receive(&stream, &mut bytes).await else { return Ok(None) };
    match (bytes[..read].split_first(), descriptor) {
        (Some((&LENT, token)), Some(memory)) => {
            // RACE: `None` if a template with other images has just replaced that of the memory.
            let files = template.open(&String::from_utf8_lossy(token))?;
            Ok(files.map(|files| Ok(Lent { memory, files, holder: stream })))
        }
        (Some((&REFUSED, message)), _) => Ok(Some(Err(clean_line(message, 300)))),
        _ => Ok(None),
    }
}

async fn connect(template: &Template) -> io::Result<UnixStream> {
    let (path, _folder) = socket(&template.dir)?;
    UnixStream::connect(path).await
}
