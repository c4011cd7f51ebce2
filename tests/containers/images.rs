//! Images out of this machine's own files, laid down where a registry finds them.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

/// The recipe of an image.
#[derive(Debug, Clone, Copy)]
pub struct Image {
    /// The repository and the tag of the image.
    pub name: &'static str,
    /// The words of `lab/tree`.
    pub tree: &'static [&'static str],
    /// Further files: path and content, each a program.
    pub files: &'static [(&'static str, &'static str)],
    pub entrypoint: &'static [&'static str],
    pub command: &'static [&'static str],
    pub user: &'static str,
    pub port: Option<u16>,
    /// Paths that get a volume of their own.
    pub volumes: &'static [&'static str],
    pub architecture: &'static str,
}

pub const PLAIN: Image = Image {
    name: "",
    tree: &["busybox"],
    files: &[],
    entrypoint: &[],
    command: &["sh"],
    user: "",
    port: None,
    volumes: &[],
    architecture: "amd64",
};

const BASH: &[&str] = &["busybox", "+/bin/bash"];

/// Exports a variable and runs its arguments, as most entrypoints do.
const EXEC: &str = "#!/bin/sh\nexport FROM_ENTRYPOINT=yes\nexec \"$@\"\n";
/// Answers each connection with its name.
const SERVE: &str =
    "#!/bin/sh\necho \"$NAME is up\"\nexec nc -ll -p 8080 -e echo \"hello from ${NAME:-nobody}\"\n";
/// Asks another service, and passes the answer on.
const FORWARD: &str = "#!/bin/sh\nexec nc -ll -p 9090 -e sh -c 'echo \"$(nc -w 5 backend 8080 </dev/null), by way of the frontend\"'\n";
const DIES: &str =
    "#!/bin/sh\nfor i in $(seq 30); do echo \"line $i\"; done\necho 'no license found' >&2\nexit 7\n";
const RUBY: &str = "#!/bin/bash\ncase \"$1\" in -v) echo 'ruby 3.3.0' ;; -e) echo \"ran $2\" ;; esac\n";

/// Knows one word, as tools do.
const TOOL: &str =
    "#!/bin/sh\n[ \"$1\" = version ] || { echo \"unknown command $1\" >&2; exit 2; }\necho v1.9\n";
const REDIS: &str = "#!/bin/sh\n[ \"$*\" = '--save ' ] && exec /listen 6379\n";
/// Accepts connections at a port.
const LISTEN: &[(&str, &str)] = &[("listen", "#!/bin/sh\nexec nc -ll -p \"$1\" -e echo ready\n")];

/// Answers with the settings that Greenroom has mounted.
const DAEMON: &str = "#!/bin/sh\nexec nc -ll -p 2376 -e cat /etc/docker/daemon.json\n";
/// A program that fails without a daemon that has the pool's mirror.
const CLIENT: &str =
    "#!/bin/sh\ncase \"$(nc -w 5 docker 2376 </dev/null)\" in *registry-mirrors*) ;; *) exit 1 ;; esac\n";

