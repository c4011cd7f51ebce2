//! The command line of `image`.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};
use greenroom_keys::size as sizes;
use greenroom_providers::qemu::image::{DEFAULT_NAME, Flavour, SshServer};

#[derive(Debug, Subcommand)]
pub enum ImageCommand {
    /// Build an image from Debian packages
    #[command(after_help = "\
A build takes a minute or two and needs mmdebstrap. Missing tools are reported before it starts. A user other than root \
needs a range of subordinate IDs in /etc/subuid.

Packages come from the archives that apt uses on the runner host.

When the build has finished, the image replaces one of the same name. Running instances keep the old one. \
docs/images.md describes images.")]
    Build(BuildOptions),
    /// List images
    List {
        #[command(flatten)]
        images: Folder,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Check every byte of an image
    #[command(after_help = "\
Exit status:
  0  instances can boot from the image
  1  instances cannot or should not boot from the image
  2  failure, for example no such image; stderr states the cause")]
    Check {
        /// Name of the image
        #[arg(default_value = DEFAULT_NAME)]
        name: String,
        #[command(flatten)]
        images: Folder,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Remove an image
    Remove {
        /// Name of the image
        name: String,
        #[command(flatten)]
        images: Folder,
        /// Print what would be removed, without removing it
        #[arg(long)]
        dry_run: bool,
    },
    /// Build and manage image stores: container images that virtual machines share
    #[command(subcommand)]
    Store(StoreCommand),
}

#[derive(Debug, Subcommand)]
pub enum StoreCommand {
    /// Build an image store, or refresh one
    #[command(after_help = "\
Without IMAGE, the store keeps its images and options: run this regularly to refresh it. If no image has changed, the store \
stays as it is.

When the build has finished, the store replaces one of the same name. Running instances keep the old one. \
docs/image-stores.md describes image stores.")]
    Build(StoreBuildOptions),
    /// List image stores
    List {
        #[command(flatten)]
        images: Folder,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Check every byte of an image store
    #[command(after_help = "\
Instances that start later do not use a store that this command has found damaged.

Exit status:
  0  the store is intact
  1  the store is damaged, or out of date with --registry
  2  failure, for example no such store; stderr states the cause")]
    Check {
        /// Name of the store
        name: String,
        #[command(flatten)]
        images: Folder,
        /// Also compare the images with those in their registries
        #[arg(long)]
        registry: bool,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Remove an image store that no pool and no instance uses
    Remove {
        /// Name of the store
        name: String,
        #[command(flatten)]
        images: Folder,
        /// Print what would be removed, without removing it
        #[arg(long)]
        dry_run: bool,
    },
}

#[derive(Debug, Args)]
pub struct StoreBuildOptions {
    /// Name of the store
    pub name: String,
    /// Names of images, such as ruby:3.3 [default: those that the store has]
    #[arg(value_name = "IMAGE")]
    pub contents: Vec<String>,
    #[command(flatten)]
    pub images: Folder,
    /// Path of a directory to read the images from, instead of registries
    #[arg(long, value_name = "DIR", conflicts_with_all = ["authfile", "ca", "mirrors"])]
    pub from: Option<PathBuf>,
    /// Path of a file with passwords for registries, as `registry_auth` in a pool's table
    #[arg(long, value_name = "FILE")]
    pub authfile: Option<PathBuf>,
    /// Path of a file with certificates that verify registries, as `ca` in a pool's table
    #[arg(long, value_name = "FILE")]
    pub ca: Option<PathBuf>,
    /// Mirror of a registry, as in `mirrors` of a pool's table (repeatable)
    #[arg(long = "mirror", value_name = "REGISTRY=MIRROR", value_parser = mirror)]
    pub mirrors: Vec<(String, String)>,
}

/// The folder of images.
#[derive(Debug, Args)]
pub struct Folder {
    /// Path of the folder of images [default: `images` in the state directory]
    #[arg(long, value_name = "DIR")]
    pub images: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub struct BuildOptions {
    /// Name of the image
    #[arg(default_value = DEFAULT_NAME)]
    pub name: String,
    #[command(flatten)]
    pub images: Folder,
    /// Flavour of the operating system
    #[arg(long, value_enum, default_value = "light")]
    pub flavour: FlavourOption,
    /// SSH server of the image
    #[arg(long, value_enum, default_value = "openssh")]
    pub ssh: SshOption,
    /// Name of the Debian release [default: the runner host's]
    #[arg(long, value_name = "NAME")]
    pub suite: Option<String>,
    /// URL of a package archive, or a line of sources.list (repeatable)
    #[arg(long = "mirror", value_name = "URL")]
    pub mirrors: Vec<String>,
    /// Name of an additional Debian package (repeatable)
    #[arg(long = "package", value_name = "NAME")]
    pub packages: Vec<String>,
    /// Size of the disk as the guest sees it; the file grows as the disk is filled
    #[arg(long, value_name = "SIZE", default_value = "8G", value_parser = size)]
    pub size: u64,
    /// Include Podman, for jobs in containers
    #[arg(long)]
    pub containers: bool,
    /// Path of a gitlab-runner program to include, for caches and artifacts
    #[arg(long, value_name = "FILE")]
    pub gitlab_runner: Option<PathBuf>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum FlavourOption {
    /// One small program instead of an init system: boots fastest
    Light,
    /// A full Debian with systemd
    Systemd,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum SshOption {
    Openssh,
    /// Smaller; faster to log in to on emulated machines
    Dropbear,
}

impl From<FlavourOption> for Flavour {
    fn from(option: FlavourOption) -> Self {
        match option {
            FlavourOption::Light => Self::Light,
            FlavourOption::Systemd => Self::Systemd,
        }
    }
}

impl From<SshOption> for SshServer {
    fn from(option: SshOption) -> Self {
        match option {
            SshOption::Openssh => Self::Openssh,
            SshOption::Dropbear => Self::Dropbear,
        }
    }
}

/// The reasons for which a text is not the value of an option.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
enum OptionError {
    #[error("expected REGISTRY=MIRROR, such as docker.io=mirror.corp:5000")]
    Mirror,
    #[error("expected a number with M, G or T, such as 8G")]
    Size,
}

/// Parses `docker.io=mirror.corp:5000`.
fn mirror(text: &str) -> Result<(String, String), OptionError> {
    match text.split_once('=') {
        Some((registry, mirror)) if !registry.is_empty() && !mirror.is_empty() => {
            Ok((registry.to_owned(), mirror.to_owned()))
        }
        _ => Err(OptionError::Mirror),
    }
}

/// Parses `8G` or `900M` into bytes, in powers of 1024.
fn size(text: &str) -> Result<u64, OptionError> {
    let read = sizes::parse(text).filter(|_| text.ends_with(['M', 'G', 'T']));
    read.ok_or(OptionError::Size)
}

#[cfg(test)]
mod tests {
    use super::{mirror, size};

    #[test]
    fn a_mirror_has_a_registry() {
        assert_eq!(mirror("a=b:1"), Ok(("a".to_owned(), "b:1".to_owned())));
        for bad in ["", "a", "=b", "a="] {
            assert!(mirror(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn sizes_have_a_unit() {
        assert_eq!(size("8G"), Ok(8 << 30));
        assert_eq!(size("900M"), Ok(900 << 20));
        for bad in ["", "8", "G", "-1G", "8g", "99999999999T", "1.5G"] {
            assert!(size(bad).is_err(), "{bad}");
        }
    }
}
