"""Reads passages with two models and puts their shards into a folder."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Literal

import numpy as np

from kvbridge.capture_folder import CaptureFolder
from kvbridge.capture_models import Reader, Reading, compute_dtype
from kvbridge.shards import Half, Shard

if TYPE_CHECKING:
    from kvbridge.capture import Capture

Role = Literal["source", "target"]


@dataclass(frozen=True)
class Progress:
    """One per sequence that a model, or both of them, has read."""

    step: str  # "both models", or "source" and then "target"
    done: int
    total: int


class Readers:
    """The two models, loaded when they are first needed; one at a time unless they may be there together."""

    def __init__(self, capture: Capture, together: bool) -> None:
        self._capture, self.together = capture, together
        self._loaded: dict[Role, Reader] = {}

    def get(self, role: Role) -> Reader:
        """The other one is closed if it has to be."""
        if role not in self._loaded:
            if not self.together:
                self.close()
            self._loaded[role] = self._load(role)
        return self._loaded[role]

    def close(self) -> None:
        """Frees the memory of both."""
        for reader in self._loaded.values():
            reader.close()
        self._loaded = {}

    def _load(self, role: Role) -> Reader:
        capture, settings = self._capture, self._capture.settings
        folder = capture.source if role == "source" else capture.target
        watched = role == "target" and (settings.row_weights or settings.queries)
        dtype = compute_dtype(settings.dtype, folder, settings.device)
        positions = settings.query_positions if watched else 0
        return Reader(role, folder, dtype, settings.device, positions)


class CaptureRun:
    """Fills one folder with what is missing there."""

    def __init__(
        self,
        capture: Capture,
        readers: Readers,
        folder: CaptureFolder,
        progress: Callable[[Progress], None],
    ) -> None:
        self._capture, self._readers, self._folder = capture, readers, folder
        self._progress = progress

    def fill(self, missing: set[int]) -> None:
        """Of the sequences at these indices. Without room for both models the source's halves wait in files until
        the target has read the same tokens."""
        if self._readers.together:
            total = len(missing)
            for done, (index, source, target) in enumerate(self._both(missing), start=1):
                self._put(index, source.half, target)
                self._progress(Progress("both models", done, total))
            return
        unread = {index for index in missing if not self._folder.has_half(index)}
        for done, (index, source) in enumerate(self._one("source", unread), start=1):
            self._folder.put_half(index, source.half)
            self._progress(Progress("source", done, len(unread)))
        for done, (index, target) in enumerate(self._one("target", missing), start=1):
            self._put(index, self._folder.half(index), target)
            self._folder.drop_half(index)
            self._progress(Progress("target", done, len(missing)))

    def _both(self, wanted: set[int]) -> Iterator[tuple[int, Reading, Reading]]:
        for batch in self._batches(wanted):
            source, target = self._read("source", batch), self._read("target", batch)
            for index, ours, theirs in zip(batch, source, target):
                if index in wanted:
                    yield index, ours, theirs

    def _one(self, role: Role, wanted: set[int]) -> Iterator[tuple[int, Reading]]:
        for batch in self._batches(wanted):
            for index, reading in zip(batch, self._read(role, batch)):
                if index in wanted:
                    yield index, reading

    def _batches(self, wanted: set[int]) -> Iterator[list[int]]:
        """Batches with a wanted sequence in them, whole: what a model computes of a sequence may depend, in its
        last bits, on what else is in the batch, and a capture that goes on must give the same bytes."""
        lengths = [len(passage.token_ids) for passage in self._capture.passages]
        size = self._capture.settings.batch
        for _, run in groupby(range(len(lengths)), key=lambda index: lengths[index]):
            same = list(run)
            for begin in range(0, len(same), size):
                batch = same[begin : begin + size]
                if wanted.intersection(batch):
                    yield batch

    def _read(self, role: Role, batch: list[int]) -> list[Reading]:
        passages = [self._capture.passages[index] for index in batch]
        settings = self._capture.settings
        return self._readers.get(role).read(
            np.stack([passage.token_ids for passage in passages]),
            self._capture.rows(passages[0]),
            settings.keys,
            settings.element,
        )

    def _put(self, index: int, source: Half, target: Reading) -> None:
        capture, settings = self._capture, self._capture.settings
        passage, seen = capture.passages[index], target.attention
        rows = np.array(capture.rows(passage), np.int64)
        weights = seen if settings.row_weights else None
        shard = Shard(
            sequence_id=passage.sequence_id,
            domain=passage.domain,
            key_form=settings.keys,
            source_spec=capture.source.spec,
            target_spec=capture.target.spec,
            source=source,
            target=target.half,
            positions=rows,
            token_ids=passage.token_ids[rows],
            key_weight=weights.key_weight if weights else None,
            value_weight=weights.value_weight if weights else None,
            provenance=capture.provenance,
        )
        self._folder.put(index, shard, seen if settings.queries else None)
