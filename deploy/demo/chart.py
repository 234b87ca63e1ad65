"""The demonstration's result as one HTML file: bars by CSS, no script, nothing loaded from elsewhere."""

from __future__ import annotations

from html import escape

PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>kvbridge demo</title>
<style>
:root {{ color-scheme: light dark; --text: #111827; --page: #ffffff; --faint: #5b6472; --track: #f1f3f6;
  --mapped: #2563eb; --control: #9ca3af; --model: #374151; }}
@media (prefers-color-scheme: dark) {{ :root {{ --text: #e5e7eb; --page: #111827; --faint: #a3acba;
  --track: #1d2635; --mapped: #60a5fa; --control: #6b7280; --model: #d1d5db; }} }}
body {{ font: 16px/1.5 system-ui, sans-serif; margin: 0 auto; max-width: 60rem; padding: 1.5rem;
  color: var(--text); background: var(--page); }}
h1, h2 {{ line-height: 1.25; }}
h3 {{ font-size: 1rem; margin: 0; }}
section {{ margin: 1rem 0; }}
.row {{ display: grid; grid-template-columns: 20rem 1fr 4rem; gap: 0 .75rem; align-items: center; margin: .3rem 0; }}
.track {{ position: relative; height: 1rem; background: var(--track); border-radius: 2px; }}
.track * {{ position: absolute; }}
.bar {{ height: 100%; min-width: 2px; border-radius: 2px; background: var(--model); }}
.mapped .bar {{ background: var(--mapped); }}
.control .bar {{ background: var(--control); }}
.interval {{ top: calc(50% - 1px); height: 2px; background: var(--text); }}
.value {{ text-align: right; font-variant-numeric: tabular-nums; }}
.faint {{ color: var(--faint); }}
@media (max-width: 40rem) {{
  body {{ padding: 1rem; }}
  .row {{ grid-template-columns: 1fr 4rem; margin: .6rem 0; }}
  .name {{ grid-column: 1 / -1; }}
}}
</style></head><body>
<h1>What a mapped KV cache is worth</h1>
<p>A small model reads a prompt of 384 tokens; kvbridged turns its KV cache into the large model's; the large model
predicts the next 128 tokens. {passages} passages of the King James Bible, held out of training. Where the large
model reads the prompt's last tokens itself (a native tail), the control is that tail with nothing before it.</p>
<h2>Difference from the large model's own prefill</h2>
<p class="faint">Kullback-Leibler divergence of next-token distributions, nats per token. 0 = the same
predictions; shorter is better.</p>
{kl}
<h2>Share of the gap recovered</h2>
<p class="faint">On the way from the small model's own negative log-likelihood (0&nbsp;%) to the large model's
(100&nbsp;%); longer is better. The lines are 95&nbsp;% bootstrap intervals over passages.</p>
{gap}
</body></html>
"""


def chart(groups: list[tuple[str, list[dict]]], passages: int) -> str:
    """The page. groups: heading and rows (name, kl, gap and gap_95, None or low, high) of each native tail."""
    rows = [row for _, members in groups for row in members]
    switched = [(heading, members) for heading, members in groups if heading]
    most = max(row["kl"] for _, members in switched for row in members)
    spans = [row["gap_95"] or (row["gap"], row["gap"]) for row in rows]
    low, high = min(0.0, *(span[0] for span in spans)), max(1.0, *(span[1] for span in spans))
    return PAGE.format(
        passages=passages,
        kl=_bars(switched, "kl", 0.0, most, "{:.3f}"),
        gap=_bars(groups, "gap", low, high, "{:.0%}"),
    )


def _bars(groups: list[tuple[str, list[dict]]], key: str, low: float, high: float, text: str) -> str:
    """Horizontal bars from zero, with the interval of `gap`."""

    def span(kind: str, begin: float, end: float) -> str:
        left, width = ((edge * 100) / ((high - low) or 1.0) for edge in (begin - low, end - begin))
        return f'<span class="{kind}" style="left:{left:.2f}%;width:{width:.2f}%"></span>'

    parts = []
    for heading, rows in groups:
        parts.append(f"<section><h3>{escape(heading)}</h3>" if heading else "<section>")
        for row in rows:
            marks = span("bar", *sorted((0.0, row[key])))
            if key == "gap" and row["gap_95"]:
                marks += span("interval", *row["gap_95"])
            kind = next((k for k in ("mapped", "control") if row["name"].startswith(k)), "model")
            parts.append(
                f'<div class="row {kind}"><span class="name">{escape(row["name"])}</span>'
                f'<span class="track">{marks}</span><span class="value">{text.format(row[key])}</span></div>'
            )
        parts.append("</section>")
    return "\n".join(parts)
