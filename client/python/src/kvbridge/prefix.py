"""What a target cache already holds, so that a conversation's next turn maps its new tokens only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from kvbridge.digests import token_ids_digest
from kvbridge.result import TransferResult

Ids = Sequence[int] | npt.NDArray[np.int64]


def longest_common_prefix(one: Ids, other: Ids) -> int:
    """How many tokens two histories share from their start."""
    length = min(len(one), len(other))
    differs = np.nonzero(np.asarray(one)[:length] != np.asarray(other)[:length])[0]
    return int(differs[0]) if len(differs) else length


@dataclass(frozen=True)
class MappedPrefix:
    """Tokens [0, covered) of a target cache, mapped and then perhaps followed by the target's own, bound to the ids
    that they stand for.

    One artifact made what is mapped of it: what another one makes can't be appended. Keep it beside the cache; it
    is worth nothing once those tokens have been overwritten.
    """

    token_ids: npt.NDArray[np.int64]  # [covered]
    artifact_digest: str
    salt: str
    hops: int  # maps that the cache has been through

    @property
    def covered(self) -> int:
        """Tokens."""
        return len(self.token_ids)

    @classmethod
    def of(cls, result: TransferResult, token_ids: Ids) -> MappedPrefix:
        """After an applied transfer. token_ids: of the prompt, at least what was covered."""
        if not result.applied:
            raise ValueError(f"result: expected an applied transfer, got {result}")
        if len(token_ids) < result.covered_tokens:
            raise ValueError(
                f"token_ids: expected at least {result.covered_tokens}, got {len(token_ids)}"
            )
        ids = np.array(token_ids[: result.covered_tokens], np.int64)
        return cls(ids, result.artifact_digest, result.salt, result.hops)

    def followed_by(self, token_ids: Ids) -> MappedPrefix:
        """Once the target has computed more tokens after it. token_ids: of all the cache holds now."""
        if self.common(token_ids) < self.covered:
            raise ValueError(f"token_ids: expected the same first {self.covered}, got others")
        return replace(self, token_ids=np.array(token_ids, np.int64))

    def common(self, token_ids: Ids) -> int:
        """Tokens of another history that this cache holds: all of its own, or up to where they diverge."""
        return longest_common_prefix(self.token_ids, token_ids)

    def digest(self, tokens: int) -> str:
        """Of the first tokens: what binds the cache to ids (token_ids_sha256 on the wire)."""
        if not 0 <= tokens <= self.covered:
            raise ValueError(f"tokens: expected at most {self.covered}, got {tokens}")
        return token_ids_digest(self.token_ids[:tokens])
