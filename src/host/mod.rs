//! Adapters for the state directory beside the journal.
