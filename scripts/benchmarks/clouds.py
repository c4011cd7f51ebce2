"""`scripts/bench clouds`: the providers of clouds, on the cloud emulator of tests/lab."""

import dataclasses
import json
import pathlib
import random
import shutil
import statistics
import subprocess
import tempfile
import time
import urllib.request

from benchmarks import host, page
from benchmarks.measure import peak_memory
from benchmarks.operated_pool import OperatedPool
from benchmarks.samples import interleave, span

ABOUT = """Measure the providers of clouds on the cloud emulator; write the table.

It takes a quarter of an hour. As root, after tests/lab/install.
"""
# In the emulator, from running until sshd listens; seconds.
SSH = 0.1
# How long Compute Engine's operations take there, by the names of its settings; seconds.
OPERATION = {"operation_pending": 0.05, "operation_running": 0.1}
# Calls whose answer has many instances, however many callers need it.
SHARED = {
    "DescribeImages",
    "DescribeInstanceStatus",
    "DescribeInstances",
    "DescribeSpotInstanceRequests",
    "GetCallerIdentity",
    "compute.instances.aggregatedList",
    "compute.zoneOperations.list",
}
SLOW_POLLS = 'probe_interval = "5s"\npass_interval = "5s"'


class Emulator:
    """The process of the cloud emulator."""

    def __init__(self):
        command = [host.ROOT / "state/lab/bin/python", host.ROOT / "tests/lab"]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.world = json.loads(self.process.stdout.readline())

    def request(self, path, body=None):
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"{self.world['url']}/_lab/{path}", data=data)
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.loads(answer.read() or b"{}")

    def reset(self, **settings):
        self.request("reset", {})
        self.request("settings", {"ssh": SSH, **OPERATION, **settings})
        self.world = self.request("world")

    def end(self):
        self.process.stdin.close()
        self.process.wait(30)


@dataclasses.dataclass(frozen=True)
class Cloud:
    """One cloud of the emulator. `throttled` is its error code for too many calls."""

    name: str
    throttled: str
    types: list[str]
    zones: list[str]

    def first_offerings(self):
        """The offerings of the first type, as the emulator names them."""
        return [f"{self.types[0]}/{zone}" for zone in self.zones]


class Ec2(Cloud):
    # The event before the boot begins, and its distance; seconds.
    BOOTS_AFTER = ("launch-answered", 0.0)

    def table(self, world, home, types):
        keys = home / "credentials"
        keys.write_text("[default]\naws_access_key_id = AKIAEXAMPLE\naws_secret_access_key = example\n")
        return f"""
kind = "aws-ec2"
region = "{world['ec2']['region']}"
credentials_file = "{keys}"
image = "{world['ec2']['images']['x86_64']}"
instance_types = {json.dumps(types)}
subnets = {json.dumps([world['ec2']['subnets'][zone] for zone in self.zones])}
"""


class ComputeEngine(Cloud):
    # The answer comes when a list has shown that there is capacity; the boot begins when the operation is done.
    BOOTS_AFTER = ("launch-intended", sum(OPERATION.values()))

    def table(self, world, home, types):
        keys = home / "service-account.json"
        key = subprocess.run(
            ["openssl", "genpkey", "-algorithm", "RSA", "-quiet"], capture_output=True, text=True, check=True
        ).stdout
        account = {
            "type": "service_account",
            "project_id": world["gce"]["project"],
            "private_key_id": "1",
            "private_key": key,
            "client_email": "greenroom@lab-project.iam.gserviceaccount.com",
            "client_id": "1",
            "token_uri": f"{world['url']}/token",
            "universe_domain": "googleapis.com",
        }
        keys.write_text(json.dumps(account))
        return f"""
kind = "gce"
project = "{world['gce']['project']}"
credentials_file = "{keys}"
image = "{world['gce']['images']['x86_64']}"
machine_types = {json.dumps(types)}
zones = {json.dumps(self.zones)}
"""


