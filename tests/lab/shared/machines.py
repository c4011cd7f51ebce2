"""Instances with SSH: each has a real sshd on its own address, in its own namespaces."""

import os
import pathlib
import random
import shutil
import signal
import socket
import subprocess
import threading

HERE = pathlib.Path(__file__).resolve().parent
# The exit status of boot.sh if the instance powered itself off.
POWERED_OFF = 77
# An address that no instance gets: a bound port on it keeps other emulators from choosing the same port.
RESERVED = "127.77.255.254"
# The only IPv6 address of this machine: one instance of a cloud can have it at a time.
IPV6 = "::1"


class Unusable(Exception):
    """This machine cannot run instances; the text has the reason and the remedy."""


class Machines:
    """The processes of all instances, by instance name, in a directory of their own."""

    def __init__(self, home):
        self._home = pathlib.Path(home)
        self._running = {}
        self._guard = threading.Lock()
        self._port_holder, self.port = _reserve_port()
        # Host, port and path of the instances' metadata services, before their names.
        self.metadata = ""

    def start(self, name, addresses, guest, powered_off):
        """Boots an instance and returns immediately. The calling thread must live as long as the emulator.

        `powered_off` is called with the name when the instance has powered itself off, in a separate thread.
        """
        home = self._home / name
        # A name may be reused.
        shutil.rmtree(home, ignore_errors=True)
        _lay_out(home, guest)
        (home / "metadata").write_text(f"{self.metadata}{name}")
        # The kernel kills it with the thread that started it, and everything inside it with it.
        command = ["setpriv", "--pdeathsig", "KILL", "unshare", "--pid", "--fork", "--kill-child", "--mount"]
        command += [str(HERE / "machine.sh"), str(home), str(self.port), *addresses]
        with open(home / "console.log", "ab") as console:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=console,
                stderr=console,
                cwd="/",
                start_new_session=True,
                env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"},
            )
        with self._guard:
            self._running[name] = process
        threading.Thread(target=self._watch, args=(name, process, powered_off), daemon=True).start()

    def stop(self, name):
        """Stops an instance immediately, without a shutdown; does nothing if it does not run."""
        with self._guard:
            process = self._running.pop(name, None)
        if process is not None:
            process.send_signal(signal.SIGKILL)
            process.wait()

    def clear(self):
        """Stops every instance and removes its files."""
        with self._guard:
            processes = list(self._running.values())
            self._running.clear()
        for process in processes:
            process.send_signal(signal.SIGKILL)
        for process in processes:
            process.wait()
        for home in self._home.iterdir():
            shutil.rmtree(home, ignore_errors=True)

    def end(self):
        self.clear()
        self._port_holder.close()

    def console(self, name):
        """The console output of the instance; empty before its boot."""
        try:
            return (self._home / name / "console.log").read_bytes()
        except FileNotFoundError:
            return b""

    def pid(self, name):
        """The id of the instance's process 1; `None` if it does not run."""
        with self._guard:
            process = self._running.get(name)
        return process.pid if process is not None else None

    def _watch(self, name, process, powered_off):
        status = process.wait()
        with self._guard:
            ours = self._running.get(name) is process
            if ours:
                del self._running[name]
        if ours and status == POWERED_OFF:
            powered_off(name)


def _lay_out(home, guest):
    """Writes the files that boot.sh reads."""
    for folder in ("files", "keys", "scripts"):
        (home / folder).mkdir(parents=True, exist_ok=True)
    manifest = []
    for number, file in enumerate(guest.files):
        (home / "files" / str(number)).write_bytes(file.content)
        manifest.append(f"{number} {file.mode:o} {'append' if file.append else 'write'} {file.path}\n")
    (home / "manifest").write_text("".join(manifest))
    (home / "users").write_text("".join(f"{user}\n" for user in guest.keys))
    for user, keys in guest.keys.items():
        (home / "keys" / user).write_text("".join(f"{key.strip()}\n" for key in keys))
    for number, script in enumerate(guest.scripts):
        path = home / "scripts" / f"{number:02}"
        path.write_bytes(script)
        path.chmod(0o700)


def _reserve_port():
    """A port that is the same on every instance, below the kernel's range for outgoing connections."""
    for _ in range(100):
        holder = socket.socket()
        try:
            holder.bind((RESERVED, random.randint(10_000, 32_000)))
            return holder, holder.getsockname()[1]
        except OSError:
            holder.close()
    raise Unusable("no free port was found for the instances' sshd")


def check():
    """Raises `Unusable` if an instance could not run."""
    if os.geteuid() != 0:
        raise Unusable("the lab must run as root: each instance has process and mount namespaces of its own")
    for program in ("/usr/sbin/sshd", "/usr/bin/unshare", "/usr/bin/setpriv", "/usr/bin/ssh-keygen"):
        if not os.access(program, os.X_OK):
            raise Unusable(f"{program} is missing (packages openssh-server, openssh-client, util-linux)")
    mounts = "mount -t tmpfs l /run && mkdir /run/l /run/l/u /run/l/w && mount -t proc l /proc"
    mounts += " && mount -t overlay -o lowerdir=/etc,upperdir=/run/l/u,workdir=/run/l/w l /etc"
    tried = subprocess.run(
        ["unshare", "--pid", "--fork", "--kill-child", "--mount", "sh", "-c", mounts],
        capture_output=True,
        text=True,
        check=False,
    )
    if tried.returncode != 0:
        raise Unusable(f"instances need namespaces and overlay mounts, which are refused here: {tried.stderr.strip()}")
