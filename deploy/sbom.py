"""What kvbridge's binaries consist of, as a CycloneDX document: packages whose libraries they load, and those compiled in.

    python3 deploy/sbom.py --version 0.1.0 kvbridged kvbridge > kvbridge.cdx.json
    python3 deploy/sbom.py --packages kvbridged kvbridge      # names of Debian packages that an image needs

Asks ldd and dpkg of the system that it runs on: run it where the binaries were built. The document depends on nothing
else; two builds of the same sources on the same packages give the same bytes.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import subprocess
import sys
import uuid
from pathlib import Path
from typing import Any

# Header-only or static: the loader knows nothing of them.
COMPILED_IN = ["libcli11-dev", "nlohmann-json3-dev"]
NAMESPACE = uuid.uuid5(uuid.NAMESPACE_URL, "https://cyclonedx.org/kvbridge")

Json = dict[str, Any]


def output(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def libraries(binary: Path) -> set[Path]:
    """Files that the loader would map for a binary."""
    text = output("ldd", str(binary))
    missing = re.findall(r"(\S+) => not found", text)
    if missing:
        raise SystemExit(f"sbom.py: {binary}: not found: {', '.join(missing)}")
    return {Path(os.path.realpath(path)) for path in re.findall(r"(/\S+) \(0x", text)}


def package_of(library: Path) -> str:
    """Name of the Debian package that a library is from. dpkg knows it by the path before or after usr was merged."""
    for path in (str(library), str(library).removeprefix("/usr")):
        found = subprocess.run(["dpkg-query", "--search", path], capture_output=True, text=True)
        if found.returncode == 0:
            return found.stdout.split(":")[0]
    raise SystemExit(f"sbom.py: {library}: in no Debian package")


def component(package: str) -> Json:
    fields = "${Version}\t${Architecture}\t${source:Package}\t${Maintainer}"
    version, architecture, source, maintainer = output("dpkg-query", "--show", f"--showformat={fields}", package).split("\t")
    distro = re.search(r'^VERSION_ID="?(\d+)', Path("/etc/os-release").read_text(), re.M)
    purl = f"pkg:deb/debian/{package}@{version.replace('+', '%2B').replace(':', '%3A')}?arch={architecture}"
    if distro:
        purl += f"&distro=debian-{distro[1]}"
    return {
        "type": "library",
        "bom-ref": purl,
        "name": package,
        "version": version,
        "supplier": {"name": maintainer},
        "scope": "required",
        "purl": purl,
        "properties": [{"name": "debian:source", "value": source}],
    }


def linked(binaries: list[Path]) -> list[str]:
    """Names of the packages whose libraries they load."""
    return sorted({package_of(library) for binary in binaries for library in libraries(binary)})


def document(binaries: list[Path], version: str) -> Json:
    parts = [component(package) for package in [*linked(binaries), *COMPILED_IN]]
    files = [
        {
            "type": "file",
            "bom-ref": f"file:{binary.name}",
            "name": binary.name,
            "hashes": [{"alg": "SHA-256", "content": hashlib.sha256(binary.read_bytes()).hexdigest()}],
        }
        for binary in binaries
    ]
    whole = {"type": "application", "bom-ref": "kvbridge", "name": "kvbridge", "version": version}
    whole["licenses"] = [{"license": {"id": "Apache-2.0"}}]
    made: Json = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {"component": whole},
        "components": [*files, *parts],
        "dependencies": [{"ref": "kvbridge", "dependsOn": [part["bom-ref"] for part in [*files, *parts]]}],
    }
    made["serialNumber"] = f"urn:uuid:{uuid.uuid5(NAMESPACE, json.dumps(made, sort_keys=True))}"
    return made


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("binaries", nargs="+", type=Path)
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--version", help="write the document; version of kvbridge")
    what.add_argument("--packages", action="store_true", help="write names of packages, one a line")
    arguments = parser.parse_args()
    if arguments.packages:
        print("\n".join(linked(arguments.binaries)))
    else:
        print(json.dumps(document(arguments.binaries, arguments.version), indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
