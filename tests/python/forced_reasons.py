"""Every reason: the routes of a server that gives it, and the stream that ends with it."""

from __future__ import annotations

import shutil
import subprocess

import numpy as np
from conftest import ARTIFACT, ROUTE
from test_attacks import VALUE, Paused, answer, cache, chunk, field, filled, header

# What no client can bring about here, each by a drill, and why.
DRILLED = {
    "quality_probe": "reserved: no probe rejects a transfer",
    "device_oom": "the CPU backend takes its memory from the admission's",
    "device_error": "a CPU does not fail",
    "draining": "it ends the server",
    "internal": "a bug",
}
TOKENS = 300  # of a transfer that is applied
MOST_TOKENS = 700
# Of the server, beside all_routes().
SETTINGS = {
    "limits": {"max_inflight_transfers": 4, "max_tokens": MOST_TOKENS, "max_request_bytes": "5MiB"},
    "drain": {"delay": "0s", "deadline": "5s"},
}


def all_routes(folder):
    """Routes that streams() name. `folder` gets a damaged artifact."""
    return [
        # Most of what it gets is bad, on purpose: its circuit is not to open.
        {**ROUTE, "policy": {"shadow_rate": 1}, "circuit": {"max_bad_share": 1}},
        {**ROUTE, "name": "off", "stage": "off"},
        {**ROUTE, "name": "unproven", "allow_unproven": False},
        {**ROUTE, "name": "missing", "artifact": str(folder / "nothing")},
        {**ROUTE, "name": "damaged", "artifact": damaged_artifact(folder / "damaged")},
        *({**ROUTE, "name": drill(reason), "drill": {"reason": reason, "share": 1}} for reason in DRILLED),
    ]


def drill(reason):
    return f"drill.{reason}"


def named(route):
    return field("route", route)


def streams():
    """Reason -> a stream that ends with it, or with `applied`."""
    whole = list(cache(TOKENS))
    return {
        "applied": [header(TOKENS), *whole],
        "invalid_request": [header(TOKENS, field("hops", -1))],
        "incompatible_model": [header(TOKENS, field("target.identity.revision", "2"))],
        "shape_mismatch": [header(TOKENS, field("source.geometry.kv_heads", 1))],
        "batch_limit": [header(MOST_TOKENS)],
        "token_limit": [header(MOST_TOKENS + 1)],
        "app_gate": [header(TOKENS, field("hops", 1))],
        "route_disabled": [header(TOKENS, named("off"))],
        "not_worth_it": [header(1)],
        "non_finite": [header(), chunk(data=filled(np.nan)), chunk(VALUE)],
        "magnitude_bound": [header(), chunk(data=filled(1e6)), chunk(VALUE)],
        "unproven_pair": [header(TOKENS, named("unproven"))],
        "latency_budget": [header(TOKENS, lambda h: h.limits.max_latency.SetInParent())],
        "artifact_unavailable": [header(TOKENS, named("missing"))],
        "artifact_integrity": [header(TOKENS, named("damaged"))],
        "transport": [header(), chunk(crc=1)],
        **{reason: [header(TOKENS, named(drill(reason)))] for reason in DRILLED},
    }


def damaged_artifact(folder):
    shutil.copytree(ARTIFACT, folder)
    weights = folder / "mapper.safetensors"
    weights.chmod(0o644)
    data = bytearray(weights.read_bytes())
    data[-100] ^= 1
    weights.write_bytes(data)
    return str(folder)


def certificate(folder):
    key, cert = folder / "key.pem", folder / "cert.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "30", "-subj", "/CN=localhost",
         "-keyout", key, "-out", cert],
        check=True, capture_output=True,
    )  # fmt: skip
    return {"cert_file": str(cert), "key_file": str(key)}


def overload(stub):
    """Holds every place of the server, and asks for another."""
    paused = [Paused(stub, timeout=60) for _ in range(SETTINGS["limits"]["max_inflight_transfers"])]
    try:
        return answer(stub, streams()["applied"])[0]
    finally:
        for each in paused:
            each.cancel()
