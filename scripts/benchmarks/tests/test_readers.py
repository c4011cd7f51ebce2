"""Readers of journals, of the kernel's files and of the output of commands; the swap of packets' addresses."""

import contextlib
import io
import json
import os
import pathlib
import sys
import tempfile
import unittest

from benchmarks import command_line, journal, measure
from benchmarks.distance import swapped
from benchmarks.machines import seconds_of


def line(number, at, event):
    return json.dumps({"n": number, "events": [{"at": [1700000000001, 1, 7, at], "event": event}]}, separators=(",", ":"))


class Journals(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.pool = pathlib.Path(folder.name)
        self.write("journal.jsonl", line(2, 2500, "granted"))

    def write(self, name, *lines):
        path = self.pool / name
        path.parent.mkdir(exist_ok=True)
        header = json.dumps({"format": 2, "pool": "linux", "first": 1})
        path.write_text("\n".join([header, *lines]) + "\n")

    def test_events_have_seconds_of_the_boot_clock(self):
        self.assertEqual([(at, event["event"]) for at, event in journal.events(self.pool)], [(2.5, "granted")])

    def test_kept_journals_come_first_and_indexes_are_ignored(self):
        self.write("history/journal-1-1.jsonl", line(1, 1000, "requested"))
        (self.pool / "history" / "jobs-1-1.json").write_text("{}\n")
        self.assertEqual([at for at, _ in journal.events(self.pool)], [1.0, 2.5])
        self.assertEqual(journal.count(self.pool, "granted"), 1)

    def test_a_journal_with_two_names_counts_once(self):
        self.write("history/journal-2-2.jsonl", line(2, 2500, "granted"))
        self.assertEqual(len(journal.events(self.pool)), 1)
        self.assertEqual(journal.count(self.pool, "granted"), 1)


class Processes(unittest.TestCase):
    def test_a_run_is_measured(self):
        ran = measure.measure(["/bin/sh", "-c", "exit 0"], {})
        self.assertGreater(ran.wall, 0)
        self.assertGreater(ran.page_faults, 0)

    def test_output_is_counted(self):
        measure.measure(["/bin/sh", "-c", "echo hello"], {}, expected_bytes=6)
        for script, count in (("echo hello", 7), ("echo hello; echo problem >&2; exit 3", 6), ("exit 3", 0)):
            with self.assertRaisesRegex(SystemExit, "scripts/bench: /bin/sh"):
                measure.measure(["/bin/sh", "-c", script], {}, expected_bytes=count)

    def test_this_process_is_read(self):
        pid = os.getpid()
        self.assertTrue(measure.is_running(pid))
        self.assertGreater(measure.cpu_of(pid), 0)
        self.assertGreaterEqual(measure.cpu_in_ticks(pid, with_waited_for=True), measure.cpu_in_ticks(pid))
        self.assertGreater(measure.memory_of(pid, "Rss"), measure.memory_of(pid, "Anonymous"))
        self.assertEqual(measure.memory_of(pid, "Nothing"), 0)

    def test_an_ended_process_does_not_run_even_if_it_was_not_reaped(self):
        child = os.spawnv(os.P_NOWAIT, sys.executable, [sys.executable, "-c", ""])
        measure.wait_until("for the end of a child", lambda: not measure.is_running(child))
        os.waitpid(child, 0)
        self.assertFalse(measure.is_running(child))

    def test_a_wait_that_takes_too_long_is_named(self):
        with self.assertRaisesRegex(SystemExit, "waited 0 s for rain"):
            measure.wait_until("for rain", lambda: False, limit=0)


class Texts(unittest.TestCase):
    def test_the_time_of_a_call_is_found(self):
        output = "  ✓ config   1.2 ms\n  ✓ prepare  0.95 s  a new machine\n"
        self.assertEqual(seconds_of("prepare", output), 0.95)
        self.assertAlmostEqual(seconds_of("config", output), 0.0012)

    def test_source_and_destination_of_a_packet_are_swapped(self):
        self.assertEqual(swapped(b"header 12 by" + b"from" + b"dest" + b"content"), b"header 12 bydestfromcontent")


class Options(unittest.TestCase):
    def test_parts_are_chosen_by_name(self):
        parse = command_line.parser().parse_args
        self.assertEqual(parse(["jobs", "--only", "log,size"]).only, ["log", "size"])
        self.assertIsNone(parse(["link"]).only)
        with contextlib.redirect_stderr(io.StringIO()) as problem, self.assertRaises(SystemExit):
            parse(["machines", "--only", "reach,nothing"])
        self.assertIn("no such part: nothing", problem.getvalue())

    def test_a_subcommand_is_required(self):
        with contextlib.redirect_stderr(io.StringIO()), self.assertRaises(SystemExit):
            command_line.parser().parse_args([])


if __name__ == "__main__":
    unittest.main()
