"""The two models of a capture: what is known from their folders, and what they cache of a batch of tokens."""

from __future__ import annotations

import gc
import hashlib
import inspect
import json
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from kvbridge.capture_attention import IMPLEMENTATION, Attention, AttentionProbe
from kvbridge.capture_errors import INCOMPATIBLE, NO_ROOM, CaptureError
from kvbridge.digests import chat_template_digest, file_sha256, tokenizer_digest
from kvbridge.extra import DynamicCache, cache_argument, torch, transformers
from kvbridge.hf import batch_tensors, refusal, to_numpy
from kvbridge.model_spec import full_attention_only, model_spec
from kvbridge.rope import LongRope
from kvbridge.shards import Half, KeyForm
from kvbridge.v1 import types_pb2

Dtype = Literal["auto", "bf16", "f16", "f32"]

# from_pretrained's argument was renamed in transformers 4.56.
_DTYPE = "torch_dtype" if transformers.__version__ < "4.56" else "dtype"
_TORCH = {"bf16": torch.bfloat16, "f16": torch.float16, "f32": torch.float32}


@dataclass(frozen=True)
class ModelFolder:
    """A Hugging Face folder that was looked at and not loaded."""

    path: Path
    spec: types_pb2.ModelSpec
    weights_sha256: str  # over name, size and SHA-256 of config.json and each file of weights
    parameters: int
    vocabulary: int
    query_heads: int
    hidden: int  # width of the widest activations of a token
    tokenizer: Any


@dataclass(frozen=True)
class Naming:
    """How a model is called in specs; what is not stated comes from its folder."""

    model_id: str = ""
    revision: str = ""
    longrope: LongRope | None = None


def inspect_folder(role: str, path: Path, naming: Naming) -> ModelFolder:
    """CaptureError names what is missing, or what the model has that cannot be mapped."""
    if not (path / "config.json").is_file():
        raise CaptureError(f"{role} {path}: expected a model's folder, got no config.json there")
    weights = sorted({*path.glob("*.safetensors"), *path.glob("pytorch_model*.bin")})
    if not weights:
        raise CaptureError(f"{role} {path}: expected weights (*.safetensors), got none")
    try:
        config = json.loads((path / "config.json").read_text(encoding="utf-8"))
        why = full_attention_only(config)
        if why:
            raise CaptureError(f"{role} {path}: {why}", INCOMPATIBLE)
        tokenizer = transformers.AutoTokenizer.from_pretrained(path, local_files_only=True)
        digest = _weights_digest([path / "config.json", *weights])
        name, revision = _hub_name(path)
        stated = config.get("text_config", config)
        dtype = stated.get("dtype") or stated.get("torch_dtype")
        spec = model_spec(
            path,
            model_id=naming.model_id or name,
            revision=naming.revision or revision or f"sha256:{digest}",
            tokenizer_sha256=tokenizer_digest(tokenizer),
            chat_template_sha256=chat_template_digest(tokenizer),
            element_type=None if dtype else "bf16",
            longrope=naming.longrope,
        )
        parameters = sum(_parameters(file) for file in weights)
    except (OSError, ValueError) as error:
        raise _failed(f"{role} {path}", error) from None
    return ModelFolder(
        path=path,
        spec=spec,
        weights_sha256=digest,
        parameters=parameters,
        vocabulary=int(stated.get("vocab_size", 0)),
        query_heads=int(stated.get("num_attention_heads") or stated["n_head"]),
        hidden=int(stated.get("intermediate_size") or 4 * int(stated.get("hidden_size", 0))),
        tokenizer=tokenizer,
    )


def same_tokenizer(source: ModelFolder, target: ModelFolder) -> None:
    """A map goes token by token: CaptureError names the first thing in which the tokenizers differ."""
    if source.spec.identity.tokenizer_sha256 == target.spec.identity.tokenizer_sha256:
        return
    ours, theirs = source.tokenizer, target.tokenizer
    for what, a, b in (
        ("tokens", len(ours.get_vocab()), len(theirs.get_vocab())),
        ("special tokens", ours.special_tokens_map, theirs.special_tokens_map),
        ("added tokens", len(ours.get_added_vocab()), len(theirs.get_added_vocab())),
    ):
        if a != b:
            raise CaptureError(
                f"tokenizer: expected the same in both models, got {what} {a} and {b}", INCOMPATIBLE
            )
    raise CaptureError("tokenizer: expected the same in both models, got other tokens", INCOMPATIBLE)


