//! The image store of a machine, from the pool's key to the guest's mount. A machine boots without one if it has to.

use std::io;

use fs_err as fs;

use super::Start;
use crate::qemu::image::Image;
use crate::qemu::image_store::Stores;
use crate::qemu::process::agent::Agent;
use crate::qemu::spec::StoreUse;
use crate::supervisor::note;

/// The data that a machine gets, or why it gets none.
#[derive(Debug, Default)]
pub(super) struct Attached {
    found: Option<(StoreUse, fs::File)>,
    problem: Option<String>,
}

/// What the guest has mounted, or why it has mounted nothing.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct StoreResult {
    pub(super) used: Option<StoreUse>,
    pub(super) problem: Option<String>,
}

impl Start<'_> {
    /// Opens the current data of the store that the settings name.
    pub(super) fn attached(&self, image: &Image) -> Attached {
        let settings = &self.site.spec.settings;
        let Some(name) = &settings.image_store else { return Attached::default() };
        let stores = Stores::beside(&settings.images_dir(&self.site.spec.state_dir));
        let attached = attach(&stores, name, image);
        if let Some(problem) = &attached.problem {
            note(&format!("booting without an image store: {problem}"));
        }
        attached
    }
}

fn attach(stores: &Stores, name: &str, image: &Image) -> Attached {
    if !image.manifest.image_store {
        let problem = format!("image `{}` has no support for image stores", image.manifest.name);
        return Attached { found: None, problem: Some(problem) };
    }
    match stores.attach(name) {
        Ok((store, file)) => {
            let used = StoreUse { name: name.to_owned(), digest: store.manifest.digest };
            Attached { found: Some((used, file)), problem: None }
        }
        Err(problem) => Attached { found: None, problem: Some(problem) },
    }
}

impl Attached {
    pub(super) fn file(&self) -> Option<&fs::File> {
        self.found.as_ref().map(|(_, file)| file)
    }

    /// Has the guest mount it, if there is one.
    pub(super) async fn mounted(&self, agent: &mut Agent) -> io::Result<StoreResult> {
        let Some((used, _)) = &self.found else {
            return Ok(StoreResult { used: None, problem: self.problem.clone() });
        };
        Ok(match agent.image_store().await? {
            None => StoreResult { used: Some(used.clone()), problem: None },
            Some(why) => {
                note(&format!("the guest cannot mount image store `{}`: {why}", used.name));
                let problem = format!("the guest cannot mount `{}`: {why}", used.name);
                StoreResult { used: None, problem: Some(problem) }
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::qemu::image::tests::image;
    use crate::qemu::image_store::tests::store;

    #[test]
    fn a_machine_gets_the_current_store_or_the_reason_why_not() {
        let images = tempfile::tempdir().unwrap();
        let stores = Stores::beside(images.path());
        let mut image = image();
        let problem = |attached: Attached| attached.problem.unwrap_or_default();
        let old = problem(attach(&stores, "ci", &image));
        assert_eq!(old, "image `light` has no support for image stores");
        image.manifest.image_store = true;
        assert!(problem(attach(&stores, "ci", &image)).starts_with("no image store `ci`"));
        let store = store(images.path(), "ci", b"data");
        let attached = attach(&stores, "ci", &image);
        assert!(attached.file().is_some());
        assert_eq!(attached.found.unwrap().0.digest, store.manifest.digest);
    }
}
