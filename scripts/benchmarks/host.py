"""The machine that measures: its description and load, the tools that it needs, and the build that is measured."""

import os
import pathlib
import platform
import re
import shutil
import subprocess
import time

from benchmarks.measure import TICKS, fail

ROOT = pathlib.Path(__file__).resolve().parents[2]


def description(*programs):
    """The processors, the kernel, and the versions of programs."""
    model = re.search(r"model name\s*: (.*)", pathlib.Path("/proc/cpuinfo").read_text())
    processors = f"{os.cpu_count()} processors ({model[1] if model else platform.machine()})"
    return ", ".join([processors, f"Linux {platform.release()}", *programs])


def openssh_version():
    return subprocess.run(["ssh", "-V"], check=False, stderr=subprocess.PIPE).stderr.decode().split(",")[0]


def busy_with_other_work(seconds=2.0):
    """The number of processors that other work keeps busy, on average, while this script waits."""

    def busy():
        fields = pathlib.Path("/proc/stat").read_text().split("\n")[0].split()[1:9]
        return sum(int(n) for i, n in enumerate(fields) if i not in (3, 4)) / TICKS

    before = busy()
    time.sleep(seconds)
    return (busy() - before) / seconds


def need_root(why):
    if os.geteuid() != 0:
        fail(f"needs to be root: {why}")


def need_tools():
    """Installs missing tools with apt as root; otherwise names them."""
    tools = {"ssh": "openssh-client", "ssh-keygen": "openssh-client", "sshd": "openssh-server", "time": "time"}
    os.environ["PATH"] += ":/usr/sbin:/sbin"
    missing = sorted({package for tool, package in tools.items() if not shutil.which(tool)})
    if missing and os.geteuid() == 0 and shutil.which("apt-get"):
        quiet = {"stdout": subprocess.DEVNULL, "env": {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}}
        subprocess.run(["apt-get", "update", "-q"], check=True, **quiet)
        subprocess.run(["apt-get", "install", "-qy", "--no-install-recommends", *missing], check=True, **quiet)
    elif missing:
        fail(f"install {', '.join(missing)} first")


def build(*targets):
    """Makes the release build; without targets, all of the package."""
    subprocess.run(["cargo", "build", "--locked", "--release", "--quiet", *targets], cwd=ROOT, check=True)


def release_build():
    """The directory of the release build: .cargo/config.toml names a target."""
    rustc = ["rustc", "--print", "host-tuple"]
    host = subprocess.run(rustc, cwd=ROOT, check=True, capture_output=True, text=True).stdout.strip()
    return pathlib.Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")) / host / "release"
