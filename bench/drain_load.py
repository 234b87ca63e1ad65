"""Is an accepted transfer ever lost? Mixed transfers at a steady rate, and SIGTERM in their midst.

  python bench/drain_load.py --kvbridged build/release/server/kvbridged [--rate 100] [--seconds 60] [--term-at 57]

Prints one JSON line: what was sent, accepted, completed and lost, how the answers were, and the server's exit
status. Exits 1 when an accepted transfer did not end with a decision, or the server's exit status is not 0.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import sys
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "client/python/src"))

from kvbridge import model_spec  # noqa: E402
from kvbridge.chunks import encode_chunks  # noqa: E402
from kvbridge.testing import LocalServer  # noqa: E402
from kvbridge.v1 import transfer_pb2, types_pb2  # noqa: E402

FAMILY = ROOT / "tests/data/family"
ARTIFACT = FAMILY / "artifacts/prototype-small-to-large-k4-bf16"
SIZES = {17: 4, 256: 3, 600: 2, 2048: 1}  # tokens: weight


def spec(member: str, tokenizer: str) -> types_pb2.ModelSpec:
    return model_spec(
        FAMILY / member,
        model_id=f"kvbridge-family/{member}",
        revision="1",
        tokenizer_sha256=tokenizer,
        element_type="f32",
    )


def request(tokens: int) -> list[bytes]:
    """The serialized messages of one transfer."""
    manifest = json.loads((ARTIFACT / "manifest.json").read_text())
    tokenizer = manifest["source_signature"]["tokenizer_hash"]
    header = transfer_pb2.TransferHeader(
        request_id=f"load-{tokens}",
        route="pair",
        source=spec("small", tokenizer),
        target=spec("large", tokenizer),
    )
    header.source_selection.tokens = tokens
    header.source_selection.key_state = types_pb2.KEY_STATE_ROPED
    header.source_selection.inline.SetInParent()
    header.target_selection.inline.SetInParent()
    keys, values = np.random.default_rng(0).standard_normal((2, 4, 2, tokens, 64), np.float32)
    first = transfer_pb2.TransferRequest(header=header).SerializeToString()
    return [first, *encode_chunks(keys, values)]


def transfer(call: grpc.StreamStreamMultiCallable, messages: list[bytes]) -> tuple[bool, str]:
    """Whether it was accepted, and how it ended: a decision or a status."""
    accepted = False
    try:
        for event in call(iter(messages), timeout=60):
            kind = event.WhichOneof("event")
            accepted = accepted or kind == "accepted"
            if kind == "completed":
                decision = event.completed.decision
                if decision.outcome == types_pb2.OUTCOME_APPLIED:
                    return accepted, "applied"
                return accepted, types_pb2.Reason.Name(decision.reason)[len("REASON_") :].lower()
    except grpc.RpcError as error:
        return accepted, error.code().name
    return accepted, "no decision"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kvbridged", type=Path, required=True)
    parser.add_argument("--rate", type=float, default=100.0, help="transfers per second")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--term-at", type=float, help="seconds; default: 3 before the end")
    args = parser.parse_args()
    term_at = args.term_at if args.term_at is not None else args.seconds - 3
    requests = {tokens: request(tokens) for tokens in SIZES}
    choose = random.Random(0)
    answers: list[tuple[bool, str]] = []
    route = {
        "name": "pair",
        "artifact": str(ARTIFACT),
        "allow_unproven": True,
        "source_config": str(FAMILY / "small/config.json"),
        "target_config": str(FAMILY / "large/config.json"),
    }
    drain = {"drain": {"delay": "1s", "deadline": "20s"}}
    with LocalServer(args.kvbridged, [route], drain) as server, ThreadPoolExecutor(64) as pool:
        channels = [
            grpc.insecure_channel(server.address, options=[("grpc.use_local_subchannel_pool", 1)])
            for _ in range(8)
        ]
        calls = [
            channel.stream_stream(
                "/kvbridge.v1.KvBridge/Transfer",
                response_deserializer=transfer_pb2.TransferEvent.FromString,
            )
            for channel in channels
        ]
        threading.Timer(term_at, os.kill, (server.pid, signal.SIGTERM)).start()
        start = time.monotonic()
        pending = []
        for i in range(int(args.rate * args.seconds)):
            time.sleep(max(0.0, start + i / args.rate - time.monotonic()))
            (tokens,) = choose.choices([*SIZES], [*SIZES.values()])
            pending.append(pool.submit(transfer, calls[i % len(calls)], requests[tokens]))
        answers = [future.result() for future in pending]
        took = time.monotonic() - start
        status = server.stop()
    statuses = {code.name for code in grpc.StatusCode} | {"no decision"}
    lost = sum(accepted and end in statuses for accepted, end in answers)
    report = {
        "sent": len(answers),
        "seconds": round(took, 1),
        "accepted": sum(accepted for accepted, _ in answers),
        "completed": sum(end not in statuses for _, end in answers),
        "lost": lost,
        "ended": dict(Counter(end for _, end in answers)),
        "exit_status": status,
    }
    print(json.dumps(report))
    return 1 if lost or status else 0


if __name__ == "__main__":
    sys.exit(main())
