//! Chooses the store: files in the state directory.

use std::path::Path;
use std::rc::Rc;

use greenroom_core::ids::PoolName;
pub(super) use greenroom_manager::file_store::Options as StoreOptions;
use greenroom_ports::store::{OperatorStore, StoreError, Stores};

/// A pool and its store.
pub(super) type PoolStore = (PoolName, Rc<dyn OperatorStore>);

/// The stores of a state directory, which is created if it is missing.
pub(super) fn open(state_path: &Path, options: StoreOptions) -> Result<Rc<dyn Stores>, StoreError> {
    Ok(Rc::new(greenroom_manager::file_store::FileStores::open(state_path, options)?))
}
