"""Collects violations: what no correct client would have sent, and answers that the lab itself got wrong."""

import threading


class Judge:
    """Violations in the order they were seen. A test asserts at its end that there are none."""

    def __init__(self):
        self._found = []
        self._lock = threading.Lock()

    def accuse(self, front_end, operation, what):
        """Keeps one violation; `what` is a sentence for whoever reads the failed test."""
        with self._lock:
            self._found.append({"front_end": front_end, "operation": operation, "what": what})

    def found(self):
        with self._lock:
            return list(self._found)

    def clear(self):
        with self._lock:
            self._found.clear()
