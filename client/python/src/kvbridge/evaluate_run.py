"""Runs two models over held-out text and leaves an evidence run: what `kvbridge validate` judges.

A run is a folder with `run.json`, written before the first sequence, and `scores/`, one small file per sequence.
Logits are scored by `kvbridge validate score` as soon as they are there, and deleted: the disk holds one
sequence's at a time. A run that was stopped goes on where it was. Needs the extra "hf".
"""

from __future__ import annotations

import json
import os
import platform
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from kvbridge import __version__
from kvbridge.cache_file import write_safetensors
from kvbridge.capture_errors import INCOMPATIBLE, CaptureError
from kvbridge.capture_models import ModelFolder, compute_dtype, same_tokenizer
from kvbridge.capture_text import TextSource, text_digests
from kvbridge.client import Client
from kvbridge.evaluate_variants import Routes, SequenceLogits, Side, TransferRefused, Variants
from kvbridge.extra import torch, transformers
from kvbridge.hf import spec_of
from kvbridge.native import folder_of, read_manifest
from kvbridge.programs import call_kvbridge
from kvbridge.testing import LocalServer

SCHEMA = "kvbridge-run/1"
_TORCH = {"bf16": torch.bfloat16, "f16": torch.float16, "f32": torch.float32}
_CHARACTERS = 400_000  # of a text that are tokenised as one stream, at least


@dataclass(frozen=True)
class EvaluateSettings:
    """What is measured, of what, with what."""

    artifact: Path
    source: Path
    target: Path
    texts: Sequence[TextSource]
    kvbridged: Path
    cli: Path  # kvbridge
    sequences: int = 20  # of each domain
    prefix: int = 383  # tokens that are mapped
    scored: int = 128
    tails: Sequence[int] = (1, 17, 65)
    lengths: Sequence[int] = ()  # other prefix lengths
    attention: int = 4  # sequences of each domain with attention outputs
    reverse: Path | None = None  # artifact from the target to the source
    hops: int = 3  # maps of a handoff to and fro, where there is `reverse`
    precision: str = "bf16"  # of the map's arithmetic
    dtype: Any = "auto"
    device: str = "cpu"
    seed: int = 0  # of the random map
    keep: bool = False  # the logits


@dataclass(frozen=True)
class Progress:
    """One per sequence."""

    done: int
    total: int
    name: str


@dataclass
class _Item:
    """One file of scores."""

    domain: str
    sequence: int
    prefix: int
    ids: torch.Tensor = field(repr=False)

    @property
    def name(self) -> str:
        return f"{self.domain}-{self.sequence:05d}-{self.prefix}"


