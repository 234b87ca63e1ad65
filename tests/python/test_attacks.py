"""Input that no well-behaved client sends: each gets a named answer, and the server is as it was before."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import crc32c
import grpc
import numpy as np
import pytest
from conftest import ROOT, ROUTE, binary, family_spec
from kvbridge.testing import LocalServer
from kvbridge.v1 import transfer_pb2, transfer_pb2_grpc, types_pb2

KEY, VALUE = types_pb2.COMPONENT_KEY, types_pb2.COMPONENT_VALUE
SOURCE, TARGET = family_spec("small"), family_spec("large")
TOKENS = 40


def header(tokens=TOKENS, change=lambda header: None):
    made = transfer_pb2.TransferHeader(request_id="r", route="pair", source=SOURCE, target=TARGET)
    made.source_selection.tokens = tokens
    made.source_selection.key_state = types_pb2.KEY_STATE_ROPED
    made.source_selection.inline.SetInParent()
    made.target_selection.inline.SetInParent()
    change(made)
    return made


def chunk(component=KEY, tokens=(0, TOKENS), layers=(0, 4), data=None, crc=None):
    if data is None:
        shape = (layers[1] - layers[0], tokens[1] - tokens[0], 2, 64)
        data = np.random.default_rng(0).standard_normal(shape, dtype=np.float32).tobytes()
    return transfer_pb2.TransferChunk(
        layer_begin=layers[0], layer_end=layers[1], component=component,
        token_begin=tokens[0], token_end=tokens[1],
        crc32c=crc32c.crc32c(data) if crc is None else crc, data=data,
    )  # fmt: skip


def filled(value):
    return np.full((4, TOKENS, 2, 64), value, np.float32).tobytes()


def cache(tokens):
    for begin in range(0, tokens, 256):
        for component in (KEY, VALUE):
            yield chunk(component, (begin, min(begin + 256, tokens)))


def request(item):
    if isinstance(item, transfer_pb2.TransferHeader):
        return transfer_pb2.TransferRequest(header=item)
    if isinstance(item, transfer_pb2.TransferChunk):
        return transfer_pb2.TransferRequest(chunk=item)
    return transfer_pb2.TransferRequest()


def answer(stub, items, timeout=20):
    """(reason or outcome or status code, detail); asserts that there was exactly one decision, and last."""
    try:
        events = list(stub.Transfer((request(item) for item in items), timeout=timeout))
    except grpc.RpcError as error:
        return error.code().name, error.details()
    kinds = [event.WhichOneof("event") for event in events]
    assert kinds.count("completed") == 1 and kinds[-1] == "completed", kinds
    assert kinds.count("accepted") <= 1
    decision = events[-1].completed.decision
    if decision.outcome == types_pb2.OUTCOME_APPLIED:
        return "applied", ""
    return types_pb2.Reason.Name(decision.reason).removeprefix("REASON_").lower(), decision.detail


class Paused:
    """A transfer that was accepted and has not sent its cache yet."""

    def __init__(self, stub, timeout):
        self._go = threading.Event()
        self._call = stub.Transfer(self._requests(), timeout=timeout)
        assert next(self._call).WhichOneof("event") == "accepted"

    def _requests(self):
        yield request(header(TOKENS))
        self._go.wait(60)
        yield from map(request, cache(TOKENS))

    def finish(self):
        """Sends the rest; the decision."""
        self._go.set()
        return list(self._call)[-1].completed.decision

    def cancel(self):
        self._call.cancel()
        self._go.set()


def connect(server):
    return grpc.insecure_channel(
        server.address, options=[("grpc.use_local_subchannel_pool", 1), ("grpc.max_send_message_length", -1)]
    )  # fmt: skip


def held(server):
    """What a transfer holds, and what it must let go of."""
    inflight = sum(v for k, v in server.metrics().items() if k.startswith("kvbridge_inflight"))
    return inflight, len(os.listdir(f"/proc/{server.pid}/fd")), len(os.listdir(f"/proc/{server.pid}/task"))


def settles(server, baseline, seconds=15.0):
    """Whether nothing is in flight and descriptors and threads are no more than they were."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if all(now <= before for now, before in zip(held(server), baseline)):
            return True
        time.sleep(0.05)
    return False


