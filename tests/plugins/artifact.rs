//! Made-up plugins in GitLab's layout, laid down where a registry finds them.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use flate2::Compression;
use flate2::write::GzEncoder;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use tar::{Builder, EntryType, Header};

/// Marks the layer of the plugin's files.
pub const ANNOTATION: &str = "com.gitlab.fleeting.layer";

/// One entry of a layer's archive: path, kind, content or target.
pub type Entry = (&'static str, EntryType, String);

/// A plugin as it is published.
#[derive(Debug, Clone)]
pub struct Plugin {
    pub version: &'static str,
    /// Operating system, architecture, and the entries of the archive.
    pub platforms: Vec<(&'static str, &'static str, Vec<Entry>)>,
}

/// Digests of what was published, without the algorithm.
#[derive(Debug, Clone)]
pub struct Published {
    pub index: String,
    pub manifests: Vec<String>,
    pub layers: Vec<String>,
}

/// The architecture of this machine, as registries name it, and another one.
pub fn architectures() -> (&'static str, &'static str) {
    match std::env::consts::ARCH {
        "x86_64" => ("amd64", "arm64"),
        "aarch64" => ("arm64", "amd64"),
        other => (other, "amd64"),
    }
}

/// A program that says what it is.
pub fn program(version: &str, architecture: &str) -> Entry {
    ("plugin/plugin", EntryType::Regular, format!("#!/bin/sh\necho own {version} {architecture}\n"))
}

/// A plugin for this machine and another one; the other one comes first.
pub fn plugin(version: &'static str) -> Plugin {
    let (here, other) = architectures();
    let platforms = [other, here].map(|name| ("linux", name, vec![program(version, name)])).into();
    Plugin { version, platforms }
}

/// A plugin for this machine whose archive has more entries.
pub fn with(version: &'static str, more: &[Entry]) -> Plugin {
    let (here, _) = architectures();
    let entries = [&[program(version, here)], more].concat();
    Plugin { version, platforms: vec![("linux", here, entries)] }
}

/// A compressed archive of these entries, whatever their names.
fn layer(entries: &[Entry]) -> Vec<u8> {
    let mut builder = Builder::new(GzEncoder::new(Vec::new(), Compression::fast()));
    for (path, kind, content) in entries {
        let mut header = Header::new_ustar();
        header.as_mut_bytes()[..path.len()].copy_from_slice(path.as_bytes());
        header.set_entry_type(*kind);
        header.set_mode(0o644);
        let content = if *kind == EntryType::Symlink {
            header.set_link_name(content).expect("a short target");
            ""
        } else {
            content
        };
        header.set_size(content.len() as u64);
        header.set_cksum();
        builder.append(&header, content.as_bytes()).expect("an entry");
    }
    builder.into_inner().and_then(GzEncoder::finish).expect("an archive")
}

/// Lays a plugin down in the directory of a registry.
pub fn publish(registry: &Path, repository: &str, tags: &[&str], plugin: &Plugin) -> Published {
    let mut published = Published { index: String::new(), manifests: Vec::new(), layers: Vec::new() };
    let mut manifests = Vec::new();
    for (os, architecture, entries) in &plugin.platforms {
        let layer = layer(entries);
        let config = json!({"os": os, "architecture": architecture}).to_string();
        let mut described = blob(registry, repository, "application/vnd.oci.image.layer.v1.tar+gzip", &layer);
        published.layers.push(digest(&layer));
        described["annotations"] = json!({ANNOTATION: plugin.version});
        let base =
            blob(registry, repository, "application/vnd.oci.image.layer.v1.tar+gzip", b"not the plugin's");
        let manifest = json!({
            "schemaVersion": 2, "mediaType": "application/vnd.oci.image.manifest.v1+json",
            "config": blob(registry, repository, "application/vnd.oci.image.config.v1+json", config.as_bytes()),
            "layers": [base, described],
        });
        let mut described = publish_manifest(registry, repository, &[], &manifest);
        published.manifests.push(digest(manifest.to_string().as_bytes()));
        described["platform"] = json!({"os": os, "architecture": architecture});
        manifests.push(described);
    }
    let index = json!({
        "schemaVersion": 2, "mediaType": "application/vnd.oci.image.index.v1+json", "manifests": manifests,
    });
    publish_manifest(registry, repository, tags, &index);
    published.index = digest(index.to_string().as_bytes());
    published
}

/// Gives a manifest or an index its tags; its description.
pub fn publish_manifest(registry: &Path, repository: &str, tags: &[&str], document: &Value) -> Value {
    let kind = document["mediaType"].as_str().expect("a type").to_owned();
    let content = document.to_string();
    let digest = digest(content.as_bytes());
    store(registry, content.as_bytes());
    link(registry, repository, &format!("_manifests/revisions/sha256/{digest}/link"), &digest);
    for tag in tags {
        link(registry, repository, &format!("_manifests/tags/{tag}/current/link"), &digest);
        link(registry, repository, &format!("_manifests/tags/{tag}/index/sha256/{digest}/link"), &digest);
    }
    json!({"mediaType": kind, "digest": format!("sha256:{digest}"), "size": content.len()})
}

fn blob(registry: &Path, repository: &str, kind: &str, content: &[u8]) -> Value {
    let digest = digest(content);
    store(registry, content);
    link(registry, repository, &format!("_layers/sha256/{digest}/link"), &digest);
    json!({"mediaType": kind, "digest": format!("sha256:{digest}"), "size": content.len()})
}

/// The file of a content.
pub fn content(registry: &Path, digest: &str) -> PathBuf {
    registry.join(format!("docker/registry/v2/blobs/sha256/{}/{digest}/data", &digest[..2]))
}

fn store(registry: &Path, bytes: &[u8]) {
    let file = content(registry, &digest(bytes));
    fs::create_dir_all(file.parent().expect("a folder")).expect("a folder of the registry");
    fs::write(file, bytes).expect("a content");
}

fn link(registry: &Path, repository: &str, at: &str, digest: &str) {
    let file = registry.join("docker/registry/v2/repositories").join(repository).join(at);
    fs::create_dir_all(file.parent().expect("a folder")).expect("a folder of the registry");
    fs::write(file, format!("sha256:{digest}")).expect("a link");
}

fn digest(content: &[u8]) -> String {
    let mut text = String::new();
    for byte in Sha256::digest(content) {
        write!(text, "{byte:02x}").expect("a string takes it");
    }
    text
}
