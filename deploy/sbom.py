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


def packages_of(files: set[Path]) -> set[str]:
    """Names of the Debian packages that libraries are from."""
    # dpkg may know a file by its path of before usr was merged.
    names = {path: file for file in files for path in (str(file), str(file).removeprefix("/usr"))}
    found = subprocess.run(["dpkg-query", "--search", *names], capture_output=True, text=True).stdout
    owners = {}
    for line in found.splitlines():
        package, _, path = line.partition(": ")
        if path in names:
            owners[names[path]] = package.split(":")[0]
    if strange := files - set(owners):
        raise SystemExit(f"sbom.py: in no Debian package: {', '.join(sorted(map(str, strange)))}")
    return set(owners.values())


def components(packages: list[str]) -> list[Json]:
    fields = "${Package}\t${Version}\t${Architecture}\t${source:Package}\t${Maintainer}\n"
    shown = output("dpkg-query", "--show", f"--showformat={fields}", *packages).splitlines()
    release = re.search(r'^VERSION_ID="?(\d+)', Path("/etc/os-release").read_text(), re.M)
    distro = f"&distro=debian-{release[1]}" if release else ""
    made = []
    for package, version, architecture, source, maintainer in (line.split("\t") for line in shown):
        escaped = version.replace("+", "%2B").replace(":", "%3A")
        purl = f"pkg:deb/debian/{package}@{escaped}?arch={architecture}{distro}"
        made.append(
            {
                "type": "library",
                "bom-ref": purl,
                "name": package,
                "version": version,
                "supplier": {"name": maintainer},
                "scope": "required",
                "purl": purl,
                "properties": [{"name": "debian:source", "value": source}],
            }
        )
    return made


def linked(binaries: list[Path]) -> list[str]:
    """Names of the packages whose libraries they load."""
    return sorted(packages_of(set().union(*map(libraries, binaries))))


def document(binaries: list[Path], version: str) -> Json:
    parts = components([*linked(binaries), *COMPILED_IN])
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
