"""python -m kvbridge: what needs transformers and so is not in the `kvbridge` command line."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import numpy as np


def _cache_from_hf(args: argparse.Namespace) -> None:
    from kvbridge import CacheFile, write_cache
    from kvbridge.arrays import element_type, storage_dtype
    from kvbridge.extra import torch, transformers
    from kvbridge.hf import cache_arrays, prefill, spec_of

    tokenizer = transformers.AutoTokenizer.from_pretrained(args.model, local_files_only=True)
    dtype = {"bf16": torch.bfloat16, "f16": torch.float16, "f32": torch.float32}[args.dtype]
    read = transformers.AutoModelForCausalLM.from_pretrained
    model = read(args.model, dtype=dtype, local_files_only=True)
    text = Path(args.text).read_text(encoding="utf-8")
    ids = tokenizer(text, return_tensors="pt", add_special_tokens=False).input_ids
    ids = ids[:, : args.max_tokens]
    keys, values = cache_arrays(prefill(model, ids))
    storage = storage_dtype(element_type(args.dtype))
    spec = spec_of(model, tokenizer, revision=args.revision, model_id=args.model_id or args.model)
    cache = CacheFile(
        spec=spec,
        keys=np.stack(keys).astype(storage, copy=False),
        values=np.stack(values).astype(storage, copy=False),
        positions=np.arange(ids.shape[1], dtype=np.int64),
        token_ids=ids[0].numpy(),
    )
    write_cache(args.output, cache)
    shape = " x ".join(map(str, cache.keys.shape))
    print(f"{args.output}: keys and values {shape} {args.dtype} of {spec.identity.model_id}")


def main(argv: list[str] | None = None) -> int:
    """Runs one command; 0, or 2 for bad usage or input, or without the extra "hf"."""
    parser = argparse.ArgumentParser(prog="python -m kvbridge", description=__doc__)
    areas = parser.add_subparsers(dest="area", required=True)
    cache = areas.add_parser("cache", help="cache files").add_subparsers(dest="verb", required=True)
    from_hf = cache.add_parser("from-hf", help="prefill a text and write the model's KV cache")
    from_hf.add_argument("--model", required=True, help="folder of a Hugging Face model")
    from_hf.add_argument("--text", required=True, help="UTF-8 text file")
    from_hf.add_argument("-o", "--output", required=True, help="cache file to write (.safetensors)")
    from_hf.add_argument("--model-id", default="", help="identity; default: the folder as given")
    from_hf.add_argument("--revision", default="", help="revision of the weights")
    from_hf.add_argument("--dtype", default="bf16", choices=("bf16", "f16", "f32"))
    from_hf.add_argument("--max-tokens", type=int, default=1024, help="default: 1024")
    from_hf.set_defaults(run=_cache_from_hf)
    args = parser.parse_args(argv)
    try:
        args.run(args)
    except (ImportError, OSError, ValueError) as error:
        print(f"kvbridge: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