class Evaluate:
    """Looks at models, text and artifact; `run` measures. CaptureError says what is wrong."""

    def __init__(self, settings: EvaluateSettings) -> None:
        _check(settings)
        self.settings = settings
        self.manifest = read_manifest(settings.artifact)
        self.source = folder_of("source", settings.source, self.manifest["source"])
        self.target = folder_of("target", settings.target, self.manifest["target"])
        same_tokenizer(self.source, self.target)
        self.digest = str(call_kvbridge(settings.cli, "inspect", settings.artifact)["artifact_digest"])
        self.items = list(self._items())

    def run(self, out: Path, progress: Callable[[Progress], None] = lambda _: None) -> Path:
        """Fills `out`; returns it. CaptureError when it holds another run."""
        scores = out / "scores"
        scores.mkdir(parents=True, exist_ok=True)
        missing = [item for item in self.items if not (scores / f"{item.name}.json").exists()]
        with ExitStack() as stack:
            enter = stack.enter_context
            folder = Path(enter(tempfile.TemporaryDirectory(prefix="kvbridge-")))
            variants = self._variants(stack, folder) if missing else None
            self._begin(out, variants)
            for done, item in enumerate(missing, 1):
                assert variants is not None
                try:
                    logits = self._compute(variants, item)
                except TransferRefused as error:
                    raise CaptureError(f"transfer: {error}", INCOMPATIBLE) from None
                self._score(out, folder, item, logits)
                progress(Progress(done, len(missing), item.name))
        return out

    def _items(self) -> Iterator[_Item]:
        """Windows of each domain's beginning; other prefix lengths end where the first one's does."""
        settings = self.settings
        window = settings.prefix + 1 + settings.scored
        for domain in dict.fromkeys(source.domain for source in settings.texts):
            paths = [source.path for source in settings.texts if source.domain == domain]
            windows = _windows(self.target.tokenizer, domain, paths, window, settings.sequences)
            for sequence, ids in enumerate(windows):
                for prefix in (settings.prefix, *settings.lengths):
                    yield _Item(domain, sequence, prefix, ids[:, settings.prefix - prefix :])

    def _compute(self, variants: Variants, item: _Item) -> SequenceLogits:
        settings = self.settings
        if item.prefix != settings.prefix:
            return variants.compute_shorter(item.ids)
        hops = settings.hops if settings.reverse else 1
        return variants.compute(item.ids, attention=item.sequence < settings.attention, hops=hops)

    def _load(self, folder: ModelFolder) -> Side:
        dtype = compute_dtype(self.settings.dtype, folder, self.settings.device)
        model: Any = transformers.AutoModelForCausalLM.from_pretrained(
            folder.path, dtype=_TORCH[dtype], local_files_only=True
        )
        model = model.to(device=self.settings.device, dtype=_TORCH[dtype]).eval()
        identity = folder.spec.identity
        spec = spec_of(
            model, folder.tokenizer, revision=identity.revision, model_id=identity.model_id, element_type=dtype
        )
        return Side(model, spec)

    def _variants(self, stack: ExitStack, folder: Path) -> Variants:
        """Loads both models and starts a server with the artifact, its random control and the way back."""
        settings = self.settings
        source, target = self._load(self.source), self._load(self.target)
        random = folder / "random"
        call_kvbridge(settings.cli, "validate", "random-map", settings.artifact, random, "--seed", settings.seed)
        artifacts = {"mapped": settings.artifact, "random": random}
        if settings.reverse:
            artifacts["back"] = settings.reverse
        policy = {"policy": {"max_hops": settings.hops}}
        routes = [
            {"name": name, "artifact": str(Path(path).resolve()), "allow_unproven": True,
             "precision": settings.precision, **policy}
            for name, path in artifacts.items()
        ]  # fmt: skip
        server = stack.enter_context(LocalServer(settings.kvbridged, routes))
        client = stack.enter_context(Client(server.address))
        names = Routes("mapped", "random", "back" if settings.reverse else "")
        return Variants(client, names, source, target, settings.scored, settings.tails)

    def _begin(self, out: Path, variants: Variants | None) -> None:
        """Writes run.json, or checks that the one there says the same."""
        path = out / "run.json"
        stated = self._description(variants) if variants else None
        if path.exists():
            there = json.loads(path.read_text(encoding="utf-8"))
            if stated is not None and there != stated:
                differing = sorted(key for key in stated if there.get(key) != stated[key])
                raise CaptureError(
                    f"{out}: expected a run of the same settings, {', '.join(differing)} differ; "
                    "measure into another folder"
                )
        elif stated is not None:
            temporary = path.with_suffix(".part")
            temporary.write_text(json.dumps(stated, indent=1), encoding="utf-8")
            temporary.replace(path)

    def _description(self, variants: Variants) -> dict[str, Any]:
        settings = self.settings
        digests = text_digests(settings.texts)
        why_not_raw = variants.why_not_raw()
        return {
            "schema": SCHEMA,
            "artifact": self.digest,
            "prefix_tokens": settings.prefix,
            "texts": {d: {"sequences": settings.sequences, "sha256": h} for d, h in digests.items()},
            "not_applicable": {"raw": why_not_raw} if why_not_raw else {},
            "protocol": {
                "source": _model_facts(self.source, settings),
                "target": _model_facts(self.target, settings),
                "scored_tokens": settings.scored,
                "native_tails": list(settings.tails),
                "prefix_lengths": sorted({settings.prefix, *settings.lengths}),
                "attention_sequences": settings.attention,
                "hops": settings.hops if settings.reverse else 1,
                "reverse_artifact": self._reverse_digest(),
                "map_precision": settings.precision,
                "seed": settings.seed,
                "device": settings.device.partition(":")[0],
                "versions": {
                    "kvbridge": __version__,
                    "torch": torch.__version__,
                    "transformers": transformers.__version__,
                    "python": platform.python_version(),
                },
            },
        }

    def _reverse_digest(self) -> str:
        if self.settings.reverse is None:
            return ""
        return str(call_kvbridge(self.settings.cli, "inspect", self.settings.reverse)["artifact_digest"])

    def _score(self, out: Path, folder: Path, item: _Item, logits: SequenceLogits) -> None:
        """Logits to a file, the file to the scorer, its figures into place."""
        place = out / "logits" if self.settings.keep else folder
        place.mkdir(exist_ok=True)
        file = place / f"{item.name}.safetensors"
        tensors = {"labels": ("I64", logits.labels.cpu().numpy())}
        tensors |= {f"logits.{name}": ("F32", part.numpy()) for name, part in logits.logits.items()}
        if logits.attention is not None:
            tensors["attention.queries"] = ("F32", logits.attention.queries.numpy())
            for part in ("keys", "values"):
                caches: dict[str, torch.Tensor] = getattr(logits.attention, part)
                tensors |= {f"attention.{part}.{name}": ("F32", c.numpy()) for name, c in caches.items()}
        metadata = {
            "format": "kvbridge-logits",
            "schema": "1",
            "domain": item.domain,
            "sequence": str(item.sequence),
            "prefix_tokens": str(item.prefix),
        }
        write_safetensors(file, tensors, metadata)
        target = out / "scores" / f"{item.name}.json"
        call_kvbridge(self.settings.cli, "validate", "score", file, "--output", target)
        if not self.settings.keep:
            file.unlink()


