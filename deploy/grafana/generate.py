"""Writes the dashboards that dashboards.yaml describes as Grafana's JSON, one file each, beside it.

    python3 deploy/grafana/generate.py [--check]

--check writes nothing, and exits 1 when a file is not what it would write.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import yaml

HERE = Path(__file__).resolve().parent
DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}
SCHEMA_VERSION = 39  # Grafana 10.4 and later
ROW_WIDTH = 24
HEIGHTS = {"stat": 4, "text": 4}
DEFAULT_HEIGHT = 8

_JOB = 'namespace=~"$namespace", job=~"$job"'
SELECTORS = {
    "<N>": 'namespace=~"$namespace"',
    "<J>": _JOB,
    "<JP>": _JOB + ', pair=~"$pair"',
    "<I>": _JOB + ', instance=~"$instance"',
    "<P>": _JOB + ', instance=~"$instance", pair=~"$pair"',
}
# Each variable is narrowed by those before it.
VARIABLES = {
    "namespace": "label_values(kvbridge_build_info, namespace)",
    "job": 'label_values(kvbridge_build_info{namespace=~"$namespace"}, job)',
    "pair": f"label_values(kvbridge_transfers_total{{{_JOB}}}, pair)",
    "instance": f"label_values(kvbridge_build_info{{{_JOB}}}, instance)",
}

Json = dict[str, Any]


def expand(expression: str) -> str:
    for token, selector in SELECTORS.items():
        expression = expression.replace(token, selector)
    return expression.replace("[rate]", "[$__rate_interval]")


def targets(panel: Json, kind: str) -> list[Json]:
    """A query for each legend. Tables and stats look at one moment."""
    at_once = kind in ("stat", "table")
    return [
        {
            "refId": chr(ord("A") + number),
            "datasource": DATASOURCE,
            "expr": expand(expression),
            "legendFormat": legend,
            "format": {"table": "table", "heatmap": "heatmap"}.get(kind, "time_series"),
            "instant": at_once,
            "range": not at_once,
        }
        for number, (legend, expression) in enumerate(panel["queries"].items())
    ]


def lines_look(stacked: bool) -> Json:
    return {
        "drawStyle": "line",
        "lineWidth": 1,
        "fillOpacity": 40 if stacked else 5,
        "showPoints": "never",
        "spanNulls": False,
        "stacking": {"mode": "normal" if stacked else "none", "group": "A"},
    }


def appearance(panel: Json, kind: str) -> Json:
    """What is particular to a kind of panel: its type, field defaults and options."""
    field: Json = {"unit": panel.get("unit", "short"), "min": 0}
    if kind == "stat":
        reduce = {"calcs": ["lastNotNull"], "fields": "", "values": False}
        options: Json = {"reduceOptions": reduce, "graphMode": "none", "colorMode": "value", "textMode": "auto"}
        return {"type": "stat", "fieldConfig": {"defaults": {**field, "min": None}, "overrides": []}, "options": options}
    if kind in ("lines", "stack"):
        field["custom"] = lines_look(kind == "stack")
        options = {
            "legend": {"displayMode": "list", "placement": "bottom", "showLegend": True},
            "tooltip": {"mode": "multi", "sort": "desc"},
        }
        return {"type": "timeseries", "fieldConfig": {"defaults": field, "overrides": []}, "options": options}
    if kind == "heatmap":
        options = {
            "calculate": False,
            "cellGap": 1,
            "color": {"mode": "scheme", "scheme": "Spectral", "steps": 64, "reverse": True},
            "yAxis": {"unit": field["unit"], "axisPlacement": "left"},
            "tooltip": {"show": True, "yHistogram": False},
            "legend": {"show": True},
        }
        return {"type": "heatmap", "fieldConfig": {"defaults": {}, "overrides": []}, "options": options}
    if kind == "timeline":
        on = [{"type": "value", "options": {"0": {"text": " ", "color": "transparent"}, "1": {"text": "●", "color": "blue"}}}]
        options = {"showValue": "never", "mergeValues": True, "rowHeight": 0.8, "legend": {"showLegend": False}}
        return {"type": "state-timeline", "fieldConfig": {"defaults": {"mappings": on}, "overrides": []}, "options": options}
    organize = {"excludeByName": {"Time": True, "__name__": True}, "indexByName": {}, "renameByName": {}}
    return {
        "type": "table",
        "fieldConfig": {"defaults": {}, "overrides": []},
        "options": {"showHeader": True, "cellHeight": "sm"},
        "transformations": [{"id": "organize", "options": organize}],
    }


def text_panel(panel: Json) -> Json:
    return {"type": "text", "title": panel["text"], "options": {"mode": "markdown", "content": panel["content"]}}


def panel_json(panel: Json) -> Json:
    kind = next(key for key in panel if key in ("stat", "lines", "stack", "heatmap", "table", "timeline", "text"))
    if kind == "text":
        return text_panel(panel)
    return {
        "title": panel[kind],
        "description": panel["about"],
        "datasource": DATASOURCE,
        "targets": targets(panel, kind),
        **appearance(panel, kind),
    }


def layout(panels: list[Json]) -> list[Json]:
    """Panels from left to right, in rows as high as their highest panel."""
    placed: list[Json] = []
    x = y = row_height = 0
    for number, panel in enumerate(panels, start=1):
        kind = next(iter(panel))
        width, height = panel["width"], HEIGHTS.get(kind, DEFAULT_HEIGHT)
        if x + width > ROW_WIDTH:
            x, y, row_height = 0, y + row_height, 0
        placed.append({"id": number, "gridPos": {"x": x, "y": y, "w": width, "h": height}, **panel_json(panel)})
        x, row_height = x + width, max(row_height, height)
    return placed


def variable(name: str, query: str) -> Json:
    return {
        "name": name,
        "type": "query",
        "datasource": DATASOURCE,
        "query": {"query": query, "refId": name},
        "definition": query,
        "refresh": 2,
        "sort": 1,
        "multi": True,
        "includeAll": True,
        "allValue": ".*",  # matches series without the label as well
        "current": {"selected": True, "text": ["All"], "value": ["$__all"]},
    }


def dashboard(described: Json) -> Json:
    datasource = {"name": "datasource", "type": "datasource", "query": "prometheus", "label": "Data source"}
    restarts = expand("time() - process_start_time_seconds{<I>} < 60")
    return {
        "id": None,
        "uid": described["uid"],
        "title": described["title"],
        "description": described["about"],
        "tags": ["kvbridge"],
        "schemaVersion": SCHEMA_VERSION,
        "version": 1,
        "editable": True,
        "graphTooltip": 1,
        "timezone": "browser",
        "refresh": "30s",
        "time": {"from": "now-6h", "to": "now"},
        "links": [
            {"type": "dashboards", "title": "kvbridge", "tags": ["kvbridge"], "asDropdown": True, "keepTime": True,
             "includeVars": True},
            {"type": "link", "title": "Runbooks", "url": "docs/runbooks/", "targetBlank": True},
        ],
        "annotations": {
            "list": [
                {"name": "Starts", "datasource": DATASOURCE, "enable": True, "iconColor": "blue", "expr": restarts,
                 "step": "60s", "titleFormat": "{{instance}} started"},
            ]
        },
        "templating": {"list": [datasource, *(variable(*each) for each in VARIABLES.items())]},
        "panels": layout(described["panels"]),
    }  # fmt: skip


def files() -> dict[Path, str]:
    """What each file should hold."""
    described = yaml.safe_load((HERE / "dashboards.yaml").read_text())
    return {
        HERE / f"{each['uid']}.json": json.dumps(dashboard(each), indent=1, ensure_ascii=False) + "\n"
        for each in described
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 when a file differs")
    check = parser.parse_args().check
    wanted = files()
    stale = [path for path, text in wanted.items() if not path.exists() or path.read_text() != text]
    stale += [path for path in HERE.glob("*.json") if path not in wanted]
    for path in stale:
        print(f"{path.name}: {'differs from dashboards.yaml; run generate.py' if check else 'written'}")
        if not check and path in wanted:
            path.write_text(wanted[path])
    return 1 if check and stale else 0


if __name__ == "__main__":
    sys.exit(main())
