"""Captures what two models cache of the same text: the calibration shards that a map is fitted on.

`kvbridge-capture` is this as a command. Needs the extra "hf" (transformers 4.53 and later, and 5).
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from kvbridge import __version__
from kvbridge.capture_errors import NO_ROOM, CaptureError
from kvbridge.capture_folder import CaptureFolder, room
from kvbridge.capture_models import (
    Dtype,
    ModelFolder,
    Naming,
    compute_dtype,
    free_memory,
    inspect_folder,
    same_tokenizer,
)
from kvbridge.capture_run import CaptureRun, Progress, Readers
from kvbridge.capture_text import (
    Passage,
    TextSource,
    Window,
    draw,
    leading_token,
    read_token_file,
    text_digests,
)
from kvbridge.digests import file_sha256
from kvbridge.extra import torch, transformers
from kvbridge.shards import KeyForm, spec_json

_HEADER = 8 << 10  # of a shard, at most, without the two specs
_WIDTH = {"bf16": 2, "f16": 2, "f32": 4}


@dataclass(frozen=True)
class CaptureSettings:
    """What decides which bytes the shards hold."""

    source: Path
    target: Path
    texts: Sequence[TextSource] = ()  # or
    tokens: Path | None = None
    sequences: int = 200
    length: int = 512  # tokens of a sequence, BOS included
    stride: int = 4  # every fourth token is a row
    offset: int = 0  # the first one
    seed: int = 0
    bos: Literal["auto", "always", "never"] = "auto"
    batch: int = 4
    keys: KeyForm = "stripped"
    element: Literal["bf16", "f32"] = "bf16"
    dtype: Dtype = "auto"
    device: str = "cpu"
    row_weights: bool = False  # how much each row matters to the target's attention
    queries: bool = False  # the target's, to compare attention outputs with
    query_positions: int = 64  # of each sequence, for either
    source_naming: Naming = field(default_factory=Naming)
    target_naming: Naming = field(default_factory=Naming)


@dataclass(frozen=True)
class CapturePlan:
    """Said before anything is loaded."""

    sequences: int
    rows: int
    bytes: int  # of all shards, at most
    source_memory: int  # bytes of a loaded model with its cache of a batch, estimated
    target_memory: int


@dataclass(frozen=True)
class CaptureSummary:
    """What is there in the end."""

    folder: Path
    shards: int
    captured: int  # the others were there already
    rows: int
    bytes: int


class Capture:
    """Looks at models and text without loading weights; `run` does the work.

    CaptureError says what is wrong, with the command line's exit code.
    """

    def __init__(self, settings: CaptureSettings) -> None:
        _check(settings)
        self.settings = settings
        self.source = inspect_folder("source", settings.source, settings.source_naming)
        self.target = inspect_folder("target", settings.target, settings.target_naming)
        same_tokenizer(self.source, self.target)
        self.passages = self._passages()
        self._check_positions()
        self.provenance = self._provenance()

    @property
    def plan(self) -> CapturePlan:
        """Sizes of the whole, whatever is there already."""
        rows = [len(self.rows(passage)) for passage in self.passages]
        width = _WIDTH[self.settings.element]
        row = width * sum(_row_elements(folder) for folder in (self.source, self.target))
        header = _HEADER + sum(len(spec_json(f.spec)) for f in (self.source, self.target))
        target = self.target.spec.geometry
        if self.settings.row_weights:
            row += 2 * 4 * target.layers * target.kv_heads
        if self.settings.queries:
            header += _HEADER + self.settings.query_positions * (
                8 + target.layers * self.target.query_heads * target.head_dim * width
            )
        return CapturePlan(
            sequences=len(rows),
            rows=sum(rows),
            # One half of the source's waits beside its shard.
            bytes=(sum(rows) + max(rows)) * (row + 16) + len(rows) * header,
            source_memory=self._memory(self.source),
            target_memory=self._memory(self.target),
        )

    def run(
        self,
        out: Path,
        *,
        disk: int | None = None,
        memory: int | None = None,
        progress: Callable[[Progress], None] = lambda _: None,
    ) -> CaptureSummary:
        """Fills `out`, going on where an earlier run with the same settings stopped.

        disk: bytes that the shards may take, default what is free. memory: bytes for models, default what is
        free; both models are loaded when they fit together, otherwise one after the other.
        """
        readers = self.readers(memory)
        try:
            return self.fill(out, readers, disk=disk, progress=progress)
        finally:
            readers.close()

    def readers(self, memory: int | None = None) -> Readers:
        """The models, not yet loaded: `fill` does that when it needs them."""
        plan = self.plan
        free = free_memory(self.settings.device) if memory is None else memory
        larger = max(plan.source_memory, plan.target_memory)
        if larger > free:
            raise CaptureError(
                f"memory: expected about {larger:,} bytes for the larger model and its cache of a batch, "
                f"there are {free:,}; try a smaller --batch or --dtype bf16",
                NO_ROOM,
            )
        return Readers(self, together=plan.source_memory + plan.target_memory <= free)

    def fill(
        self,
        out: Path,
        readers: Readers,
        *,
        disk: int | None = None,
        progress: Callable[[Progress], None] = lambda _: None,
    ) -> CaptureSummary:
        """`run` with models that may be loaded already, and stay loaded."""
        self._check_disk(out, disk)
        with CaptureFolder(out, self.provenance, self.passages) as folder:
            missing = set(folder.missing())
            CaptureRun(self, readers, folder, progress).fill(missing)
            folder.finish()
            plan = self.plan
            return CaptureSummary(out, plan.sequences, len(missing), plan.rows, folder.bytes())

    def part(self, begin: int, end: int) -> Capture:
        """Some of the sequences, for a folder of their own."""
        part = copy.copy(self)
        part.passages = self.passages[begin:end]
        return part

    def rows(self, passage: Passage) -> range:
        """Positions of the tokens that are kept."""
        return range(self.settings.offset, len(passage.token_ids), self.settings.stride)

    def _passages(self) -> list[Passage]:
        settings = self.settings
        tokenizer = self.target.tokenizer
        if settings.tokens is not None:
            vocabulary = min(self.source.vocabulary, self.target.vocabulary)
            passages = read_token_file(settings.tokens, settings.length, vocabulary)
            return passages[: settings.sequences]
        bos = leading_token(tokenizer) if settings.bos == "auto" else None
        if settings.bos == "always":
            bos = tokenizer.bos_token_id
            if bos is None:
                raise CaptureError("bos: expected a tokenizer with a BOS token, this one has none")
        window = Window(settings.length, bos, settings.seed)
        return draw(tokenizer, settings.texts, window, settings.sequences)

    def _check_positions(self) -> None:
        longest = max(len(passage.token_ids) for passage in self.passages)
        for role, folder in (("source", self.source), ("target", self.target)):
            bound = folder.spec.rope.max_position
            if bound and longest > bound:
                raise CaptureError(f"length: expected at most the {role}'s {bound} positions, got {longest}")
        short = min(len(passage.token_ids) for passage in self.passages)
        if self.settings.offset >= short:
            raise CaptureError(f"offset: expected less than the shortest sequence, {short} tokens")

    def _check_disk(self, out: Path, disk: int | None) -> None:
        """The plan's bytes are an upper bound, so what is checked here holds to the end."""
        need = self.plan.bytes
        if disk is not None and need > disk:
            raise CaptureError(f"disk: expected at least {need:,} bytes for the shards, got {disk:,}", NO_ROOM)
        there = room(out)
        if need > there:
            raise CaptureError(f"disk: expected {need:,} bytes free at {out}, got {there:,}", NO_ROOM)

    def _memory(self, folder: ModelFolder) -> int:
        """Weights, a batch's cache with the copies that are made of it, and the widest activations."""
        settings = self.settings
        width = _WIDTH[compute_dtype(settings.dtype, folder, settings.device)]
        tokens = settings.batch * settings.length
        cache = 3 * _row_elements(folder) * width
        return folder.parameters * width + tokens * (cache + 8 * folder.hidden * width)

    def _provenance(self) -> dict[str, Any]:
        """What the shards were made from. No path and no time: equal captures have equal bytes."""
        settings = self.settings
        if settings.tokens is not None:
            origin = {"tokens": file_sha256(settings.tokens)}
        else:
            origin = {f"text {d}": h for d, h in text_digests(settings.texts).items()}
        record = {
            "source": self.source.spec.identity.model_id,
            "source weights": self.source.weights_sha256,
            "target": self.target.spec.identity.model_id,
            "target weights": self.target.weights_sha256,
            "tokenizer": self.source.spec.identity.tokenizer_sha256,
            **origin,
            "source dtype": compute_dtype(settings.dtype, self.source, settings.device),
            "target dtype": compute_dtype(settings.dtype, self.target, settings.device),
            "device": settings.device.partition(":")[0],
        }
        for name in ("sequences", "length", "stride", "offset", "seed", "bos", "batch", "keys", "element",
                     "row_weights", "queries", "query_positions"):  # fmt: skip
            record[name.replace("_", " ")] = getattr(settings, name)
        for name, version in (("kvbridge", __version__), ("torch", torch.__version__),
                              ("transformers", transformers.__version__)):  # fmt: skip
            record[f"version of {name}"] = str(version)
        return record


def capture(settings: CaptureSettings, out: Path, **options: Any) -> CaptureSummary:
    """Capture(settings).run(out, **options)."""
    return Capture(settings).run(out, **options)


def _row_elements(folder: ModelFolder) -> int:
    """Elements of K and V of one token."""
    geometry = folder.spec.geometry
    return 2 * geometry.layers * geometry.kv_heads * geometry.head_dim


def _check(settings: CaptureSettings) -> None:
    if bool(settings.texts) == (settings.tokens is not None):
        raise CaptureError("text: expected texts or a file of tokens, and not both", 2)
    for name, least in (("sequences", 1), ("length", 2), ("stride", 1), ("offset", 0), ("batch", 1),
                        ("query_positions", 1)):  # fmt: skip
        if getattr(settings, name) < least:
            raise CaptureError(f"{name}: expected at least {least}, got {getattr(settings, name)}", 2)
