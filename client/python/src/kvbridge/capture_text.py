"""Which tokens a capture reads: windows of text, chosen by a seed, or token ids as they are given.

A text is cut into blocks at line ends, and each block is tokenised on its own and cut into windows that don't
overlap. Blocks are taken in an order drawn from the seed until four times as many windows are known as are
needed; a second draw takes the windows. Domains take turns, so that each has the same share.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from kvbridge.capture_errors import CaptureError
from kvbridge.digests import file_sha256

_BLOCK = 64 << 10  # bytes of text that are tokenised together, at least
_WINDOW_BYTES = 64  # bytes of a block per token of a window, at least: little is lost at a block's end
_SPARE = 4


@dataclass(frozen=True)
class TextSource:
    """One file of UTF-8 text; files of one domain share its turns."""

    domain: str
    path: Path


@dataclass(frozen=True)
class Passage:
    """The tokens of one sequence."""

    sequence_id: str  # domain, index and a digest of the tokens: passages of other captures differ
    domain: str
    token_ids: npt.NDArray[np.int64]


@dataclass(frozen=True)
class Window:
    """What is drawn from a text."""

    length: int
    bos: int | None = None  # comes first in every window, and counts
    seed: int = 0


def parse_text_source(text: str) -> TextSource:
    """`domain=path`, or a path alone, whose domain is the file's name without its suffix. CaptureError for neither."""
    domain, equals, path = text.partition("=")
    if not equals or "/" in domain:
        domain, path = Path(text).stem, text
    if not domain or not path:
        raise CaptureError(f"text: expected domain=path or a path, got {text!r}", 2)
    return TextSource(domain, Path(path))


def leading_token(tokenizer: Any) -> int | None:
    """The BOS token, where the tokenizer begins every prompt with it."""
    bos = tokenizer.bos_token_id
    ids = tokenizer("a").input_ids
    return bos if bos is not None and ids and ids[0] == bos else None


def draw(
    tokenizer: Any, sources: Sequence[TextSource], window: Window, sequences: int
) -> list[Passage]:
    """CaptureError when a text cannot be read or a domain has too little of it."""
    domains = list(dict.fromkeys(source.domain for source in sources))
    shares = {
        domain: len(range(index, sequences, len(domains))) for index, domain in enumerate(domains)
    }
    drawn = {
        domain: _draw_domain(
            tokenizer, domain, [s.path for s in sources if s.domain == domain], window, share
        )
        for domain, share in shares.items()
    }
    turns = [drawn[domains[i % len(domains)]][i // len(domains)] for i in range(sequences)]
    return [_passage(i, domains[i % len(domains)], ids) for i, ids in enumerate(turns)]


def read_token_file(path: Path, length: int, vocabulary: int) -> list[Passage]:
    """Token ids of whole sequences, BOS included where there is to be one: a .npy of integers [sequences, tokens],
    or .jsonl with one list per line, or {"tokens": [...], "domain": "..."}. Each is cut to `length` tokens."""
    try:
        rows = list(_numpy_rows(path) if path.suffix == ".npy" else _json_rows(path))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CaptureError(f"tokens {path}: {error}") from None
    if not rows:
        raise CaptureError(f"tokens {path}: expected at least one sequence, got none")
    passages = []
    for index, (domain, ids) in enumerate(rows):
        if ids.ndim != 1 or len(ids) < 2 or ids.min() < 0 or ids.max() >= vocabulary:
            raise CaptureError(
                f"tokens {path}, sequence {index}: expected two or more ids below {vocabulary}"
            )
        passages.append(_passage(index, domain, ids[:length]))
    return passages


def text_digests(sources: Sequence[TextSource]) -> dict[str, str]:
    """SHA-256 over a domain's files, one after the other."""
    domains = dict.fromkeys(source.domain for source in sources)
    try:
        return {d: file_sha256(*(s.path for s in sources if s.domain == d)) for d in domains}
    except OSError as error:
        raise CaptureError(f"text {error.filename}: {error.strerror}") from None


def _draw_domain(
    tokenizer: Any, domain: str, paths: Sequence[Path], window: Window, share: int
) -> list[npt.NDArray[np.int64]]:
    body = window.length - (window.bos is not None)
    block = max(_BLOCK, _WINDOW_BYTES * window.length)
    spans = [(path, span) for path in paths for span in _blocks(path, block)]
    rng = np.random.default_rng([window.seed, *hashlib.sha256(domain.encode()).digest()])
    pool: list[npt.NDArray[np.int64]] = []
    tokens = 0
    for index in rng.permutation(len(spans)):
        ids = _tokenise(tokenizer, *spans[index])
        tokens += len(ids)
        pool.extend(ids[i : i + body] for i in range(0, len(ids) - body + 1, body))
        if len(pool) >= _SPARE * share:
            break
    if len(pool) < share:
        raise CaptureError(
            f"text {domain}: expected {share} windows of {body} tokens, got {len(pool)} ({tokens} tokens); "
            "give more text, or ask for fewer or shorter sequences"
        )
    chosen = [pool[i] for i in rng.permutation(len(pool))[:share]]
    first = [] if window.bos is None else [window.bos]
    return [np.concatenate([np.array(first, np.int64), ids]) for ids in chosen]


def _blocks(path: Path, size: int) -> list[tuple[int, int]]:
    """Ranges of bytes of about `size`, each ending after a line, or where a line is longer than that, between two
    characters."""
    spans, begin = [], 0
    try:
        total = path.stat().st_size
        with path.open("rb") as stream:
            while begin < total:
                end = min(begin + size, total)
                if end < total:
                    stream.seek(end)
                    tail = stream.read(size)
                    newline = tail.find(b"\n")
                    inside = next((i for i, byte in enumerate(tail[:4]) if byte & 0xC0 != 0x80), 0)
                    end += newline + 1 if newline >= 0 else inside
                spans.append((begin, end))
                begin = end
    except OSError as error:
        raise CaptureError(f"text {path}: {error.strerror}") from None
    return spans


def _tokenise(tokenizer: Any, path: Path, span: tuple[int, int]) -> npt.NDArray[np.int64]:
    with path.open("rb") as stream:
        stream.seek(span[0])
        data = stream.read(span[1] - span[0])
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise CaptureError(f"text {path}: not UTF-8 at byte {span[0] + error.start}") from None
    ids = tokenizer(text, add_special_tokens=False, verbose=False).input_ids
    return np.asarray(ids, np.int64)


def _numpy_rows(path: Path) -> Iterator[tuple[str, npt.NDArray[np.int64]]]:
    array = np.load(path, allow_pickle=False)
    if array.ndim != 2 or array.dtype.kind not in "iu":
        raise ValueError(f"expected integers [sequences, tokens], got {array.dtype} {list(array.shape)}")
    for row in array:
        yield path.stem, row.astype(np.int64)


def _json_rows(path: Path) -> Iterator[tuple[str, npt.NDArray[np.int64]]]:
    for line in path.read_text(encoding="utf-8").splitlines():
        if line.strip():
            row = json.loads(line)
            stated = row if isinstance(row, dict) else {"tokens": row}
            ids = np.asarray(stated["tokens"])
            if ids.dtype.kind not in "iu":
                raise ValueError(f"expected lists of integers, got {ids.dtype}")
            yield str(stated.get("domain", path.stem)), ids.astype(np.int64)


def _passage(index: int, domain: str, ids: npt.NDArray[np.int64]) -> Passage:
    digest = hashlib.sha256(ids.astype("<i8").tobytes()).hexdigest()[:12]
    return Passage(f"{domain}-{index:05d}-{digest}", domain, ids)
