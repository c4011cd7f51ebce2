//! What the program can do: asked once, and again when its file has changed.

use std::cell::RefCell;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::rc::Rc;

use greenroom_ports::provider::ProviderError;
use tokio::sync::Mutex;

use crate::external::protocol::answers::CapabilitiesAnswer;

/// Tells versions of a file apart.
type Version = (u64, u64, i64, i64);

#[derive(Debug, Default)]
pub(super) struct Agreed {
    asking: Mutex<()>,
    last: RefCell<Option<(Version, Rc<CapabilitiesAnswer>)>>,
}

impl Agreed {
    /// The last answer; `None`: there is none yet.
    pub(super) fn last(&self) -> Option<Rc<CapabilitiesAnswer>> {
        self.last.borrow().as_ref().map(|(_, answer)| Rc::clone(answer))
    }

    /// The answer for the file as it is now. Concurrent callers ask once.
    pub(super) async fn now(
        &self,
        program: &Path,
        ask: impl AsyncFnOnce() -> Result<CapabilitiesAnswer, ProviderError>,
    ) -> Result<Rc<CapabilitiesAnswer>, ProviderError> {
        let _asking = self.asking.lock().await;
        let version = version(program);
        let known = self
            .last
            .borrow()
            .as_ref()
            .filter(|(of, _)| Some(*of) == version)
            .map(|(_, answer)| Rc::clone(answer));
        if let Some(known) = known {
            return Ok(known);
        }
        let answer = Rc::new(ask().await?);
        *self.last.borrow_mut() = version.map(|version| (version, Rc::clone(&answer)));
        Ok(answer)
    }
}

fn version(program: &Path) -> Option<Version> {
    let known = std::fs::metadata(program).ok()?;
    Some((known.dev(), known.ino(), known.mtime(), known.mtime_nsec()))
}
