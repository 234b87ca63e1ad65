"""Certificates for tests, made by the openssl program: an authority, what it issues, and a folder that is swapped as
Kubernetes swaps a mounted Secret."""

from __future__ import annotations

import itertools
import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

KEY = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]


def openssl(*arguments: object) -> str:
    program = shutil.which("openssl")
    if program is None:
        pytest.skip("openssl is not installed")
    run = subprocess.run([program, *map(str, arguments)], capture_output=True, text=True, check=True)
    return run.stdout


@dataclass(frozen=True)
class Issued:
    """A certificate and its key, PEM."""

    certificate: bytes
    key: bytes


class Authority:
    """Signs certificates. Its files lie in `folder`."""

    def __init__(self, folder: Path, name: str = "authority") -> None:
        self._folder = folder
        self._name = name
        self._serials = itertools.count(1)
        openssl(
            "req", "-x509", *KEY, "-subj", f"/CN={name}", "-days", 30,
            "-keyout", folder / f"{name}.key", "-out", folder / f"{name}.pem",
        )  # fmt: skip
        self.certificate = (folder / f"{name}.pem").read_bytes()

    def issue(self, *names: str, days: int = 20) -> Issued:
        """For subject alternative names ("DNS:localhost", "URI:spiffe://..."); negative days: expired."""
        serial = next(self._serials)
        stem = self._folder / f"{self._name}-{serial}"
        request, extensions = stem.with_suffix(".csr"), stem.with_suffix(".ext")
        extensions.write_text(f"subjectAltName={','.join(names)}\n")
        openssl("req", *KEY, "-subj", "/CN=test", "-keyout", stem.with_suffix(".key"), "-out", request)
        openssl(
            "x509", "-req", "-in", request, "-days", days, "-set_serial", serial, "-extfile", extensions,
            "-CA", self._folder / f"{self._name}.pem", "-CAkey", self._folder / f"{self._name}.key",
            "-out", stem.with_suffix(".pem"),
        )  # fmt: skip
        return Issued(stem.with_suffix(".pem").read_bytes(), stem.with_suffix(".key").read_bytes())


class MountedSecret:
    """Files under `folder` that all change at once: `..data` is a symlink to a folder of one version."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._versions = itertools.count(1)
        folder.mkdir()

    def path(self, name: str) -> str:
        return str(self._folder / "..data" / name)

    def put(self, **files: bytes) -> None:
        """Names are without their ".pem"."""
        version = self._folder / f"..{next(self._versions)}"
        version.mkdir()
        for name, content in files.items():
            (version / f"{name}.pem").write_bytes(content)
        link = self._folder / "..next"
        link.symlink_to(version.name)
        os.replace(link, self._folder / "..data")


class Pki:
    """An authority of servers, one of clients, and the server's secret as it is mounted."""

    def __init__(self, folder: Path) -> None:
        self.servers = Authority(folder, "servers")
        self.clients = Authority(folder, "clients")
        self.secret = MountedSecret(folder / "secret")
        self.folder = folder
        self.renew()

    def renew(self, **parts: bytes) -> None:
        issued = self.servers.issue("DNS:localhost", "IP:127.0.0.1")
        files = {"cert": issued.certificate, "key": issued.key, "ca": self.clients.certificate}
        self.secret.put(**{**files, **parts})

    def tls(self, **more: object) -> dict[str, object]:
        files = {"cert_file": self.secret.path("cert.pem"), "key_file": self.secret.path("key.pem")}
        return {**files, "refresh_interval": "50ms", **more}

    def mutual(self, **more: object) -> dict[str, object]:
        return self.tls(**{"client_ca_file": self.secret.path("ca.pem"), **more})
