"""Times a whole fit, from shards to an artifact, beside the Python prototype's on the same shards and settings.

    KVBRIDGE_PROTOTYPE=<checkout>/src python bench/fit_prototype.py --kvbridge build/release/client/cli/kvbridge

Medium geometry: 8 -> 12 layers, 4 heads of 64, k = 4, 200 sequences of 512 tokens, every fourth of them a row. Shards
are the prototype's (BF16 caches, 2 GB, in a temporary folder). Ours is `fit accumulate`, then `fit solve
--as-prototype`, and must have chosen the same source layers. The prototype reads the shards once per block of target
layers: in float64, a layer at a time, as it does unless told otherwise, and with --quickest in float32 with all
layers in one block. Its package has our package's name, so nothing of ours is on this process's path. Prints JSON.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch

prototype = os.environ.get("KVBRIDGE_PROTOTYPE")
if not prototype:
    sys.exit("fit_prototype: KVBRIDGE_PROTOTYPE names no folder")
sys.path.insert(0, prototype)

from kvbridge.cache import KVCache, RotaryFactors  # noqa: E402
from kvbridge.config import FitConfig, ModelSignature  # noqa: E402
from kvbridge.fit import CalibrationPair, fit_mapper  # noqa: E402
from kvbridge.io import load_calibration_shard, save_calibration_shard  # noqa: E402

LAYERS = {"source": 8, "target": 12}
THETA = {"source": 1e4, "target": 1e6}
HEADS, DIM, TOKENS, STRIDE, TOP_K = 4, 64, 512, 4, 4


def rotary(theta: float) -> RotaryFactors:
    angles = torch.outer(torch.arange(TOKENS).double(), theta ** -(torch.arange(0, DIM, 2) / DIM).double())
    angles = torch.cat((angles, angles), -1)[None]
    return RotaryFactors(angles.cos().float(), angles.sin().float())


def write_shards(folder: Path, sequences: int) -> None:
    """Target layers are mixtures of the source layers next to them, and noise."""
    generator = torch.Generator().manual_seed(1)
    mixing = torch.randn(LAYERS["target"], 2, HEADS * DIM, HEADS * DIM, generator=generator) / (HEADS * DIM) ** 0.5
    factors = {side: rotary(theta) for side, theta in THETA.items()}
    for index in range(sequences):
        source = torch.randn(2, LAYERS["source"], TOKENS, HEADS * DIM, generator=generator)
        near = [min(layer * LAYERS["source"] // LAYERS["target"], LAYERS["source"] - 2) for layer in range(LAYERS["target"])]
        mixed = [source[:, at] @ m[0] + source[:, at + 1] @ m[1] for at, m in zip(near, mixing)]
        target = torch.stack(mixed, 1) + torch.randn(2, LAYERS["target"], TOKENS, HEADS * DIM, generator=generator)
        caches = {}
        for side, content in (("source", source), ("target", target)):
            keys, values = content.unflatten(-1, (HEADS, DIM)).transpose(2, 3).unsqueeze(2)
            keys = [factors[side].apply(layer) for layer in keys]
            caches[side] = KVCache(
                [layer.bfloat16() for layer in keys], [layer.bfloat16() for layer in values], factors[side]
            )
        pair = CalibrationPair(caches["source"], caches["target"])
        save_calibration_shard(folder / f"seq_{index:04}.safetensors", pair, sequence_id=f"s{index:04}")


def signature(side: str) -> ModelSignature:
    return ModelSignature(f"bench/{side}", "1", "none", LAYERS[side], HEADS, DIM)


def theirs(folder: Path, **options: object) -> tuple[float, list[list[int]]]:
    paths = sorted(folder.iterdir())
    config = FitConfig(top_k=TOP_K, token_stride=STRIDE, **options)
    begin = time.perf_counter()
    mapper = fit_mapper(
        lambda: map(load_calibration_shard, paths), signature("source"), signature("target"), config
    )
    mapper.save(folder.parent / f"theirs-{options.get('accumulation_dtype', 'float64')}")
    return time.perf_counter() - begin, [list(layers) for layers in mapper.selected_layers]


def ours(kvbridge: str, folder: Path) -> tuple[float, float, list[list[int]]]:
    moments, artifact = folder.parent / "moments", folder.parent / "ours"
    accumulate = ["fit", "accumulate", str(folder), "-o", str(moments), "--held-out", "0", "--token-stride", str(STRIDE)]
    solve = ["fit", "solve", "--moments", str(moments), "-o", str(artifact), "--as-prototype", "--k", str(TOP_K)]
    begin = time.perf_counter()
    subprocess.run([kvbridge, *accumulate, "--overwrite"], check=True, stdout=subprocess.DEVNULL)
    accumulated = time.perf_counter()
    subprocess.run([kvbridge, *solve, "--overwrite"], check=True, stdout=subprocess.DEVNULL)
    end = time.perf_counter()
    inspect = subprocess.run(
        [kvbridge, "inspect", str(artifact), "--format", "json"], check=True, capture_output=True
    )
    lists = [layer["key"]["sources"] for layer in json.loads(inspect.stdout)["layers"]]
    return accumulated - begin, end - accumulated, lists


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kvbridge", required=True, help="the built binary")
    parser.add_argument("--sequences", type=int, default=200)
    parser.add_argument("--reps", type=int, default=3, help="of ours")
    parser.add_argument("--quickest", action="store_true", help="the prototype's quickest settings, too")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary, torch.inference_mode():
        folder = Path(temporary) / "shards"
        folder.mkdir()
        print("writing shards", file=sys.stderr)
        write_shards(folder, args.sequences)
        runs = [ours(args.kvbridge, folder) for _ in range(args.reps + 1)][1:]
        best = min(runs, key=lambda run: run[0] + run[1])
        result = {"accumulate_s": best[0], "solve_s": best[1], "sequences": args.sequences}
        print("the prototype, float64", file=sys.stderr)
        seconds, lists = theirs(folder)
        result |= {"prototype_s": seconds, "times": seconds / (best[0] + best[1])}
        result["same_layers"] = [sorted(layers) for layers in lists] == [sorted(layers) for layers in best[2]]
        if args.quickest:
            print("the prototype, float32 in one block", file=sys.stderr)
            block = LAYERS["target"]
            seconds, _ = theirs(
                folder,
                accumulation_dtype="float32",
                target_layer_block_size=block,
                selection_target_layer_block_size=block,
            )
            result |= {"prototype_quickest_s": seconds, "times_quickest": seconds / (best[0] + best[1])}
        print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