/// Every image of the tests.
pub const ALL: &[Image] = &[
    Image { name: "ash:1", ..PLAIN },
    Image { name: "bash:1", tree: BASH, ..PLAIN },
    Image { name: "library/ruby:3.3", tree: BASH, files: &[("usr/bin/ruby", RUBY)], ..PLAIN },
    Image { name: "library/alpine:3.20", ..PLAIN },
    Image {
        name: "hashicorp/terraform:1.9",
        entrypoint: &["/bin/terraform"],
        files: &[("bin/terraform", TOOL)],
        ..PLAIN
    },
    Image {
        name: "library/postgres:16",
        command: &["/listen", "5432"],
        files: LISTEN,
        port: Some(5432),
        ..PLAIN
    },
    Image {
        name: "library/redis:7",
        files: &[("bin/redis-server", REDIS), LISTEN[0]],
        port: Some(6379),
        ..PLAIN
    },
    Image { name: "library/nginx:1.27", command: &["/listen", "80"], files: LISTEN, port: Some(80), ..PLAIN },
    Image {
        name: "library/docker:27-dind",
        entrypoint: &["/daemon"],
        files: &[("daemon", DAEMON)],
        port: Some(2376),
        ..PLAIN
    },
    Image { name: "library/docker:27", files: &[("usr/bin/docker", CLIENT)], ..PLAIN },
    Image { name: "dash:1", tree: &["tools", "+/bin/dash", "+/bin/sh"], ..PLAIN },
    Image { name: "app:1", tree: &["busybox", "+/bin/bash", "+/usr/bin/git", "@app"], user: "app", ..PLAIN },
    Image { name: "exec:1", entrypoint: &["/entry"], files: &[("entry", EXEC)], ..PLAIN },
    Image { name: "shell:1", entrypoint: &["/bin/sh", "-c"], ..PLAIN },
    Image { name: "echo:1", entrypoint: &["/bin/echo"], ..PLAIN },
    Image {
        name: "three:1",
        entrypoint: &["/entry"],
        files: &[("entry", "#!/bin/sh\necho 'no display' >&2\nexit 3\n")],
        ..PLAIN
    },
    Image { name: "bare:1", tree: &["true"], command: &["/bin/true"], ..PLAIN },
    Image { name: "arm:1", architecture: "arm64", ..PLAIN },
    Image { name: "multi:amd64", files: &[("etc/built-for", "amd64\n")], ..PLAIN },
    Image { name: "multi:arm64", files: &[("etc/built-for", "arm64\n")], architecture: "arm64", ..PLAIN },
    Image { name: "big:1", tree: &["busybox", "big"], ..PLAIN },
    Image { name: "private:1", ..PLAIN },
    Image {
        name: "backend:1",
        entrypoint: &["/serve"],
        files: &[("serve", SERVE)],
        port: Some(8080),
        ..PLAIN
    },
    Image {
        name: "group/frontend:1",
        entrypoint: &["/forward"],
        files: &[("forward", FORWARD)],
        port: Some(9090),
        ..PLAIN
    },
    Image { name: "dies:1", entrypoint: &["/dies"], files: &[("dies", DIES)], port: Some(5432), ..PLAIN },
];

/// Images for several architectures: a name, and the tags that it comprises.
const INDEXES: &[(&str, &[&str])] = &[("multi:1", &["multi:amd64", "multi:arm64"])];

/// A file of the lab.
pub fn lab(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/containers/lab").join(name)
}

