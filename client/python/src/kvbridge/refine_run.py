"""Tunes a fitted artifact through the frozen target model: what a least-squares fit does not see.

The map's result becomes the target's cache of a window's beginning, the target reads on, and the KL of its
next-token distributions from those over its own cache goes back through it into the map's weights. Calibration text
only; the windows that say when to stop are apart. Needs the extra "hf".
"""

from __future__ import annotations

import inspect
import json
import math
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from kvbridge import __version__
from kvbridge.cache_file import read_safetensors, write_safetensors
from kvbridge.capture_errors import INCOMPATIBLE, CaptureError
from kvbridge.capture_models import ModelFolder, compute_dtype, rope_of, rotate, same_tokenizer, strip
from kvbridge.capture_text import TextSource, Window, draw, leading_token, text_digests
from kvbridge.extra import DynamicCache, cache_argument, torch, transformers
from kvbridge.hf import batch_tensors
from kvbridge.native import folder_of, read_manifest
from kvbridge.programs import call_kvbridge
from kvbridge.refine_descent import Covariance, Descent
from kvbridge.refine_map import TrainableMap

_TORCH = {"bf16": torch.bfloat16, "f16": torch.float16, "f32": torch.float32}
_WHITEN = 100  # windows that the columns' covariance is taken of
_WARM = 10  # steps until the rate is whole


@dataclass(frozen=True)
class RefineSettings:
    """What is tuned, on what, how."""

    artifact: Path
    source: Path
    target: Path
    texts: Sequence[TextSource]
    cli: Path  # kvbridge
    sequences: int = 1000  # windows that are trained on
    held_out: int = 64  # windows that say when to stop
    length: int = 512  # tokens of each
    prefix: tuple[int, int] = (256, 383)  # least and most of them that are mapped
    tails: Sequence[int] = (1, 65)  # native tails: what the target says before their last token does not count
    steps: int = 400
    batch: int = 8
    rate: float = 3e-4
    check: int = 20  # steps between looks at the held-out windows
    patience: int = 4  # such looks without gain that end it
    keep: int = 4 << 30  # bytes of what the models say of windows that are kept for the next time
    dtype: Any = "auto"
    device: str = "cpu"
    seed: int = 0


@dataclass(frozen=True)
class Progress:
    """At each look."""

    step: int
    steps: int
    loss: float  # mean KL over the steps since the last look; NaN at first
    held_out: float  # KL, nats


@dataclass
class _Reading:
    """What the models say of one window."""

    columns: torch.Tensor  # of the source, [prefix, columns], bf16
    own: torch.Tensor  # the target's log-probabilities from the least prefix on, [tokens, vocabulary], bf16


