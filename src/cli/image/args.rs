//! The command line of `image`.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};

use crate::provider::keys;
use crate::provider::qemu::image::{DEFAULT_NAME, Flavour, SshServer};

#[derive(Debug, Subcommand)]
pub enum ImageCommand {
    /// Make an image out of Debian packages
    #[command(
        after_help = "Takes a minute or two and needs mmdebstrap; what is missing is named before anything is begun. \
Who is not root needs a range in /etc/subuid. Packages come from the archives that this machine's own apt is set up for. An image of the same name \
is replaced when the new one is finished; machines that run go on with the old one. docs/images.md has more."
    )]
    Build(BuildOptions),
    /// What images there are
    List {
        #[command(flatten)]
        images: Folder,
        /// As JSON
        #[arg(long)]
        json: bool,
    },
    /// Read an image to its last byte, and say what is wrong with it
    #[command(
        after_help = "Exit status: 0 machines can boot from it; 1 they cannot, or should not; 2 there is no such image."
    )]
    Check {
        /// Which one
        #[arg(default_value = DEFAULT_NAME)]
        name: String,
        #[command(flatten)]
        images: Folder,
        /// As JSON
        #[arg(long)]
        json: bool,
    },
    /// Remove an image
    Remove {
        /// Which one
        name: String,
        #[command(flatten)]
        images: Folder,
        /// Print what would be removed, and remove nothing
        #[arg(long)]
        dry_run: bool,
    },
}

/// Where images lie.
#[derive(Debug, Args)]
pub struct Folder {
    /// The folder of images [default: `images` in the state directory]
    #[arg(long, value_name = "DIR")]
    pub images: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub struct BuildOptions {
    /// What it is to be called
    #[arg(default_value = DEFAULT_NAME)]
    pub name: String,
    #[command(flatten)]
    pub images: Folder,
    /// How much of an operating system runs in it
    #[arg(long, value_enum, default_value = "light")]
    pub flavour: FlavourOption,
    /// Its SSH server
    #[arg(long, value_enum, default_value = "openssh")]
    pub ssh: SshOption,
    /// Debian's name of the release [default: this machine's]
    #[arg(long, value_name = "NAME")]
    pub suite: Option<String>,
    /// Where packages come from, instead of what this machine's apt uses: an address, or a line of sources.list.
    /// Can be given again
    #[arg(long = "mirror", value_name = "ADDRESS")]
    pub mirrors: Vec<String>,
    /// One more Debian package. Can be given again
    #[arg(long = "package", value_name = "NAME")]
    pub packages: Vec<String>,
    /// Size of the disk as the guest sees it; takes room here only as it is filled
    #[arg(long, value_name = "SIZE", default_value = "8G", value_parser = size)]
    pub size: u64,
    /// The gitlab-runner program for the guest; without it jobs have no cache and no artifacts
    #[arg(long, value_name = "FILE")]
    pub gitlab_runner: Option<PathBuf>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum FlavourOption {
    /// One small program in place of an init system: boots in moments
    Light,
    /// A full Debian, in which systemctl works
    Systemd,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum SshOption {
    Openssh,
    /// Smaller; quicker to log in to where machines are emulated
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

/// `8G`, `900M`: bytes, in powers of 1024.
fn size(text: &str) -> Result<u64, String> {
    let read = keys::size(text).filter(|_| text.ends_with(['M', 'G', 'T']));
    read.ok_or_else(|| "expected a number with M, G or T, such as 8G".to_owned())
}

#[cfg(test)]
mod tests {
    use super::size;

    #[test]
    fn sizes_have_a_unit() {
        assert_eq!(size("8G"), Ok(8 << 30));
        assert_eq!(size("900M"), Ok(900 << 20));
        for bad in ["", "8", "G", "-1G", "8g", "99999999999T", "1.5G"] {
            assert!(size(bad).is_err(), "{bad}");
        }
    }
}
