"""The results of fit_experiments.py as the tables of docs/method.md."""

from __future__ import annotations

import json
from pathlib import Path

TEXTS = ("indomain", "code", "lang", "numeric")
ROOT = Path(__file__).resolve().parents[1]
RESULTS, DOCUMENT = ROOT / "bench/fit_experiments.json", ROOT / "docs/method.md"
BEGIN, END = "<!-- fit_experiments: begin -->", "<!-- fit_experiments: end -->"


def cells(result: dict, gap: bool) -> str:
    """KL, NLL and, where it was asked for, the gap; a dash where a text was not measured."""

    def cell(r: dict | None) -> str:
        if r is None:
            return "–"
        return f"{r['kl']:.3f}, {r['nll']:.3f}" + (f" ({100 * r['gap']:.1f} %)" if gap else "")

    return " | ".join(cell(result.get(t)) for t in TEXTS)


def table() -> str:
    """The Markdown between the markers of docs/method.md."""
    results, out = json.loads(RESULTS.read_text()), []
    keys = sorted({key for rows in results.values() for r in rows.values() for key in r}, key=_order)
    for direction, rows in results.items():
        for key in keys:
            found = [(n, r[key]) for n, r in rows.items() if key in r]
            if found:
                gap = direction == "small->large" and not key.startswith("oracle")
                out += [f"**{direction}, {key}**", "", "| | MB | in-domain | code | language | numbers |", "|---|---|---|---|---|---|"]
                out += [f"| {n} | {r['bytes'] / 1e6:.2f} | {cells(r, gap)} |" for n, r in found] + [""]
    return "\n".join(out)


def result_key(windows: int, tail: int, oracle: bool) -> str:
    """What a measurement is stored under; _order reads it."""
    return f"{'oracle' if oracle else f'tail {tail}'}, {windows} windows"


def _order(key: str) -> tuple:
    protocol, windows = key.split(", ")
    return protocol.startswith("oracle"), -int(windows.split()[0]), int(protocol.split()[-1].replace("oracle", "0"))


def put_between(document: Path, begin: str, end: str, text: str) -> None:
    """Replaces what a page has between two markers."""
    head, rest = document.read_text().split(begin)
    document.write_text(head + begin + "\n" + text + end + rest.split(end)[1])


def write_table() -> None:
    put_between(DOCUMENT, BEGIN, END, table())