def _model_facts(folder: ModelFolder, settings: EvaluateSettings) -> dict[str, str]:
    identity = folder.spec.identity
    return {
        "model_id": identity.model_id,
        "revision": identity.revision,
        "weights_sha256": folder.weights_sha256,
        "tokenizer_sha256": identity.tokenizer_sha256,
        "dtype": compute_dtype(settings.dtype, folder, settings.device),
    }


def _check(settings: EvaluateSettings) -> None:
    for name in ("sequences", "prefix", "scored"):
        if getattr(settings, name) < 1:
            raise CaptureError(f"{name}: expected 1 or more, got {getattr(settings, name)}", 2)
    if 1 not in settings.tails or any(not 1 <= tail <= settings.prefix for tail in settings.tails):
        raise CaptureError(
            f"tails: expected 1 and others up to the prefix of {settings.prefix}, got {list(settings.tails)}", 2
        )
    if any(not 1 <= length < settings.prefix for length in settings.lengths):
        raise CaptureError(
            f"lengths: expected 1 to {settings.prefix - 1}, got {list(settings.lengths)}", 2
        )
    if settings.hops < 3 or settings.hops % 2 == 0:
        raise CaptureError(f"hops: expected 3, 5, ... so that the target comes last, got {settings.hops}", 2)
    for source in settings.texts:
        good = source.domain.replace("-", "").replace("_", "")
        if not (good.isascii() and good.isalnum() and good == good.lower()):
            raise CaptureError(f"text: expected a domain of a-z, 0-9, - and _, got {source.domain!r}", 2)
    for name in ("kvbridged", "cli"):
        if not os.access(getattr(settings, name), os.X_OK):
            raise CaptureError(f"{name}: expected a program, got {getattr(settings, name)}", 2)


def _windows(
    tokenizer: Any, domain: str, paths: Sequence[Path], window: int, count: int
) -> list[torch.Tensor]:
    """The first windows of the text's beginning, tokenised as one stream, each [1, window]."""
    try:
        text = "".join(path.read_text(encoding="utf-8") for path in paths)
    except (OSError, UnicodeDecodeError) as error:
        raise CaptureError(f"text {domain}: {error}") from None
    text = text[: max(_CHARACTERS, 16 * count * window)]
    ids = np.asarray(tokenizer(text, add_special_tokens=False, verbose=False).input_ids, np.int64)
    if len(ids) < count * window:
        raise CaptureError(
            f"text {domain}: expected {count} windows of {window} tokens, got {len(ids)} tokens; "
            "give more text, or ask for fewer or shorter sequences"
        )
    return [torch.from_numpy(ids[i * window : (i + 1) * window])[None] for i in range(count)]
