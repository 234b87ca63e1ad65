"""deploy/setup.sh, on a machine whose packages are told by a stand-in for dpkg-query."""

import os
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def packages(*, tests: bool) -> list[str]:
    lines = [line.split() for line in (ROOT / "deploy/packages.txt").read_text().splitlines()]
    return [line[0] for line in lines if line and line[0] != "#" and (line[2:] == ["test"]) == tests]


def set_up(folder: Path, installed: list[str]) -> subprocess.CompletedProcess[str]:
    query = folder / "dpkg-query"
    query.write_text(f'#!/bin/sh\nfor last; do :; done\ncase " {" ".join(installed)} " in *" $last "*) echo installed 1;; *) exit 1;; esac\n')
    query.chmod(0o755)
    command = ["bash", str(ROOT / "deploy/setup.sh"), "--no-python", "--no-apt"]
    environment = {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}"}
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)


def test_an_image_needs_no_package_of_the_tests(tmp_path: Path) -> None:
    done = set_up(tmp_path, packages(tests=False))
    assert done.returncode == 0, done.stderr
    assert "done" in done.stderr


def test_a_missing_package_is_named(tmp_path: Path) -> None:
    missing, *installed = packages(tests=False)
    done = set_up(tmp_path, installed)
    assert done.returncode == 1
    assert f"missing Debian packages: {missing}" in done.stderr
