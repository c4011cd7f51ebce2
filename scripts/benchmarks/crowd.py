"""Calls of `prepare` that begin at the same moment."""

import dataclasses
import os
import signal

from benchmarks.measure import boot_clock, fail, spawn, stat_fields, wait_until

COUNT = 500

# 500 connections, each with its link, its sshd and its shell, are ten seconds of work for two processors, and more beside
# other work. An instance that does not answer within `connect_timeout`, 10 s, would count as unreachable: its job waits
# until the keeper has probed it, and the provider does not know the instances of a benchmark. So there is more time.
TIMING = 'connect_timeout = "2m"\n'
WITHIN = 180


@dataclasses.dataclass
class Crowd:
    """When the gate opened and when each job's call ended, by the boot clock; CPU seconds of all calls."""

    opened: float
    ended: dict[str, float] = dataclasses.field(default_factory=dict)
    cpu: float = 0

    def last(self):
        """Seconds until the last call had ended."""
        return max(self.ended.values()) - self.opened


def at_the_gate(pool, count, gate, log):
    """Starts shells that wait until the gate opens, and then become `prepare`. Returns the jobs by process id."""
    null, said = os.open(os.devnull, os.O_RDWR), os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    wait = ["/bin/sh", "-c", 'read _; exec "$@" < /dev/null', "sh"]
    jobs = [pool.job() for _ in range(count)]
    waiting = {spawn([*wait, *job.argv("prepare")], job.env, gate, null, said): job.name for job in jobs}
    wait_until(f"for {count} shells at the gate", lambda: all(stat_fields(pid)[0] == "S" for pid in waiting))
    for fd in (gate, null, said):
        os.close(fd)
    return waiting


def reap(running, crowd, log):
    """Notes the calls that have ended. True when all have."""
    for pid in list(running):
        ended, status, usage = os.wait4(pid, os.WNOHANG)
        if ended:
            crowd.ended[running.pop(pid)] = boot_clock()
            crowd.cpu += usage.ru_utime + usage.ru_stime
            if status:
                fail(f"a prepare failed: {log.read_text()[-2000:]}")
    return not running


def prepare_all(pool, count, servers, log, before=0):
    """Lets `count` calls of `prepare` begin at the same moment. `before`: the number of earlier grants.

    The servers are stopped until all calls have their grants: in production they are other machines, here they would
    compete for the processors.
    """
    gate, opener = os.pipe()
    running = at_the_gate(pool, count, gate, log)

    def signal_servers(number):
        for server in servers:
            server.send_signal(number)

    def recorded():
        return pool.grants() - before

    def unfinished():
        return f"for {len(running)} of {count} calls, which say: {log.read_text()[-2000:]}"

    signal_servers(signal.SIGSTOP)
    crowd = Crowd(boot_clock())
    os.close(opener)
    try:
        wait_until(lambda: f"for {count} grants: {recorded()} are recorded", lambda: recorded() >= count, every=0.05)
        signal_servers(signal.SIGCONT)
        wait_until(unfinished, lambda: reap(running, crowd, log), WITHIN)
    finally:
        signal_servers(signal.SIGCONT)
        for pid in running:
            os.killpg(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
    return crowd
