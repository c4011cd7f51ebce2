//! Arguments, terminal, messages.
