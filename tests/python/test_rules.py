"""deploy/prometheus: rules that promtool likes, that name metrics which exist, and alerts that fire when they should."""

from __future__ import annotations

import re
import subprocess

import pytest
import yaml
from conftest import ROOT, binary
from kvbridge.testing import LocalServer
from operations import DEPLOY, base_name, listed_metrics, metrics_in, tool

RULES = [DEPLOY / "prometheus/recording.yaml", DEPLOY / "prometheus/alerts.yaml"]
RUNBOOKS = ROOT / "docs/runbooks"
SECTIONS = ["What it means", "Likely causes", "How to look", "What to do", "How to silence it"]


def rules(path):
    return [rule for group in yaml.safe_load(path.read_text())["groups"] for rule in group["rules"]]


ALERTS = {rule["alert"]: rule for rule in rules(RULES[1])}
# Without types: 0x9 is ten samples, not a number.
CASES = yaml.load((ROOT / "tests/python/alert_cases.yaml").read_text(), yaml.BaseLoader)


def series(name, labels=""):
    """A series with job and instance."""
    name, _, stated = name.partition("{")
    labels = stated.rstrip("}") or labels
    for default in ('job="kvbridge"', 'instance="a"'):
        if default.split("=")[0] + "=" not in labels:
            labels = f"{labels}, {default}" if labels else default
    return f"{name}{{{labels}}}"


def template_labels(alert):
    """Labels that an alert's texts show."""
    return sorted(set(re.findall(r"\$labels\.(\w+)", str(alert["annotations"]))))


def promtool_test(name, case):
    """One case as promtool's unit test: exactly these alerts fire, with the labels that their texts show."""
    inputs = {series(key): value for key, value in case["series"].items()}
    if case.get("alive") != "false":
        inputs[series('kvbridge_build_info{version="1", revision="0a"}')] = "1x400"
    firing = [{"alertname": n, "severity": ALERTS[n]["labels"]["severity"]} for n in case["firing"]]
    expected = [('group by (alertname, severity) (ALERTS{alertstate="firing"})', firing)]
    for alert in firing:
        shown = "".join(f', {label}!=""' for label in template_labels(ALERTS[alert["alertname"]]))
        query = f'ALERTS{{alertstate="firing", alertname="{alert["alertname"]}"{shown}}}'
        expected.append((f"group by (alertname, severity) ({query})", [alert]))
    return {
        "name": f"{name}: {case.get('why', '')}",
        "interval": "1m",
        "input_series": [{"series": key, "values": value} for key, value in inputs.items()],
        "promql_expr_test": [
            {
                "expr": expression,
                "eval_time": case["at"],
                "exp_samples": [
                    {"labels": "{" + ", ".join(f'{k}="{v}"' for k, v in labels.items()) + "}", "value": 1}
                    for labels in samples
                ],
            }
            for expression, samples in expected
        ],
    }


def run_promtool(*arguments, **options):
    done = subprocess.run([tool("promtool"), *map(str, arguments)], capture_output=True, text=True, **options)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def test_promtool_checks_the_rules():
    assert "SUCCESS" in run_promtool("check", "rules", "--lint-fatal", *RULES)


def test_alerts_fire_and_stay_quiet(tmp_path):
    suite = {
        "rule_files": [str(path) for path in RULES],
        "evaluation_interval": "1m",
        "tests": [promtool_test(name, case) for name, cases in CASES.items() for case in cases],
    }
    path = tmp_path / "alerts.yaml"
    path.write_text(yaml.safe_dump(suite, sort_keys=False))
    run_promtool("test", "rules", path)


@pytest.mark.parametrize("name", ALERTS)
def test_alert_has_a_case_of_either_kind(name):
    kinds = {name in case["firing"] for case in CASES.get(name, [])}
    assert kinds == {True, False}, f"tests/python/alert_cases.yaml: {name} needs a case that fires and one that does not"


@pytest.mark.parametrize("name", ALERTS)
def test_alert_says_what_it_needs_to(name):
    alert = ALERTS[name]
    assert alert["labels"]["severity"] in ("page", "ticket")
    notes = alert["annotations"]
    assert set(notes) == {"summary", "description", "runbook_url", "dashboard_url"}
    assert all(notes[key].endswith(".") for key in ("summary", "description"))
    assert notes["runbook_url"] == f"docs/runbooks/{name}.md"
    assert (ROOT / notes["runbook_url"]).is_file()


@pytest.mark.parametrize("path", RULES, ids=lambda path: path.name)
def test_rules_name_metrics_that_exist(path):
    metrics, recorded = listed_metrics(), {rule.get("record") for rule in rules(RULES[0])}
    for rule in rules(path):
        for name in metrics_in(rule["expr"]):
            assert base_name(name, metrics) in metrics, f"{rule.get('alert') or rule['record']}: {name}"
        used = set(re.findall(r"[a-z_]*:\w+:\w+", rule["expr"]))
        assert used <= recorded, rule["expr"]


def test_promtool_likes_what_a_server_exports():
    route = {"name": "pair", "artifact": "/nonexistent"}
    with LocalServer(binary("KVBRIDGED"), [route]) as server:
        page = server.get("/metrics")
    run_promtool("check", "metrics", input=page)
    exported = set(re.findall(r"^# TYPE (\w+)", page, re.M))
    assert exported <= set(listed_metrics())


def test_the_operators_page_lists_every_alert():
    page = (ROOT / "docs/operations.md").read_text()
    listed = dict(re.findall(r"^\| \[(\w+)\]\(runbooks/\1\.md\) \| (\w+) \|", page, re.M))
    assert listed == {name: alert["labels"]["severity"] for name, alert in ALERTS.items()}


def test_runbooks_are_pages_of_alerts():
    metrics = listed_metrics()
    assert {page.stem for page in RUNBOOKS.glob("*.md")} == set(ALERTS)
    for page in RUNBOOKS.glob("*.md"):
        text = page.read_text()
        sections = re.findall(r"^## (.+)$", text, re.M)
        assert text.startswith(f"# {page.stem}\n"), page.name
        assert sections == SECTIONS, page.name
        queries = re.findall(r"^```promql\n(.*?)^```", text, re.M | re.S)
        assert queries, page.name
        for name in metrics_in(" ".join(queries)):
            assert base_name(name, metrics) in metrics, f"{page.name}: {name}"
