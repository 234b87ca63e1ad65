"""The words that a router and a bridge exchange in HTTP headers (vllm-project/semantic-router pull 3770)."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from kvbridge.result import TransferResult

SOURCE_POD = "x-vsr-kv-source-pod"
CACHE_ID = "x-vsr-kv-cache-id"
MAPPER_ID = "x-vsr-kv-mapper-id"
TRANSFER_STATUS = "x-vsr-kv-transfer-status"


@dataclass(frozen=True)
class TransferHint:
    """What a router proposes: where the cache is, which one, and the route that maps it."""

    source_pod: str
    cache_id: str
    mapper_id: str

    @classmethod
    def from_headers(
        cls, headers: Mapping[str, str], allowed_pods: Collection[str]
    ) -> TransferHint | None:
        """None unless all three headers are there: then there is nothing to transfer.

        Headers come from callers: PermissionError when the pod is none of `allowed_pods`, so that no
        caller chooses what address is dialled.
        """
        lower = {name.lower(): value for name, value in headers.items()}
        hint = [lower.get(name, "") for name in (SOURCE_POD, CACHE_ID, MAPPER_ID)]
        if not all(hint):
            return None
        if hint[0] not in allowed_pods:
            raise PermissionError(f"{SOURCE_POD}: not one of the {len(allowed_pods)} allowed pods")
        return cls(*hint)

    def headers(self) -> dict[str, str]:
        """The request headers of this hint."""
        return {SOURCE_POD: self.source_pod, CACHE_ID: self.cache_id, MAPPER_ID: self.mapper_id}


def status_headers(result: TransferResult) -> dict[str, str]:
    """The answer's header: applied, fallback_reprefill or unsupported, verbatim."""
    return {TRANSFER_STATUS: result.outcome}
