"""The README's examples are run as they stand, one shell for all blocks of a section."""

import os
import re
import socket
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def blocks(heading: str) -> list[str]:
    section = (ROOT / "README.md").read_text().split(f"## {heading}\n")[1].split("\n## ")[0]
    return re.findall(r"^```bash\n(.*?)^```", section, re.S | re.M)


def run_as_written(script: str, folder: Path, timeout: int) -> subprocess.CompletedProcess[str]:
    """Only places change: this build's binaries, a folder of its own, a port that is free."""
    build = Path(os.environ["KVBRIDGED"]).resolve().parents[1]
    script = script.replace("$PWD/build/release", str(build)).replace("build/tour", str(folder))
    script = script.replace("9464", str(free_port()))
    guard = "set -euo pipefail\ntrap 'kill $(jobs -p) 2>/dev/null || true' EXIT\n"
    return subprocess.run(
        ["bash", "-c", guard + script], cwd=ROOT, text=True, capture_output=True, timeout=timeout
    )


needs_build = pytest.mark.skipif("KVBRIDGED" not in os.environ, reason="KVBRIDGED names no binary")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@needs_build
def test_the_tour_runs_as_written(tmp_path: Path) -> None:
    run = run_as_written("\n".join(blocks("Five-minute tour")), tmp_path, 120)
    assert run.returncode == 0, run.stdout + run.stderr
    assert "outcome   applied" in run.stdout
    assert re.search(r'kvbridge_transfers_total\{outcome="applied",pair="small-to-large"\} 1$', run.stdout, re.M)
    assert "applied: 5" in run.stdout, "the Python switch was applied"


@needs_build
def test_a_mapper_is_fitted_as_written(tmp_path: Path) -> None:
    setup = blocks("Five-minute tour")[0]
    run = run_as_written(setup + "\n".join(blocks("A mapper of your own")), tmp_path, 300)
    assert run.returncode == 0, run.stdout + run.stderr
    assert "UNPROVEN" in run.stdout
    assert (tmp_path / "report.html").read_text().startswith("<!doctype html>")


def test_the_two_commands_explain_themselves() -> None:
    for script in ("deploy/demo.sh", "tests/run.sh", "deploy/setup.sh"):
        run = subprocess.run(["bash", script, "--help"], cwd=ROOT, text=True, capture_output=True, timeout=10)
        assert run.returncode == 0 and run.stdout.startswith("usage: bash " + script)
