"""Tests the emulator as a process: its end, two concurrent processes, and its own failures."""

import os
import signal
import tempfile
import threading
import time
import unittest
from unittest import mock

import trial
from shared.timeline import Timeline
from trial import Ec2Trial, end_lab, start_lab


class Process(Ec2Trial):
    """Here each test has a lab of its own, in place of the shared one."""

    def setUp(self):
        # A killed emulator leaves its files.
        folder = tempfile.TemporaryDirectory(prefix="lab-test-")
        self.addCleanup(folder.cleanup)
        self.process, world = start_lab(TMPDIR=folder.name)
        shared = dict(trial._shared, lab=world)
        patch = mock.patch.dict(trial._shared, shared)
        patch.start()
        self.addCleanup(patch.stop)
        self.addCleanup(lambda: self.process.poll() is None and end_lab(self.process))
        super().setUp()

    def tearDown(self):
        if self.process.poll() is None:
            super().tearDown()

    def running(self):
        """An instance whose sshd answers."""
        one = self.launch()[0]
        self.until(lambda: self.listening(one["PrivateIpAddress"]))
        return self.truth()[one["InstanceId"]]

    def gone(self, instance):
        return not self.listening(instance["address"]) and not os.path.exists(f"/proc/{instance['process']}")

    def test_ends_with_its_standard_input_or_on_sigterm_and_leaves_other_labs_alone(self):
        other, world = start_lab()
        self.addCleanup(lambda: other.poll() is None and end_lab(other))
        self.assertNotEqual(world["ssh_port"], self.ssh_port)
        instance = self.running()
        self.process.terminate()
        self.assertEqual(self.process.wait(20), 0)
        self.assertTrue(self.gone(instance))
        self.process.stdin.close()
        self.process.stdout.close()
        self.assertIsNone(other.poll())
        self.assertEqual(end_lab(other), 0)

    def test_killed_it_leaves_no_instance(self):
        instance = self.running()
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(20)
        self.process.stdin.close()
        self.process.stdout.close()
        self.until(lambda: self.gone(instance))


class InProcess(unittest.TestCase):
    """Errors inside the emulator, provoked in an emulator in this process."""

    @classmethod
    def setUpClass(cls):
        from lab import Lab  # Takes seconds.

        cls.lab = Lab(1)
        cls.addClassCleanup(cls.lab.end)

    def accused(self):
        """Removes and returns the only violation."""
        found = self.lab.judge.found()
        self.lab.judge.clear()
        self.assertEqual(len(found), 1)
        return found[0]["what"]

    def test_a_crash_of_moto_is_loud(self):
        from ec2.calls import Calls

        request = mock.Mock(url=self.lab.server.url + "/", headers={"Authorization": "x"})
        crash = mock.patch.object(Calls, "describe_regions", side_effect=KeyError("region"))
        with crash, mock.patch("traceback.print_exc"):
            answer = self.lab.ec2._act("DescribeRegions", {}, request, b"Action=DescribeRegions&Version=2016-11-15")
        self.assertEqual((answer.status, answer.code), (500, "InternalError"))
        self.assertIn("moto failed", self.accused())

    def test_the_lab_judges_its_own_answers(self):
        gce = self.lab.gce
        method, path = gce._discovery.route("GET", "/compute/v1/projects/lab-project/zones/us-east1-b")
        for wrong in ({"id": 5}, {"nmae": "x"}, {"status": "AWAY"}):
            with mock.patch.dict(gce._methods.played, {method.id: lambda *_, answer=wrong: answer}):
                gce._act(method, path, None)
            self.assertIn("the lab's own answer is wrong", self.accused())

    def test_a_cleared_timeline_forgets_what_was_to_come(self):
        lock, happened = threading.RLock(), []
        timeline = Timeline(lock)
        timeline.after(0.05, happened.append, 1)
        with lock:
            # It becomes due while the lock is held: it waits, and is cancelled.
            timeline.after(0.0, happened.append, 1)
            time.sleep(0.05)
            timeline.clear()
        timeline.after(0.1, happened.append, 2)
        while not happened:
            time.sleep(0.01)
        timeline.end()
        self.assertEqual(happened, [2])


if __name__ == "__main__":
    unittest.main()
