//! The keys of provider `qemu`.

use greenroom_keys::Applies::{Launch, Pass};
use greenroom_keys::Takes::{Duration, HostPath, Range, Size, Text, Texts, Word};
use greenroom_keys::Unset::{Value, Words};
use greenroom_keys::{KeyTable, key};

/// The values of `network`, `accel` and `boot`.
const NETWORKS: &[&str] = &["isolated", "proxy", "internet", "open"];
/// User IDs end at 2^31 for many programs.
const LAST_FIRST_UID: u32 = 2_147_480_000;
const ACCELS: &[&str] = &["auto", "kvm", "tcg"];
const BOOTS: &[&str] = &["snapshot", "direct", "disk"];

pub(super) const TABLES: &[KeyTable] = &[KeyTable {
    header: "[pool.NAME.provider]",
    about: "Instances are virtual machines (VMs) on the runner host, through QEMU. \
            [providers/qemu.md](providers/qemu.md) explains how they boot and what isolates them.",
    keys: &[
        key("image", Text, Value("\"light\""), Launch)
            .means("Name of an image of `greenroom image build`, or absolute path of a qcow2 file with cloud-init.")
            .interacts("A qcow2 file boots more slowly: see `boot`."),
        key("images", HostPath, Words("`images` in the state directory"), Launch)
            .means("Directory of images.")
            .interacts("`greenroom image` takes the same directory by `--images`."),
        key("image_store", Text, Words("none"), Launch)
            .means("Name of an image store of `greenroom image store build`: its images are on each VM that starts. \
                    [image-stores.md](image-stores.md) explains them.")
            .interacts("Requires an image of `greenroom image build --containers`. `pull_policy` decides whether a job \
                        contacts the registry all the same."),
        key("vcpus", Range(1, 64), Value("1"), Launch).unit("processors").means("Processors of each VM."),
        key("memory", Size, Value("\"1G\""), Launch)
            .means("Memory of each VM, in whole MiB and at least `128M`.")
            .interacts("Must not exceed `memory_budget`."),
        key("disk", Size, Words("the size of the image"), Launch)
            .means("Size of the disk as the guest sees it; the guest's file system grows with it.")
            .interacts("Must not be smaller than the image, nor exceed `disk_budget`."),
        key("network", Word(NETWORKS), Value("\"isolated\""), Launch)
            .means("What a guest reaches: nothing, one address, the internet, or all that the runner host reaches, its \
                    loopback included.")
            .interacts("Jobs need GitLab: with `\"isolated\"` they cannot fetch sources. `\"internet\"` requires root \
                        and `nft`."),
        key("allow", Texts, Words("none"), Launch)
            .means("Addresses, networks and names, with or without `:port`, that guests reach in addition to the \
                    internet: `[\"10.0.0.5\", \"git.corp:443\"]`. A name is resolved when a VM starts.")
            .interacts("Refused without `network = \"internet\"`. The runner host's own addresses open only to an entry that is \
                        an address, not to a network or a name."),
        key("first_uid", Range(1000, LAST_FIRST_UID), Value("1900000000"), Launch)
            .means("First of 1024 user IDs. Each VM's QEMU has one of its own.")
            .interacts("Only with `network = \"internet\"`. No user of the runner host may have one of them."),
        key("proxy", Text, Words("none"), Launch)
            .means("Address that guests reach as 10.0.2.100:3128, as `\"host:port\"`; `http_proxy` is set in the \
                    guest.")
            .interacts("Required with `network = \"proxy\"`, refused otherwise."),
        key("accel", Word(ACCELS), Value("\"auto\""), Launch)
            .means("Accelerator: KVM, or emulation (`\"tcg\"`), which is 5 to 30 times slower.")
            .interacts("`\"auto\"` tests KVM before it uses it, and emulates if the test fails."),
        key("boot", Word(BOOTS), Value("\"snapshot\""), Launch)
            .means("How a VM boots: resumed from a template that has booted once, by its image's kernel, or by the \
                    boot loader of its disk.")
            .interacts("A qcow2 file in `image` boots by `\"disk\"`, which is the default then; other images \
                        cannot."),
        key("boot_timeout", Duration(0), Words("30 s with KVM, 3 min emulated; with a qcow2 file 2 min and 10 min"), Launch)
            .means("How long a guest may take from the start of QEMU to its first answer.")
            .interacts("`launch_timeout` bounds the whole launch."),
        key("template_retention", Duration(0), Value("\"10m\""), Launch)
            .means("How long the memory of a template (some 100 MiB) is kept after its last clone has terminated.")
            .interacts("Only with `boot = \"snapshot\"`."),
        key("memory_budget", Size, Words("three quarters of the runner host's memory"), Pass)
            .means("Memory for all VMs of the state directory together; a VM that does not fit is refused with no \
                    capacity.")
            .interacts("Each VM counts with its `memory` and 128 MiB more, or 64 MiB with `accel = \"kvm\"`. VMs \
                        of other pools count, too."),
        key("disk_budget", Size, Words("three quarters of the file system that holds the disks"), Pass)
            .means("Disk space for all VMs of the state directory together; a VM that does not fit is refused with no \
                    capacity.")
            .interacts("Each VM counts with its `disk`, however much of it is written. VMs of other pools count, \
                        too. An image store in use counts once, and so do templates with images of containers."),
        key("user", Text, Words("`greenroom-vm` if there is such a user, otherwise `nobody`"), Launch)
            .means("User that runs QEMU where Greenroom runs as root; not root."),
        key("qemu", HostPath, Words("`qemu-system-x86_64`, searched for in `PATH`"), Launch).means("Path of QEMU."),
    ],
}];
