//! Adapters that keep the recorded state.
