//! Registries that send something else, and archives that reach for other files.

use std::fs;

use serde_json::json;
use tar::EntryType;

use crate::artifact::{architectures, content, plugin, publish, publish_manifest, with};
use crate::site::Site;

/// Changes one byte of a content in the registry, which does not notice.
fn tamper(site: &Site, digest: &str) {
    let file = content(&site.storage(), digest);
    let mut bytes = fs::read(&file).expect("a content");
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    fs::write(file, bytes).expect("another content");
}

#[test]
fn changed_contents_are_refused() {
    let Some(site) = Site::open() else { return };
    let (layer, manifest) = {
        let first = publish(&site.storage(), "team/own", &["1.0.0"], &plugin("1.0.0"));
        let second = publish(&site.storage(), "team/own", &["2.0.0"], &plugin("2.0.0"));
        // The second platform is this one.
        (first.layers[1].clone(), second.manifests[1].clone())
    };
    tamper(&site, &layer);
    tamper(&site, &manifest);
    for (version, digest) in [("1.0.0", &layer), ("2.0.0", &manifest)] {
        let said = site.fails(&["install", &site.own(version)], &["sends other content", digest]);
        assert!(!said.contains("installed"), "{said}");
    }
    site.expect_nothing();
    assert!(!site.plugins().join("greenroom-plugins.lock").exists(), "nothing is locked");
}

#[test]
fn a_content_of_another_length_is_refused() {
    let Some(site) = Site::open() else { return };
    let first = publish(&site.storage(), "team/own", &["1.0.0"], &plugin("1.0.0"));
    let file = content(&site.storage(), &first.layers[1]);
    let bytes = fs::read(&file).expect("a content");
    for other in [[&bytes[..], b"more"].concat(), bytes[..bytes.len() - 1].to_vec()] {
        fs::write(&file, other).expect("another content");
        site.fails(&["install", &site.own("1.0.0")], &["sends other content", "bytes"]);
    }
    site.expect_nothing();
}

#[test]
fn an_archive_that_leaves_its_folder_or_has_links_is_refused() {
    let Some(site) = Site::open() else { return };
    let file = |path| (path, EntryType::Regular, "outside".to_owned());
    for (version, entry, said) in [
        ("1.0.0", file("plugin/../../../outside"), "`..`"),
        ("1.0.1", file("/tmp/greenroom-outside"), "an absolute path"),
        ("1.0.2", ("plugin/link", EntryType::Symlink, "/etc".to_owned()), "a link"),
        ("1.0.3", ("plugin/plugin", EntryType::Symlink, "/bin/sh".to_owned()), "a link"),
    ] {
        publish(&site.storage(), "team/own", &[version], &with(version, &[entry]));
        site.fails(&["install", &site.own(version)], &[said, "in its archive"]);
    }
    site.expect_nothing();
    let outside = ["plugins/outside", "outside", "plugins/.greenroom-partial/outside"];
    assert!(outside.iter().all(|path| !site.dir.path().join(path).exists()));
    // A failure leaves nothing that the next installation stumbles over.
    publish(&site.storage(), "team/own", &["1.0.4"], &plugin("1.0.4"));
    site.succeeds(&["install", &site.own("1.0.4")]);
    assert!(!site.plugins().join(".greenroom-partial").exists());
}

#[test]
fn other_images_are_not_plugins() {
    let Some(site) = Site::open() else { return };
    let manifest = json!({
        "schemaVersion": 2, "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "config": {"mediaType": "any", "digest": format!("sha256:{}", "0".repeat(64)), "size": 1}, "layers": [],
    });
    let mut described = publish_manifest(&site.storage(), "team/own", &["1.0.0"], &manifest);
    described["platform"] = json!({"os": "linux", "architecture": architectures().0});
    let index = json!({
        "schemaVersion": 2, "mediaType": "application/vnd.oci.image.index.v1+json", "manifests": [described],
    });
    publish_manifest(&site.storage(), "team/own", &["2.0.0"], &index);
    site.fails(
        &["install", &site.own("1.0.0")],
        &["layout of fleeting plugins", "an image for one platform"],
    );
    site.fails(
        &["install", &site.own("2.0.0")],
        &["layout of fleeting plugins", "com.gitlab.fleeting.layer"],
    );
    publish(&site.storage(), "team/own", &["3"], &plugin("4.0.0"));
    site.fails(&["install", &site.own("3")], &["the tag `3`", "contains version 4.0.0"]);
    site.expect_nothing();
}

#[test]
fn a_tag_that_is_missing_is_named_with_those_that_are_near() {
    let Some(site) = Site::open() else { return };
    for version in ["1.0.0", "1.1.0", "2.0.0"] {
        publish(&site.storage(), "team/own", &[version], &plugin(version));
    }
    site.fails(&["install", &site.own("1.2.0")], &["has no `team/own:1.2.0`, but 1.1.0, 1.0.0, 2.0.0"]);
    let missing = format!("{}/team/missing", site.registry);
    site.fails(&["install", &missing], &["has no `team/missing:latest`"]);
    site.fails(&["install", "a/../b"], &["the name `a/../b`"]);
}
