//! What a registry stores for a plugin: an index of platforms, and a manifest of layers for each.

use std::collections::BTreeMap;

use serde::Deserialize;

use super::digest::Digest;
use super::platform::Platform;
use crate::fleeting::reference::Version;

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
struct Index {
    manifests: Vec<Descriptor>,
}

#[derive(Debug, Deserialize)]
struct Manifest {
    layers: Vec<Descriptor>,
}

/// The layer of the plugin's files, and its version.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct PluginLayer {
    pub(super) content: Descriptor,
    pub(super) version: Version,
}

/// Why a content is not a plugin for this platform. Each message continues a sentence that names the plugin.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LayoutError {
    #[error("has nothing for {here}, only for {there}")]
    Platform { here: String, there: String },
    #[error("is not in the layout of fleeting plugins: {0}")]
    Other(String),
}

fn other(what: impl Into<String>) -> LayoutError {
    LayoutError::Other(what.into())
}

/// The manifest of a platform.
pub(super) fn manifest_for(index: &[u8], here: &Platform) -> Result<Descriptor, LayoutError> {
    let read: Index =
        serde_json::from_slice(index).map_err(|error| match serde_json::from_slice::<Manifest>(index) {
            Ok(_) => other("it is an image for one platform, expected an index of platforms"),
            Err(_) => other(format!("its index cannot be read: {error}")),
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
        return Err(other("its index names no platforms"));
    }
    Err(LayoutError::Platform { here: here.to_string(), there: there.join(", ") })
}

/// The layer with the plugin's files.
pub(super) fn plugin_layer(manifest: &[u8]) -> Result<PluginLayer, LayoutError> {
    let read: Manifest = serde_json::from_slice(manifest)
        .map_err(|error| other(format!("its manifest cannot be read: {error}")))?;
    let annotated = |layer: &Descriptor| Some(layer.annotations.as_ref()?.get(ANNOTATION)?.clone());
    let mut marked = read.layers.iter().filter_map(|layer| Some((layer, annotated(layer)?)));
    let (content, text) =
        marked.next().ok_or_else(|| other(format!("no layer has the annotation `{ANNOTATION}`")))?;
    if marked.next().is_some() {
        return Err(other(format!("several layers have the annotation `{ANNOTATION}`")));
    }
    let version = Version::parse(&text).ok_or_else(|| {
        other(format!("the annotation `{ANNOTATION}` is {text:?}, expected a version such as `1.2.3`"))
    })?;
    if content.size > MAX_LAYER {
        return Err(other(format!("its layer has {} bytes, more than {MAX_LAYER}", content.size)));
    }
    Ok(PluginLayer { content: content.clone(), version })
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
        assert_eq!(chosen(&manifests, "amd64"), Ok(Digest::of(b"linuxamd64")));
        assert_eq!(chosen(&manifests, "arm64"), Ok(Digest::of(b"linuxarm64v8")));
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
