//! Operating systems and architectures, by the names that registries give them.

use std::fmt;

use serde::Deserialize;

/// A platform that a manifest is for.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Platform {
    pub os: String,
    pub architecture: String,
    #[serde(default)]
    pub variant: Option<String>,
}

impl Platform {
    /// That of this program.
    pub fn here() -> Self {
        let architecture = match std::env::consts::ARCH {
            "x86_64" => "amd64",
            "aarch64" => "arm64",
            "x86" => "386",
            "powerpc64" => "ppc64le",
            "loongarch64" => "loong64",
            other => other,
        };
        Self { os: std::env::consts::OS.to_owned(), architecture: architecture.to_owned(), variant: None }
    }

    /// True if a program for `other` runs here. A variant is a newer processor of the same architecture.
    pub fn runs(&self, other: &Self) -> bool {
        let baseline = match other.architecture.as_str() {
            "amd64" => Some("v1"),
            "arm64" => Some("v8"),
            "arm" => Some("v7"),
            _ => None,
        };
        let is_common = |variant: &str| variant.is_empty() || Some(variant) == baseline;
        (&self.os, &self.architecture) == (&other.os, &other.architecture)
            && other.variant.as_deref().is_none_or(is_common)
    }

    /// True for what is no program, such as an attestation.
    pub fn is_unknown(&self) -> bool {
        self.os == "unknown" || self.architecture == "unknown"
    }
}

impl fmt::Display for Platform {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.os, self.architecture)?;
        let variant = self.variant.iter().filter(|variant| !variant.is_empty());
        variant.into_iter().try_for_each(|variant| write!(f, "/{variant}"))
    }
}
