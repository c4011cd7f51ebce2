//! Chooses the store: files in the state directory.

use std::path::Path;
use std::rc::Rc;

use crate::port::store::{StoreError, Stores};
pub(super) use crate::store::file::Options as StoreOptions;

/// The stores of a state directory, which is created if it is missing.
pub(super) fn open(state_path: &Path, options: StoreOptions) -> Result<Rc<dyn Stores>, StoreError> {
    Ok(Rc::new(crate::store::file::FileStores::open(state_path, options)?))
}
