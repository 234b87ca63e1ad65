"""Stops asking a server that does not answer, so that no prompt waits for a dead bridge again."""

from __future__ import annotations

import enum
import threading
import time
from collections.abc import Callable


class CircuitState(enum.IntEnum):
    """As the metric kvbridge_client_circuit_state says it."""

    CLOSED = 0
    HALF_OPEN = 1
    OPEN = 2


class Circuit:
    """After `threshold` failures in a row every call is refused for `cooldown` seconds; then one at a time is
    let through until one succeeds.

    Thread contract: every method from any thread.
    """

    def __init__(
        self, threshold: int, cooldown: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._threshold = threshold
        self._cooldown = cooldown
        self._clock = clock
        self._lock = threading.Lock()
        self._failures = 0
        self._open_until = 0.0
        self._probing = False

    def admit(self) -> bool:
        """Whether a call may be made now. One that was let through reports back by exactly one of
        succeeded(), failed() and abandoned()."""
        with self._lock:
            if self._failures < self._threshold:
                return True
            if self._probing or self._clock() < self._open_until:
                return False
            self._probing = True
            return True

    def succeeded(self) -> None:
        """The server answered, be it with a refusal."""
        with self._lock:
            self._failures, self._probing = 0, False

    def failed(self) -> None:
        """The server could not be reached, or broke off."""
        with self._lock:
            self._failures, self._probing = self._failures + 1, False
            if self._failures >= self._threshold:
                self._open_until = self._clock() + self._cooldown

    def abandoned(self) -> None:
        """The call said nothing about the server: its caller cancelled it."""
        with self._lock:
            self._probing = False

    @property
    def state(self) -> CircuitState:
        """Now."""
        with self._lock:
            if self._failures < self._threshold:
                return CircuitState.CLOSED
            if self._probing or self._clock() >= self._open_until:
                return CircuitState.HALF_OPEN
            return CircuitState.OPEN
