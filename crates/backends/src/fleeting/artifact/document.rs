//! The documents that a registry stores for a plugin: an index of platforms, and a manifest of layers for each.

use std::collections::BTreeMap;
use std::fmt;

use serde::Deserialize;

use super::Digest;
use crate::fleeting::reference::PluginVersion;

/// Types of indexes and manifests, of OCI and of Docker.
pub(super) const ACCEPTED: &str = "application/vnd.oci.image.index.v1+json, \
    application/vnd.docker.distribution.manifest.list.v2+json, \
    application/vnd.oci.image.manifest.v1+json, \
    application/vnd.docker.distribution.manifest.v2+json";
/// Marks the layer of the plugin's files; its value is the version.
const ANNOTATION: &str = "com.gitlab.fleeting.layer";
/// A larger layer is refused. Plugins have 5 to 50 MB.
const MAX_LAYER: u64 = 1 << 30;

/// Names a content.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Descriptor {
    #[serde(default)]
    pub(super) media_type: String,
    pub(super) digest: Digest,
    pub(super) size: u64,
    platform: Option<Platform>,
    #[serde(default)]
    annotations: Option<BTreeMap<String, String>>,
}

#[derive(Debug, Deserialize)]
struct PlatformIndex {
    manifests: Vec<Descriptor>,
}

#[derive(Debug, Deserialize)]
struct LayerManifest {
    layers: Vec<Descriptor>,
}

/// The layer of the plugin's files, and its version.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct PluginLayer {
    pub(super) content: Descriptor,
    pub(super) version: PluginVersion,
}

/// The reason a content is not a plugin for this platform. Each message continues a sentence that names the plugin.
#[derive(Debug, thiserror::Error)]
pub enum LayoutError {
    #[error("has nothing for {here}, only for {there}")]
    Platform { here: String, there: String },
    #[error(
        "is not in the layout of fleeting plugins: it is an image for one platform, expected an index of platforms"
    )]
    OneImage,
    #[error("is not in the layout of fleeting plugins: its index cannot be read: {0}")]
    Index(serde_json::Error),
    #[error("is not in the layout of fleeting plugins: its index names no platforms")]
    NoPlatforms,
    #[error("is not in the layout of fleeting plugins: its manifest cannot be read: {0}")]
    Manifest(serde_json::Error),
    #[error("is not in the layout of fleeting plugins: no layer has the annotation `{ANNOTATION}`")]
    NoLayer,
    #[error("is not in the layout of fleeting plugins: several layers have the annotation `{ANNOTATION}`")]
    SeveralLayers,
    #[error(
        "is not in the layout of fleeting plugins: the annotation `{ANNOTATION}` is {0:?}, expected a version such as \
         `1.2.3`"
    )]
    Version(String),
    #[error("is not in the layout of fleeting plugins: its layer has {0} bytes, more than {MAX_LAYER}")]
    LargeLayer(u64),
}

/// The manifest of a platform.
pub(super) fn manifest_for(index: &[u8], here: &Platform) -> Result<Descriptor, LayoutError> {
    let read: PlatformIndex =
        serde_json::from_slice(index).map_err(|error| {
            match serde_json::from_slice::<LayerManifest>(index) {
                Ok(_) => LayoutError::OneImage,
                Err(_) => LayoutError::Index(error),
            }
        })?;
    let of_platforms = || read.manifests.iter().filter_map(|one| Some((one, one.platform.as_ref()?)));
    if let Some((found, _)) = of_platforms().find(|(_, platform)| here.runs(platform)) {
        return Ok(found.clone());
    }
    let mut there: Vec<String> = of_platforms()
        .filter(|(_, platform)| !platform.is_unknown())
        .map(|(_, platform)| platform.to_string())
        .collect();
    there.dedup();
    if there.is_empty() {
        return Err(LayoutError::NoPlatforms);
    }
    Err(LayoutError::Platform { here: here.to_string(), there: there.join(", ") })
}

