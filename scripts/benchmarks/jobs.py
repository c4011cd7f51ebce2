"""`scripts/bench jobs`: the driver calls of jobs, beside OpenSSH's client and the smallest program."""

import re
import shutil
import statistics
import subprocess

from benchmarks import crowd, host, suite
from benchmarks.measure import cpu_of, fail, measure, peak_memory
from benchmarks.samples import (
    MS,
    collect,
    cpus,
    interleave,
    interquartile_mean,
    quantile,
    ratio,
    spread,
    walls,
)
from benchmarks.suite import Part

ABOUT = """Measure driver calls beside OpenSSH's client and the smallest program; write the table.

It takes about six minutes, and longer with the release build. Everything runs on loopback, in a directory that is removed at
the end. Needs OpenSSH's client and server, and `time`; as root, missing programs are installed with apt.
"""
GIB = 1 << 30
# A line as compilers and test runners print them, 80 bytes.
LOG_LINE = "   Compiling a-package-with-a-name v1.23.4 (registry) [optimised + debug info]:"
LOG_SCRIPT = f"yes '{LOG_LINE:79}' | head -c {GIB}\n"


def prepare(bed, figures, rounds):
    """`prepare`, `run` of nothing and `cleanup` of whole jobs, each job beside OpenSSH's client; then `prepare` without a
    link."""
    port, server = bed.sshd()
    pool = bed.pool(20, port)
    keeper = pool.keep()

    def whole_job():
        job = pool.job()
        empty = job.script("")
        return {
            "login": measure(bed.ssh(port, "true"), bed.env),
            "prepare": job.call("prepare"),
            "shell": measure(bed.ssh(port, "bash"), bed.env, stdin=empty),
            "run": job.call("run", empty),
            "cleanup": job.call("cleanup"),
        }

    def job_without_link():
        pool.end_links(server)
        job = pool.job()
        runs = {"login": measure(bed.ssh(port, "true"), bed.env), "prepare": job.call("prepare")}
        job.call("cleanup")
        return runs

    warm = collect(whole_job, rounds, warm_up=3)
    cold = collect(job_without_link, rounds // 3, warm_up=1)
    pool.stop(keeper, server)
    add_prepare(figures, warm, cold)


def add_prepare(figures, warm, cold):
    def times(runs):
        return f"{spread(walls(runs))}; CPU {spread(cpus(runs))}"

    figures.add("warm `prepare`", times(warm["prepare"]))
    figures.add("`ssh host true`", times(warm["login"]))
    value, text = ratio(walls(warm["prepare"]), walls(warm["login"]))
    figures.add("warm `prepare` ÷ `ssh host true`", text, "≤ 1.0", value <= 1.0)
    figures.add("`prepare` of an instance without a link, which it starts", times(cold["prepare"]))
    value, text = ratio(walls(cold["prepare"]), walls(cold["login"]))
    figures.add("… ÷ `ssh host true`", text, "≤ 1.0", value <= 1.0)
    figures.add("`run` of an empty stage", times(warm["run"]))
    _, text = ratio(walls(warm["run"]), walls(warm["shell"]))
    figures.add("`run` of an empty stage ÷ `ssh host bash < /dev/null`", text)
    ends = walls(warm["cleanup"])
    met = statistics.median(ends) * MS <= 3 and quantile(ends, 0.95) * MS <= 8
    figures.add("`cleanup`", times(warm["cleanup"]), "≤ 3 ms, p95 ≤ 8 ms", met)


def start(bed, figures, rounds):
    """The calls that reach no instance, beside the smallest program: the cost of a start. Two copies of the program
    alternate: one as it was installed, and one that the kernel has read from the disk since."""
    port, server = bed.sshd()
    pool = bed.pool(20, port)
    keeper = pool.keep()
    programs = {"": bed.greenroom, ", read from the disk": bed.install_and_evict()}

    def one_round():
        runs = {"true": measure([shutil.which("true")], bed.env)}
        for name, program in programs.items():
            job = pool.job()
            runs["config", name] = job.call("config", program=program)
            job.call("prepare")
            runs["cleanup", name] = job.call("cleanup", program=program)
        return runs

    runs = collect(one_round, rounds, warm_up=3)
    pool.stop(keeper, server)
    figures.add("`true`, start to end", cost_of_start(runs["true"]))
    for call, goal in (("config", 1.2), ("cleanup", 1.5)):
        for name in programs:
            took = walls(runs[call, name])
            met = statistics.median(took) * MS <= goal
            figures.add(f"`{call}`, start to end{name}", cost_of_start(runs[call, name]), f"≤ {goal} ms", met)
            figures.add("… ÷ `true`", ratio(took, walls(runs["true"]))[1])


def cost_of_start(runs):
    cpu = statistics.median(cpus(runs)) * MS
    faults = statistics.median(run.page_faults for run in runs)
    return f"{spread(walls(runs), digits=2)}; CPU {cpu:.2f} ms; {faults:.0f} page faults"


def log(bed, figures, rounds):
    """1 GiB of log through `run`, beside the same bytes through OpenSSH's client."""
    port, server = bed.sshd()
    pool = bed.pool(1, port)
    keeper = pool.keep()
    job = pool.job()
    job.call("prepare")
    script = job.script(LOG_SCRIPT)
    ways = {
        "run": lambda: job.call("run", script, expected_bytes=GIB),
        "ssh": lambda: measure(bed.ssh(port, "bash"), bed.env, stdin=script, expected_bytes=GIB),
    }
    runs = interleave(ways, rounds, warm_up=1)
    pool.stop(keeper, server)

    def times(name):
        return f"{spread(walls(runs[name]), 1, 2, 's')}; CPU {spread(cpus(runs[name]), 1, 2, 's')}"

    figures.add("1 GiB of log through `run`", times("run"))
    figures.add("the same log through `ssh`", times("ssh"))
    value, text = ratio(walls(runs["ssh"]), walls(runs["run"]))
    figures.add("log throughput, `run` ÷ `ssh`", text, "≥ 1.0", value >= 1.0)
    value, text = ratio(cpus(runs["run"]), cpus(runs["ssh"]))
    figures.add("CPU time for the log, `run` ÷ `ssh`", text, "≤ 1.0", value <= 1.0)


def memory(bed, figures, rounds):
    """The peak of each call; the largest of three."""
    port, server = bed.sshd()
    pool = bed.pool(20, port)
    keeper = pool.keep()
    scripts = {"config": None, "prepare": None, "run": "true\n", "run, 1 GiB": LOG_SCRIPT, "cleanup": None}

    def one_job():
        job, peaks = pool.job(), {}
        for call, script in scripts.items():
            path = job.script(script) if script else None
            peaks[call] = peak_memory(job.argv(call.partition(",")[0], path), job.env)
        return peaks

    peaks = {call: max(values) / (1 << 20) for call, values in collect(one_job, min(rounds, 3)).items()}
    pool.stop(keeper, server)
    text = ", ".join(f"`{call}` {peak:.1f}" for call, peak in peaks.items())
    figures.add("peak memory in MiB", text, "≤ 10", max(peaks.values()) <= 10)


def concurrent(bed, figures, rounds):
    """500 concurrent calls on instances without a link: each call starts one. No round finds links of the one before."""
    count = crowd.COUNT
    ports, servers = bed.sshds(8)

    def one_round():
        pool = bed.pool(count, *ports, timing=crowd.TIMING)
        keeper = pool.keep()
        calls = crowd.prepare_all(pool, count, servers, bed.home / "crowd.log")
        took = [at - calls.opened for at in pool.granted_at().values()]
        links = pool.links()
        cpu_of_links = cpu_of(*links)
        bed.stop(keeper)
        pool.end_links(*servers)
        if len(links) != count:
            fail(f"{count} calls have started {len(links)} links")
        return {
            "p50": statistics.median(took), "p99": quantile(took, 0.99), "last": max(took),
            "links": calls.last() - max(took), "CPU": calls.cpu / count, "CPU of links": cpu_of_links / count,
        }

    found = collect(one_round, rounds, warm_up=1)
    bed.stop(*servers)
    last = statistics.median(found["last"])
    figures.add(f"{count} concurrent `prepare`: start to last grant", spread(found["last"], 1, 2, "s"), "≤ 2 s", last <= 2)
    tail = statistics.median(late / usual for late, usual in zip(found["p99"], found["p50"], strict=True))
    text = f"{tail:.1f} (p50 {spread(found['p50'], 1, 2, 's')})"
    figures.add("… p99 ÷ p50 of start to grant", text, "≤ 3", tail <= 3)
    what = "… after that, until every instance has a link and was probed, servers on the same processors"
    figures.add(what, spread(found["links"], 1, 2, "s"))
    figures.add("… CPU of one call, of one link until then", f"{spread(found['CPU'])}; {spread(found['CPU of links'])}")


def size(bed, figures, rounds):
    """One acquire in pools of three sizes, in turn: a whole call up to its grant, and the store's part alone."""
    port, server = bed.sshd()
    counts = (10, 1_000, 10_000)
    pools = {count: bed.pool(count, port).hold() for count in counts}

    def until_grant(pool):
        job = pool.job()
        ran = job.call("prepare")
        # The journal's clock ticks once a millisecond: on average half of one is lost.
        took = pool.granted_at()[job.name] + 0.5 / MS - ran.began
        job.call("cleanup")
        return took

    found = interleave({count: lambda pool=pool: until_grant(pool) for count, pool in pools.items()}, rounds, warm_up=2)
    for pool in pools.values():
        pool.end_links()
    bed.stop(server)
    means = {count: interquartile_mean(values) for count, values in found.items()}
    text = ", ".join(f"{count:,} instances {mean * MS:.1f} ms" for count, mean in means.items())
    figures.add(f"one `prepare`, process start to grant, interquartile mean of {rounds}", text)
    grown = means[1_000] / means[10]
    figures.add("… with 1,000 instances ÷ with 10", f"{grown:.2f} ×", "≤ 2", grown <= 2)
    lines = subprocess.run([bed.helper, "acquire", str(rounds), *map(str, counts)], check=True, stdout=subprocess.PIPE)
    parts = []
    for line in lines.stdout.decode().splitlines():
        count, *costs = map(int, line.split())
        parts.append(f"{count:,} instances {statistics.median(costs) / 1e3:.2f} ms")
    figures.add("the store's share of it: read, decide, append", ", ".join(parts))


def printed_by(test, name, pattern):
    """Runs one test. Returns two numbers of its output, which are microseconds, in seconds."""
    command = ["cargo", "test", "--quiet", "--test", test, name, "--", "--nocapture"]
    ran = subprocess.run(command, check=False, cwd=host.ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    output = ran.stdout.decode(errors="replace")
    found = re.search(pattern, output)
    if ran.returncode or not found:
        fail(f"`{' '.join(command)}` does not print its figures:\n{output[-3000:]}")
    return int(found[1]) / 1e6, int(found[2]) / 1e6


def suites(bed, figures, rounds):
    """The figures of the tests of store and host; their code is not optimized, so these are upper bounds."""
    del bed
    commit = r"median done after (\d+) µs, slowest after (\d+) µs"
    ways = {
        "commit": lambda: printed_by("contract", "two_hundred_processes_commit", commit),
        "wake": lambda: printed_by("host", "wake", r"median (\d+) us, worst of 100 (\d+) us"),
    }
    found = interleave(ways, rounds)
    lasts = [last for _, last in found["commit"]]
    what = "200 processes commit concurrently: the slowest (test build)"
    figures.add(what, spread(lasts), "≤ 1 s", statistics.median(lasts) <= 1)
    tail = statistics.median(last / usual for usual, last in found["commit"])
    figures.add("… slowest ÷ median", f"{tail:.1f}", "≤ 3", tail <= 3)
    usual = statistics.median(usual for usual, _ in found["wake"])
    worst = max(worst for _, worst in found["wake"])
    text = f"{usual * MS:.2f} ms, worst of {100 * rounds} {worst * MS:.1f} ms"
    figures.add("wake-up of a waiting call by datagram (test build)", text, "≤ 5 ms", usual <= 5 / MS)


PARTS = {
    "prepare": Part(prepare, 60, 15),
    "start": Part(start, 200, 60),
    "log": Part(log, 7, 2),
    "memory": Part(memory, 3, 1),
    "crowd": Part(concurrent, 5, 1),
    "size": Part(size, 40, 10),
    "suites": Part(suites, 5, 1),
}


def add_options(parser):
    suite.add_options(parser, PARTS)


def run(options):
    host.need_tools()
    host.build("--bin", "greenroom", "--example", "bench_state")
    suite.run("jobs", PARTS, options)
