"""The adapter's and the capture's tests once more, in a process of its own, with transformers 4 first on its path."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.parametrize("tests", ["test_hf.py", "test_first_layer.py", "test_capture.py"])
def test_works_with_transformers_4(tests):
    folder = os.environ.get("KVBRIDGE_TRANSFORMERS4")
    if not folder:
        pytest.skip("KVBRIDGE_TRANSFORMERS4 is not set")
    environment = {**os.environ, "PYTHONPATH": folder}
    version = "import transformers; print(transformers.__version__)"
    found = subprocess.run(
        [sys.executable, "-c", version], env=environment, capture_output=True, text=True, check=True
    )
    assert found.stdout.startswith("4."), found.stdout
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", str(Path(__file__).with_name(tests))],
        env=environment, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-1000:]
