"""What may keep a capture from beginning or going on, with the exit code of the command line."""

from __future__ import annotations

import sys
from collections.abc import Callable

BAD_INPUT = 3
INCOMPATIBLE = 4
NO_ROOM = 6
INTERRUPTED = 130


class CaptureError(Exception):
    """The message names the field, what was expected and what came."""

    def __init__(self, message: str, exit_code: int = BAD_INPUT) -> None:
        super().__init__(message)
        self.exit_code = exit_code


def exit_code_of(program: str, run: Callable[[], int]) -> int:
    """What a command line ends with: `run`'s own code, or that of the error which it reports on stderr."""
    try:
        return run()
    except CaptureError as error:
        print(f"{program}: {error}", file=sys.stderr)
        return error.exit_code
    except (ImportError, OSError) as error:
        print(f"{program}: {error}", file=sys.stderr)
        return 2 if isinstance(error, ImportError) else BAD_INPUT
    except KeyboardInterrupt:
        print(f"\n{program}: interrupted; the same command goes on from here", file=sys.stderr)
        return INTERRUPTED