def compute_dtype(dtype: Dtype, folder: ModelFolder, device: str) -> str:
    """ "auto" is the weights' own on an accelerator, and float32 on the CPU."""
    if dtype != "auto":
        return dtype
    own = {types_pb2.ELEMENT_TYPE_F16: "f16", types_pb2.ELEMENT_TYPE_F32: "f32"}
    return "f32" if device == "cpu" else own.get(folder.spec.geometry.element_type, "bf16")


def prepare(device: str, threads: int | None = None) -> None:
    """What a command that runs models does first: transformers says nothing, torch has `threads` on the CPU. CaptureError
    when there is no such device."""
    logging: Any = transformers.utils.logging
    logging.disable_progress_bar()
    logging.set_verbosity_error()
    if threads:
        torch.set_num_threads(threads)
    try:
        torch.zeros(1, device=device)
    except (RuntimeError, AssertionError) as error:
        why = str(error).splitlines()[0]
        raise CaptureError(f"device: expected cpu or an accelerator that is there, got {device} ({why})", 2) from None


@dataclass(frozen=True)
class Reading:
    """What one model has of one sequence."""

    half: Half
    attention: Attention | None = None  # where it was asked for


class Reader:
    """One loaded model. `close` frees its memory. Used by one thread; one that watches attention at a time."""

    def __init__(
        self, role: str, folder: ModelFolder, dtype: str, device: str, query_positions: int = 0
    ) -> None:
        """query_positions: how many of a sequence's to watch attention at; 0 = none."""
        self._role, self._spec, self._device = role, folder.spec, device
        self._probe = AttentionProbe(query_positions) if query_positions else None
        watch = {"attn_implementation": IMPLEMENTATION} if query_positions else {}
        try:
            model: Any = transformers.AutoModelForCausalLM.from_pretrained(
                folder.path, local_files_only=True, **{_DTYPE: _TORCH[dtype]}, **watch
            )
            # Not `.to(dtype)`: it would round the rotation's frequencies, and with them every key.
            self._model = model.to(device=device).eval()
        except (OSError, ValueError, RuntimeError) as error:
            raise _failed(f"{role} {folder.path}", error) from None

    def close(self) -> None:
        self._model = None
        gc.collect()
        if self._device.startswith("cuda"):
            torch.cuda.empty_cache()

    @torch.no_grad()
    def read(
        self, token_ids: npt.NDArray[np.int64], rows: Sequence[int], key_form: KeyForm, element: str
    ) -> list[Reading]:
        """One per sequence of a batch [sequences, tokens], of the tokens at `rows`."""
        cache = DynamicCache()
        forward = inspect.signature(self._model.forward).parameters
        # No logits but the last token's: a vocabulary of 150,000 would take more memory than the cache.
        fewer = {"logits_to_keep": 1} if "logits_to_keep" in forward else {}
        ids = torch.from_numpy(token_ids).to(self._device)
        kept = torch.tensor(rows)
        try:
            self._model(
                input_ids=ids, use_cache=True, **{cache_argument(self._model): cache}, **fewer
            )
            halves = self._halves(cache, kept, key_form, element)
        except RuntimeError as error:
            raise _failed(self._role, error) from None
        if self._probe is None:
            return [Reading(half) for half in halves]
        seen = self._probe.take(kept, ids.shape[1], _TORCH[element])
        return [Reading(half, attention) for half, attention in zip(halves, seen)]

    def _halves(
        self, cache: DynamicCache, rows: torch.Tensor, key_form: KeyForm, element: str
    ) -> list[Half]:
        if why := refusal(cache):
            raise CaptureError(f"{self._role}: {why}", INCOMPATIBLE)
        layers = list(zip(*batch_tensors(cache)))
        geometry = self._spec.geometry
        found = (len(layers), layers[0][0].shape[1], layers[0][0].shape[3])
        stated = (geometry.layers, geometry.kv_heads, geometry.head_dim)
        if found != stated:
            raise CaptureError(
                f"{self._role}: expected layers, kv_heads and head_dim of config.json {stated}, the model "
                f"caches {found}",
                INCOMPATIBLE,
            )
        kept: tuple[list[torch.Tensor], list[torch.Tensor]] = ([], [])
        for layer, pair in enumerate(layers):
            key, value = (part.index_select(2, rows.to(part.device)) for part in pair)
            if key_form == "stripped":
                key = strip(key, rows, rope_of(self._spec, layer))
            for name, part, into in (("keys", key, kept[0]), ("values", value, kept[1])):
                if not bool(torch.isfinite(part).all()):
                    raise CaptureError(
                        f"{self._role}.{name}: expected finite numbers, got NaN or infinity in layer "
                        f"{layer}; try another --dtype"
                    )
                into.append(part.to(_TORCH[element]).cpu())
        keys, values = (to_numpy(torch.stack(part, dim=1)) for part in kept)
        return [Half(key, value) for key, value in zip(keys, values)]


