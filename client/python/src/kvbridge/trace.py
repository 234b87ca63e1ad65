"""W3C trace context: the caller's, which goes with a transfer, and the server's span in it, which comes back."""

from __future__ import annotations

import re
from collections.abc import Iterable

TRACEPARENT = "traceparent"
_TRACESTATE = "tracestate"
_MOST_STATE = 512  # the least that everybody has to pass on
# version - trace id - span id - flags. Later versions may add to the end.
_SHAPE = re.compile(r"(?!ff)([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-[0-9a-f]{2}(-[ -~]*)?")
_STATE = re.compile(r"[ -~]*")


def ids(traceparent: str) -> tuple[str, str] | None:
    """(trace id, span id); None unless it is well-formed."""
    found = _SHAPE.fullmatch(traceparent)
    if found is None:
        return None
    version, trace, span, more = found.groups()
    known = trace.strip("0") and span.strip("0") and not (more and version == "00")
    return (trace, span) if known else None


def trace_metadata(traceparent: str, tracestate: str) -> tuple[tuple[str, str], ...]:
    """What goes with the call; ValueError for what is no trace context."""
    if traceparent and ids(traceparent) is None:
        raise ValueError(f"traceparent: expected W3C's version-trace-span-flags, got {traceparent[:80]!r}")
    if len(tracestate) > _MOST_STATE or not _STATE.fullmatch(tracestate):
        raise ValueError(f"tracestate: expected at most {_MOST_STATE} printable ASCII characters")
    if tracestate and not traceparent:
        raise ValueError("tracestate: expected a traceparent beside it, got none")
    sent = ((TRACEPARENT, traceparent), (_TRACESTATE, tracestate))
    return tuple((name, value) for name, value in sent if value)


def answered_ids(metadata: Iterable[tuple[str, str | bytes]] | None) -> tuple[str, str]:
    """(trace id, span id) of the server's span, from its trailing metadata; empty words where there is none."""
    for name, value in metadata or ():
        if name == TRACEPARENT and isinstance(value, str):
            return ids(value) or ("", "")
    return "", ""
