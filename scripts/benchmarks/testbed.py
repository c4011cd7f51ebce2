"""The test bed of driver calls: SSH servers on loopback, pools that lead to them, and jobs as GitLab Runner plays them."""

import contextlib
import fcntl
import getpass
import json
import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import tempfile

from benchmarks import host, journal
from benchmarks.measure import children_of, is_running, measure, wait_until

POOL = "linux"


class Testbed:
    """Keys, servers, and the processes that must end."""

    def __init__(self):
        # On the disk of the checkout, not in /tmp: where other programs have just deleted many files, ext4 takes
        # long to make new ones.
        (host.ROOT / "state").mkdir(mode=0o700, exist_ok=True)
        self.home = pathlib.Path(tempfile.mkdtemp(prefix="bench-", dir=host.ROOT / "state"))
        self.children, self.pools, self.algorithms = [], [], []
        release = host.release_build()
        # A copy, as an installation makes one: the linker's own file is in the page cache in single pages.
        self.greenroom, self.helper = self.install(release), str(release / "examples" / "bench_state")
        self.user = getpass.getuser()
        (self.home / "empty").mkdir(mode=0o700)
        for name in ("host_key", "client_key"):
            keygen = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "", "-f", self.home / name]
            subprocess.run(keygen, check=True)
        if os.geteuid() == 0:
            os.makedirs("/run/sshd", mode=0o755, exist_ok=True)
        self.env = {"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": str(self.home / "empty"), "LANG": "C.UTF-8"}

    def install(self, release, name="bin"):
        """A copy of the program in a directory of its own."""
        (self.home / name).mkdir()
        program = self.home / name / "greenroom"
        subprocess.run(["install", "-m", "755", release / "greenroom", program], check=True)
        return str(program)

    def install_and_evict(self):
        """A copy that the kernel reads from the disk page by page as it is needed: as after a reboot."""
        program = self.install(host.release_build(), "evicted")
        with open(program, "rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        return program

    def host_key(self):
        """The servers' public key, without its comment."""
        return " ".join((self.home / "host_key.pub").read_text().split()[:2])

    def start(self, argv, **how):
        child = subprocess.Popen(argv, stdin=subprocess.DEVNULL, process_group=0, **how)
        self.children.append(child)
        return child

    def stop(self, *children):
        for child in children:
            child.terminate()
            child.wait(timeout=20)
            self.children.remove(child)

    def close(self):
        try:
            self.stop(*self.children)
            for pool in self.pools:
                pool.end_links()
        finally:
            shutil.rmtree(self.home, ignore_errors=True)

    def sshd(self, level="ERROR", address="127.0.0.1", within=()):
        """Starts a server on loopback whose sessions have an empty home. Returns its port and its process.

        `within`: a command that starts the server.
        """
        with socket.socket() as free:
            free.bind((address, 0))
            port = free.getsockname()[1]
        config = self.home / f"sshd_{port}"
        config.write_text(
            f"ListenAddress {address}:{port}\nHostKey {self.home}/host_key\nPidFile none\nUsePAM no\n"
            f"AuthorizedKeysFile {self.home}/client_key.pub\nStrictModes no\nAllowUsers {self.user}\n"
            f"PermitRootLogin prohibit-password\nAuthenticationMethods publickey\nUseDNS no\nPrintMotd no\n"
            f"MaxStartups 4096\nLogLevel {level}\nSetEnv HOME={self.home}/empty\n"
        )
        child = self.start([*within, shutil.which("sshd"), "-D", "-f", config, "-E", f"{config}.log"])

        def answers():
            with socket.socket() as connection:
                return connection.connect_ex((address, port)) == 0

        wait_until(lambda: f"for an answer of sshd: {pathlib.Path(f'{config}.log').read_text()}", answers)
        return port, child

    def sshds(self, count, **how):
        """The ports and the processes of several servers."""
        return zip(*[self.sshd(**how) for _ in range(count)], strict=True)

    def ssh(self, port, *command, address="127.0.0.1", algorithms=None):
        """OpenSSH's client on the same server, with the same keys and algorithms, reading no configuration."""
        known = self.home / f"known_{address}_{port}"
        if not known.exists():
            known.write_text(f"[{address}]:{port} {self.host_key()}\n")
        options = [
            "ControlMaster=no", "ControlPath=none", "BatchMode=yes", "IdentitiesOnly=yes", "StrictHostKeyChecking=yes",
            "PreferredAuthentications=publickey", f"UserKnownHostsFile={known}", "GlobalKnownHostsFile=none",
            "HostKeyAlgorithms=ssh-ed25519",
            *(self.algorithms if algorithms is None else algorithms),
        ]
        argv = [shutil.which("ssh"), "-F", "none", "-T", "-i", str(self.home / "client_key"), "-p", str(port)]
        argv += [word for option in options for word in ("-o", option)]
        return [*argv, f"{self.user}@{address}", *command]

    def pool(self, count, *ports, timing=""):
        """A state directory with a pool of idle instances behind the ports (elsewhere: `ADDRESS:PORT`)."""
        pool = Pool(self, count, timing)
        arguments = [pool.dir, POOL, count, self.home / "client_key", self.home / "host_key.pub", self.user, *ports]
        subprocess.run([self.helper, "fill", *map(str, arguments)], check=True)
        return pool

    def negotiate(self):
        """The key exchange and the cipher of Greenroom's client with this sshd, by its log; OpenSSH's client gets them."""
        port, server = self.sshd(level="DEBUG1")
        job = self.pool(1, port).hold().job()
        job.call("prepare")
        job.pool.end_links(server)
        self.stop(server)
        log = (self.home / f"sshd_{port}.log").read_text()
        kex = re.search(r"kex: algorithm: (\S+)", log)[1]
        cipher = re.search(r"kex: client->server cipher: (\S+)", log)[1]
        self.algorithms = [f"KexAlgorithms={kex}", f"Ciphers={cipher}"]
        return kex, cipher


class Pool:
    """A state directory with one pool, and its configuration."""

    def __init__(self, bed, count, timing=""):
        self.bed, self.jobs, self.lock = bed, {}, None
        bed.pools.append(self)
        self.dir = bed.home / f"s{len(bed.pools)}"
        self.journals = self.dir / "pools" / POOL
        self.config = self.dir.with_suffix(".toml")
        allow_root = "true" if os.geteuid() == 0 else "false"
        # Instances stay although the provider does not know them: `absence_interval`.
        self.config.write_text(
            f'state_dir = "{self.dir}"\n[pool.{POOL}]\nmax_instances = {count}\nidle_count = {count}\n'
            f'idle_time = "1d"\nmax_use_count = 0\nreuse = "any"\n[pool.{POOL}.provider]\nkind = "local"\n'
            f'allow_root = {allow_root}\n[timing]\nabsence_interval = "1d"\n{timing}'
        )

    def hold(self):
        """Takes the keeper's lock, so that no call starts a keeper."""
        self.lock = open(self.dir / "keeper.lock", "w")
        fcntl.flock(self.lock, fcntl.LOCK_EX)
        return self

    def keep(self):
        """Starts the keeper as a service of its own, as recommended. Returns when its first pass is over."""
        log = open(self.dir.with_suffix(".log"), "w")
        keeper = self.bed.start(
            [self.bed.greenroom, "--config", self.config, "keep"], env=self.bed.env, stdout=log, stderr=log
        )
        wait_until("for the keeper's first pass", (self.journals / "report.json").exists)
        return keeper

    def links(self):
        """The processes of this directory's links: the holders of their locks, by the kernel's list."""
        inodes = set()
        for folder, _, files in os.walk(self.dir / "links"):
            for name in files:
                # A link that ends takes its lock along.
                with contextlib.suppress(FileNotFoundError):
                    inodes.add(os.stat(os.path.join(folder, name)).st_ino)
        held = (line.split() for line in pathlib.Path("/proc/locks").read_text().splitlines() if "->" not in line)
        return sorted({int(lock[4]) for lock in held if int(lock[5].split(":")[2]) in inodes})

    def end_links(self, *servers):
        """Ends this directory's links, which outlive jobs, calls and the keeper. Returns when they, and all sessions of
        these servers, are gone."""
        links = self.links()
        for link in links:
            with contextlib.suppress(ProcessLookupError):
                os.kill(link, signal.SIGTERM)

        def left():
            return sum(map(is_running, links))

        wait_until(lambda: f"for the end of {len(links)} links of {self.dir}, of which {left()} run", lambda: not left())
        for server in servers:
            wait_until(
                f"for the end of all sessions of sshd {server.pid}", lambda server=server: not children_of(server.pid)
            )

    def stop(self, keeper, *servers):
        """Ends the keeper first, because it would probe instances and so start links."""
        self.bed.stop(keeper)
        self.end_links()
        self.bed.stop(*servers)

    def job(self):
        job = Job(self, len(self.jobs) + 1)
        self.jobs[job.name] = job
        return job

    def grants(self):
        """The number of recorded grants."""
        return journal.count(self.journals, "granted")

    def granted_at(self):
        """Seconds of the boot clock at which each attempt got its grant."""
        return {event["attempt"]: at for at, event in journal.events(self.journals) if event["event"] == "granted"}


class Job:
    """A job as the runner plays it."""

    def __init__(self, pool, number):
        self.pool, bed = pool, pool.bed
        self.name = f"{pool.dir.name}-{number}"
        self.tmp = bed.home / "tmp" / self.name
        self.tmp.mkdir(parents=True, mode=0o700)
        variable = {"key": "CI_SERVER_URL", "value": "http://greenroom.invalid", "public": True}
        response = {
            "id": number, "token": "none", "variables": [variable], "steps": [],
            "job_info": {"name": "bench", "stage": "test", "project_id": 1, "project_full_path": "bench/bench"},
            "git_info": {"ref": "main", "protected": True}, "runner_info": {"timeout": 3600},
        }
        (self.tmp / "response.json").write_text(json.dumps(response))
        self.env = {
            **bed.env, "TMPDIR": str(self.tmp), "JOB_RESPONSE_FILE": str(self.tmp / "response.json"),
            "BUILD_EXIT_CODE_FILE": str(self.tmp / "code"), "BUILD_FAILURE_EXIT_CODE": "1",
            "SYSTEM_FAILURE_EXIT_CODE": "2", "GREENROOM_STATE_DIR": str(pool.dir), "GREENROOM_POOL": POOL,
        }

    def argv(self, call, script=None, stage="build_script", program=None):
        argv = [program or self.pool.bed.greenroom, "--config", str(self.pool.config), call]
        return argv + ([str(script), stage] if script else [])

    def call(self, call, script=None, expected_bytes=0, program=None):
        return measure(self.argv(call, script, program=program), self.env, expected_bytes=expected_bytes)

    def script(self, text):
        path = self.tmp / "script"
        path.write_text(text)
        return path
