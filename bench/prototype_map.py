"""Times the Python prototype's map on the geometry of map_bench, where the prototype is at hand.

    KVBRIDGE_PROTOTYPE=<checkout>/src python bench/prototype_map.py --tokens 64 1024

Its package has our package's name, so this runs in a process of its own with nothing else of ours on the path.
Weights are random and kept in FP32 (the form in which it computes fastest on a CPU); caches are BF16, as ours.
Prints JSON: {"tokens": {"64": median_ms, ...}}.
"""

import argparse
import json
import os
import statistics
import sys
import time

import torch

prototype = os.environ.get("KVBRIDGE_PROTOTYPE")
if not prototype:
    sys.exit("prototype_map: KVBRIDGE_PROTOTYPE names no folder")
sys.path.insert(0, prototype)

from kvbridge.cache import KVCache, RotaryFactors  # noqa: E402
from kvbridge.config import FitConfig, ModelSignature  # noqa: E402
from kvbridge.mapper import CrossModelKVMapper  # noqa: E402

LAYERS, HEADS, DIM, TOP_K = 28, 8, 128, 8


def mapper() -> CrossModelKVMapper:
    signature = ModelSignature("random", "1", "none", LAYERS, HEADS, DIM)
    weight = torch.randn(HEADS, TOP_K * HEADS * DIM, DIM) / 90
    return CrossModelKVMapper(
        source_signature=signature,
        target_signature=signature,
        config=FitConfig(top_k=TOP_K),
        selected_layers=[[(layer + i) % LAYERS for i in range(TOP_K)] for layer in range(LAYERS)],
        key_weights=[weight.clone() for _ in range(LAYERS)],
        value_weights=[weight.clone() for _ in range(LAYERS)],
        key_biases=[torch.zeros(HEADS, DIM)] * LAYERS,
        value_biases=[torch.zeros(HEADS, DIM)] * LAYERS,
    )


def rotary(tokens: int) -> RotaryFactors:
    angles = torch.outer(torch.arange(tokens).double(), 1e6 ** -(torch.arange(0, DIM, 2) / DIM).double())
    angles = torch.cat((angles, angles), -1)
    return RotaryFactors(angles.cos().float(), angles.sin().float())


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--tokens", type=int, nargs="+", default=[64, 1024])
    parser.add_argument("--reps", type=int, default=3)
    args = parser.parse_args()
    mapped = mapper()
    result = {}
    with torch.inference_mode():
        for tokens in args.tokens:
            shape = (1, HEADS, tokens, DIM)
            factors = rotary(tokens)
            cache = KVCache(
                [torch.randn(shape, dtype=torch.bfloat16) for _ in range(LAYERS)],
                [torch.randn(shape, dtype=torch.bfloat16) for _ in range(LAYERS)],
                factors,
            )
            times = []
            for _ in range(args.reps + 1):
                begin = time.perf_counter()
                mapped.map(cache, target_rotary=factors)
                times.append((time.perf_counter() - begin) * 1000)
            result[str(tokens)] = statistics.median(times[1:])
    print(json.dumps({"tokens": result}))


if __name__ == "__main__":
    main()
