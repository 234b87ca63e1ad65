"""deploy/sbom.py: a parts list that names every library which the binaries load, and is the same each time."""

from __future__ import annotations

import json
import re
import subprocess
import sys

import pytest
from conftest import binary
from operations import DEPLOY, tool


def sbom(*arguments):
    tool("dpkg-query")
    command = [sys.executable, DEPLOY / "sbom.py", *arguments, binary("KVBRIDGED"), binary("KVBRIDGE_CLI")]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


@pytest.fixture(scope="module")
def text():
    return sbom("--version", "1.2.3")


def test_every_library_has_a_part(text):
    made = json.loads(text)
    assert (made["bomFormat"], made["specVersion"]) == ("CycloneDX", "1.5")
    assert made["metadata"]["component"]["version"] == "1.2.3"
    parts = {part["name"]: part for part in made["components"]}
    loaded = subprocess.run(["ldd", binary("KVBRIDGED")], capture_output=True, text=True).stdout
    for stem, package in {"libgrpc++.so": "libgrpc++1.51", "libssl.so": "libssl3", "libc.so": "libc6"}.items():
        assert stem in loaded and package in parts
    assert {"nlohmann-json3-dev", "libcli11-dev"} <= set(parts)
    refs = [part["bom-ref"] for part in made["components"]]
    assert len(refs) == len(set(refs)) and made["dependencies"] == [{"ref": "kvbridge", "dependsOn": refs}]
    for part in made["components"]:
        if part["type"] == "library":
            assert re.fullmatch(r"pkg:deb/debian/[a-z0-9+.\-]+@[\w.\-~%]+\?arch=\w+(&distro=debian-\d+)?", part["purl"])


def test_binaries_are_named_by_their_bytes(text):
    parts = json.loads(text)["components"]
    digests = [part["hashes"][0]["content"] for part in parts if part["type"] == "file"]
    named = subprocess.run(["sha256sum", binary("KVBRIDGED"), binary("KVBRIDGE_CLI")], capture_output=True, text=True)
    assert digests == [line.split()[0] for line in named.stdout.splitlines()]


def test_same_binaries_same_bytes(text):
    assert sbom("--version", "1.2.3") == text


def test_packages_are_what_an_image_needs(text):
    packages = sbom("--packages").split()
    assert {"libgrpc++1.51", "libc6"} <= set(packages) and not [p for p in packages if p.endswith("-dev")]
    parts = {part["name"] for part in json.loads(text)["components"]}
    assert set(packages) <= parts
