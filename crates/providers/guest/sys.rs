//! The system calls that `std` does not have: the only unsafe code of the program.
#![expect(
    unsafe_code,
    reason = "these calls have no safe form in std, and the guest program has no dependencies"
)]

use std::ffi::{CStr, CString, c_char, c_int, c_long, c_ulong, c_void};
use std::fs::File;
use std::io;
use std::net::Ipv4Addr;
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

pub(crate) const SIGHUP: c_int = 1;
pub(crate) const SIGINT: c_int = 2;
pub(crate) const SIGUSR2: c_int = 12;
pub(crate) const SIGTERM: c_int = 15;
pub(crate) const SIGCHLD: c_int = 17;

pub(crate) const MS_RDONLY: c_ulong = 1;
pub(crate) const MS_NOSUID: c_ulong = 2;
pub(crate) const MS_NODEV: c_ulong = 4;
pub(crate) const MS_NOEXEC: c_ulong = 8;
pub(crate) const MS_NOATIME: c_ulong = 1024;
pub(crate) const MS_MOVE: c_ulong = 8192;

const WNOHANG: c_int = 1;
const RLIMIT_NOFILE: c_int = 7;
const CLOCK_REALTIME: c_int = 0;
const SIG_BLOCK: c_int = 0;
const SIG_SETMASK: c_int = 2;
const EINTR: i32 = 4;
const EAGAIN: i32 = 11;
const POLLIN: i16 = 1;

const EXT4_IOC_RESIZE_FS: c_ulong = 0x4008_6610;
const RNDADDENTROPY: c_ulong = 0x4008_5203;
const RNDRESEEDCRNG: c_ulong = 0x5207;
const SIOCADDRT: c_ulong = 0x890B;
const SIOCGIFFLAGS: c_ulong = 0x8913;
const SIOCSIFFLAGS: c_ulong = 0x8914;
const SIOCSIFADDR: c_ulong = 0x8916;
const SIOCSIFNETMASK: c_ulong = 0x891c;
const IFF_UP: i16 = 1;
const RTF_UP: u16 = 1;
const RTF_GATEWAY: u16 = 2;
const AF_INET: u16 = 2;
const SOCK_DGRAM: c_int = 2;
const SOCK_CLOEXEC: c_int = 0o2_000_000;

const SYS_REBOOT: c_long = 169;
const SYS_FINIT_MODULE: c_long = 313;
const REBOOT_MAGIC: (c_long, c_long) = (0xfee1_dead, 672_274_793);

unsafe extern "C" {
    fn mount(
        source: *const c_char,
        target: *const c_char,
        kind: *const c_char,
        flags: c_ulong,
        data: *const c_void,
    ) -> c_int;
    fn chroot(path: *const c_char) -> c_int;
    fn sethostname(name: *const c_char, length: usize) -> c_int;
    fn clock_settime(clock: c_int, time: *const Timespec) -> c_int;
    fn setrlimit(resource: c_int, limit: *const Rlimit) -> c_int;
    fn ioctl(fd: c_int, request: c_ulong, ...) -> c_int;
    fn syscall(number: c_long, ...) -> c_long;
    fn socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int;
    fn poll(fds: *mut PollFd, count: c_ulong, timeout: c_int) -> c_int;
    fn kill(pid: c_int, signal: c_int) -> c_int;
    fn waitpid(pid: c_int, status: *mut c_int, options: c_int) -> c_int;
    fn sigemptyset(set: *mut SignalSet) -> c_int;
    fn sigaddset(set: *mut SignalSet, signal: c_int) -> c_int;
    fn sigprocmask(how: c_int, set: *const SignalSet, old: *mut SignalSet) -> c_int;
    fn sigtimedwait(set: *const SignalSet, info: *mut c_void, timeout: *const Timespec) -> c_int;
    fn sync();
}

#[repr(C)]
struct Timespec {
    seconds: i64,
    nanoseconds: i64,
}

