//! Servers that misbehave.
