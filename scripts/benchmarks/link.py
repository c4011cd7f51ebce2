"""`scripts/bench link`: the link beside OpenSSH's shared connection, and its cost for the guest."""

import concurrent.futures
import os
import shutil
import signal
import statistics
import subprocess
import sys
import time

from benchmarks import crowd, host, suite
from benchmarks.distance import FAR, NEAR, distance
from benchmarks.jobs import GIB, LOG_SCRIPT, cost_of_start
from benchmarks.link_ways import (
    GAP,
    HOST_DRIVER,
    PAUSE,
    Guests,
    HostPool,
    Master,
    WarmPool,
    connection_driver,
    greenroom_driver,
    master_driver,
    pool_of_links,
    script_driver,
)
from benchmarks.measure import cpu_of, fail, is_running, measure, memory_of, spawn
from benchmarks.samples import MS, collect, interleave, quantile, ratio, spread, walls
from benchmarks.suite import Part

ABOUT = """Measure the link beside OpenSSH's ControlMaster; write the table.

It takes about nine minutes, and longer with the release build. As root, with the programs of `scripts/bench jobs`: everything
runs in a network namespace of its own, and with real-time priority (round robin), because machines are shared.
"""
INSIDE = "GREENROOM_BENCH_INSIDE"
# Of the part `many`.
JOBS, PLAYERS = 60, 20


