"""Delayed actions: one thread, a heap, no polling."""

import heapq
import itertools
import sys
import threading
import time
import traceback


class Timeline:
    """Runs actions at their time, one after the other, each while holding the emulator's lock."""

    def __init__(self, lock):
        self._lock = lock
        self._due = []
        self._numbers = itertools.count()
        # The generation of valid actions: those from before `clear` are void, even if they are due.
        self._era = 0
        self._changed = threading.Condition()
        self._ended = False
        self._thread = threading.Thread(target=self._run, name="timeline", daemon=True)
        self._thread.start()

    def after(self, seconds, action, *arguments):
        """Calls `action` with `arguments` after `seconds`, from the timeline's own thread."""
        with self._changed:
            heapq.heappush(self._due, (time.monotonic() + seconds, next(self._numbers), self._era, action, arguments))
            self._changed.notify()

    def clear(self):
        """Cancels all actions. If the caller holds the emulator's lock, none of them runs afterwards."""
        with self._changed:
            self._era += 1
            self._due.clear()

    def end(self):
        with self._changed:
            self._ended = True
            self._changed.notify()
        self._thread.join()

    def _next(self):
        """Waits for the next action that is due; `None` at the end."""
        with self._changed:
            while not self._ended:
                left = self._due[0][0] - time.monotonic() if self._due else None
                if left is not None and left <= 0:
                    return heapq.heappop(self._due)
                self._changed.wait(left)
            return None

    def _run(self):
        while (due := self._next()) is not None:
            _, _, era, action, arguments = due
            with self._lock:
                if era != self._era:
                    continue
                try:
                    action(*arguments)
                except Exception:  # An action's error must not stop the later ones.
                    traceback.print_exc(file=sys.stderr)
