"""`scripts/bench server`: `greenroom-server` beside OpenSSH's server."""

import os
import pathlib
import socket
import statistics
import subprocess
import tempfile
import time

from benchmarks import host, page
from benchmarks.measure import cpu_in_ticks, memory_of, with_descendants

ABOUT = """Compare `greenroom-server` with OpenSSH's server; write the table.

As root. Each round uses both servers in turn, with OpenSSH's client. With ROUNDS, the command writes nothing.
"""
ROUNDS = 100
SCRIPT = b": a stage\n" * 40
PATH = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


def memory(*pids):
    """Resident memory, and the anonymous part of it, in MB."""
    return tuple(sum(memory_of(pid, kind) for pid in pids) / 1e6 for kind in ("Rss", "Anonymous"))


class Server:
    """A server that runs, its memory, and a connection to it that is kept. `PORT` stands for its port."""

    def __init__(self, name, home, command, environment):
        port = str(free_port())
        self.name, self.times = name, {"connection": [], "stage": []}
        command = [word.replace("PORT", port) for word in command]
        environment = {key: value.replace("PORT", port) for key, value in environment.items()}
        self.process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self.client = [
            "ssh", "-F", "none", "-T", "-o", "BatchMode=yes", "-o", "StrictHostKeyChecking=no", "-o", "LogLevel=ERROR",
            "-o", f"UserKnownHostsFile={home}/known-{name}", "-i", f"{home}/key", "-p", port,
        ]  # fmt: skip
        while subprocess.run(self.ssh("true"), stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False).returncode:
            time.sleep(0.1)
        time.sleep(0.5)
        self.idle = memory(self.process.pid)
        self.master = ["-S", f"{home}/master-{name}"]
        subprocess.run([*self.client, *self.master, "-M", "-f", "-N", "root@127.0.0.1"], check=True)
        time.sleep(0.5)
        self.sessions = with_descendants(self.process.pid)[1:]
        self.kept = memory(*self.sessions)
        self.before = self.used()

    def ssh(self, *command, options=()):
        return [*self.client, *options, "root@127.0.0.1", *command]

    def run(self, what, client, script):
        begun = time.monotonic()
        subprocess.run(client, input=script, check=True, stdout=subprocess.DEVNULL)
        self.times[what].append((time.monotonic() - begun) * 1000)

    def round(self):
        self.run("connection", self.ssh("true"), b"")
        self.run("stage", self.ssh("exec /bin/sh -c 'exec bash'", options=self.master), SCRIPT)

    def used(self):
        """CPU seconds. The server itself waits for the processes of connections that have ended."""
        pids = {"connection": [self.process.pid], "stage": self.sessions}
        return {what: cpu_in_ticks(*of, with_waited_for=True) for what, of in pids.items()}

    def end(self):
        subprocess.run(self.ssh(options=[*self.master, "-O", "exit"]), check=False, stderr=subprocess.DEVNULL)
        self.process.terminate()
        self.process.wait()


def start_both(program, home):
    for name in ("key", "host_key"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", f"{home}/{name}"], check=True)
    os.makedirs("/run/sshd", exist_ok=True)
    options = [
        "UsePAM=no", f"AuthorizedKeysFile={home}/key.pub", "StrictModes=no", "PidFile=none",
        # A login shell reads no files of this machine's.
        f"SetEnv=HOME={home}",
    ]  # fmt: skip
    sshd = ["/usr/sbin/sshd", "-D", "-f", "/dev/null", "-p", "PORT", "-h", f"{home}/host_key"]
    sshd += [word for option in options for word in ("-o", option)]
    key = pathlib.Path(home, "key.pub").read_text().strip()
    settings = {"GREENROOM_AUTHORIZED_KEY": key, "GREENROOM_PORT": "PORT", "GREENROOM_LISTEN": "127.0.0.1"}
    return [
        Server("sshd", home, sshd, PATH),
        Server("greenroom-server", home, [program], {**PATH, **settings}),
    ]


def results(servers, rounds):
    table = page.Table("", *(f"`{server.name}`" for server in servers))
    for what, title in (("connection", "new connection"), ("stage", "stage")):
        used = [(server.used()[what] - server.before[what]) / rounds * 1000 for server in servers]
        table.row(f"{title}, processor time", *(f"{each:.1f} ms" for each in used))
        times = [server.times[what] for server in servers]
        table.row(f"{title}, median", *(f"{statistics.median(each):.1f} ms (at best {min(each):.1f})" for each in times))
    for what, title in (("idle", "idle server: resident memory, of which anonymous"), ("kept", "kept connection: the same")):
        table.row(title, *("{:.1f} MB, {:.1f} MB".format(*getattr(server, what)) for server in servers))
    return table


def add_options(parser):
    parser.add_argument("program", type=pathlib.Path, metavar="PROGRAM", help="the program `greenroom-server`")
    parser.add_argument("rounds", type=int, nargs="?", metavar="ROUNDS", help=f"number of rounds [{ROUNDS}]")


def run(options):
    host.need_root("it starts an SSH server")
    rounds = options.rounds or ROUNDS
    with tempfile.TemporaryDirectory() as home:
        servers = start_both(str(options.program.resolve()), home)
        for number in range(rounds):
            for server in servers if number % 2 else reversed(servers):
                server.round()
        table = results(servers, rounds)
        for server in servers:
            server.end()
    if options.rounds is None:
        page.write("server", table)