@pytest.fixture(scope="module")
def server():
    with LocalServer(binary("KVBRIDGED"), [ROUTE]) as running:
        with connect(running) as channel:
            stub = transfer_pb2_grpc.KvBridgeStub(channel)
            with ThreadPoolExecutor(16) as pool:  # gRPC's threads come with the first load
                warm = list(pool.map(lambda _: answer(stub, [header(600), *cache(600)]), range(64)))
        assert {reason for reason, _ in warm} <= {"applied", "overload"}, warm
        yield running


@pytest.fixture
def stub(server):
    with connect(server) as channel:
        grpc.channel_ready_future(channel).result(timeout=10)
        yield transfer_pb2_grpc.KvBridgeStub(channel)


def field(path, value):
    """A change of one field of the header."""

    def change(made):
        *parents, name = path.split(".")
        for parent in parents:
            made = getattr(made, parent)
        if isinstance(value, list):
            del getattr(made, name)[:]
            getattr(made, name).extend(value)
        else:
            setattr(made, name, value)

    return change


STREAMS = {
    "nothing": ([], "INVALID_ARGUMENT", "expected a header"),
    "empty request": ([None], "INVALID_ARGUMENT", "expected header, chunk or ready_up_to"),
    "chunk before header": ([chunk()], "INVALID_ARGUMENT", "expected the header first"),
    "two headers": ([header(), header()], "invalid_request", "got a second"),
    "empty request in the middle": ([header(), None], "invalid_request", "expected header, chunk or ready_up_to"),
    "missing chunk": ([header(), chunk()], "shape_mismatch", "value, token 0 never came"),
    "duplicate chunk": ([header(), chunk(), chunk()], "shape_mismatch", "duplicate chunk"),
    "overlapping chunk": ([header(), chunk(tokens=(0, 20)), chunk(tokens=(10, 40))], "shape_mismatch", "overlapping"),
    "wrong checksum": ([header(), chunk(crc=1)], "transport", "crc32c"),
    "wrong length": ([header(), chunk(data=b"abc")], "shape_mismatch", "expected 81920"),
    "oversized chunk": ([header(), chunk(data=bytes((4 << 20) - (64 << 10) + 1))], "invalid_request", "expected at most 4128768"),
    "oversized message": ([header(), chunk(data=bytes(5 << 20))], "RESOURCE_EXHAUSTED", "larger than max"),
    "neither keys nor values": ([header(), chunk(99)], "invalid_request", "chunk.component"),
    "tokens that wrap": ([header(), chunk(tokens=(-(2**63), 2**63 - 1), data=b"")], "shape_mismatch", "token range"),
    "layers that wrap": ([header(), chunk(layers=(-(2**31), 2**31 - 1), data=b"")], "shape_mismatch", "layer range"),
    "NaN": ([header(), chunk(data=filled(np.nan)), chunk(VALUE)], "non_finite", "NaN"),
    "infinity": ([header(), chunk(), chunk(VALUE, data=filled(np.inf))], "non_finite", "infinite"),
    "magnitudes": ([header(), chunk(data=filled(1e6)), chunk(VALUE)], "magnitude_bound", "at most 10000"),
}  # fmt: skip

