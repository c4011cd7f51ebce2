"""Collects violations: requests that no correct client sends, and invalid answers of the emulator."""

import threading


class Judge:
    """Violations in order of occurrence. A test asserts at its end that there are none."""

    def __init__(self):
        self._found = []
        self._lock = threading.Lock()

    def accuse(self, front_end, operation, what):
        """Stores one violation; `what` is a sentence for the output of the failed test."""
        with self._lock:
            self._found.append({"front_end": front_end, "operation": operation, "what": what})

    def found(self):
        with self._lock:
            return list(self._found)

    def clear(self):
        with self._lock:
            self._found.clear()
