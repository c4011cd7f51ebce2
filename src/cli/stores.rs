//! Chooses the store: files in the state directory.

use std::path::Path;
use std::rc::Rc;

use crate::core::ids::PoolName;
use crate::port::store::{OperatorStore, StoreError, Stores};
pub(super) use crate::store::file::Options as StoreOptions;

/// A pool and its store.
pub(super) type PoolStore = (PoolName, Rc<dyn OperatorStore>);

/// The stores of a state directory, which is created if it is missing.
pub(super) fn open(state_path: &Path, options: StoreOptions) -> Result<Rc<dyn Stores>, StoreError> {
    Ok(Rc::new(crate::store::file::FileStores::open(state_path, options)?))
}