CLOUDS = (
    Ec2("EC2", "RequestLimitExceeded", ["m5.large", "c5.large"], ["eu-west-1a", "eu-west-1b", "eu-west-1c"]),
    ComputeEngine(
        "Compute Engine",
        "rateLimitExceeded",
        ["n2d-standard-2", "e2-standard-2"],
        ["us-east1-b", "us-east1-c", "us-east1-d"],
    ),
)


class Bench:
    """The package and the emulator, the figures, and a pool for each measurement."""

    def __init__(self, package, emulator, figures):
        self.package, self.emulator, self.figures = package, emulator, figures

    def pool(self, cloud, policy="max_instances = 2", timing="", types=1):
        pool = OperatedPool(self.package / "greenroom", "cloud", within=600)
        pool.config.write_text(f"""
state_dir = "{pool.home}/state"
[timing]
{timing}
[pool.cloud]
max_lifetime = "2h"
{policy}
[pool.cloud.provider]
{cloud.table(self.emulator.world, pool.home, cloud.types[:types])}
endpoint = "{self.emulator.world['url']}"
user = "root"
ssh_port = {self.emulator.world['ssh_port']}
""")
        return pool

    def own_calls(self):
        """The number of calls that were made for one instance each."""
        counts = self.emulator.request("requests")["counts"]
        return sum(number for name, number in counts.items() if name not in SHARED)


def last_start(pool, cloud, boot):
    """Seconds from the moment when the machine runs and sshd listens until it is ready, of the last launch."""
    (kind, before), begun, spans = cloud.BOOTS_AFTER, {}, []
    for at, event in pool.events():
        if event["event"] == kind:
            begun[event["instance"]] = at + before
        elif event["event"] == "became-ready":
            spans.append(at - begun[event["instance"]] - boot - SSH)
    return spans[-1]


def cold_starts(bench, cloud, rounds):
    """One job at a time, boots of random length; every other one with polls every 5 s."""
    dice = random.Random(1)
    calls = 0

    def start(timing):
        nonlocal calls
        boot = round(dice.uniform(2, 8), 2)
        bench.emulator.reset(boot=boot)
        pool = bench.pool(cloud, timing=timing)
        pool.call("try")
        took = last_start(pool, cloud, boot)
        # The machine's termination is requested after the job.
        pool.end()
        if not timing:
            calls += bench.own_calls()
        return took

    found = interleave({"own": lambda: start(""), "slow": lambda: start(SLOW_POLLS)}, rounds)
    figures = bench.figures
    figures.add(f"running at {cloud.name} and sshd up → ready, cold start", span(found["own"]))
    figures.add("the same, polled every 5 s", span(found["slow"]))
    quotient = statistics.median(found["own"]) / statistics.median(found["slow"])
    figures.add("ratio of the two medians", f"{quotient:.2f}")
    per_instance = calls / rounds
    figures.add("calls for each instance, in addition to the shared lists", f"{per_instance:.1f}", "≤ 2", per_instance <= 2)


def concurrent_launches(bench, cloud, count, throttled):
    """Many concurrent launches; the cloud refuses some calls as too many."""
    bench.emulator.reset(boot=2.0)
    if throttled:
        fault = {"operation": "*", "mode": "throttled", "count": None, "probability": 0.1}
        bench.emulator.request("faults", fault)
    policy = f"max_instances = {count}\nidle_count = {count}\nmax_launching = {count}\nlaunches_per_minute = 10000"
    pool = bench.pool(cloud, policy)
    began = time.monotonic()
    command = [pool.program, "keep", "--config", pool.config]
    keeper = subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    ready = 0
    while ready < count and time.monotonic() - began < 300:
        time.sleep(0.25)
        ready = pool.ready()
    wall = time.monotonic() - began
    log = bench.emulator.request("requests")
    refused = sum(one["code"] == cloud.throttled for one in log["log"])
    counts = ", ".join(f"{number} {name}" for name, number in sorted(log["counts"].items()))
    keeper.terminate()
    keeper.wait(30)
    pool.end()
    how = "a tenth of all calls throttled" if throttled else "no faults"
    what = f"{count} concurrent launches on {cloud.name}, {how}"
    bench.figures.add(what, f"{ready} ready after {wall:.1f} s; {counts}; {refused} throttled")


