"""Digests that identify what a cache was computed from."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from os import PathLike
from typing import Any

import numpy as np
import numpy.typing as npt


def token_ids_digest(token_ids: Sequence[int] | npt.NDArray[np.int64]) -> str:
    """SHA-256 over token ids as little-endian int32, lower-case hexadecimal."""
    ids = np.asarray(token_ids)
    if ids.size and (ids.min() < 0 or ids.max() > np.iinfo(np.int32).max):
        raise ValueError("token_ids: expected numbers of 0 to 2^31 - 1")
    return hashlib.sha256(ids.astype("<i4").tobytes()).hexdigest()


def file_sha256(*paths: str | PathLike[str]) -> str:
    """SHA-256 over the bytes of files, one after the other."""
    digest = hashlib.sha256()
    for path in paths:
        with open(path, "rb") as stream:
            while block := stream.read(1 << 20):
                digest.update(block)
    return digest.hexdigest()


def tokenizer_digest(tokenizer: Any) -> str:
    """SHA-256 of what a tokenizer maps tokens to, whatever its name: the vocabulary, the special tokens
    and the added tokens, as canonical JSON. Equal to the Python KVBridge's `tokenizer_hash`.

    tokenizer: a transformers tokenizer, or the folder of one (loaded with transformers, never from a hub).
    """
    if isinstance(tokenizer, (str, PathLike)):
        from transformers import AutoTokenizer

        tokenizer = AutoTokenizer.from_pretrained(tokenizer, local_files_only=True)
    content = {
        "vocab": sorted(tokenizer.get_vocab().items()),
        "special_tokens_map": tokenizer.special_tokens_map,
        "added_tokens": sorted(
            (str(token), str(index)) for token, index in tokenizer.get_added_vocab().items()
        ),
    }
    canonical = json.dumps(content, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()


def chat_template_digest(tokenizer: Any) -> str:
    """SHA-256 of a transformers tokenizer's chat template; empty when it has none."""
    template = getattr(tokenizer, "chat_template", None)
    if not template:
        return ""
    text = template if isinstance(template, str) else json.dumps(template, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()