HEADERS = {
    "N = 0": (field("source_selection.tokens", 0), "invalid_request", "tokens"),
    "N = 1": (field("source_selection.tokens", 1), "not_worth_it", "covered tokens"),
    "N < 0": (field("source_selection.tokens", -(2**63)), "invalid_request", "tokens"),
    "10 GiB declared": (field("source_selection.tokens", 10 << 20), "token_limit", "at most 131072"),
    "layers beyond memory": (field("source.geometry.layers", 2**31 - 1), "invalid_request", "layers: expected 1 to 4096"),
    "no heads": (field("source.geometry.kv_heads", 0), "invalid_request", "kv_heads"),
    "heads of another model": (field("source.geometry.kv_heads", 1), "shape_mismatch", "kv_heads: expected 2, got 1"),
    "element type unsaid": (field("source.geometry.element_type", 0), "invalid_request", "element_type"),
    "element type unknown": (field("target.geometry.element_type", 99), "invalid_request", "element_type"),
    "key state unsaid": (field("source_selection.key_state", 0), "invalid_request", "key_state"),
    "FP8 without scales": (field("source.geometry.element_type", 4), "invalid_request", "scales"),
    "another tokenizer": (field("source.identity.tokenizer_sha256", "0" * 64), "incompatible_model", "tokenizer_sha256"),
    "another revision": (field("target.identity.revision", "2"), "incompatible_model", "revision"),
    "another pairing": (field("source.rope.params.pairing", 2), "incompatible_model", "pairing: expected half"),
    "frequencies NaN": (field("source.rope.params.inv_freq", [float("nan")] * 32), "incompatible_model", "inv_freq[0]"),
    "400,000 frequencies": (field("source.rope.params.inv_freq", [1.0] * 400_000), "invalid_request", "inv_freq"),
    "another attention factor": (field("source.rope.params.attention_factor", 2.0), "incompatible_model", "attention_factor"),
    "a negative position bound": (field("source.rope.max_position", -1), "invalid_request", "max_position"),
    "a sliding layer": (field("source.geometry.attention", [1, 2, 1, 1]), "incompatible_model", "attention[1]"),
    "positions that decrease": (field("source_selection.positions.list", [*range(40, 0, -1)]), "invalid_request", "positions[1]"),
    "padding in the middle": (field("source_selection.positions.list", [*range(20), -1, *range(20, 39)]), "invalid_request", "positions[20]"),
    "positions beyond the model's": (field("source_selection.positions.start", 4057), "invalid_request", "max_position 4096"),
    "positions beyond int64": (field("source_selection.positions.start", 2**63 - 1), "invalid_request", "positions"),
    "too few positions": (field("source_selection.positions.list", [*range(39)]), "invalid_request", "positions.list"),
    "a digest that is none": (field("source_selection.token_ids_sha256", "q"), "invalid_request", "token_ids_sha256"),
    "negative prompt": (field("prompt_tokens", -1), "invalid_request", "prompt_tokens"),
    "negative hops": (field("hops", -1), "invalid_request", "hops"),
    "all of it native tail": (field("limits.native_tail", 2**31 - 1), "not_worth_it", "covered tokens"),
    "no time": (lambda h: h.limits.max_latency.SetInParent(), "latency_budget", "budget of 0"),
    "negative time": (field("limits.max_latency.seconds", -1), "invalid_request", "max_latency"),
    "time of two signs": (lambda h: h.limits.max_latency.CopyFrom(type(h.limits.max_latency)(seconds=5, nanos=-1)), "invalid_request", "max_latency"),
    "no request id": (field("request_id", ""), "invalid_request", "request_id"),
    "control characters": (field("request_id", "a\n\0b"), "invalid_request", "request_id"),
    "a megabyte of request id": (field("request_id", "x" * 10**6), "invalid_request", "1000000 bytes"),
    "a megabyte of tenant": (field("tenant", "x" * 10**6), "invalid_request", "tenant"),
    "an unknown route": (field("route", 'a"b\nc'), "invalid_request", "route: expected a configured name"),
    "a pool": (lambda h: h.source_selection.pool.SetInParent(), "invalid_request", "source_selection.pool: pool_id: not found"),
}  # fmt: skip


def expect(server, stub, items, reason, words):
    got, detail = answer(stub, items)
    assert (got, words in detail) == (reason, True), (got, detail)
    assert answer(stub, [header(), *cache(TOKENS)]) == ("applied", "")
    assert held(server)[0] == 0


@pytest.mark.parametrize("name", STREAMS)
def test_a_stream_out_of_order_is_answered_by_name(server, stub, name):
    expect(server, stub, *STREAMS[name])


@pytest.mark.parametrize("name", HEADERS)
def test_a_header_out_of_range_is_answered_by_name(server, stub, name):
    change, reason, words = HEADERS[name]
    expect(server, stub, [header(change=change), *cache(TOKENS)], reason, words)


@pytest.mark.parametrize("name", ["request_id", "route", "peer", "tenant"])
def test_text_is_cut_between_two_characters(server, stub, name):
    """Half of one would be no message to whoever reads it: the caller, and all who watch."""
    watch = stub.WatchEvents(transfer_pb2.WatchEventsRequest(), timeout=60)
    watch.initial_metadata()
    for length in (39, 79, 119, 127, 199, 255):
        reason, detail = answer(stub, [header(1, field(name, "a" * length + "é" * 200))])
        assert reason in ("not_worth_it", "invalid_request"), (length, reason, detail)
        assert next(watch).event.outcome == types_pb2.OUTCOME_FALLBACK_REPREFILL
    watch.cancel()