def stage(bed, figures, rounds):
    """An empty stage beside `ssh -S mux guest true`, after a pause and back to back."""
    warm = WarmPool(bed)
    master = Master(bed, warm.port)
    job = warm.prepared_job()
    run, true = job.argv("run", job.script("")), master.ssh("true")

    def after_pause(argv, count=1):
        time.sleep(GAP)
        return [measure(argv, job.env).wall for _ in range(count)]

    def back_to_back(argv):
        # The first of each ten had a pause before it.
        return after_pause(argv, 10)[1:]

    single = {name: lambda argv=argv: after_pause(argv)[0] for name, argv in
              (("true", [shutil.which("true")]), ("run", run), ("ssh", true))}
    in_a_row = {"run": lambda: back_to_back(run), "ssh": lambda: back_to_back(true)}
    paused = interleave(single, rounds, warm_up=3)
    rows = {name: sum(lists, []) for name, lists in interleave(in_a_row, rounds // 9 + 1).items()}
    warm.stop()
    bed.stop(master.child)
    figures.add("`true`, start to end", spread(paused["true"], digits=2))
    for when, found, goal in (("after a pause", paused, 0.3), ("back to back", rows, 0.5)):
        figures.add(f"`run` of an empty stage, {when}", spread(found["run"], digits=2))
        figures.add(f"`ssh -S mux guest true`, {when}", spread(found["ssh"], digits=2))
        value, text = ratio(found["run"], found["ssh"])
        figures.add("… ratio", text, f"≤ {goal}", value <= goal)


def calls(bed, figures, rounds):
    """The other calls, on an instance with a link, beside the smallest program."""
    warm = WarmPool(bed)

    def one_round():
        job, runs = warm.pool.job(), {}
        for name in ("true", "config", "prepare", "cleanup"):
            # The keeper makes a pass after each call, on the same processors.
            time.sleep(PAUSE)
            runs[name] = measure([shutil.which("true")] if name == "true" else job.argv(name), job.env)
        return runs

    runs = collect(one_round, rounds, warm_up=3)
    warm.stop()
    for name, goal in (("config", 1.2), ("prepare", 3.0), ("cleanup", 1.5)):
        what = f"`{name}`" if name != "prepare" else "warm `prepare`"
        met = statistics.median(walls(runs[name])) * MS <= goal
        figures.add(what, cost_of_start(runs[name]), f"≤ {goal} ms", met)
        figures.add("… ÷ `true`", ratio(walls(runs[name]), walls(runs["true"]))[1])


def whole_job(bed, figures, rounds):
    """Whole no-op jobs by three drivers."""
    warm = WarmPool(bed)
    master = Master(bed, warm.port)
    warm.prepared_job().call("cleanup")
    for name, pause in (("", PAUSE), (" without pauses between calls", 0)):
        ours = greenroom_driver((warm.link(), warm.keeper.pid))
        on_host = script_driver(bed, "host.sh", HOST_DRIVER)
        shared = master_driver(bed, master)
        keeper_cpus = []
        for number in range(rounds + 3):
            before = cpu_of(warm.keeper.pid)
            for driver in (ours, on_host, shared):
                driver.play(warm.pool.job(), pause, number >= 3)
            keeper_cpus.append(cpu_of(warm.keeper.pid) - before)
        figures.add(f"no-op job{name}: link", f"{spread(ours.walls)}; CPU {spread(ours.cpus)}")
        figures.add("… `bash` on the host", f"{spread(on_host.walls)}; CPU {spread(on_host.cpus)}")
        figures.add("… ControlMaster", f"{spread(shared.walls)}; CPU {spread(shared.cpus)}")
        goals = (lambda value, goal: (f"≤ {goal}", value <= goal)) if not name else lambda *_: ()
        for what, theirs, goal in (("`bash` on the host", on_host, 1.1), ("ControlMaster", shared, 0.6)):
            value, text = ratio(ours.walls, theirs.walls)
            figures.add(f"… link ÷ {what}", text, *goals(value, goal))
        value, text = ratio(ours.cpus, shared.cpus)
        text += f"; {statistics.median(keeper_cpus) * MS:.1f} ms of it is the keeper's"
        figures.add("… CPU on the runner's side, link ÷ ControlMaster", text, *goals(value, 0.5))
    warm.stop()
    bed.stop(master.child)


def log(bed, figures, rounds):
    """1 GiB of log through a link, through a ControlMaster of the same cipher, and one that chooses freely."""
    warm = WarmPool(bed)
    same, free = Master(bed, warm.port), Master(bed, warm.port, algorithms=bed.algorithms[:1])
    job = warm.prepared_job()
    script = job.script(LOG_SCRIPT)

    def transfer(argv, stdin, serving):
        before = cpu_of(serving)
        ran = measure(argv, job.env, stdin=stdin, expected_bytes=GIB)
        return ran.wall, ran.cpu + cpu_of(serving) - before

    link = warm.link()
    ways = {
        "link": lambda: transfer(job.argv("run", script), os.devnull, link),
        "same": lambda: transfer(same.ssh("bash"), script, same.child.pid),
        "free": lambda: transfer(free.ssh("bash"), script, free.child.pid),
    }
    found = interleave(ways, rounds, warm_up=1)
    warm.stop()
    bed.stop(same.child, free.child)
    times, cpus = ({name: [pair[at] for pair in pairs] for name, pairs in found.items()} for at in (0, 1))
    names = {
        "link": "1 GiB of log through a link", "same": "… ControlMaster, same cipher",
        "free": "… ControlMaster, OpenSSH's default cipher",
    }
    for name, what in names.items():
        figures.add(what, f"{spread(times[name], 1, 2, 's')}; CPU {spread(cpus[name], 1, 2, 's')}")
    value, text = ratio(times["same"], times["link"])
    figures.add("… throughput, link ÷ ControlMaster, same cipher", text, "≥ 1.1", value >= 1.1)
    value, text = ratio(cpus["link"], cpus["same"])
    figures.add("… CPU, link ÷ ControlMaster, same cipher", text, "≤ 0.9", value <= 0.9)
    value, text = ratio(times["free"], times["link"])
    figures.add("… throughput, link ÷ ControlMaster, each with its default cipher", text, "≥ 1.5", value >= 1.5)


def idle(bed, figures, seconds):
    """200 links without work."""
    pool, children = pool_of_links(bed, 200)
    links = pool.links()
    anonymous = [memory_of(link, "Anonymous") for link in links]
    pss = sum(memory_of(link, "Pss") for link in links)
    before = cpu_of(*links)
    time.sleep(seconds)
    used = (cpu_of(*links) - before) / seconds
    pool.stop(*children)
    median = statistics.median(anonymous) / 1e6
    figures.add("anonymous memory of an idle link", spread(anonymous, 1e-6, 2, "MB"), "≤ 0.5 MB", median <= 0.5)
    figures.add(f"PSS of {len(links)} idle links", f"{pss / 1e6:.1f} MB", "≤ 90 MB", pss <= 90e6)
    what = f"CPU of {len(links)} idle links over {seconds} s, of one core"
    figures.add(what, f"{used * 100:.2f} %", "≤ 0.5 %", used <= 0.005)


def concurrent_calls(bed, figures, rounds):
    """500 concurrent calls of `prepare`, each for an idle instance with a link."""
    count = crowd.COUNT
    pool, children = pool_of_links(bed, count)

    def one_round():
        known = pool.granted_at().keys()
        calls = crowd.prepare_all(pool, count, (), bed.home / "crowd.log", len(known))
        took = [at - calls.opened for name, at in pool.granted_at().items() if name not in known]
        for name in calls.ended:
            pool.jobs[name].call("cleanup")
        p50 = statistics.median(took)
        return {"last": max(took), "p50": p50, "tail": quantile(took, 0.99) / p50, "end": calls.last()}

    found = collect(one_round, rounds, warm_up=1)
    pool.stop(*children)
    last, tail = statistics.median(found["last"]), statistics.median(found["tail"])
    figures.add(f"{count} concurrent `prepare`: start to last grant", spread(found["last"], 1, 2, "s"), "≤ 1 s", last <= 1)
    text = f"{tail:.1f} (p50 {spread(found['p50'], 1, 2, 's')})"
    figures.add("… p99 ÷ p50 of start to grant", text, "≤ 3", tail <= 3)
    figures.add("… start to the end of the last call, each instance probed", spread(found["end"], 1, 2, "s"))


def kill(bed, figures, rounds):
    """SIGKILL to the process group of `run`, as the runner sends it."""
    warm = WarmPool(bed)
    job = warm.prepared_job()
    script = job.script("sleep 1000 & sleep 1001 &\necho $$ $(jobs -p)\nwait\n")

    def one_kill():
        out, out_end = os.pipe()
        null = os.open(os.devnull, os.O_RDONLY)
        call = spawn(job.argv("run", script), job.env, null, out_end, out_end)
        for fd in (out_end, null):
            os.close(fd)
        guest = os.read(out, 4096).decode().split()
        if len(guest) != 3 or not all(map(is_running, guest)):
            fail("the stage to be killed does not run")
        time.sleep(GAP)
        clock = time.perf_counter()
        os.killpg(call, signal.SIGKILL)
        os.wait4(call, 0)
        while os.read(out, 4096):
            pass
        free = time.perf_counter() - clock
        os.close(out)
        while any(map(is_running, guest)):
            time.sleep(0.0005)
        gone = time.perf_counter() - clock
        time.sleep(GAP)
        return {"free": free, "gone": gone}

    found = collect(one_kill, rounds)
    warm.stop()
    free, gone = found["free"], found["gone"]
    figures.add("`run` killed: until the runner is free", spread(free), "≤ 10 ms (worst)", max(free) * MS <= 10)
    figures.add("… until the guest's processes are gone", spread(gone), "≤ 100 ms (worst)", max(gone) * MS <= 100)


def guest(bed, figures, rounds):
    """The guest's CPU time of whole no-op jobs."""
    guests = {name: Guests(bed) for name in ("host", "instance", "master", "connection")}
    port = {name: of.ports[0] for name, of in guests.items()}
    hosts, kept = HostPool(bed, guests["host"]), bed.pool(1, port["instance"])
    keeper = kept.keep()
    master = Master(bed, port["master"])
    drivers = {
        "host": (greenroom_driver(), hosts), "instance": (greenroom_driver(), kept), "master": (master_driver(bed, master), kept),
        "connection": (connection_driver(bed, port["connection"], "own"), kept),
    }

    def one_job(name):
        driver, pool = drivers[name]
        before = guests[name].account.settled()
        driver.play(pool.job(), PAUSE)
        return guests[name].account.settled() - before

    used = interleave({name: lambda name=name: one_job(name) for name in drivers}, rounds, warm_up=3)
    hosts.stop()
    bed.stop(master.child)
    kept.stop(keeper)
    for each in guests.values():
        each.stop()
    names = {
        "host": "guest's CPU of a no-op job: link, `static` host with its cleaning",
        "instance": "… link, an instance that is not cleaned",
        "master": "… ControlMaster", "connection": "… a connection for each job",
    }
    for name, what in names.items():
        figures.add(what, spread(used[name]))
    for ours, what in (("host", "`static` host"), ("instance", "other instance")):
        value, text = ratio(used[ours], used["master"])
        figures.add(f"… {what}: link ÷ ControlMaster", text, "≤ 1.1", value <= 1.1)
        figures.add(f"… {what}: link ÷ a connection for each job", ratio(used[ours], used["connection"])[1])


def many(bed, figures, rounds):
    """Many no-op jobs, some of them concurrently, each on a static host of its own."""
    guests = {name: Guests(bed, PLAYERS) for name in ("link", "master", "connection")}
    hosts = HostPool(bed, guests["link"])
    masters = [Master(bed, port) for port in guests["master"].ports]
    drivers = {
        "link": [greenroom_driver() for _ in range(PLAYERS)],
        "master": [master_driver(bed, master) for master in masters],
        "connection": [connection_driver(bed, port, f"own{number}") for number, port in enumerate(guests["connection"].ports)],
    }

    def all_jobs(name):
        free = list(drivers[name])
        jobs = [hosts.job() for _ in range(JOBS)]

        def play(job):
            driver = free.pop()
            driver.play(job, PAUSE, gap=0)
            free.append(driver)

        before, clock = guests[name].account.settled(), time.perf_counter()
        with concurrent.futures.ThreadPoolExecutor(PLAYERS) as executor:
            list(executor.map(play, jobs))
        wall = time.perf_counter() - clock
        return wall, (guests[name].account.settled() - before) / JOBS

    found = interleave({name: lambda name=name: all_jobs(name) for name in drivers}, rounds, warm_up=1)
    hosts.stop()
    bed.stop(*(master.child for master in masters))
    for each in guests.values():
        each.stop()
    times, cpus = ({name: [pair[at] for pair in pairs] for name, pairs in found.items()} for at in (0, 1))
    names = {
        "link": f"{JOBS} no-op jobs, {PLAYERS} concurrently, on `static` hosts: link",
        "master": "… ControlMaster", "connection": "… a connection for each job",
    }
    for name, what in names.items():
        figures.add(what, f"{spread(times[name], 1, 2, 's')}; guest's CPU of a job {spread(cpus[name])}")
    better = [min(pair) for pair in zip(times["master"], times["connection"], strict=True)]
    value, text = ratio(times["link"], better)
    figures.add("… link ÷ the faster of the two", text, "≤ 1.0", value <= 1.0)


def far_jobs(bed, rounds, added):
    """Plays the same job over a longer way: with the link, without, and by a ControlMaster. Returns the drivers."""
    with distance(added / MS):
        linked = WarmPool(bed, place=FAR + ":{}", address=NEAR)
        single = WarmPool(bed, linked=False, place=FAR + ":{}", address=NEAR)
        master = Master(bed, linked.port, address=FAR)
        linked.prepared_job().call("cleanup")
        ways = {
            "link": (greenroom_driver((linked.link(),)), linked), "no link": (greenroom_driver(), single),
            "ControlMaster": (master_driver(bed, master), linked),
        }
        for number in range(rounds + 1):
            for driver, warm in ways.values():
                time.sleep(GAP)
                driver.play(warm.pool.job(), PAUSE + 4 * added / MS, number > 0)
        bed.stop(master.child)
        linked.stop()
        single.stop()
    return {name: driver for name, (driver, _) in ways.items()}


def far(bed, figures, rounds):
    """The same job over longer round trips."""
    stages = {}
    for added in (0, 10, 30):
        drivers = far_jobs(bed, rounds, added)
        text = ", ".join(f"{name} {spread(driver.walls)}" for name, driver in drivers.items())
        figures.add(f"no-op job, {added} ms added to the round trip", text)
        stages[added] = {name: statistics.median(driver.stages) for name, driver in drivers.items()}
        text = ", ".join(f"{name} {took * MS:.1f} ms" for name, took in stages[added].items())
        figures.add("… one of its stages", text)
    trips = {name: (stages[30][name] - stages[0][name]) / 0.03 for name in stages[0]}
    text = ", ".join(f"{name} {count:.2f}" for name, count in trips.items())
    figures.add("… round trips per stage: (at 30 ms − at 0) ÷ 30 ms", text, "link ≤ 1.1", trips["link"] <= 1.1)


PARTS = {
    "stage": Part(stage, 200, 30),
    "calls": Part(calls, 200, 30),
    "job": Part(whole_job, 40, 15),
    "log": Part(log, 5, 2),
    # Its rounds are seconds.
    "idle": Part(idle, 60, 20),
    "crowd": Part(concurrent_calls, 3, 1),
    "kill": Part(kill, 40, 10),
    "guest": Part(guest, 40, 10),
    "many": Part(many, 5, 2),
    "far": Part(far, 10, 4),
}


def add_options(parser):
    suite.add_options(parser, PARTS)


def run(options):
    if INSIDE not in os.environ:
        host.need_root("it creates a network namespace")
        host.need_tools()
        host.build("--bin", "greenroom", "--example", "bench_state")
        os.environ[INSIDE] = "1"
        os.execvp("unshare", ["unshare", "--net", sys.executable, *sys.argv])
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
    suite.run("link", PARTS, options)
