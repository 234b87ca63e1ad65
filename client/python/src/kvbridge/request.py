"""What a transfer is asked with: arguments checked and put into the header that travels."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

import numpy as np
import numpy.typing as npt
from google.protobuf import duration_pb2

from kvbridge.arrays import Array, as_storage
from kvbridge.v1 import transfer_pb2, types_pb2

KEY_STATES = {"roped": types_pb2.KEY_STATE_ROPED, "unroped": types_pb2.KEY_STATE_UNROPED}
OVERFLOW = {
    "fail": transfer_pb2.OVERFLOW_POLICY_FAIL,
    "saturate": transfer_pb2.OVERFLOW_POLICY_SATURATE,
}


def check_layers(
    keys: Sequence[Array], values: Sequence[Array], kind: int
) -> tuple[list[Array], list[Array]]:
    """Keys and values as lists of layers in their storage dtype, all of one shape."""
    lists = tuple([as_storage(np.asarray(layer), kind) for layer in part] for part in (keys, values))
    if not lists[0] or len(lists[0]) != len(lists[1]):
        raise ValueError(
            f"keys and values: expected as many layers of both, got {len(lists[0])} and {len(lists[1])}"
        )
    shape = lists[0][0].shape
    for name, part in zip(("keys", "values"), lists):
        for index, layer in enumerate(part):
            if layer.ndim != 3 or layer.shape != shape:
                raise ValueError(
                    f"{name}[{index}]: expected [kv_heads, tokens, head_dim] = {shape} as keys[0], "
                    f"got {layer.shape}"
                )
    return lists[0], lists[1]


def duration(seconds: float | None) -> duration_pb2.Duration | None:
    """Of seconds; None stays None."""
    if seconds is None:
        return None
    result = duration_pb2.Duration()
    result.FromTimedelta(timedelta(seconds=seconds))
    return result


def position_list(
    positions: Sequence[int] | npt.NDArray[np.int64] | None,
) -> types_pb2.Positions | None:
    """On the wire; None stays None: 0, 1, 2, ..."""
    if positions is None:
        return None
    return types_pb2.Positions(list=np.asarray(positions, np.int64).tolist())


def same_host(target: str) -> bool:
    """Whether a gRPC target names a unix socket or a loopback address."""
    name = target.removeprefix("dns:").removeprefix("ipv4:").removeprefix("ipv6:").lstrip("/")
    return name.startswith(("unix:", "unix-abstract:", "127.", "localhost:", "[::1]:"))
