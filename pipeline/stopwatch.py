"""Seconds by purpose."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager


class Stopwatch:
    """`with watch("upload"): ...` charges the time to one purpose; inside another block it pauses that one's clock."""

    def __init__(self) -> None:
        self._seconds: dict[str, float] = defaultdict(float)
        self._running: list[str] = []
        self._since = 0.0

    @contextmanager
    def __call__(self, purpose: str) -> Iterator[None]:
        self._charge()
        self._running.append(purpose)
        try:
            yield
        finally:
            self._charge()
            self._running.pop()

    def take(self) -> dict[str, float]:
        """The seconds since the last take, by purpose."""
        seconds = {purpose: round(value, 6) for purpose, value in self._seconds.items()}
        self._seconds.clear()
        return seconds

    def _charge(self) -> None:
        now = time.perf_counter()
        if self._running:
            self._seconds[self._running[-1]] += now - self._since
        self._since = now
