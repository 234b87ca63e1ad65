"""What goes on while a transfer runs: how far the source's prefill has come, and which layers are done."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator

from kvbridge.chunks import DamagedAnswer
from kvbridge.v1 import transfer_pb2


class SourceProgress:
    """Tells a transfer how far prefill has filled the source, so that mapping starts before prefill ends.

    The engine calls ready() as it goes, and close() when it stops, done or not; a transfer that has ended closes
    it, too.

    Thread contract: every method from any thread; one transfer iterates.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._token_end = 0
        self._closed = False

    def ready(self, token_end: int) -> None:
        """Tokens [0, token_end) are written in every layer."""
        with self._changed:
            self._token_end = max(self._token_end, token_end)
            self._changed.notify_all()

    def close(self) -> None:
        """No more will come. Idempotent."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def __iter__(self) -> Iterator[int]:
        """Each newest token_end, once."""
        told = 0
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._token_end > told or self._closed)
                if self._token_end <= told:
                    return
                told = self._token_end
            yield told


class Readiness:
    """How far the source may be read, over all attempts at one transfer; `tokens` from the start when nobody
    fills it. For the client: gRPC's thread advances it."""

    def __init__(self, tokens: int, source: Iterable[int] | None) -> None:
        self.streamed = source is not None
        self._source = source
        self._tokens = tokens
        self._coming = iter(source) if source is not None else iter(())
        self.reached = 0 if self.streamed else tokens

    def advance(self) -> bool:
        """Waits for more; False when there will be none."""
        if self.reached >= self._tokens:
            return False
        token_end = next(self._coming, None)
        if token_end is None:
            return False
        self.reached = max(self.reached, min(token_end, self._tokens))
        return True

    def wait(self, token_end: int) -> bool:
        """Until tokens [0, token_end) may be read; False when they never will."""
        while self.reached < token_end:
            if not self.advance():
                return False
        return True

    def close(self) -> None:
        """The transfer has ended; whoever waits goes home."""
        close = getattr(self._source, "close", None)
        if isinstance(self._source, SourceProgress) and close is not None:
            close()


class LayerProgress:
    """Turns LayersReady of pieces of tokens into layers that are whole, and tells the caller in order."""

    def __init__(
        self, layers: int, tokens: int, tell: Callable[[int, int], None] | None
    ) -> None:
        """tokens: that every layer will get. tell(begin, end): layers [begin, end) are whole."""
        self._left = [tokens] * layers
        self._tell = tell
        self._told = 0

    def add(self, ready: transfer_pb2.LayersReady) -> None:
        """DamagedAnswer for layers that there are not."""
        if not 0 <= ready.layer_begin < ready.layer_end <= len(self._left):
            raise DamagedAnswer(
                f"layers_ready: outside of {len(self._left)} layers: [{ready.layer_begin}, {ready.layer_end})"
            )
        for layer in range(ready.layer_begin, ready.layer_end):
            self._left[layer] -= ready.token_end - ready.token_begin
        end = self._told
        while end < len(self._left) and self._left[end] <= 0:
            end += 1
        if end > self._told and self._tell is not None:
            self._tell(self._told, end)
        self._told = end