def free_memory(device: str) -> int:
    """Bytes that a model may take: free on the accelerator, or available to this process's control group."""
    if device.startswith("cuda"):
        free: int = torch.cuda.mem_get_info(device)[0]
        return free
    lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    available = next(int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable"))
    try:
        limit, used = (
            int(Path("/sys/fs/cgroup", name).read_text(encoding="ascii"))
            for name in ("memory.max", "memory.current")
        )
    except (OSError, ValueError):  # no control group, or no limit
        return available
    return min(available, limit - used)


def _failed(what: str, error: Exception) -> CaptureError:
    """torch says in words alone that memory ran out."""
    why = " ".join(str(error).split())[:300]
    if "memory" not in why:
        return CaptureError(f"{what}: {why}")
    return CaptureError(f"{what}: {why}; try a smaller --batch or --dtype bf16", NO_ROOM)


def rope_of(spec: types_pb2.ModelSpec, layer: int) -> types_pb2.RopeParams:
    """The rotation of one layer."""
    overrides = spec.rope.layer_overrides
    return overrides[layer] if layer in overrides else spec.rope.params


def strip(keys: torch.Tensor, positions: torch.Tensor, rope: types_pb2.RopeParams) -> torch.Tensor:
    """Cached keys [..., tokens, head_dim] without their rotation and attention factor, in float32: the rotated
    dims k = a R(p) k' give k' = R(p)^T k / a, with angles in float64; the others are as they were."""
    return _turned(keys, -positions, rope, 1 / (rope.attention_factor or 1.0))


def rotate(keys: torch.Tensor, positions: torch.Tensor, rope: types_pb2.RopeParams) -> torch.Tensor:
    """The inverse of `strip`; gradients pass."""
    return _turned(keys, positions, rope, rope.attention_factor or 1.0)


def _turned(
    keys: torch.Tensor, positions: torch.Tensor, rope: types_pb2.RopeParams, factor: float
) -> torch.Tensor:
    angle = torch.outer(positions.double(), torch.tensor(rope.inv_freq, dtype=torch.float64))
    cos, sin = ((f(angle) * factor).float().to(keys.device) for f in (torch.cos, torch.sin))
    half, dim = len(rope.inv_freq), rope.rotary_dim
    if rope.pairing == types_pb2.PAIRING_HALF:
        first, second = slice(0, half), slice(half, dim)
    else:
        first, second = slice(0, dim, 2), slice(1, dim, 2)
    out = keys.float().clone()
    a, b = keys[..., first].float(), keys[..., second].float()
    out[..., first] = a * cos - b * sin
    out[..., second] = b * cos + a * sin
    return out


def _hub_name(path: Path) -> tuple[str, str]:
    """Name and revision; the hub's cache lays models out as models--owner--name/snapshots/commit."""
    whole = path.resolve()
    if whole.parent.name == "snapshots" and whole.parent.parent.name.startswith("models--"):
        return whole.parent.parent.name.removeprefix("models--").replace("--", "/"), whole.name
    return whole.name, ""


def _weights_digest(files: Sequence[Path]) -> str:
    whole = hashlib.sha256()
    for file in files:
        whole.update(f"{file.name} {file.stat().st_size} {file_sha256(file)}\n".encode())
    return whole.hexdigest()


def _parameters(file: Path) -> int:
    """From a safetensors header; of another format, as if it were of two bytes each."""
    if file.suffix != ".safetensors":
        return file.stat().st_size // 2
    with file.open("rb") as stream:
        size = struct.unpack("<Q", stream.read(8))[0]
        header: dict[str, Any] = json.loads(stream.read(min(size, 100 << 20)))
    return sum(
        int(np.prod(entry["shape"], dtype=np.int64))
        for name, entry in header.items()
        if name != "__metadata__"
    )
