"""The caller's token, on every call of a channel."""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Callable
from typing import Any

import grpc

_FIELDS = ("method", "timeout", "metadata", "credentials", "wait_for_ready", "compression")


class _Details(namedtuple("_Details", _FIELDS), grpc.ClientCallDetails):  # type: ignore[misc]
    """What gRPC knows about a call before it is made."""


class BearerToken(grpc.UnaryUnaryClientInterceptor, grpc.StreamStreamClientInterceptor):  # type: ignore[misc]
    """Adds `authorization: Bearer ...` to every call. token: itself, or what returns the one to use now."""

    def __init__(self, token: str | Callable[[], str]) -> None:
        self._token = token

    def intercept_unary_unary(self, continuation: Any, details: Any, request: Any) -> Any:
        """For gRPC."""
        return continuation(self._with_token(details), request)

    def intercept_stream_stream(self, continuation: Any, details: Any, requests: Any) -> Any:
        """For gRPC."""
        return continuation(self._with_token(details), requests)

    def _with_token(self, details: Any) -> _Details:
        token = self._token if isinstance(self._token, str) else self._token()
        fields = {name: getattr(details, name, None) for name in _FIELDS}
        fields["metadata"] = (*(fields["metadata"] or ()), ("authorization", f"Bearer {token}"))
        return _Details(**fields)
