"""The README's tour is run as it stands, one shell for all its blocks."""

import os
import re
import socket
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def tour() -> str:
    section = (ROOT / "README.md").read_text().split("## Five-minute tour")[1].split("\n## ")[0]
    return "\n".join(re.findall(r"^```bash\n(.*?)^```", section, re.S | re.M))


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def test_the_tour_runs_as_written(tmp_path: Path) -> None:
    if "KVBRIDGED" not in os.environ:
        pytest.skip("KVBRIDGED names no binary")
    build = Path(os.environ["KVBRIDGED"]).resolve().parents[1]
    # Only places change: this build's binaries, a folder of its own, a port that is free.
    script = tour().replace("$PWD/build/release", str(build)).replace("build/tour", str(tmp_path))
    script = script.replace("9464", str(free_port()))
    guard = "set -euo pipefail\ntrap 'kill $(jobs -p) 2>/dev/null || true' EXIT\n"
    run = subprocess.run(["bash", "-c", guard + script], cwd=ROOT, text=True, capture_output=True, timeout=120)
    assert run.returncode == 0, run.stdout + run.stderr
    assert "outcome   applied" in run.stdout
    assert re.search(r'kvbridge_transfers_total\{outcome="applied",pair="small-to-large"\} 1$', run.stdout, re.M)
    assert "applied: 5" in run.stdout, "the Python switch was applied"


def test_the_two_commands_explain_themselves() -> None:
    for script in ("deploy/demo.sh", "tests/run.sh", "deploy/setup.sh"):
        run = subprocess.run(["bash", script, "--help"], cwd=ROOT, text=True, capture_output=True, timeout=10)
        assert run.returncode == 0 and run.stdout.startswith("usage: bash " + script)