def test_bytes_that_are_no_message_are_refused_and_the_log_stays_json(server):
    with connect(server) as channel:
        call = channel.stream_stream("/kvbridge.v1.KvBridge/Transfer")
        for garbage in (b"\xff" * 100, b"\x12\x80\x80\x01abc", b"\x0a\x04\x0a\x02\xff\xfe", bytes(10)):
            with pytest.raises(grpc.RpcError) as caught:
                list(call(iter([garbage])))
            assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT
    for line in server.log.read_text().splitlines():
        json.loads(line)


def test_streams_cancelled_anywhere_leave_nothing(server, stub):
    baseline = held(server)
    chunks = list(cache(600))

    def one(seed):
        choose = random.Random(seed)
        stop = choose.randrange(len(chunks) + 1)

        def items():
            yield request(header(600))
            for index, piece in enumerate(chunks):
                if index == stop:
                    time.sleep(choose.random() * 0.02)
                yield request(piece)

        call = stub.Transfer(items(), timeout=20)
        threading.Timer(choose.random() * 0.03, call.cancel).start()
        try:
            return list(call)[-1].WhichOneof("event")
        except grpc.RpcError as error:
            return error.code().name

    with ThreadPoolExecutor(64) as pool:
        assert set(pool.map(one, range(64))) <= {"CANCELLED", "completed"}
    assert settles(server, baseline), (baseline, held(server))
    assert answer(stub, [header(600), *cache(600)])[0] == "applied"


ENDLESS = """
import sys
sys.path[:0] = sys.argv[2:]
import grpc, test_attacks as t
from kvbridge.v1 import transfer_pb2_grpc
stub = transfer_pb2_grpc.KvBridgeStub(grpc.insecure_channel(sys.argv[1]))
chunks = list(t.cache(600))
print("sending", flush=True)
while True:
    t.answer(stub, [t.header(600), *chunks])
"""


def test_clients_that_are_killed_leave_nothing(server, stub):
    baseline = held(server)
    paths = [str(ROOT / "client/python/src"), str(ROOT / "tests/python")]
    clients = [
        subprocess.Popen([sys.executable, "-c", ENDLESS, server.address, *paths], stdout=subprocess.PIPE)
        for _ in range(3)
    ]  # fmt: skip
    for client in clients:
        assert client.stdout.readline() == b"sending\n"
    for client in clients:
        client.kill()
        client.wait()
    assert settles(server, baseline), (baseline, held(server))
    assert answer(stub, [header(600), *cache(600)])[0] == "applied"


def test_terminated_under_load_it_finishes_what_it_accepted():
    """Every stream that saw Accepted sees Completed; those that come later hear that it drains, or nothing."""
    outcomes = Counter()
    caches = {tokens: list(cache(tokens)) for tokens in (40, 300, 900)}
    with LocalServer(binary("KVBRIDGED"), [ROUTE], {"drain": {"delay": "0.2s", "deadline": "20s"}}) as own:
        stopping = threading.Event()

        def load(seed):
            with connect(own) as channel:
                stub = transfer_pb2_grpc.KvBridgeStub(channel)
                choose = random.Random(seed)
                while not stopping.is_set():
                    tokens = choose.choice([*caches])
                    kinds, code = [], ""
                    try:
                        for event in stub.Transfer(map(request, [header(tokens), *caches[tokens]]), timeout=20):
                            kinds.append(event.WhichOneof("event"))
                    except grpc.RpcError as error:
                        code = error.code().name
                    lost = "accepted" in kinds and kinds[-1] != "completed"
                    outcomes["lost" if lost else code or "completed"] += 1
                    time.sleep(0.03)

        with ThreadPoolExecutor(6) as pool:
            for seed in range(6):
                pool.submit(load, seed)
            time.sleep(3)
            os.kill(own.pid, signal.SIGTERM)
            status = own.stop()
            stopping.set()
    assert status == 0
    assert outcomes["lost"] == 0 and outcomes["completed"] > 30, outcomes
    # CANCELLED: it had not been accepted when gRPC closed.
    assert set(outcomes) <= {"completed", "UNAVAILABLE", "CANCELLED", "lost"}, outcomes
