"""Ways to serve a job over SSH, to compare with the link: OpenSSH's shared connection, a connection for each job, and none."""

import os
import pathlib
import shutil
import statistics
import time

from benchmarks.measure import cpu_of, fail, measure
from benchmarks.testbed import POOL, Pool

# The least time that the runner itself takes between two calls of a job.
PAUSE = 0.005
# Long enough for the next shell to be there.
GAP = 0.1
STAGES = ("prepare_script", "get_sources", "build_script", "cleanup_file_variables")
NO_OP = "set -o errexit\nset -o pipefail\nset +o noclobber\n:\nexit 0\n"

HOST_DRIVER = """#!/bin/sh
case $1 in
config) echo '{}' ;;
run) exec bash < "$2" ;;
esac
"""
CONNECTION_DRIVER = """#!/bin/sh
case $1 in
config) echo '{{}}' ;;
prepare) exec {connect} ;;
run) exec {ssh} bash < "$2" ;;
cleanup) exec {leave} 2> /dev/null ;;
esac
"""
MASTER_DRIVER = """#!/bin/sh
case $1 in
config) echo '{{}}' ;;
prepare) exec {ssh} true ;;
run) exec {ssh} bash < "$2" ;;
esac
"""


class Master:
    """OpenSSH's shared connection, warm."""

    count = 0

    def __init__(self, bed, port, **how):
        Master.count += 1
        self.path = str(bed.home / f"mux{Master.count}")
        login = bed.ssh(port, **how)
        self.child = bed.start([login[0], "-M", "-S", self.path, "-N", *login[1:]], env=bed.env)
        for _ in range(1000):
            if os.path.exists(self.path):
                measure(self.ssh("true"), bed.env)
                return
            time.sleep(0.01)
        fail("the ControlMaster does not come")

    def ssh(self, *command):
        return [shutil.which("ssh"), "-F", "none", "-T", "-S", self.path, "guest", *command]


class WarmPool:
    """A server, a pool of instances that lead to it, its keeper, and a job whose instance has a link."""

    def __init__(self, bed, count=1, linked=True, place="{}", **where):
        self.port, self.server = bed.sshd(**where)
        self.pool = bed.pool(count, place.format(self.port))
        if not linked:
            # A file in place of the directory: there is no link, and each call connects by itself.
            (self.pool.dir / "links").write_text("")
        self.keeper = self.pool.keep()

    def prepared_job(self):
        job = self.pool.job()
        job.call("prepare")
        return job

    def link(self):
        [link] = self.pool.links()
        return link

    def stop(self):
        self.pool.stop(self.keeper, self.server)


def pool_of_links(bed, count):
    """A pool of instances each of which has an idle link, and its processes."""
    ports, servers = bed.sshds(8)
    pool = bed.pool(count, *ports)
    keeper = pool.keep()
    jobs = [pool.job() for _ in range(count)]
    for job in jobs:
        job.call("prepare")
    for job in jobs:
        job.call("cleanup")
    # Until every link has its shell in the guest.
    time.sleep(5)
    return pool, (keeper, *servers)


class Driver:
    """Plays whole no-op jobs: the calls of the runner, and the processes that serve them in the background."""

    def __init__(self, argv_of, serving=()):
        self.argv_of, self.serving = argv_of, serving
        self.walls, self.cpus, self.stages = [], [], []

    def play(self, job, pause, counts=True, gap=GAP):
        script = job.script(NO_OP)
        calls = [("config",), ("prepare",), *(("run", script, stage) for stage in STAGES), ("cleanup",)]
        before = cpu_of(*self.serving)
        ran = []
        for call in calls:
            time.sleep(pause)
            ran.append(measure(self.argv_of(job, *call), job.env))
        # The effects of a call go on for a moment.
        time.sleep(gap)
        if counts:
            self.walls.append(sum(each.wall for each in ran))
            self.stages.append(statistics.median(each.wall for each in ran[2:-1]))
            self.cpus.append(sum(each.cpu for each in ran) + cpu_of(*self.serving) - before)


def greenroom_driver(serving=()):
    return Driver(lambda job, *call: job.argv(*call), serving)


def script_driver(bed, name, text, serving=()):
    path = bed.home / name
    path.write_text(text)
    path.chmod(0o700)
    return Driver(lambda job, call, *rest: [str(path), call, *map(str, rest)], serving)


