//! The program skopeo, which reads registries and writes the engine's storage.
//!
//! Each skopeo runs with mounts of its own, so that those of the engine's storage end with it.

use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use fs_err as fs;
use greenroom_core::container::image::ImageName;
use greenroom_core::container::registries;
use greenroom_core::text::clean_line;

use super::{ImageStoreError, Source, manifest_digest};
use crate::qemu::image::build::{Tool, ToolError};

/// The time limit for one image.
const LIMIT: &str = "1h";
/// The number of times skopeo tries again if the registry cannot be reached.
const RETRIES: &str = "2";
/// The runner host's settings.
const REGISTRIES: &str = "/etc/containers/registries.conf";
const POLICY: &str = "/etc/containers/policy.json";

/// The longest message, in characters.
const MESSAGE: usize = 400;

/// skopeo with the files that it reads and writes.
#[derive(Debug)]
pub(super) struct Skopeo<'a> {
    /// The engine's storage.
    pub(super) storage: PathBuf,
    work: &'a Path,
    /// Inherited: as long as skopeo runs, the build is not over.
    lock: &'a fs::File,
    source: &'a Source,
    certificates: Option<PathBuf>,
}

impl<'a> Skopeo<'a> {
    pub(super) fn new(
        work: &'a Path,
        lock: &'a fs::File,
        source: &'a Source,
    ) -> Result<Self, ImageStoreError> {
        let storage = work.join("storage");
        if storage.to_string_lossy().contains(['+', '@', ':', '[', ']', ',']) {
            return Err(ImageStoreError::Path(work.to_owned()));
        }
        fs::create_dir(work.join("tmp"))?;
        let own = fs::read_to_string(REGISTRIES).or_else(|error| {
            if error.kind() == io::ErrorKind::NotFound { Ok(String::new()) } else { Err(error) }
        })?;
        fs::write(work.join("registries.conf"), own + &registries::mirrors(&source.mirrors))?;
        // Settings of the host's own engine have no part in it.
        fs::write(work.join("storage.conf"), "[storage]\ndriver = \"overlay\"\n")?;
        let certificates = source.ca.as_ref().map(|ca| {
            let dir = work.join("certificates");
            fs::create_dir(&dir)?;
            fs::copy(ca, dir.join("ca.crt"))?;
            io::Result::Ok(dir)
        });
        Ok(Self { storage, work, lock, source, certificates: certificates.transpose()? })
    }

    /// `skopeo 1.9.3`.
    pub(super) fn version() -> Result<String, ImageStoreError> {
        let tool = Tool::Skopeo;
        let output = tool.command().arg("--version").stdin(Stdio::null()).output();
        let output = output.map_err(|source| ToolError::Start { tool, source })?;
        let text = clean_line(&output.stdout, 80);
        Ok(text.replace(" version ", " "))
    }

    /// The digest of an image's manifest, or of the list of manifests for several platforms.
    pub(super) fn digest(&self, image: &ImageName) -> Result<String, ImageStoreError> {
        let mut command = self.command(&["inspect", "--raw", "--retry-times", RETRIES]);
        if let Some(certificates) = &self.certificates {
            command.arg("--cert-dir").arg(certificates);
        }
        command.arg(self.reference(image, None)?);
        let output = run(command, "read", image)?;
        Ok(manifest_digest(&output.stdout))
    }

    /// Copies what has this digest into the engine's storage, under the image's name.
    pub(super) fn copy(&self, image: &ImageName, digest: &str) -> Result<(), ImageStoreError> {
        let mut command = self.command(&["copy", "--quiet", "--retry-times", RETRIES]);
        if let Some(certificates) = &self.certificates {
            command.arg("--src-cert-dir").arg(certificates);
        }
        command.arg(self.reference(image, Some(digest))?);
        let storage = self.storage.display();
        let run_dir = self.work.join("run");
        command.arg(format!("containers-storage:[overlay@{storage}+{}]{image}", run_dir.display()));
        run(command, "copy", image).map(drop)
    }

    /// The place of an image. A digest decides, whatever the tag has become.
    fn reference(&self, image: &ImageName, digest: Option<&str>) -> Result<String, ImageStoreError> {
        let Some(from) = &self.source.from else {
            return Ok(digest.map_or_else(
                || format!("docker://{image}"),
                |digest| format!("docker://{}@{digest}", image.path()),
            ));
        };
        self.in_directory(from, image)
    }

