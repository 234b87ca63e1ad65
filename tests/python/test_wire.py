"""Generated code, digests, element types, cache files and the router's words."""

from __future__ import annotations

import hashlib
import json
import re
import subprocess

import kvbridge
import numpy as np
import pytest
from conftest import FAMILY, GOLDEN, ROOT, TOKENIZER, family_spec, random_cache
from kvbridge import CacheFile, read_cache, token_ids_digest, tokenizer_digest, write_cache
from kvbridge.arrays import as_storage, bf16_to_float32, element_type, float32_to_bf16
from kvbridge.chunks import MAX_CHUNK_BYTES, encode_chunks
from kvbridge.circuit import Circuit, CircuitState
from kvbridge.result import TransferResult
from kvbridge.router import TransferHint, status_headers
from kvbridge.v1 import transfer_pb2, types_pb2


def test_generated_code_is_up_to_date():
    script = ROOT / "client/python/generate_protos.sh"
    done = subprocess.run([script, "--check"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_version_is_the_projects():
    project = (ROOT / "CMakeLists.txt").read_text()
    assert kvbridge.__version__ == re.search(r"project\(kvbridge VERSION ([\d.]+)", project)[1]


class Tokenizer:
    """As much of a tokenizer as its digest reads."""

    def __init__(self, case):
        self.case = case
        self.special_tokens_map = case["special_tokens_map"]

    def get_vocab(self):
        return self.case["vocab"]

    def get_added_vocab(self):
        return self.case["added_vocab"]


CASES = json.loads((GOLDEN / "fingerprints/cases.json").read_text())["tokenizer"]


@pytest.mark.parametrize("case", CASES, ids=[c["sha256"][:8] for c in CASES])
def test_tokenizer_digest_is_the_prototypes(case):
    assert tokenizer_digest(Tokenizer(case)) == case["sha256"]


@pytest.mark.parametrize("member", ["small", "large"])
def test_tokenizer_digest_of_the_family(member):
    assert tokenizer_digest(FAMILY / member) == TOKENIZER


def test_token_ids_digest_is_over_little_endian_int32():
    expected = hashlib.sha256(bytes.fromhex("0100000000010000")).hexdigest()
    assert token_ids_digest([1, 256]) == expected
    with pytest.raises(ValueError):
        token_ids_digest([-1])


def test_bf16_rounds_to_nearest_even_and_keeps_nan():
    values = np.array([1.0, 1.00390625, 1.01171875, np.nan, -np.inf, 3.4e38], np.float32)
    back = bf16_to_float32(float32_to_bf16(values))
    np.testing.assert_array_equal(back[:3], [1.0, 1.0, 1.015625])
    assert np.isnan(back[3]) and back[4] == -np.inf and back[5] == np.inf


def test_element_types_by_name():
    assert element_type("torch.bfloat16") == types_pb2.ELEMENT_TYPE_BF16
    with pytest.raises(ValueError, match="got 'int8'"):
        element_type("int8")
    with pytest.raises(ValueError, match="expected uint16"):
        as_storage(np.zeros(1, np.float16), types_pb2.ELEMENT_TYPE_BF16)


def test_chunks_come_tile_by_tile_and_fit_the_limit():
    keys, values = random_cache(600)
    heads = []
    for message in encode_chunks(list(keys), list(values), 256, 1 << 18):
        assert len(message) <= (1 << 18) + 64
        heads.append(transfer_pb2.TransferRequest.FromString(message).chunk)
    assert [h.token_begin for h in heads] == sorted(h.token_begin for h in heads)
    assert sum(len(h.data) for h in heads) == keys.nbytes + values.nbytes


def test_a_full_chunk_fits_the_default_limit_of_grpc():
    keys = [np.zeros((8, 4096, 128), np.uint16)]
    sizes = [len(m) for m in encode_chunks(keys, keys, 4096)]
    assert MAX_CHUNK_BYTES * 0.9 < max(sizes) < 4 << 20


def test_cache_file_comes_back_as_it_was_written(tmp_path):
    keys, values = random_cache(9, "bf16")
    cache = CacheFile(family_spec("small", "bf16"), keys, values, np.arange(9) * 2, np.arange(9))
    write_cache(tmp_path / "c.safetensors", cache)
    back = read_cache(tmp_path / "c.safetensors")
    assert back.spec == cache.spec
    for name in ("keys", "values", "positions", "token_ids"):
        np.testing.assert_array_equal(getattr(back, name), getattr(cache, name))
    assert [p.name for p in tmp_path.iterdir()] == ["c.safetensors"]


def test_cache_file_is_ordinary_safetensors(tmp_path):
    torch = pytest.importorskip("torch")
    from safetensors import safe_open

    keys, values = random_cache(5, "bf16")
    write_cache(tmp_path / "c", CacheFile(family_spec("small", "bf16"), keys, values, np.arange(5)))
    with safe_open(tmp_path / "c", "pt") as file:
        assert file.get_tensor("keys").dtype == torch.bfloat16
        assert json.loads(file.metadata()["geometry"])["head_dim"] == 64


def test_damaged_cache_files_are_named(tmp_path):
    path = tmp_path / "c"
    path.write_bytes(b"\xff" * 40)
    with pytest.raises(ValueError, match="not a safetensors file"):
        read_cache(path)
    keys, values = random_cache(5)
    with pytest.raises(ValueError, match=r"keys: expected \(4, 2, 4, 64\), got"):
        write_cache(path, CacheFile(family_spec("small"), keys, values, np.arange(4)))


def test_router_words_both_ways():
    hint = TransferHint("pod-1", "cache-2", "small-to-large")
    assert TransferHint.from_headers(hint.headers(), {"pod-1"}) == hint
    assert TransferHint.from_headers({"X-VSR-KV-Source-Pod": "pod-1"}, {"pod-1"}) is None
    with pytest.raises(PermissionError):
        TransferHint.from_headers(hint.headers(), {"pod-9"})
    unsupported = TransferResult(outcome="unsupported")
    assert status_headers(unsupported) == {"x-vsr-kv-transfer-status": "unsupported"}


def test_circuit_lets_one_probe_through_at_a_time():
    now = [0.0]
    circuit = Circuit(threshold=2, cooldown=5, clock=lambda: now[0])
    circuit.failed()
    assert circuit.admit() and circuit.state is CircuitState.CLOSED
    circuit.failed()
    assert not circuit.admit() and circuit.state is CircuitState.OPEN
    now[0] = 5
    assert circuit.admit() and not circuit.admit()
    assert circuit.state is CircuitState.HALF_OPEN
    circuit.abandoned()
    assert circuit.admit()
    circuit.succeeded()
    assert circuit.admit() and circuit.state is CircuitState.CLOSED
