//! The words about images: `warm a b` and `learn 20` (settings; bytes), `has a,b` with `checked 2h`, `pulls a`, `lacks a 5s` (its pull has
//! failed, and is tried again then) of an instance, `wants a,b` of a job.

use std::sync::Arc;

use super::{World, after, ago, failure, span};
use crate::event::Change;
use crate::failure::ErrorClass;
use crate::ids::InstanceId;
use crate::images::{FoundImage, WantedImages};
use crate::plan::FailingCall;
use crate::time::Stamp;

fn list(text: &str) -> impl Iterator<Item = Arc<str>> {
    text.split(',').map(Arc::from)
}

/// The images of a setting.
pub(super) fn names(words: &[&str]) -> Vec<Arc<str>> {
    words[1..].iter().map(|name| Arc::from(*name)).collect()
}

/// The images of a job.
pub(super) fn wanted(words: &[&str]) -> WantedImages {
    WantedImages::new(after(words, "wants").into_iter().flat_map(list))
}

impl World {
    pub(super) fn images(&mut self, id: &InstanceId, words: &[&str], at: Stamp) {
        let at = after(words, "checked").map_or(at, |age| ago(span(age)));
        if let Some(has) = after(words, "has") {
            let found = |name| FoundImage { name, digest: Some("sha256:0a".into()), bytes: 1 << 20 };
            let images = list(has).map(found).collect();
            self.tell(at, Change::ImagesFound { instance: id.clone(), images, attempt: None });
        }
        if let Some(image) = after(words, "pulls") {
            self.observed.pulls.get_or_insert_default().under_way.insert(id.clone(), image.into());
        }
        if let Some(at) = words.iter().position(|word| *word == "lacks") {
            let image = words[at + 1].into();
            let until = self.now.plus(span(words[at + 2]));
            let failing = FailingCall { failures: 1, failure: failure(ErrorClass::Transient), until };
            self.observed.pulls.get_or_insert_default().failing.insert((id.clone(), image), failing);
        }
    }
}