    /// The place of an image in a directory: `DIR/NAME` with a manifest or an OCI layout in it, or the layout
    /// `DIR/NAME-WITHOUT-TAG` with several tags. Each name may be complete or as short as users write it.
    fn in_directory(&self, from: &Path, image: &ImageName) -> Result<String, ImageStoreError> {
        for name in image.names() {
            let dir = from.join(&name);
            if dir.join("manifest.json").is_file() {
                return Ok(format!("dir:{}", dir.display()));
            }
            if dir.join("oci-layout").is_file() {
                return Ok(format!("oci:{}", self.linked(&dir)?.display()));
            }
            if let Some((path, tag)) = name.rsplit_once(':').filter(|(_, tag)| !tag.contains('/'))
                && from.join(path).join("oci-layout").is_file()
            {
                return Ok(format!("oci:{}:{tag}", self.linked(&from.join(path))?.display()));
            }
        }
        Err(ImageStoreError::NotInDirectory { image: image.to_string(), dir: from.to_owned() })
    }

    /// A path without colons, which would begin a tag.
    fn linked(&self, dir: &Path) -> io::Result<PathBuf> {
        let link = self.work.join("layout");
        greenroom_system::remove::tree(&link)?;
        std::os::unix::fs::symlink(std::path::absolute(dir)?, &link)?;
        Ok(link)
    }

    fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new("unshare");
        command.args(["--mount", "--propagation", "private", "--"]).arg(Tool::Skopeo.program());
        command.args(["--command-timeout", LIMIT]);
        command.arg("--tmpdir").arg(self.work.join("tmp"));
        command.arg("--registries-conf").arg(self.work.join("registries.conf"));
        if !Path::new(POLICY).exists() {
            command.arg("--insecure-policy");
        }
        command.args(words);
        if let Some(authfile) = &self.source.authfile {
            command.arg("--authfile").arg(authfile);
        }
        command.env("LC_ALL", "C").env("CONTAINERS_STORAGE_CONF", self.work.join("storage.conf"));
        if let Ok(lock) = self.lock.file().try_clone() {
            command.stdin(Stdio::from(lock));
        }
        command
    }
}

fn run(mut command: Command, what: &'static str, image: &ImageName) -> Result<Output, ImageStoreError> {
    let output = command.output().map_err(|source| ToolError::Start { tool: Tool::Skopeo, source })?;
    if output.status.success() {
        return Ok(output);
    }
    let problem = message(&output.stderr, output.status);
    Err(ImageStoreError::Skopeo { what, image: image.to_string(), problem })
}

/// The message of skopeo's last line: `time="…" level=fatal msg="…"`.
fn message(stderr: &[u8], status: std::process::ExitStatus) -> String {
    let text = String::from_utf8_lossy(stderr);
    let last = text.lines().rfind(|line| !line.trim().is_empty()).unwrap_or_default();
    let quoted = last.split_once("msg=").map(|(_, message)| message);
    let unquoted = quoted.and_then(|message| serde_json::from_str::<String>(message).ok());
    let message = unquoted.unwrap_or_else(|| quoted.unwrap_or(last).to_owned());
    let message = clean_line(message.as_bytes(), MESSAGE);
    if message.is_empty() { format!("skopeo ended with {status}") } else { message }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_message_is_read_from_the_log_line() {
        let status = std::process::ExitStatus::default();
        let line = b"warning\ntime=\"2026-11-20T03:00:00Z\" level=fatal msg=\"reading \\\"a\\\": denied\"\n";
        assert_eq!(message(line, status), "reading \"a\": denied");
        assert_eq!(message(b"unshare: no\n", status), "unshare: no");
        assert!(message(b"", status).starts_with("skopeo ended with"));
    }

    #[test]
    fn an_image_is_found_in_a_directory_by_each_of_its_names() {
        let dir = tempfile::tempdir().unwrap();
        let work = dir.path().join("build");
        let from = dir.path().join("from");
        fs::create_dir(&work).unwrap();
        let lock = fs::File::create(dir.path().join("lock")).unwrap();
        let source = Source { from: Some(from.clone()), ..Source::default() };
        let skopeo = Skopeo::new(&work, &lock, &source).unwrap();
        let place = |image: &str| {
            let found = skopeo.in_directory(&from, &ImageName::parse(image).unwrap());
            found.map(|text| text.replace(&dir.path().display().to_string(), ""))
        };
        for file in
            ["ruby:3.3/manifest.json", "docker.io/library/go:1/manifest.json", "corp.test:5000/a/oci-layout"]
        {
            let file = from.join(file);
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(file, "").unwrap();
        }
        assert_eq!(place("ruby:3.3").unwrap(), "dir:/from/ruby:3.3");
        assert_eq!(place("docker.io/library/ruby:3.3").unwrap(), "dir:/from/ruby:3.3");
        assert_eq!(place("go:1").unwrap(), "dir:/from/docker.io/library/go:1");
        assert_eq!(place("corp.test:5000/a:2").unwrap(), "oci:/build/layout:2");
        assert!(matches!(place("ruby:3.4"), Err(ImageStoreError::NotInDirectory { .. })));
    }
}