def master_driver(bed, master):
    text = MASTER_DRIVER.format(ssh=" ".join(master.ssh()))
    return script_driver(bed, pathlib.Path(master.path).name + ".sh", text, (master.child.pid,))


def connection_driver(bed, port, name):
    """A connection for each job, made by `prepare` and ended by `cleanup`, with a session for each stage."""
    path = str(bed.home / name)
    login = bed.ssh(port)
    connect = " ".join([login[0], "-M", "-S", path, "-f", "-N", "-n", *login[1:], "2> /dev/null"])
    ssh = " ".join([login[0], "-F", "none", "-T", "-S", path, "guest"])
    # OpenSSH's option comes before the name of the host.
    leave = " ".join([login[0], "-F", "none", "-S", path, "-O", "exit", "guest"])
    text = CONNECTION_DRIVER.format(connect=connect, ssh=ssh, leave=leave)
    return script_driver(bed, f"{name}.sh", text)


# ---- guests --------------------------------------------------------------------------------------------------------


class CpuAccount:
    """A control group: the CPU time of all processes that ever were in it, ended ones included."""

    count = 0

    def __init__(self):
        mounts = [line.split()[1:4] for line in pathlib.Path("/proc/mounts").read_text().splitlines()]
        unified = [where for where, kind, _ in mounts if kind == "cgroup2"]
        older = [where for where, kind, options in mounts if kind == "cgroup" and "cpuacct" in options.split(",")]
        if not unified + older:
            fail("no control groups are mounted")
        CpuAccount.count += 1
        self.is_unified = bool(unified)
        self.dir = pathlib.Path((unified + older)[0]) / f"greenroom-bench-{os.getpid()}-{CpuAccount.count}"
        self.dir.mkdir()

    def cpu(self):
        """Seconds."""
        if self.is_unified:
            return int((self.dir / "cpu.stat").read_text().split()[1]) / 1e6
        return int((self.dir / "cpuacct.usage").read_text()) / 1e9

    def settled(self):
        """The CPU time once it no longer grows: the effects of a call go on for a moment."""
        before, now = -1, self.cpu()
        while now != before:
            time.sleep(GAP)
            before, now = now, self.cpu()
        return now

    def close(self):
        # A process that ends stays in its group for a moment.
        for _ in range(500):
            try:
                return self.dir.rmdir()
            except OSError:
                time.sleep(0.01)


# Idle processes beside a server: as many as a small Debian server has, kernel threads included. Cleaning looks at all.
BYSTANDERS = 100
GUEST = """
n=0; while [ $n -lt $1 ]; do sleep infinity & n=$((n + 1)); done
echo 0 > "$2"/cgroup.procs; shift 2; exec "$@"
"""


class Guests:
    """Servers, each with a process table of its own. Their CPU time is counted together, with all that they start."""

    def __init__(self, bed, count=1):
        self.bed, self.account = bed, CpuAccount()
        apart = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child"]
        within = [*apart, "sh", "-c", GUEST, "sh", str(BYSTANDERS), str(self.account.dir)]
        self.ports, self.servers = bed.sshds(count, within=within)
        for server in self.servers:
            # `unshare` waits for its child and heeds no SIGTERM.
            server.terminate = server.kill

    def stop(self):
        for server in self.servers:
            self.bed.stop(server)
        self.account.close()


class HostPool(Pool):
    """A pool of provider `static`: each guest is a host, which is cleaned after each job."""

    def __init__(self, bed, guests):
        super().__init__(bed, len(guests.ports))
        hosts = "".join(
            f'[[pool.{POOL}.provider.host]]\nname = "host-{port}"\naddress = "127.0.0.1"\n'
            f'host_key = "{bed.host_key()}"\nport = {port}\n'
            for port in guests.ports
        )
        self.config.write_text(
            f'state_dir = "{self.dir}"\n[pool.{POOL}]\nmax_instances = {len(guests.ports)}\nreuse = "any"\n'
            f'builds_dir = "{bed.home}/builds"\ncache_dir = "{bed.home}/cache"\n[pool.{POOL}.provider]\n'
            f'kind = "static"\nuser = "{bed.user}"\nkey = "{bed.home}/client_key"\n{hosts}'
        )
        self.keeper = self.keep()

    def stop(self):
        super().stop(self.keeper)