impl From<Duration> for Timespec {
    fn from(duration: Duration) -> Self {
        let seconds = i64::try_from(duration.as_secs()).unwrap_or(i64::MAX);
        Self { seconds, nanoseconds: i64::from(duration.subsec_nanos()) }
    }
}

#[repr(C)]
struct Rlimit {
    soft: u64,
    hard: u64,
}

#[repr(C)]
struct PollFd {
    fd: c_int,
    events: i16,
    revents: i16,
}

/// `sigset_t` of the C library.
#[repr(C)]
struct SignalSet([u64; 16]);

/// `sockaddr_in`.
#[repr(C)]
#[derive(Clone, Copy)]
struct SocketAddress {
    family: u16,
    port: u16,
    address: [u8; 4],
    zero: [u8; 8],
}

impl From<Ipv4Addr> for SocketAddress {
    fn from(address: Ipv4Addr) -> Self {
        Self { family: AF_INET, port: 0, address: address.octets(), zero: [0; 8] }
    }
}

/// `ifreq` with an address.
#[repr(C)]
struct AddressRequest {
    name: [u8; 16],
    address: SocketAddress,
    rest: [u8; 8],
}

/// `ifreq` with flags.
#[repr(C)]
struct FlagsRequest {
    name: [u8; 16],
    flags: i16,
    rest: [u8; 22],
}

/// `rtentry`.
#[repr(C)]
struct RouteEntry {
    pad1: c_ulong,
    destination: SocketAddress,
    gateway: SocketAddress,
    mask: SocketAddress,
    flags: u16,
    pad2: i16,
    pad3: c_ulong,
    pad4: *const c_void,
    metric: i16,
    device: *const c_char,
    mtu: c_ulong,
    window: c_ulong,
    irtt: u16,
}

/// `rand_pool_info` with 64 bytes.
#[repr(C)]
struct Entropy {
    bits: c_int,
    size: c_int,
    bytes: [u8; 64],
}

fn text(text: impl AsRef<[u8]>) -> io::Result<CString> {
    CString::new(text.as_ref()).map_err(io::Error::other)
}

fn check(result: impl Into<i64>) -> io::Result<()> {
    if result.into() < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Mounts; `data` are the file system's own options, comma-separated.
pub(crate) fn mount_at(
    source: &str,
    target: &Path,
    kind: &str,
    flags: c_ulong,
    data: &str,
) -> io::Result<()> {
    let source = text(source)?;
    let kind = text(kind)?;
    let data = text(data)?;
    let target = text(target.as_os_str().as_bytes())?;
    // SAFETY: four strings that end in NUL and outlive the call.
    check(unsafe { mount(source.as_ptr(), target.as_ptr(), kind.as_ptr(), flags, data.as_ptr().cast()) })
}

/// Grows a mounted ext4 to a number of blocks. One of that size already is fine.
pub(crate) fn grow_ext4(root: &Path, blocks: u64) -> io::Result<()> {
    let root = File::open(root)?;
    // SAFETY: the number outlives the call, which reads it.
    check(unsafe { ioctl(root.as_raw_fd(), EXT4_IOC_RESIZE_FS, &raw const blocks) })
}

/// Makes a directory the root of this process and moves there.
pub(crate) fn enter_root(path: &Path) -> io::Result<()> {
    let root = text(path.as_os_str().as_bytes())?;
    // SAFETY: a string that ends in NUL and outlives the call.
    check(unsafe { chroot(root.as_ptr()) })?;
    std::env::set_current_dir("/")
}

/// Puts a module into the kernel. One that is there already is fine.
pub(crate) fn load_module(file: &File) -> io::Result<()> {
    let none: &CStr = c"";
    // SAFETY: a descriptor that is open and a string that ends in NUL, both outliving the call.
    match check(unsafe { syscall(SYS_FINIT_MODULE, file.as_raw_fd(), none.as_ptr(), 0 as c_int) }) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        other => other,
    }
}

