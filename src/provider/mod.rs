//! Adapters that make instances; one folder each, and the list of them.
