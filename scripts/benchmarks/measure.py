"""Processes seen from outside: how long one runs, and the processor time and memory that it takes."""

import dataclasses
import os
import pathlib
import select
import shutil
import subprocess
import sys
import tempfile
import time

TICKS = os.sysconf("SC_CLK_TCK")


def fail(message):
    """Ends the script with a message."""
    sys.exit(f"scripts/bench: {message}")


@dataclasses.dataclass(frozen=True)
class Run:
    """A finished process. `began` is a time of the boot clock; all times are in seconds."""

    began: float
    wall: float
    cpu: float
    page_faults: int


def boot_clock():
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def spawn(argv, env, stdin, out, err):
    """Starts a process as GitLab Runner does, in a process group of its own. Returns its process id."""
    actions = [(os.POSIX_SPAWN_DUP2, stdin, 0), (os.POSIX_SPAWN_DUP2, out, 1), (os.POSIX_SPAWN_DUP2, err, 2)]
    return os.posix_spawn(argv[0], argv, env, file_actions=actions, setpgroup=0)


def measure(argv, env, stdin=os.devnull, expected_bytes=0):
    """Runs a process to its end, with a pipe for each output stream.

    `expected_bytes`: the script counts and drops that many bytes of standard output; another number is an error.
    """
    source = os.open(stdin, os.O_RDONLY | os.O_CLOEXEC)
    out, out_end = os.pipe()
    err, err_end = os.pipe()
    began, clock = boot_clock(), time.perf_counter()
    pid = spawn(argv, env, source, out_end, err_end)
    for fd in (source, out_end, err_end):
        os.close(fd)
    count, text = drain(out, err) if expected_bytes else (0, b"")
    _, status, usage = os.wait4(pid, 0)
    wall = time.perf_counter() - clock
    if not expected_bytes:
        text = os.read(out, 65536) + os.read(err, 65536)
    os.close(out)
    os.close(err)
    code = os.waitstatus_to_exitcode(status)
    if code != 0 or count != expected_bytes:
        fail(f"{' '.join(argv)} ended with {code} after {count} bytes: {text.decode(errors='replace')[-2000:]}")
    return Run(began, wall, usage.ru_utime + usage.ru_stime, usage.ru_minflt + usage.ru_majflt)


def drain(out, err):
    """Discards the content of one pipe without a copy, and reads the other. Returns the number of bytes, and the text."""
    sink = os.open(os.devnull, os.O_WRONLY)
    count, text, open_ends = 0, b"", {out, err}
    while open_ends:
        for fd in select.select(list(open_ends), [], [])[0]:
            if fd == out:
                moved = os.splice(out, sink, 1 << 20)
                count += moved
            else:
                piece = os.read(err, 65536)
                text, moved = text + piece, len(piece)
            if moved == 0:
                open_ends.discard(fd)
    os.close(sink)
    return count, text


def wait_until(what, done, limit=60, every=0.01):
    """Waits until `done` returns true. After `limit` seconds, the script ends with the name of the awaited event."""
    until = boot_clock() + limit
    while not done():
        if boot_clock() > until:
            fail(f"waited {limit} s {what() if callable(what) else what}")
        time.sleep(every)


# ---- processes that run --------------------------------------------------------------------------------------------


def children_of(pid):
    return [int(child) for child in pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def with_descendants(pid):
    return [pid, *(one for child in children_of(pid) for one in with_descendants(child))]


def stat_fields(pid):
    """The fields of /proc/PID/stat after the name, from the state on."""
    return pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


def is_running(pid):
    """True if the process runs. A process that ended, and for which its parent has not waited, does not."""
    try:
        return stat_fields(pid)[0] not in "ZX"
    except OSError:
        return False


def cpu_of(*pids):
    """CPU seconds of running processes, to the nanosecond."""
    threads = (task for pid in pids for task in pathlib.Path(f"/proc/{pid}/task").iterdir())
    return sum(int((task / "schedstat").read_text().split()[0]) for task in threads) / 1e9


def cpu_in_ticks(*pids, with_waited_for=False):
    """CPU seconds of running processes in the kernel's steps of 10 ms, optionally with children that they waited for."""
    fields = slice(11, 15 if with_waited_for else 13)
    return sum(sum(map(int, stat_fields(pid)[fields])) for pid in pids) / TICKS


def memory_of(pid, kind):
    """Bytes of one kind (`Rss`, `Pss`, `Anonymous`), as the kernel sums up the mappings of the process."""
    lines = pathlib.Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return next((int(line.split()[1]) << 10 for line in lines if line.startswith(f"{kind}:")), 0)


def peak_memory(argv, env=None, stdin=os.devnull):
    """The largest resident set of a process in bytes, by the kernel's figure.

    `time` starts the process: a process keeps its parent's peak over exec, and this interpreter is larger than Greenroom.
    """
    with tempfile.NamedTemporaryFile("r") as report, open(stdin, "rb") as source:
        wrapped = [shutil.which("time"), "-q", "-o", report.name, "-f", "%M", *map(str, argv)]
        ran = subprocess.run(
            wrapped, check=False, env=env, stdin=source, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
        )
        if ran.returncode:
            fail(f"{' '.join(map(str, argv))} ended with {ran.returncode}: {ran.stderr[-2000:]}")
        return int(report.read().split()[-1]) << 10
