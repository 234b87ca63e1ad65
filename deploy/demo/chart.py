"""The demonstration's result as one HTML file: inline SVG, no script, nothing loaded from elsewhere."""

from __future__ import annotations

from html import escape
from pathlib import Path

WIDTH, LABEL, ROW = 980, 330, 30
MAPPED, CONTROL, MODEL = "#2563eb", "#9ca3af", "#111827"
PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>kvbridge demo</title>
<style>
body {{ font: 15px/1.5 system-ui, sans-serif; margin: 2.5rem auto; max-width: 62rem; color: #111827; }}
svg text {{ font: 13px system-ui, sans-serif; fill: #111827; }}
svg .faint {{ fill: #6b7280; }}
</style></head><body>
<h1>What a mapped KV cache is worth</h1>
<p>A small model reads a prompt of 384 tokens; kvbridged turns its KV cache into the large model's; the large model
predicts the next 128 tokens. {passages} passages of the King James Bible, held out of training.</p>
<h2>Difference from the large model's own prefill</h2>
<p>Kullback-Leibler divergence of next-token distributions, nats per token. 0 = the same predictions.</p>
{kl}
<h2>Share of the gap recovered</h2>
<p>On the way from the small model's own negative log-likelihood (0&nbsp;%) to the large model's (100&nbsp;%); the
lines are 95&nbsp;% bootstrap intervals over passages.</p>
{gap}
</body></html>
"""


def write_chart(path: Path, rows: list[dict], passages: int) -> None:
    """rows: name, kl, gap and gap_95 (None or low, high) of each way to get a cache."""
    switched = [row for row in rows if not row["name"].startswith("small")]
    spans = [row["gap_95"] or (row["gap"], row["gap"]) for row in rows]
    low = min(0.0, *(span[0] for span in spans))
    high = max(1.0, *(span[1] for span in spans))
    kl = _bars(switched, "kl", 0.0, max(row["kl"] for row in switched), "{:.3f}")
    gap = _bars(rows, "gap", low, high, "{:.0%}")
    path.write_text(PAGE.format(passages=passages, kl=kl, gap=gap), encoding="utf-8")


def _bars(rows: list[dict], key: str, low: float, high: float, text: str) -> str:
    """Horizontal bars from zero, with the interval of `gap`."""
    span = (WIDTH - LABEL - 70) / ((high - low) or 1.0)

    def x(value: float) -> float:
        return LABEL + (value - low) * span

    parts = [
        f'<svg viewBox="0 0 {WIDTH} {ROW * len(rows) + 8}" role="img" aria-label="{key} by variant">',
        f'<line x1="{x(0):.1f}" y1="0" x2="{x(0):.1f}" y2="{ROW * len(rows)}" stroke="#d1d5db"/>',
    ]
    for index, row in enumerate(rows):
        middle = ROW * index + ROW / 2
        value = row[key]
        left, right = sorted((x(0), x(value)))
        kinds = {"mapped": MAPPED, "control": CONTROL}
        colour = next((c for kind, c in kinds.items() if row["name"].startswith(kind)), MODEL)
        parts.append(f'<text x="{LABEL - 10}" y="{middle + 4}" text-anchor="end">{escape(row["name"])}</text>')
        parts.append(
            f'<rect x="{left:.1f}" y="{middle - 8}" width="{max(1.0, right - left):.1f}" height="16" '
            f'rx="2" fill="{colour}"/>'
        )
        end = right
        if key == "gap" and row["gap_95"]:
            begin, end = (x(edge) for edge in row["gap_95"])
            parts.append(
                f'<line x1="{begin:.1f}" y1="{middle}" x2="{end:.1f}" y2="{middle}" stroke="#111827"/>'
            )
        end = max(end, right) + 6
        parts.append(f'<text class="faint" x="{end:.1f}" y="{middle + 4}">{text.format(value)}</text>')
    parts.append("</svg>")
    return "\n".join(parts)
