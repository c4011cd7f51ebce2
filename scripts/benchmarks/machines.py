"""`scripts/bench machines`: local virtual machines."""

import os
import pathlib
import statistics
import subprocess
import time

from benchmarks import host, page, suite
from benchmarks.measure import children_of, cpu_in_ticks, fail, memory_of
from benchmarks.operated_pool import OperatedPool
from benchmarks.samples import span

ABOUT = """Measure virtual machines on this host; write the table.

As root, with QEMU and mmdebstrap. It takes about ten minutes with emulated machines, and longer with images and the build.
Images are built once and kept in state/bench-images. Everything else lies in directories that are removed at the end.
"""
IMAGES = host.ROOT / "state" / "bench-images"
KINDS = {  # image: how it is built
    "light": [],
    "dropbear": ["--ssh", "dropbear"],
    "systemd": ["--flavour", "systemd"],
}
MIB = 1 << 20


def program():
    return host.release_build() / "greenroom"


class MachinePool(OperatedPool):
    def __init__(self, image, boot=None, idle=0, most=1, memory="256M"):
        super().__init__(program(), "vm")
        boot = f'boot = "{boot}"\n' if boot else ""
        self.config.write_text(
            f'state_dir = "{self.home}/state"\n[pool.vm]\nmax_instances = {most}\nidle_count = {idle}\n'
            f'idle_time = "1h"\n[pool.vm.provider]\nkind = "qemu"\nimage = "{image}"\nimages = "{IMAGES}"\n'
            f'memory = "{memory}"\n{boot}'
        )

    def spans(self, last):
        """Seconds from each intent to launch to the first event of a kind."""
        begun, spans = {}, {}
        for at, event in self.events():
            instance = event.get("instance")
            if event["event"] == "launch-intended":
                begun[instance] = at
            elif event["event"] == last and instance in begun:
                spans.setdefault(instance, at - begun[instance])
        return list(spans.values())

    def processes(self):
        """The processes of each machine: its supervisor and QEMU."""
        found = []
        for entry in pathlib.Path("/proc").iterdir():
            try:
                line = (entry / "cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            if b"supervise" in line and str(self.home).encode() in b" ".join(line):
                found.append([int(entry.name), *children_of(entry.name)])
        return found


class MachineFigures(page.Figures):
    def __init__(self):
        super().__init__("median (minimum–maximum)")

    def add_span(self, what, values, unit="s", goal=None, below=None):
        over = None if below is None else statistics.median(values) - below
        by = f"{over:.2f} {unit}" if over is not None else ""
        self.add(what, span(values, unit), goal or "", None if over is None else over <= 0, by)


def reach(figures, rounds, foreign):
    """Launch to reachable over SSH, for each way to boot and each flavour, in turn."""
    cases = [
        ("snapshot, light with dropbear", "dropbear", "snapshot", 1.0),
        ("snapshot, light with OpenSSH", "light", "snapshot", 1.6),
        ("snapshot, systemd", "systemd", "snapshot", 1.6),
        ("direct, light with OpenSSH", "light", "direct", 5.0),
    ]
    pools = [MachinePool(image, boot, memory="512M" if image == "systemd" else "256M") for _, image, boot, _ in cases]
    spans = [[] for _ in cases]
    for number in range(rounds + 1):
        for pool, found in zip(pools, spans, strict=True):
            pool.call("try", "true")
            pool.call("pool", "drain", "--wait")
            pool.call("pool", "resume")
            reached = pool.spans("reached")
            # The first launch of each builds its template.
            found[:] = reached[1:] if number else []
    for pool in pools:
        pool.end()
    for (name, _, _, goal), found in zip(cases, spans, strict=True):
        figures.add_span(f"launch → reachable over SSH: {name}", found, goal=f"≤ {goal} s", below=goal)
    slow = [("direct, systemd", "systemd", "direct")] + ([("disk, cloud-init", foreign, "disk")] if foreign else [])
    for name, image, boot in slow:
        pool = MachinePool(image, boot, memory="512M")
        pool.call("try", "true")
        figures.add_span(f"launch → reachable over SSH: {name}", pool.spans("reached"))
        pool.end()


def prepare(figures, rounds, _foreign):
    """The wait of a job: on demand and warm."""
    cold, warm = MachinePool("light"), MachinePool("light", idle=1, most=2)
    times = {"cold": [], "warm": []}
    warm.call("try", "true")
    for number in range(rounds + 1):
        for name, pool in (("cold", cold), ("warm", warm)):
            # Otherwise the replacement of the last one would boot beside it.
            warm.wait_for_ready(1)
            output = pool.call("try", "true")
            if number:
                times[name].append(seconds_of("prepare", output))
    figures.add_span("`prepare` on demand, light with OpenSSH (release build)", times["cold"])
    figures.add_span("warm `prepare`: connects and probes, emulated guest", times["warm"])
    for pool in (cold, warm):
        pool.end()


def seconds_of(call, output):
    """The time of a call in the output of `greenroom try`."""
    for line in output.splitlines():
        words = line.split()
        if words[:2] == ["✓", call]:
            number, unit = float(words[2]), words[3]
            return number * {"ms": 0.001, "s": 1.0}[unit]
    fail(f"no {call} in:\n{output}")


def crowd(figures, _rounds, _foreign):
    """Ten concurrent launches; then the cost of the machines while idle."""
    pool = MachinePool("light", idle=10, most=11)
    pool.call("try", "true")
    pool.wait_for_ready(10)
    pool.call("pool", "drain", "--wait")
    first = {event.get("instance") for _, event in pool.events()}
    pool.call("pool", "resume")
    begun = time.monotonic()
    pool.call("reap")
    pool.wait_for_ready(10)
    took = time.monotonic() - begun
    fresh = [(at, event["event"]) for at, event in pool.events() if event.get("instance") not in first]
    starts = [at for at, kind in fresh if kind == "launch-intended"]
    ends = [at for at, kind in fresh if kind == "became-ready"]
    seconds = max(ends) - min(starts)
    figures.add_span("ten concurrent launches: first launch to last ready", [seconds])
    figures.add_span("refill rate, VMs per second and processor", [10 / seconds / os.cpu_count()], unit="/s")
    print(f"    (from the command: {took:.1f} s)")
    machines = pool.processes()
    memory = [sum(memory_of(pid, "Pss") for pid in pids) / MIB for pids in machines]
    figures.add_span("memory of an idle VM after a login: PSS of QEMU and supervisor", memory, "MB", "≤ 70 MB", 70)
    before = [cpu_in_ticks(*pids) for pids in machines]
    time.sleep(20)
    used = [(cpu_in_ticks(*pids) - then) / 20 * 100 for pids, then in zip(machines, before, strict=True)]
    figures.add_span("CPU of an idle VM, of one core", used, "%")
    pool.end()


def job(figures, rounds, foreign):
    """A whole empty job on a fresh machine, beside the same on a cloud image."""
    light = MachinePool("light")
    light.call("try", "true")
    other = MachinePool(foreign, "disk", memory="512M") if foreign else None
    times = {"light": [], "foreign": []}
    for number in range(max(rounds // 3, 2)):
        for name, pool in (("light", light), ("foreign", other)):
            if pool and (name == "light" or number < 2):
                begun = time.monotonic()
                pool.call("try", "true")
                times[name].append(time.monotonic() - begun)
                pool.call("pool", "drain", "--wait")
                pool.call("pool", "resume")
    figures.add_span("a complete empty job on a fresh VM: light, snapshot", times["light"])
    if other:
        figures.add_span("… the same on a cloud image with cloud-init", times["foreign"])
        quotient = statistics.median(times["light"]) / statistics.median(times["foreign"])
        figures.add_span("… light ÷ cloud image", [quotient], "×")
        other.end()
    light.end()


PARTS = {"reach": reach, "prepare": prepare, "crowd": crowd, "job": job}


def accelerator():
    pool = MachinePool("light")
    pool.call("try", "true")
    pool.call("reap")
    output = pool.call("doctor", check=False)
    pool.end()
    return "emulated (TCG)" if "tcg" in output.lower() or "emulat" in output else "KVM"


def add_options(parser):
    suite.add_only(parser, PARTS)
    parser.add_argument("--rounds", type=int, default=9, help="number of measurements of each [9]")
    parser.add_argument("--foreign", type=pathlib.Path, metavar="FILE", help="a qcow2 with cloud-init, to compare")


def run(options):
    host.need_root("it builds images")
    host.build()
    for name, how in KINDS.items():
        if not (IMAGES / name / "manifest.json").exists():
            subprocess.run([program(), "image", "build", name, "--images", IMAGES, *how], check=True)
    foreign = options.foreign and str(options.foreign.resolve())
    load = os.getloadavg()[0]
    figures = MachineFigures()
    for name in options.only or PARTS:
        PARTS[name](figures, options.rounds, foreign)
    if options.only:
        return
    version = subprocess.run(["qemu-system-x86_64", "--version"], capture_output=True, text=True, check=True).stdout
    facts = (
        f"{host.description(version.splitlines()[0])}; guests {accelerator()}, 256 MB (systemd and cloud image: 512 MB), "
        f"1 processor. Load average immediately before: {load:.1f}."
    )
    page.write("machines", figures, facts)
