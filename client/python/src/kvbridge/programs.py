"""kvbridge's own programs, called from Python."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

from kvbridge.capture_errors import CaptureError


def find_program(stated: str | None, variable: str, name: str) -> Path:
    """What was stated, or the environment's, or the one on PATH."""
    found = stated or os.environ.get(variable) or shutil.which(name)
    if not found:
        raise CaptureError(f"{name}: expected --{'cli' if name == 'kvbridge' else name}, {variable} or one on PATH", 2)
    return Path(found)


def call_kvbridge(cli: Path, *arguments: object) -> dict[str, Any]:
    """What the command line says, as JSON."""
    command = [str(cli), *map(str, arguments), "--format", "json", "-q"]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode == 0:
        return json.loads(done.stdout) if done.stdout else {}
    try:
        message = json.loads(done.stderr.splitlines()[-1])["message"]
    except (ValueError, LookupError, TypeError):
        message = done.stderr.strip() or f"ended by {done.returncode}"
    raise CaptureError(f"kvbridge {arguments[0]}: {message}", max(done.returncode, 3))