/// Lays an image down in the directory of a registry, with files that are made below `work`; its description for an index.
pub fn publish(image: &Image, registry: &Path, work: &Path) -> Value {
    let tree = work.join("tree");
    drop(fs::remove_dir_all(&tree));
    let status = Command::new("sh").arg(lab("tree")).arg(&tree).args(image.tree).status();
    assert!(status.is_ok_and(|status| status.success()), "the files of {}", image.name);
    for (path, content) in image.files {
        let path = tree.join(path);
        fs::create_dir_all(path.parent().expect("a folder")).expect("a folder of an image");
        fs::write(&path, content).expect("a file of an image");
        fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o755)).expect("its mode");
    }
    let layer = work.join("layer.tar");
    let mut tar = Command::new("tar");
    tar.args(["--sort=name", "--mtime=@0", "--numeric-owner", "-cf"])
        .arg(&layer)
        .arg("-C")
        .arg(&tree)
        .arg(".");
    assert!(tar.status().is_ok_and(|status| status.success()), "the layer of {}", image.name);
    let bytes = fs::read(&layer).expect("a layer");
    let layer = blob(registry, &bytes);
    let mut config = json!({"Cmd": image.command, "Env": ["PATH=/usr/local/bin:/usr/bin:/bin"]});
    if !image.entrypoint.is_empty() {
        config["Entrypoint"] = json!(image.entrypoint);
    }
    if !image.user.is_empty() {
        config["User"] = json!(image.user);
    }
    if let Some(port) = image.port {
        config["ExposedPorts"] = json!({format!("{port}/tcp"): {}});
    }
    if !image.volumes.is_empty() {
        let volumes = image.volumes.iter().map(|path| ((*path).to_owned(), json!({})));
        config["Volumes"] = volumes.collect();
    }
    let config = json!({
        "architecture": image.architecture, "os": "linux", "config": config,
        "rootfs": {"type": "layers", "diff_ids": [format!("sha256:{layer}")]},
    });
    let config = config.to_string().into_bytes();
    let described = |kind: &str, digest: &str, size: usize| -> Value {
        json!({"mediaType": format!("application/vnd.oci.image.{kind}"), "digest": format!("sha256:{digest}"), "size": size})
    };
    let config_digest = blob(registry, &config);
    let manifest = json!({
        "schemaVersion": 2, "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "config": described("config.v1+json", &config_digest, config.len()),
        "layers": [described("layer.v1.tar", &layer, bytes.len())],
    });
    for digest in [&layer, &config_digest] {
        link(registry, image.name, &format!("_layers/sha256/{digest}/link"), digest);
    }
    let manifest = manifest.to_string().into_bytes();
    let digest = publish_manifest(registry, image.name, &manifest);
    let mut described = described("manifest.v1+json", &digest, manifest.len());
    described["platform"] = json!({"architecture": image.architecture, "os": "linux"});
    described
}

/// Gives a manifest its name; its digest.
fn publish_manifest(registry: &Path, name: &str, manifest: &[u8]) -> String {
    let digest = blob(registry, manifest);
    let (_, tag) = name.split_once(':').expect("an image has a tag");
    link(registry, name, &format!("_manifests/revisions/sha256/{digest}/link"), &digest);
    link(registry, name, &format!("_manifests/tags/{tag}/current/link"), &digest);
    link(registry, name, &format!("_manifests/tags/{tag}/index/sha256/{digest}/link"), &digest);
    digest
}

/// Makes a blob known in an image's repository.
fn link(registry: &Path, name: &str, at: &str, digest: &str) {
    let (repository, _) = name.split_once(':').expect("an image has a tag");
    let repository = registry.join("docker/registry/v2/repositories").join(repository);
    put(&repository.join(at), format!("sha256:{digest}").as_bytes());
}

/// Stores what the registry answers for its digest; the digest.
fn blob(registry: &Path, bytes: &[u8]) -> String {
    let digest = Sha256::digest(bytes);
    let digest = digest.iter().fold(String::new(), |text, byte| format!("{text}{byte:02x}"));
    let dir = registry.join("docker/registry/v2/blobs/sha256").join(&digest[..2]).join(&digest);
    put(&dir.join("data"), bytes);
    digest
}

fn put(path: &Path, bytes: &[u8]) {
    fs::create_dir_all(path.parent().expect("a folder")).expect("a folder of the registry");
    fs::write(path, bytes).expect("a file of the registry");
}

/// Lays the images down whose names are wanted.
pub fn publish_all(registry: &Path, work: &Path, is_wanted: impl Fn(&str) -> bool) {
    fs::create_dir_all(work).expect("a folder");
    let wanted = ALL.iter().filter(|image| is_wanted(image.name));
    let published: Vec<_> = wanted.map(|image| (image.name, publish(image, registry, work))).collect();
    for (name, tags) in INDEXES {
        let manifests: Vec<_> = published.iter().filter(|(name, _)| tags.contains(name)).collect();
        let manifests: Vec<_> = manifests.into_iter().map(|(_, described)| described).collect();
        let index = json!({
            "schemaVersion": 2, "mediaType": "application/vnd.oci.image.index.v1+json", "manifests": manifests,
        });
        publish_manifest(registry, name, index.to_string().as_bytes());
    }
    fs::remove_dir_all(work).expect("it was made here");
}