/// The way in which the machine ends.
#[derive(Debug, Clone, Copy)]
pub(crate) enum End {
    PowerOff,
    Restart,
}

/// Ends the machine immediately, after a sync of the disks. Returns only if it is not permitted.
pub(crate) fn end_machine(how: End) -> io::Error {
    let command: c_long = match how {
        End::PowerOff => 0x4321_fedc,
        End::Restart => 0x0123_4567,
    };
    // SAFETY: neither call takes a pointer.
    unsafe {
        sync();
        syscall(SYS_REBOOT, REBOOT_MAGIC.0, REBOOT_MAGIC.1, command, 0 as c_long);
    }
    io::Error::last_os_error()
}

/// Writes everything to the disk.
pub(crate) fn sync_disks() {
    // SAFETY: no arguments, cannot fail.
    unsafe { sync() };
}

pub(crate) fn set_hostname(name: &str) -> io::Result<()> {
    // SAFETY: the pointer and the length are those of one string.
    check(unsafe { sethostname(name.as_ptr().cast(), name.len()) })
}

/// Sets the wall clock to a time since 1970.
pub(crate) fn set_clock(since_epoch: Duration) -> io::Result<()> {
    // SAFETY: the structure outlives the call.
    check(unsafe { clock_settime(CLOCK_REALTIME, &Timespec::from(since_epoch)) })
}

/// Limits the number of files that this process and its children may open.
pub(crate) fn limit_files(soft: u64, hard: u64) -> io::Result<()> {
    // SAFETY: the structure outlives the call.
    check(unsafe { setrlimit(RLIMIT_NOFILE, &Rlimit { soft, hard }) })
}

/// Mixes a seed into the kernel's random numbers, and has every number from now on come from it.
pub(crate) fn seed_random(seed: &[u8; 64]) -> io::Result<()> {
    let device = File::options().read(true).write(true).open("/dev/urandom")?;
    let entropy = Entropy { bits: 512, size: 64, bytes: *seed };
    // SAFETY: the structure is a `rand_pool_info` whose size tells the truth, and outlives the call.
    check(unsafe { ioctl(device.as_raw_fd(), RNDADDENTROPY, &raw const entropy) })?;
    // SAFETY: takes no argument.
    check(unsafe { ioctl(device.as_raw_fd(), RNDRESEEDCRNG) })
}

fn network_socket() -> io::Result<OwnedFd> {
    // SAFETY: no pointers; a new descriptor, or -1.
    let fd = unsafe { socket(c_int::from(AF_INET.cast_signed()), SOCK_DGRAM | SOCK_CLOEXEC, 0) };
    check(fd)?;
    // SAFETY: the descriptor is new, and nothing else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

fn interface_name(name: &str) -> [u8; 16] {
    let mut field = [0; 16];
    field.iter_mut().take(15).zip(name.bytes()).for_each(|(to, from)| *to = from);
    field
}

/// Gives an interface an IPv4 address.
pub(crate) fn set_address(interface: &str, address: Ipv4Addr, mask: Ipv4Addr) -> io::Result<()> {
    let socket = network_socket()?;
    for (request, value) in [(SIOCSIFADDR, address), (SIOCSIFNETMASK, mask)] {
        let ask = AddressRequest { name: interface_name(interface), address: value.into(), rest: [0; 8] };
        // SAFETY: the structure is an `ifreq` in size and layout and outlives the call.
        check(unsafe { ioctl(socket.as_raw_fd(), request, &raw const ask) })?;
    }
    Ok(())
}

/// Brings an interface up.
pub(crate) fn bring_up(interface: &str) -> io::Result<()> {
    let socket = network_socket()?;
    let mut ask = FlagsRequest { name: interface_name(interface), flags: 0, rest: [0; 22] };
    // SAFETY: the structure is an `ifreq` in size and layout and outlives the call, which writes to it.
    check(unsafe { ioctl(socket.as_raw_fd(), SIOCGIFFLAGS, &raw mut ask) })?;
    ask.flags |= IFF_UP;
    // SAFETY: as above.
    check(unsafe { ioctl(socket.as_raw_fd(), SIOCSIFFLAGS, &raw const ask) })
}

/// Sends everything that has no other way over a gateway.
pub(crate) fn set_gateway(gateway: Ipv4Addr) -> io::Result<()> {
    let socket = network_socket()?;
    let any = SocketAddress::from(Ipv4Addr::UNSPECIFIED);
    let route = RouteEntry {
        pad1: 0,
        destination: any,
        gateway: gateway.into(),
        mask: any,
        flags: RTF_UP | RTF_GATEWAY,
        pad2: 0,
        pad3: 0,
        pad4: std::ptr::null(),
        metric: 0,
        device: std::ptr::null(),
        mtu: 0,
        window: 0,
        irtt: 0,
    };
    // SAFETY: the structure is an `rtentry` in size and layout and outlives the call; its null pointers are allowed.
    match check(unsafe { ioctl(socket.as_raw_fd(), SIOCADDRT, &raw const route) }) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        other => other,
    }
}

