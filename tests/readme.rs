//! Follows the README's sections from nothing to running jobs, and docs/getting-started.md's.
//!
//! Each section's console blocks run as one script, in namespaces: the files in /etc and /var/lib that it makes, its
//! hosts, and its processes are gone afterwards. Needs root.

use std::path::Path;

use greenroom_testkit::program;
use greenroom_testkit::skipped::{self, skipped};

#[expect(dead_code, reason = "only the folder is of use here")]
#[path = "vm/images.rs"]
mod images;

/// A person's actions as shell functions: type a password, confirm, wait for an image.
const INSTEAD: &str = r#"
apt-get() { command apt-get --simulate "$@"; }
ssh-copy-id() { install -D -m 0644 "$2" "/etc/ssh/hosts/${3#*@}"; }
ssh() { bash -c "$2"; }
greenroom() {
    case "$*" in
        "image build") command greenroom image check --images "$images" || true ;;
        "doctor --pin "*) command greenroom "$@" --yes ;;
        *) command greenroom "$@" ;;
    esac
}
"#;

/// A machine of the script's own: `$1` is a directory for it, `$2` the folder with this build's executable. That is
/// mounted where the README has it, and the runner host's service manager is out of reach.
const MACHINE: &str = r#"
set -euo pipefail
umask 022
mount --make-rprivate /
mkdir -p "$1/files" "$1/state"
mount -t tmpfs none "$1/files"
mkdir -p "$1"/files/{etc,lib,home}/{made,work}
mount -t overlay none -o "lowerdir=/etc,upperdir=$1/files/etc/made,workdir=$1/files/etc/work" /etc
mount -t overlay none -o "lowerdir=/var/lib,upperdir=$1/files/lib/made,workdir=$1/files/lib/work" /var/lib
mount -t overlay none -o "lowerdir=/home,upperdir=$1/files/home/made,workdir=$1/files/home/work" /home
mkdir -p /var/lib/greenroom
mount --bind "$1/state" /var/lib/greenroom
mount -t overlay none -o "lowerdir=$2:/usr/local/bin" /usr/local/bin
mount -t tmpfs none /run
ip link set lo up
export PATH="/usr/local/bin:$PATH:/usr/sbin"
"#;

/// Makes a user `ci`, as on many build machines: with its own user ID and home, and without a login.
const SAME_NAME: &str = r#"
echo "ci:x:62000:62000::/home/ci:/bin/false" >> /etc/passwd
echo "ci:!:1::::::" >> /etc/shadow
install -d -o 62000 -g 62000 -m 0700 /home/ci/builds
"#;

/// Two hosts by name, which accept any key that was copied to them for the user `ci`. It is the only user of that name,
/// and its home is new.
const HOSTS: &str = r#"
mkdir -p /run/sshd /etc/ssh/hosts /home/ci
for file in passwd shadow group gshadow; do
    [ ! -e "/etc/$file" ] || sed -i '/^ci:/d' "/etc/$file"
done
echo "ci:x:61000:61000::/home/ci:/bin/bash" >> /etc/passwd
echo "ci:x:61000:" >> /etc/group
mount -t tmpfs -o mode=0755,uid=61000,gid=61000 none /home/ci
for number in 1 2; do
    echo "127.0.0.1$number build-$number" >> /etc/hosts
    ssh-keygen -q -t ed25519 -N '' -f "/etc/ssh/hosts/$number"
    /usr/sbin/sshd -f /dev/null -h "/etc/ssh/hosts/$number" -o ListenAddress=127.0.0.1$number -o PidFile=none \
        -o AuthorizedKeysFile=/etc/ssh/hosts/build-$number -o StrictModes=no -o UsePAM=no
done
"#;

/// The console blocks of a page's section as one script.
fn script_of((page, section): (&str, &str)) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(page);
    let page = std::fs::read_to_string(path).expect("the page");
    let lines = page.lines().skip_while(|line| *line != format!("## {section}")).skip(1);
    let mut inside = false;
    let mut script = String::new();
    for line in lines.take_while(|line| !line.starts_with("## ")) {
        match line {
            "```console" => inside = true,
            "```" => inside = false,
            command if inside => {
                script.push_str(command.strip_prefix("# ").unwrap_or(command));
                script.push('\n');
            }
            _ => {}
        }
    }
    assert!(script.contains("greenroom try"), "no way to a job in `{section}`: {script}");
    script
}

/// Runs a section's script; returns its output.
fn take(at: (&str, &str), prepare: &str) -> Option<String> {
    if !rustix::process::geteuid().is_root() {
        skipped("only root can make namespaces with an /etc of their own");
        return None;
    }
    let home = tempfile::Builder::new().prefix("greenroom-readme-").tempdir().expect("a directory");
    let program = Path::new(env!("CARGO_BIN_EXE_greenroom"));
    let script = [MACHINE, prepare, INSTEAD, "set -x\n", &script_of(at)].concat();
    let mut command = program::command("unshare", home.path());
    command.args(["--mount", "--net", "--pid", "--fork", "--kill-child", "--mount-proc"]);
    command.args(["bash", "-c", &script, "bash"]).arg(home.path());
    command.arg(program.parent().expect("a folder")).env("images", images_folder(at.1));
    let output = command.current_dir("/").output().expect("unshare runs");
    let printed = [output.stdout, output.stderr].concat();
    let printed = String::from_utf8_lossy(&printed).into_owned();
    assert!(output.status.success(), "{at:?}: {}\n{printed}", output.status);
    Some(printed)
}

fn images_folder(section: &str) -> &'static Path {
    if section.contains("virtual machines") { images::folder() } else { Path::new("/nowhere") }
}

#[test]
fn virtual_machines_on_this_server() {
    if let Some(why) = skipped::nft_obstacle() {
        return skipped(why);
    }
    let prepare = "ln -s \"$images\" /var/lib/greenroom/images\n";
    let at = ("README.md", "From nothing to running jobs: virtual machines on this server");
    let printed = take(at, prepare);
    if let Some(printed) = printed {
        assert!(printed.contains("job succeeded") && printed.contains("Hello from vm-"), "{printed}");
    }
}

#[test]
fn two_ssh_hosts() {
    let prepare = [SAME_NAME, HOSTS].concat();
    if let Some(printed) = take(("README.md", "From nothing to running jobs: two SSH hosts"), &prepare) {
        assert!(printed.contains("job succeeded") && printed.contains("Hello from "), "{printed}");
    }
}

#[test]
fn one_machine_with_ssh() {
    let prepare = [SAME_NAME, HOSTS].concat();
    if let Some(printed) = take(("docs/getting-started.md", "One machine with SSH"), &prepare) {
        assert!(printed.contains("job succeeded") && printed.contains("Hello from "), "{printed}");
    }
}
