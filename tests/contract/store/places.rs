//! Directories that cannot be used: a clear error each, and nothing lost.
