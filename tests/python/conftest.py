"""What the suite stands on: the family's real models, a reference map of the prototype's artifact, and servers.

Environment: KVBRIDGED and KVBRIDGE_CLI are paths of the built binaries; without them the tests marked `server`
and `cli` skip (tests/run.sh always sets them). KVBRIDGE_TRANSFORMERS4 and KVBRIDGE_OPERATIONS are folders with
transformers 4, and with what tests the Helm chart, in them.
"""

from __future__ import annotations

import os
import resource
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "client/python/src"), str(Path(__file__).parent)]
# The models are tiny: more threads gain nothing, and lose much while other suites run beside this one.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np  # noqa: E402
from certificates import Pki  # noqa: E402
from fake_server import FakeServer, Faults, ReferenceMap  # noqa: E402
from kvbridge import Client, model_spec  # noqa: E402
from kvbridge.arrays import float32_to_bf16  # noqa: E402

FAMILY = ROOT / "tests/data/family"
GOLDEN = ROOT / "tests/data/golden"
ARTIFACT = FAMILY / "artifacts/prototype-small-to-large-k4-bf16"
TOKENIZER = "508966b00e03456eaad68b543844e14639b51308c9830d950a024203d2c16e98"
# How a server is told to serve it: the prototype's artifacts carry no evidence and no RoPE.
ROUTE = {
    "name": "pair",
    "artifact": str(ARTIFACT),
    "allow_unproven": True,
    "source_config": str(FAMILY / "small/config.json"),
    "target_config": str(FAMILY / "large/config.json"),
}


def family_spec(member: str, element_type: str = "f32"):
    """Spec of "small" or "large" as the prototype's artifact states it."""
    return model_spec(
        FAMILY / member,
        model_id=f"kvbridge-family/{member}",
        revision="1",
        tokenizer_sha256=TOKENIZER,
        element_type=element_type,
    )


# Of a transfer from the family's small model to its large one.
SPECS = {"source": family_spec("small"), "target": family_spec("large"), "route": "pair"}


def family_model(member: str, dtype=None):
    """One of the family's models, in FP32 if nothing is said; for tests that have torch and transformers."""
    import torch
    import transformers

    model = transformers.AutoModelForCausalLM.from_pretrained(FAMILY / member)
    return model.to(dtype or torch.float32).eval()


@pytest.fixture(scope="module")
def small():
    return family_model("small")


@pytest.fixture(scope="module")
def large():
    return family_model("large")


def limited(limit: int):
    """Before a program starts: files may have this many bytes. What is beyond fails as on a full disk."""

    def limit_files() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))

    return limit_files


def random_cache(tokens: int, element_type: str = "f32", seed: int = 0):
    """Keys and values of the small model's geometry."""
    rng = np.random.default_rng(seed)
    parts = rng.standard_normal((2, 4, 2, tokens, 64), dtype=np.float32)
    return tuple(float32_to_bf16(p) if element_type == "bf16" else p for p in parts)


def binary(variable: str) -> str:
    """Path of a built binary; skips the test when the environment names none."""
    path = os.environ.get(variable)
    if not path:
        pytest.skip(f"{variable} is not set")
    return path


@pytest.fixture
def folder() -> Iterator[Path]:
    path = Path(tempfile.mkdtemp(prefix="kvb-"))  # short: it holds unix sockets
    yield path
    shutil.rmtree(path)


@pytest.fixture
def pki(tmp_path: Path) -> Pki:
    return Pki(tmp_path)


@pytest.fixture(scope="session")
def reference() -> ReferenceMap:
    return ReferenceMap.load(ARTIFACT, family_spec("small"), family_spec("large"))


@pytest.fixture
def serve(reference):
    """Starts fake servers: serve(Faults(...)) -> (client, server). Client options go by keyword; memory: the
    server's FakeMemory."""
    running = []

    def start(faults: Faults | None = None, memory=None, **options):
        server = FakeServer(reference, faults=faults or Faults(), memory=memory)
        server.__enter__()
        client = Client(server.address, **options)
        running.extend([client, server])
        return client, server

    yield start
    for item in running:
        item.__exit__(None, None, None)
