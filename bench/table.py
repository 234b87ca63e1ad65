"""Prints what bench/run.sh measured as one Markdown table, with the machine it was measured on.

    python bench/table.py FOLDER      (map.json, map_alone.json, transfer.json, region.json, load.json,
                                      prototype.json; those that are there)
"""

import json
import os
import re
import sys
from pathlib import Path


def read(folder: Path, name: str) -> dict:
    path = folder / name
    return json.loads(path.read_text()) if path.exists() and path.stat().st_size else {}


def machine() -> str:
    cpu = re.search(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text())
    flags = Path("/proc/cpuinfo").read_text()
    isa = [name for name in ("amx_bf16", "avx512_bf16", "avx512f", "avx2") if name in flags]
    memory = int(re.search(r"MemTotal:\s+(\d+)", Path("/proc/meminfo").read_text())[1]) / 2**20
    return f"{cpu[1] if cpu else 'unknown CPU'}, {os.cpu_count()} cores, {memory:.0f} GiB, {', '.join(isa[:2])}"


def map_rows(data: dict, prototype: dict):
    for case in data.get("cases", []):
        tokens, support = case["tokens"], case["support"].replace("_", "-")
        ours = case["map"]["median_ms"]
        floor = min((f["median_ms"] for f in (case.get("floor") or {}).values()), default=None)
        against = [f"{floor / ours:.2f}× the floor's speed ({floor:.0f} ms)"] if floor else []
        theirs = prototype.get("tokens", {}).get(str(tokens)) if support == "full" else None
        against += [f"{theirs / ours:.1f}× the prototype's ({theirs:.0f} ms)"] if theirs else []
        rate = f"{case['tflop_s']:.2f} TFLOP/s, {case['weights_gb_s']:.1f} GB/s of weights"
        yield f"map, {support}, {tokens} tokens", f"{ours:.1f} ms ({rate})", "; ".join(against) or "–"


def ratio_rows(data: dict):
    by_tokens: dict = {}
    for case in data.get("cases", []):
        by_tokens.setdefault(case["tokens"], {})[case["support"]] = case["map"]["median_ms"]
    for tokens, times in by_tokens.items():
        if {"full", "head_local"} <= set(times):
            yield f"head-local against full-head, {tokens} tokens", f"{times['full'] / times['head_local']:.1f}×", "–"


def transfer_rows(data: dict):
    if not data:
        return
    micro = data["micro"]
    total = micro["total"]
    yield (f"whole transfer of {micro['tokens']} tokens, tiny map, unix socket",
           f"p50 {total['p50_ms']:.2f} ms, p99 {total['p99_ms']:.2f} ms",
           f"of which map and strip: {total['p50_ms'] - micro['overhead']['p50_ms']:.2f} ms")
    names = {"in": ("in_gb_s", "way in"), "out": ("out_gb_s", "way out")}
    for route, case in data["inline"].items():
        key, what = names.get(route, ("both_gb_s", "both ways at once, with a head-local map"))
        worst = case["total"]["p50_ms"] / case["total"]["min_ms"]
        memory = f"; server memory so far +{case['server_growth_mib']:.0f} MiB" if "server_growth_mib" in case else ""
        yield (f"inline plane, {what}, {case['tokens']} tokens", f"{case[key]:.2f} GB/s",
               f"median run {case[key] / worst:.2f} GB/s{memory}")
    for row in data.get("concurrency", []):
        refused = f", {row['refused']} refused" if row["refused"] else ""
        yield (f"{row['clients']} clients at once",
               f"{row['tokens_per_s']:.0f} tokens/s, p99 {row['p99_ms']:.0f} ms{refused}", "–")
    memory = data["server_memory"]
    yield ("server memory above its weights, at most, with those clients", f"{memory['growth_mib']:.0f} MiB", "–")


def region_rows(data: dict):
    for case in data.get("region", {}).values():
        yield (f"region plane, head-local map, {case['tokens']} tokens",
               f"{case['total_over_engine']:.2f}× the engine alone ({case['total']['p50_ms']:.0f} ms)",
               f"first layer after {case['first_layer_over_total']:.0%}; {case['bytes_in_messages']} bytes in messages")


def load_rows(data: dict):
    if data:
        yield ("artifact of 0.94 GB: load, verify, pack", f"{data['load_s'] + data['resident_s']:.2f} s",
               f"{data['ratio']:.2f}× hashing alone ({data['hash_s']:.2f} s)")


def main() -> None:
    folder = Path(sys.argv[1])
    rows = [*map_rows(read(folder, "map.json"), read(folder, "prototype.json")), *ratio_rows(read(folder, "map_alone.json")),
            *transfer_rows(read(folder, "transfer.json")), *region_rows(read(folder, "region.json")),
            *load_rows(read(folder, "load.json"))]
    print(f"Measured on: {machine()}. Geometry of Qwen3 0.6B → 1.7B: 28 → 28 layers, 8 heads × 128, k = 8, BF16, random weights.\n")
    print("| what | figure | beside |\n|---|---|---|")
    for row in rows:
        print("| " + " | ".join(row) + " |")


if __name__ == "__main__":
    main()