/// The layer with the plugin's files.
pub(super) fn plugin_layer(manifest: &[u8]) -> Result<PluginLayer, LayoutError> {
    let read: LayerManifest = serde_json::from_slice(manifest).map_err(LayoutError::Manifest)?;
    let annotated = |layer: &Descriptor| Some(layer.annotations.as_ref()?.get(ANNOTATION)?.clone());
    let mut marked = read.layers.iter().filter_map(|layer| Some((layer, annotated(layer)?)));
    let (content, text) = marked.next().ok_or(LayoutError::NoLayer)?;
    if marked.next().is_some() {
        return Err(LayoutError::SeveralLayers);
    }
    let version = PluginVersion::parse(&text).ok_or(LayoutError::Version(text))?;
    if content.size > MAX_LAYER {
        return Err(LayoutError::LargeLayer(content.size));
    }
    Ok(PluginLayer { content: content.clone(), version })
}

/// A platform that a manifest is for.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Platform {
    pub os: String,
    pub architecture: String,
    #[serde(default)]
    pub variant: Option<String>,
}

impl Platform {
    /// Platform of this program.
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

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn descriptor(name: &str, more: &Value) -> Value {
        let mut value = json!({"mediaType": "any", "digest": Digest::of(name.as_bytes()), "size": 7});
        value.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        value
    }

    fn for_platform(os: &str, architecture: &str, variant: &str) -> Value {
        let name = format!("{os}{architecture}{variant}");
        descriptor(&name, &json!({"platform": {"os": os, "architecture": architecture, "variant": variant}}))
    }

    fn here(architecture: &str) -> Platform {
        Platform { os: "linux".into(), architecture: architecture.into(), variant: None }
    }

    fn chosen(manifests: &Value, architecture: &str) -> Result<Digest, LayoutError> {
        let index = json!({"manifests": manifests}).to_string();
        manifest_for(index.as_bytes(), &here(architecture)).map(|found| found.digest)
    }

    #[test]
    fn the_manifest_of_this_platform_is_chosen() {
        let manifests = json!([
            descriptor("none", &json!({})),
            for_platform("unknown", "unknown", ""),
            for_platform("windows", "amd64", ""),
            for_platform("linux", "amd64", "v3"),
            for_platform("linux", "arm64", "v8"),
            for_platform("linux", "amd64", ""),
        ]);
        assert_eq!(chosen(&manifests, "amd64").unwrap(), Digest::of(b"linuxamd64"));
        assert_eq!(chosen(&manifests, "arm64").unwrap(), Digest::of(b"linuxarm64v8"));
        let error = chosen(&manifests, "riscv64").unwrap_err().to_string();
        let expected = "has nothing for linux/riscv64, only for windows/amd64, linux/amd64/v3, linux/arm64/v8, linux/amd64";
        assert_eq!(error, expected);
    }

    #[test]
    fn other_contents_are_no_indexes() {
        for (index, said) in [
            ("", "cannot be read"),
            ("{\"manifests\": []}", "names no platforms"),
            ("{\"layers\": []}", "image for one platform"),
            ("{\"manifests\": [{\"digest\": \"sha256:../x\", \"size\": 1}]}", "not a digest"),
            ("{\"manifests\": [{\"digest\": 7, \"size\": -1}]}", "cannot be read"),
        ] {
            let error = manifest_for(index.as_bytes(), &here("amd64")).unwrap_err().to_string();
            assert!(error.contains(said), "{index}: {error}");
        }
    }

    #[test]
    fn the_layer_is_found_by_its_annotation() {
        let marked = |version: &str| descriptor(version, &json!({"annotations": {ANNOTATION: version}}));
        let plain = descriptor("plain", &json!({"annotations": {"other": "1.0.0"}}));
        let found = |layers: Value| plugin_layer(json!({"layers": layers}).to_string().as_bytes());
        let layer = found(json!([plain, marked("1.2.3"), descriptor("x", &json!({}))])).unwrap();
        assert_eq!(layer.content.digest, Digest::of(b"1.2.3"));
        assert_eq!(layer.version.to_string(), "1.2.3");
        let mut large = marked("1.2.3");
        large["size"] = (MAX_LAYER + 1).into();
        for (layers, said) in [
            (json!([plain]), "no layer"),
            (json!([marked("1.2.3"), marked("1.2.4")]), "several layers"),
            (json!([marked("1.2")]), "a version such as"),
            (json!([marked("../../1.2.3")]), "a version such as"),
            (json!([large]), "more than"),
        ] {
            let error = found(layers).unwrap_err().to_string();
            assert!(error.contains(said), "{said}: {error}");
        }
    }
}
