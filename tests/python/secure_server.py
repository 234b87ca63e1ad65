"""A kvbridged that speaks TLS, for tests of who may reach it."""

from __future__ import annotations

import json
import ssl
import subprocess

import grpc
from conftest import binary
from kvbridge.testing import LocalServer


class SecureServer(LocalServer):
    """On a TCP port with the TLS given, beside its unix socket."""

    def __init__(self, tls: dict[str, object], routes=(), **settings: object) -> None:
        super().__init__(binary("KVBRIDGED"), routes, settings)
        grpc_addresses = ["127.0.0.1:0", self.address]
        self._settings["listen"] = {
            "grpc": grpc_addresses,
            "admin": "127.0.0.1:0",
            "health": "127.0.0.1:0",
            "tls": tls,
            **self._settings.get("listen", {}),
        }

    @property
    def ports(self) -> dict[str, object]:
        return json.loads(self._ports.read_text())

    @property
    def port(self) -> int:
        return int(self.ports["grpc"][0].rsplit(":", 1)[1])

    def channel(self, root: bytes, client=None, name: str = "localhost") -> grpc.Channel:
        credentials = grpc.ssl_channel_credentials(
            root, *((client.key, client.certificate) if client else (None, None))
        )
        options = [("grpc.use_local_subchannel_pool", 1), ("grpc.ssl_target_name_override", name)]
        return grpc.secure_channel(f"127.0.0.1:{self.port}", credentials, options)

    def serial(self) -> int:
        """Of the certificate that a new connection is shown."""
        shown = ssl.get_server_certificate(("127.0.0.1", self.port))
        path = self.folder / "shown.pem"
        path.write_text(shown)
        return int(subprocess.check_output(["openssl", "x509", "-in", path, "-noout", "-serial"]).split(b"=")[1], 16)

    def logged(self, text: str) -> bool:
        return any(text in line for line in self.log.read_text().splitlines())
