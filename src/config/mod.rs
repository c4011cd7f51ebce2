//! `greenroom.toml`: from text to checked settings.