class Refine:
    """Looks at models, text and artifact; `run` tunes. CaptureError says what is wrong."""

    def __init__(self, settings: RefineSettings) -> None:
        _check(settings)
        self.settings = settings
        self.manifest = read_manifest(settings.artifact)
        if not self.manifest["strip_rope"]:
            raise CaptureError("artifact: expected a map of un-rotated keys, got strip_rope false", INCOMPATIBLE)
        self.source = folder_of("source", settings.source, self.manifest["source"])
        self.target = folder_of("target", settings.target, self.manifest["target"])
        same_tokenizer(self.source, self.target)
        tensors, _ = read_safetensors(settings.artifact / "mapper.safetensors")
        self.map = TrainableMap(self.manifest, tensors)
        self._fixed = {n: t for n, t in tensors.items() if n.startswith(("key_norm", "key_scale", "value_scale"))}
        self.digest = str(call_kvbridge(settings.cli, "inspect", settings.artifact)["artifact_digest"])
        tokenizer = self.target.tokenizer
        window = Window(settings.length, leading_token(tokenizer), settings.seed)
        passages = draw(tokenizer, settings.texts, window, settings.sequences + settings.held_out)
        self._ids = torch.from_numpy(np.stack([p.token_ids for p in passages]))
        self._kept: dict[int, _Reading] = {}
        self._room = settings.keep

    def run(self, out: Path, progress: Callable[[Progress], None] = lambda _: None) -> Path:
        """Tunes and writes the artifact `out`. What is done lies in `out`.refine until then: the same settings go
        on from there."""
        if out.exists():
            raise CaptureError(f"{out}: expected a new folder")
        self._load()
        best = self._train(Path(f"{out}.refine"), progress)
        self.map.load_state_dict(best["weights"])
        self._write(out, best)
        Path(f"{out}.refine").unlink()
        return out

    def _load(self) -> None:
        dtype = compute_dtype(self.settings.dtype, self.source, self.settings.device)
        self._source_model = self._model(self.source, dtype)
        self._target_model = self._model(self.target, "bf16")  # gradients of a few windows are noisier than that
        self.map.to(self.settings.device)

    def _model(self, folder: ModelFolder, dtype: str) -> Any:
        model: Any = transformers.AutoModelForCausalLM.from_pretrained(
            folder.path, dtype=_TORCH[dtype], local_files_only=True
        )
        return model.to(self.settings.device).eval().requires_grad_(False)

    def _train(self, file: Path, progress: Callable[[Progress], None]) -> dict[str, Any]:
        """The best weights on the held-out windows, with what is known of them."""
        settings = self.settings
        covariance = Covariance(self.map.source.columns)
        for row in range(min(_WHITEN, settings.sequences)):
            covariance.add(self._reading(row).columns)
        descent = Descent(self.map, covariance, settings.rate)
        state = self._restored(file)
        if state is None:
            first = self._held_out()
            progress(Progress(0, settings.steps, math.nan, first))
            state = {"step": 0, "first": first, "best": self._as_best(0, first)}
        else:
            self.map.load_state_dict(state["weights"])
            descent.restore(state["descent"])
        losses = []
        for step, rows in enumerate(self._batches(), start=1):
            if step <= state["step"]:
                continue
            if step > state["best"]["step"] + settings.patience * settings.check:
                break
            with torch.enable_grad():  # whatever the caller has set for the rest of the program
                loss = self._loss(rows, self._prefix(step))
                torch.autograd.backward(loss)
            losses.append(float(loss.detach()))
            descent.step(min(1, step / _WARM) * (0.5 + 0.5 * math.cos(math.pi * (step - 1) / settings.steps)))
            if step % settings.check and step != settings.steps:
                continue
            now = self._held_out()
            if now < state["best"]["held_out"]:
                state["best"] = self._as_best(step, now)
            state |= {"step": step, "weights": self.map.state_dict(), "descent": descent.state()}
            self._keep(file, state)
            progress(Progress(step, settings.steps, float(np.mean(losses)), now))
            losses = []
        return {**state["best"], "first": state["first"]}

    def _as_best(self, step: int, held_out: float) -> dict[str, Any]:
        weights = {name: value.clone() for name, value in self.map.state_dict().items()}
        return {"step": step, "held_out": held_out, "weights": weights}

    def _batches(self) -> Iterator[list[int]]:
        """`steps` of them; every window comes once before any comes again."""
        settings = self.settings
        rng = np.random.default_rng(settings.seed)
        order: list[int] = []
        for _ in range(settings.steps):
            while len(order) < settings.batch:
                order.extend(rng.permutation(settings.sequences).tolist())
            yield [order.pop(0) for _ in range(settings.batch)]

    def _prefix(self, step: int) -> int:
        low, high = self.settings.prefix
        return int(np.random.default_rng([self.settings.seed, step]).integers(low, high + 1))

    def _loss(self, rows: Sequence[int], prefix: int) -> torch.Tensor:
        """KL of what the target says after a mapped prefix and a native tail: the mean over the tails."""
        readings = [self._reading(row) for row in rows]
        device = self.settings.device
        x = torch.stack([r.columns[:prefix] for r in readings]).to(device)
        own = torch.stack([r.own[prefix - self.settings.prefix[0] :] for r in readings]).to(device).float()
        with torch.autocast(torch.device(device).type, torch.bfloat16):
            keys, values = self.map(x)
        cache, positions = DynamicCache(), torch.arange(prefix)
        for layer, (key, value) in enumerate(zip(keys, values)):
            turned = rotate(key, positions, rope_of(self.target.spec, layer))
            cache.update(turned.bfloat16(), value.bfloat16(), layer)
        mapped = self._logits(self._ids[list(rows), prefix:-1], cache)
        kl = (own.exp() * (own - mapped)).sum(-1)
        return torch.stack([kl[:, tail - 1 :].mean() for tail in self.settings.tails]).mean()

    def _logits(self, ids: torch.Tensor, cache: DynamicCache) -> torch.Tensor:
        """The target's log-probabilities after each token."""
        model = self._target_model
        output = model(input_ids=ids.to(self.settings.device), use_cache=True, **{cache_argument(model): cache})
        logits: torch.Tensor = output.logits
        return logits.float().log_softmax(-1)

    @torch.no_grad()
    def _held_out(self) -> float:
        """KL at the longest prefix."""
        rows = range(self.settings.sequences, len(self._ids))
        parts = [rows[i : i + self.settings.batch] for i in range(0, len(rows), self.settings.batch)]
        prefix = self.settings.prefix[1]
        return sum(float(self._loss(part, prefix)) * len(part) for part in parts) / len(rows)

    @torch.no_grad()
    def _reading(self, row: int) -> _Reading:
        """One window at a time: in a batch, last bits would depend on the others, and a run that goes on must give
        what one that was never stopped gives."""
        if row in self._kept:
            return self._kept[row]
        least, most = self.settings.prefix
        cache, positions = DynamicCache(), torch.arange(most)
        model, ids = self._source_model, self._ids[row : row + 1]
        few = {"logits_to_keep": 1} if "logits_to_keep" in inspect.signature(model.forward).parameters else {}
        model(input_ids=ids[:, :most].to(model.device), use_cache=True, **{cache_argument(model): cache}, **few)
        keys, values = batch_tensors(cache)
        stripped = [strip(k, positions, rope_of(self.source.spec, i)) for i, k in enumerate(keys)]
        planes = torch.stack([torch.stack(stripped), torch.stack([v.float() for v in values])])
        columns = planes[:, :, 0].permute(3, 0, 1, 2, 4).flatten(1).bfloat16()
        own = self._logits(ids[:, :-1], DynamicCache())[0, least:].bfloat16()
        reading, size = _Reading(columns, own), columns.nbytes + own.nbytes
        if size <= self._room:
            self._room -= size
            self._kept[row] = reading
        return reading

    def _facts(self) -> dict[str, Any]:
        """What the result is a function of."""
        s = self.settings
        return {
            "base": self.digest,
            "source_weights_sha256": self.source.weights_sha256,
            "target_weights_sha256": self.target.weights_sha256,
            "texts": text_digests(s.texts),
            "sequences": s.sequences, "held_out": s.held_out, "length": s.length, "prefix": list(s.prefix),
            "tails": list(s.tails), "steps": s.steps, "batch": s.batch, "rate": s.rate, "check": s.check, "patience": s.patience,
            "seed": s.seed,
            "versions": {"kvbridge": __version__, "torch": str(torch.__version__), "transformers": transformers.__version__},
        }  # fmt: skip

    def _restored(self, file: Path) -> dict[str, Any] | None:
        if not file.exists():
            return None
        state: dict[str, Any] = torch.load(file, map_location=self.settings.device, weights_only=True)
        if state["facts"] != self._facts():
            raise CaptureError(f"{file}: expected a refinement of the same settings; delete it to begin anew")
        return state

    def _keep(self, file: Path, state: dict[str, Any]) -> None:
        temporary = file.with_name(file.name + ".part")
        torch.save({**state, "facts": self._facts()}, temporary)
        temporary.replace(file)

    def _write(self, out: Path, best: dict[str, Any]) -> None:
        """By the command line, which checks weights and computes digests."""
        record = self._facts() | {
            "schema": "kvbridge-refine/1",
            "taken": best["step"],
            "kl_before": round(best["first"], 6),
            "kl_after": round(best["held_out"], 6),
        }
        with tempfile.TemporaryDirectory(prefix="kvbridge-") as folder:
            weights, note = Path(folder, "weights.safetensors"), Path(folder, "record.json")
            fixed = {name: ("F32", array) for name, array in self._fixed.items()}
            write_safetensors(weights, self.map.tensors() | fixed, {})
            note.write_text(json.dumps(record), encoding="utf-8")
            call_kvbridge(
                self.settings.cli, "fit", "reweigh", self.settings.artifact, "--weights", weights, "--record", note, "-o", out
            )  # fmt: skip


def _check(settings: RefineSettings) -> None:
    for name in ("sequences", "held_out", "steps", "batch", "check", "patience"):
        if getattr(settings, name) < 1:
            raise CaptureError(f"{name}: expected 1 or more, got {getattr(settings, name)}", 2)
    least, most = settings.prefix
    if not 1 <= least <= most <= settings.length - 2:
        raise CaptureError(
            f"prefix: expected two numbers of 1 to {settings.length - 2}, the lesser first, got {least} {most}", 2
        )
    longest = settings.length - 1 - most
    if not settings.tails or not all(1 <= tail <= longest for tail in settings.tails):
        raise CaptureError(
            f"tail: expected numbers of 1 to {longest}, what a window has after the longest prefix, got {list(settings.tails)}", 2
        )
    if not 0 < settings.rate < 1:
        raise CaptureError(f"rate: expected a number between 0 and 1, got {settings.rate}", 2)
