"""What may keep a capture from beginning or going on, with the exit code of the command line."""

from __future__ import annotations

BAD_INPUT = 3
INCOMPATIBLE = 4
NO_ROOM = 6
INTERRUPTED = 130


class CaptureError(Exception):
    """The message names the field, what was expected and what came."""

    def __init__(self, message: str, exit_code: int = BAD_INPUT) -> None:
        super().__init__(message)
        self.exit_code = exit_code