/// Waits until a file has something to read, or its other end is gone.
pub(crate) fn wait_readable(file: &File) -> io::Result<()> {
    let mut one = PollFd { fd: file.as_raw_fd(), events: POLLIN, revents: 0 };
    loop {
        // SAFETY: one structure, and the count says so.
        match check(unsafe { poll(&raw mut one, 1, -1) }) {
            Err(error) if error.raw_os_error() == Some(EINTR) => {}
            other => return other,
        }
    }
}

pub(crate) fn send_signal(pid: c_int, signal: c_int) -> io::Result<()> {
    // SAFETY: no pointers.
    check(unsafe { kill(pid, signal) })
}

/// Takes a child that has ended; `None` when there is none just now.
pub(crate) fn reap() -> Option<u32> {
    // SAFETY: a null status is allowed.
    let pid = unsafe { waitpid(-1, std::ptr::null_mut(), WNOHANG) };
    u32::try_from(pid).ok().filter(|pid| *pid > 0)
}

/// Signals that are blocked and waited for, instead of being handled.
pub(crate) struct Signals(SignalSet);

impl Signals {
    /// Blocks them for this process, and for what it starts without `unblocked`.
    pub(crate) fn block(signals: &[c_int]) -> io::Result<Self> {
        let mut set = SignalSet([0; 16]);
        // SAFETY: the set is as large as the C library's and outlives the calls.
        unsafe {
            sigemptyset(&raw mut set);
            for signal in signals {
                sigaddset(&raw mut set, *signal);
            }
            check(sigprocmask(SIG_BLOCK, &raw const set, std::ptr::null_mut()))?;
        }
        Ok(Self(set))
    }

    /// Makes a command start with no signal blocked.
    pub(crate) fn unblocked(command: &mut Command) -> &mut Command {
        let nothing = SignalSet([0; 16]);
        // SAFETY: between fork and exec one system call is made, on a set that the closure owns.
        unsafe {
            command
                .pre_exec(move || check(sigprocmask(SIG_SETMASK, &raw const nothing, std::ptr::null_mut())))
        }
    }

    /// The next one; `None` when none came in time.
    pub(crate) fn wait(&self, timeout: Duration) -> io::Result<Option<c_int>> {
        // SAFETY: set and time outlive the call; no information is asked for.
        let signal = unsafe { sigtimedwait(&raw const self.0, std::ptr::null_mut(), &timeout.into()) };
        match check(signal) {
            Ok(()) => Ok(Some(signal)),
            Err(error) if matches!(error.raw_os_error(), Some(EINTR | EAGAIN)) => Ok(None),
            Err(error) => Err(error),
        }
    }
}
