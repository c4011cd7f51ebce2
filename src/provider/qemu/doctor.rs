//! Could virtual machines work here?

use crate::port::finding::Finding;
use crate::provider::BuildContext;

pub(super) fn doctor(_context: &BuildContext, _table: &toml::Table) -> Vec<Finding> {
    Vec::new()
}