def without_capacity(bench, cloud, rounds):
    """A job whose first three offerings have no capacity, beside the same job with capacity everywhere."""

    def job(is_empty):
        bench.emulator.reset(boot=1.0)
        if is_empty:
            bench.emulator.request("settings", {"capacity": dict.fromkeys(cloud.first_offerings(), 0)})
        pool = bench.pool(cloud, types=2)
        began = time.monotonic()
        pool.call("try")
        took = time.monotonic() - began
        pool.end()
        return took

    found = interleave({"empty": lambda: job(True), "full": lambda: job(False)}, rounds)
    figures = bench.figures
    figures.add(f"a job on {cloud.name} whose first three offerings have no capacity", span(found["empty"]))
    figures.add("the same job, all offerings with capacity", span(found["full"]))
    more = statistics.median(found["empty"]) - statistics.median(found["full"])
    figures.add("cost of three offerings without capacity", f"{more:.2f} s", "< 5 s", more < 5)


def starts(programs, figures, rounds):
    """`greenroom run --help` of each program, in turn."""
    # Copies made just now: how much of a file the kernel maps in one step depends on how it came into memory.
    home = pathlib.Path(tempfile.mkdtemp(prefix="greenroom-starts-"))
    copies = {name: shutil.copy(program, home / str(at)) for at, (name, program) in enumerate(programs.items())}
    times, peaks = ({name: [] for name in copies} for _ in range(2))
    for turn in range(rounds):
        for name, program in copies.items():
            began = time.perf_counter()
            subprocess.run([program, "run", "--help"], stdout=subprocess.DEVNULL, check=True)
            times[name].append((time.perf_counter() - began) * 1000)
            if turn % 10 == 0:
                peaks[name].append(peak_memory([program, "run", "--help"]))
    base = None
    for name, program in copies.items():
        took, memory = statistics.median(times[name]), statistics.median(peaks[name])
        base = base or (took, memory)
        disk = pathlib.Path(program).stat().st_size / 1e6
        figures.add(
            f"`run --help`, {name}",
            f"{took:.2f} ms ({took / base[0]:.2f} ×), {memory / 1e6:.1f} MB resident ({memory / base[1]:.2f} ×), "
            f"{disk:.1f} MB on disk (n = {rounds})",
        )
    shutil.rmtree(home)


def add_options(parser):
    parser.add_argument("package", type=pathlib.Path, metavar="PACKAGE", help="a folder that scripts/package has made")
    parser.add_argument(
        "--before", type=pathlib.Path, metavar="FILE", help="another `greenroom`, to compare the start of calls with"
    )
    parser.add_argument("--quick", action="store_true", help="fewer rounds; write nothing")


def run(options):
    host.need_root("the cloud emulator does")
    package, figures, quick = options.package.resolve(), page.Figures(), options.quick
    programs = {"`greenroom`": package / "greenroom", "`greenroom-backends`": package / "greenroom-backends"}
    if options.before:
        programs = {"before the cloud providers": options.before.resolve(), **programs}
    starts(programs, figures, 20 if quick else 300)
    emulator = Emulator()
    bench = Bench(package, emulator, figures)
    try:
        for cloud in CLOUDS:
            cold_starts(bench, cloud, 2 if quick else 12)
            without_capacity(bench, cloud, 2 if quick else 6)
            for throttled in (False, True):
                concurrent_launches(bench, cloud, 10 if quick else 100, throttled)
    finally:
        emulator.end()
    if not quick:
        page.write("clouds", figures)
