//! Adapters that reach instances; one folder each, and the list of them.
