"""A native artifact as Python sees it, and the models that it names."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from kvbridge.capture_errors import INCOMPATIBLE, CaptureError
from kvbridge.capture_models import ModelFolder, Naming, inspect_folder


def read_manifest(artifact: Path) -> dict[str, Any]:
    """CaptureError for an artifact of another format."""
    try:
        manifest: dict[str, Any] = json.loads((artifact / "manifest.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CaptureError(f"artifact {artifact}: {error}") from None
    if manifest.get("format") != "kvbridge-mapper":
        raise CaptureError(
            f"artifact {artifact}: expected a native one, which can hold a verdict; "
            "kvbridge artifact convert makes it native",
            INCOMPATIBLE,
        )
    return manifest


def folder_of(role: str, path: Path, stated: dict[str, Any]) -> ModelFolder:
    """A model under the name that the artifact knows it by. A revision that is a digest is not taken on trust:
    the folder's own stands against it."""
    identity = stated["identity"]
    revision = str(identity.get("revision", ""))
    if revision.startswith("sha256:"):
        revision = ""
    return inspect_folder(role, path, Naming(str(identity.get("model_id", "")), revision))
