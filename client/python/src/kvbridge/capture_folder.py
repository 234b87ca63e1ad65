"""The folder that a capture fills: its shards, and `capture.json`, which says what they are and which are there.

Queries, where they were asked for, lie in `queries/` under the name of the shard.

capture.json: `format` "kvbridge-capture", `schema` 1, `settings` (all that decides what the shards hold),
`sequences` and `rows` in all, `complete`, and `shards`: by file name the sequence's id, domain, rows, bytes and
SHA-256 (`queries` likewise). It is replaced whole after every shard, so it never names one that is not there.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from kvbridge.capture_attention import Attention
from kvbridge.capture_errors import NO_ROOM, CaptureError
from kvbridge.capture_text import Passage
from kvbridge.closing import Closing
from kvbridge.digests import file_sha256
from kvbridge.shards import Half, Shard, read_half, write_half, write_queries, write_shard

FORMAT = "kvbridge-capture"
SCHEMA = 1
RECORD = "capture.json"
QUERIES = "queries"


class CaptureFolder(Closing):
    """Held by one capture at a time; a second one is refused. Use as a context manager."""

    def __init__(self, path: Path, settings: Mapping[str, Any], passages: Sequence[Passage]) -> None:
        """CaptureError when the folder holds a capture with other settings, naming them, or is in use."""
        self.path = path
        self._passages = passages
        self._record: dict[str, Any] = {
            "format": FORMAT,
            "schema": SCHEMA,
            "settings": dict(settings),
            "sequences": len(passages),
            "complete": False,
            "shards": {},
        }
        with _writing(path):
            path.mkdir(parents=True, exist_ok=True)
            self._lock = os.open(path, os.O_RDONLY)
        try:
            self._take_lock()
            self._resume()
        except BaseException:
            os.close(self._lock)
            raise

    def close(self) -> None:
        """Lets others write to the folder."""
        os.close(self._lock)

    def name(self, index: int) -> str:
        """File name of a sequence's shard."""
        return f"seq_{index:05d}.safetensors"

    def missing(self) -> list[int]:
        """Sequences without a verified shard, in order."""
        return [i for i in range(len(self._passages)) if self.name(i) not in self._record["shards"]]

    def bytes(self) -> int:
        """What the shards that are there take."""
        shards = self._record["shards"].values()
        return sum(s["bytes"] + s.get("queries", {}).get("bytes", 0) for s in shards)

    def put(self, index: int, shard: Shard, attention: Attention | None = None) -> None:
        """attention: whose queries go beside the shard. CaptureError when the disk is full; nothing of the
        shard is left then."""
        path = self.path / self.name(index)
        with _writing(path):
            write_shard(path, shard)
            entry = {
                "sequence_id": shard.sequence_id,
                "domain": shard.domain,
                "rows": len(shard.positions),
                **_facts(path),
            }
            if attention is not None:
                queries = self.path / QUERIES / path.name
                queries.parent.mkdir(exist_ok=True)
                write_queries(queries, attention.queries, attention.positions)
                entry["queries"] = _facts(queries)
            self._record["shards"][path.name] = entry
            self._save()

    def has_half(self, index: int) -> bool:
        """Whether the source's half of a sequence waits for the target's."""
        return self._half(index).is_file()

    def put_half(self, index: int, half: Half) -> None:
        """As `put`."""
        with _writing(self._half(index)):
            write_half(self._half(index), half)

    def half(self, index: int) -> Half:
        """CaptureError when it is damaged."""
        try:
            return read_half(self._half(index))
        except (OSError, ValueError) as error:
            raise CaptureError(f"out {self._half(index)}: {error}; delete it") from None

    def drop_half(self, index: int) -> None:
        """Once the shard is there."""
        self._half(index).unlink(missing_ok=True)

    def finish(self) -> None:
        """Says that all shards are there."""
        self._record["complete"] = True
        with _writing(self.path / RECORD):
            self._save()

    def _half(self, index: int) -> Path:
        return self.path / f"seq_{index:05d}.source"

    def _take_lock(self) -> None:
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise CaptureError(f"out {self.path}: another capture is writing there") from None

    def _resume(self) -> None:
        for left in (*self.path.glob("*.part"), *self.path.glob(f"{QUERIES}/*.part")):  # of a capture that was killed
            left.unlink()
        record = self.path / RECORD
        if not record.exists():
            if any(self.path.glob("*.safetensors")):
                raise CaptureError(
                    f"out {self.path}: holds safetensors files and no {RECORD}; choose an empty folder"
                )
            self._save()
            return
        try:
            before = json.loads(record.read_text(encoding="utf-8"))
            settings, shards = before["settings"], before["shards"]
        except (ValueError, KeyError, TypeError):
            raise CaptureError(f"out {record}: not a capture's record; delete the folder") from None
        begun = shards or any(self.path.glob("*.source")) or any(self.path.glob("moments.*"))
        if not begun:
            self._save()
            return
        for name, value in self._record["settings"].items():
            if settings.get(name) != value:
                raise CaptureError(
                    f"out {self.path}: was captured with {name} = {settings.get(name)!r}, now {value!r}; "
                    "choose another folder, or the same settings"
                )
        for index, passage in enumerate(self._passages):
            shard = shards.get(self.name(index))
            if shard and shard["sequence_id"] == passage.sequence_id and self._intact(index, shard):
                self._record["shards"][self.name(index)] = shard

    def _intact(self, index: int, shard: Mapping[str, Any]) -> bool:
        name = self.name(index)
        files = {self.path / name: shard}
        if "queries" in shard:
            files[self.path / QUERIES / name] = shard["queries"]
        return all(
            path.is_file() and _facts(path).items() <= facts.items() for path, facts in files.items()
        )

    def _save(self) -> None:
        self._record["shards"] = dict(sorted(self._record["shards"].items()))
        temporary = self.path / f"{RECORD}.part"
        try:
            with temporary.open("w", encoding="utf-8") as stream:
                json.dump(self._record, stream, indent=1, ensure_ascii=False)
                stream.write("\n")
                stream.flush()
                os.fsync(stream.fileno())
            temporary.replace(self.path / RECORD)
        finally:
            temporary.unlink(missing_ok=True)


def _facts(path: Path) -> dict[str, Any]:
    return {"bytes": path.stat().st_size, "sha256": file_sha256(path)}


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    """Says which file could not be written, and why."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise CaptureError(f"out {path}: {error.strerror}; the shards before it are whole", NO_ROOM) from None
        raise CaptureError(f"out {path}: {error.strerror}") from None


def room(path: Path) -> int:
    """Bytes that a capture in `path` may take in all: what is free, and what its shards take already."""
    there = next(p for p in (path.absolute(), *path.absolute().parents) if p.exists())
    return shutil.disk_usage(there).free + sum(f.stat().st_size for f in path.rglob("*.safetensors"))
