//! Gets a template's memory from its holder, which is started if there is none.

use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;

use tokio::net::UnixStream;

use super::holder::{HERE, SORRY, socket};
use super::{Recipe, Template};
use crate::core::text::clean_line;
use crate::provider::halt::halt_point;
use crate::provider::launch::{Server, start};
use crate::provider::qemu::process::descriptor;

/// How often a holder may go just when it is asked.
const TRIES: u32 = 5;

/// A template that may be resumed from.
#[derive(Debug)]
pub(in crate::provider::qemu::process) struct Lent {
    /// Sealed.
    pub(in crate::provider::qemu::process) memory: OwnedFd,
    /// As long as it is open, the holder knows that it is needed.
    pub(in crate::provider::qemu::process) holder: UnixStream,
}

/// Asks; waits while the template is built. What is wrong, in words.
pub(in crate::provider::qemu::process) async fn lend(
    template: &Template,
    recipe: &Recipe,
    limit: Duration,
) -> Result<Lent, String> {
    let asked = async {
        for _ in 0..TRIES {
            if let Some(answer) = ask(template, recipe).await.map_err(|error| error.to_string())? {
                return answer;
            }
        }
        Err("the holder of the template exits repeatedly".to_owned())
    };
    let late = |_| format!("no template within {} s", limit.as_secs());
    tokio::time::timeout(limit, asked).await.map_err(late)?
}

/// `None`: the holder has gone before it answered.
async fn ask(template: &Template, recipe: &Recipe) -> io::Result<Option<Result<Lent, String>>> {
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
        (Some((&HERE, _)), Some(memory)) => Ok(Some(Ok(Lent { memory, holder: stream }))),
        (Some((&SORRY, words)), _) => Ok(Some(Err(clean_line(words, 300)))),
        _ => Ok(None),
    }
}

async fn connect(template: &Template) -> io::Result<UnixStream> {
    let (path, _folder) = socket(&template.dir)?;
    UnixStream::connect(path).await
}
