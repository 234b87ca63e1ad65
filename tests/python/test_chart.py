"""deploy/helm: the chart on the real Helm engine, its objects against Kubernetes' schemas, its configuration in kvbridged."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys

import pytest
import yaml
from conftest import ROOT, binary
from operations import DEPLOY, tool

OPERATIONS = os.environ.get("KVBRIDGE_OPERATIONS")
if not OPERATIONS:
    pytest.skip("KVBRIDGE_OPERATIONS is not set", allow_module_level=True)
sys.path.append(OPERATIONS)

import helm_python as helm  # noqa: E402
import kubernetes_validate  # noqa: E402

CHART = DEPLOY / "helm/kvbridge"
EXAMPLES = DEPLOY / "helm/examples"
VALUES = yaml.safe_load((ROOT / "tests/python/chart_values.yaml").read_text())
GOOD = {
    "defaults": {},
    **{path.name: yaml.safe_load(path.read_text()) for path in EXAMPLES.glob("values-*.yaml")},
    **VALUES["good"],
}
KUBERNETES = ("1.29", "1.34")
OUTSIDE = ("monitoring.coreos.com/v1", "cert-manager.io/v1")  # Kubernetes has no schema of these


@pytest.fixture(scope="module")
def chart():
    helm.disable_logging()
    with helm.Chart.load(CHART) as loaded:
        yield loaded


@pytest.fixture(scope="module")
def render(chart):
    """Objects of a set of values: a list of (template, object)."""
    made = {}

    def rendered(name, values):
        if name not in made:
            made[name] = objects(chart.render(values, name="rel", namespace="ns"))
        return made[name]

    return rendered


def objects(files):
    return [
        (path, each)
        for path, text in files.items()
        if not path.endswith("NOTES.txt")
        for each in yaml.safe_load_all(text)
        if each
    ]


def of_kind(rendered, kind):
    return [each for _, each in rendered if each["kind"] == kind]


def pods(rendered):
    """(kind of its owner, pod spec) of every pod that the objects bring about."""
    for _, each in rendered:
        if each["kind"] == "Pod":
            yield each["kind"], each["spec"]
        elif each["kind"] in ("Deployment", "DaemonSet", "Job"):
            yield each["kind"], each["spec"]["template"]["spec"]


def containers(pod):
    return [*pod.get("initContainers", []), *pod["containers"]]


def test_schema_and_table_are_those_of_the_values():
    done = subprocess.run([sys.executable, DEPLOY / "helm/generate.py", "--check"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_chart_is_of_this_version():
    version = re.search(r"project\(kvbridge VERSION (\S+)", (ROOT / "CMakeLists.txt").read_text())[1]
    described = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert (described["version"], described["appVersion"]) == (version, version)
    assert f"ARG VERSION={version}" in (ROOT / "Dockerfile").read_text()


@pytest.mark.parametrize("name", GOOD)
def test_lint_is_content(name):
    report = helm.lint(CHART, GOOD[name], strict=True)
    assert report["errors"] == [] and [m for m in report["messages"] if m["severity"] > 1] == []


@pytest.mark.parametrize("name", GOOD)
def test_objects_are_valid(render, name):
    rendered = render(name, GOOD[name])
    assert len(rendered) > 1 or GOOD[name].get("mode") == "sidecar"
    names = [(each["kind"], each["metadata"]["name"]) for _, each in rendered]
    assert len(names) == len(set(names))
    for path, each in rendered:
        if each["apiVersion"] in OUTSIDE:
            continue
        for version in KUBERNETES:
            if version == "1.29" and "image" in str(GOOD[name].get("artifacts", "")):
                continue  # image volumes are newer
            kubernetes_validate.validate(each, version, strict=True)


@pytest.mark.parametrize("name", GOOD)
def test_pods_meet_the_restricted_profile(render, name):
    for kind, pod in pods(render(name, GOOD[name])):
        assert pod["automountServiceAccountToken"] is False
        assert not {"hostIPC", "hostPID", "hostNetwork"} & set(pod)
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert pod["securityContext"]["runAsNonRoot"] is True and pod["securityContext"]["runAsUser"] == 65532
        for volume in pod.get("volumes", []):
            assert "secret" not in volume or volume["secret"]["defaultMode"] == 0o440
        host_paths = [v for v in pod["volumes"] if "hostPath" in v] if "volumes" in pod else []
        assert not host_paths or kind == "DaemonSet"
        for container in containers(pod):
            context = container["securityContext"]
            assert context["allowPrivilegeEscalation"] is False
            assert context["capabilities"] == {"drop": ["ALL"]}
            assert "memory" in container["resources"]["limits"], container["name"]
            assert re.search(r":[^/]+$", container["image"]) and not container["image"].endswith(":latest")
            if container["name"] != "fetch":
                assert context["readOnlyRootFilesystem"] is True


@pytest.mark.parametrize("name", GOOD)
def test_selectors_find_the_servers_and_nothing_else(render, name):
    rendered = render(name, GOOD[name])
    labels = {
        "server": [w["spec"]["template"]["metadata"]["labels"] for _, w in rendered if w["kind"] in ("Deployment", "DaemonSet")],
        "other": [p["metadata"]["labels"] for p in of_kind(rendered, "Pod")]
        + [j["spec"]["template"]["metadata"]["labels"] for j in of_kind(rendered, "Job")],
    }  # fmt: skip
    selectors = [s["spec"]["selector"] for s in of_kind(rendered, "Service")]
    selectors += [s["spec"]["selector"]["matchLabels"] for _, s in rendered if s["kind"] in ("Deployment", "DaemonSet", "PodDisruptionBudget")]
    selectors += [s["spec"]["podSelector"]["matchLabels"] for s in of_kind(rendered, "NetworkPolicy")]
    for selector in selectors:
        assert all(selector.items() <= each.items() for each in labels["server"])
        assert not any(selector.items() <= each.items() for each in labels["other"])


@pytest.fixture(scope="module")
def secrets(tmp_path_factory):
    """/etc/kvbridge, with what the Secrets would hold."""
    etc = tmp_path_factory.mktemp("etc")
    (etc / "auth").mkdir()
    (etc / "auth/tokens").write_text("0123456789abcdef0123456789abcdef router transfer,plan\n")
    folder = etc / "tls"
    folder.mkdir()
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "30", "-subj", "/CN=localhost",
         "-keyout", folder / "tls.key", "-out", folder / "tls.crt"],
        check=True, capture_output=True,
    )  # fmt: skip
    shutil.copy(folder / "tls.crt", folder / "ca.crt")
    return etc


@pytest.mark.parametrize("name", GOOD)
def test_kvbridged_takes_the_configuration(render, name, tmp_path, secrets):
    config = of_kind(render(name, GOOD[name]), "ConfigMap")[0]["data"]["kvbridged.yaml"]
    path = tmp_path / "kvbridged.yaml"
    path.write_text(config.replace("/etc/kvbridge", str(secrets)))
    done = subprocess.run([binary("KVBRIDGED"), "--config", path, "--check-config"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", VALUES["bad"])
def test_schema_refuses(chart, name):
    case = VALUES["bad"][name]
    with pytest.raises(helm.HelmError) as caught:
        chart.validate_schema(case["values"])
    assert case["says"] in str(caught.value)


@pytest.mark.parametrize("name", VALUES["contradictory"])
def test_template_refuses(chart, name):
    case = VALUES["contradictory"][name]
    with pytest.raises(helm.HelmRenderError) as caught:
        chart.render(case["values"], name="rel", namespace="ns")
    assert case["says"] in str(caught.value)


def test_a_change_of_the_configuration_restarts_the_pods(chart):
    def checksum(values):
        rendered = objects(chart.render(values, name="rel", namespace="ns"))
        return of_kind(rendered, "Deployment")[0]["spec"]["template"]["metadata"]["annotations"]["checksum/config"]

    assert checksum({}) == checksum({"replicaCount": 5})
    assert checksum({}) != checksum({"config": {"limits": {"max_tokens": 1024}}})


def test_a_pod_may_take_as_long_as_its_drain(chart):
    values = {"config": {"drain": {"delay": "30s", "deadline": "90s"}}}
    pod = dict(pods(objects(chart.render(values, name="rel", namespace="ns"))))["Deployment"]
    assert pod["terminationGracePeriodSeconds"] == 130


def test_rules_are_those_of_deploy_prometheus(render, tmp_path):
    rule = of_kind(render("monitored", GOOD["monitored"]), "PrometheusRule")[0]
    path = tmp_path / "rules.yaml"
    path.write_text(yaml.safe_dump(rule["spec"]))
    done = subprocess.run([tool("promtool"), "check", "rules", path], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    rules = [each for group in rule["spec"]["groups"] for each in group["rules"]]
    source = [DEPLOY / "prometheus" / name for name in ("recording.yaml", "alerts.yaml")]
    wanted = [r for p in source for g in yaml.safe_load(p.read_text())["groups"] for r in g["rules"]]
    assert len(rules) == len(wanted) + 1
    text = " ".join(rule["expr"] for rule in rules)
    assert "vector(0.005)" in text and 'le="0.1"' in text and 'le="0.25"' not in text
    assert rules[-1]["expr"] == 'pair:kvbridge_transfers_accepted:ratio_rate1h{pair="pair"} < 0.8'


def test_links_lead_to_your_own_pages(chart):
    values = {
        "assumeCRDs": True,
        "metrics": {
            "prometheusRule": {"enabled": True, "runbooks": "https://a.example/", "grafana": "https://g.example"},
            "dashboards": {"enabled": True},
        },
    }
    rendered = objects(chart.render(values, name="rel", namespace="ns"))
    rules = [r for g in of_kind(rendered, "PrometheusRule")[0]["spec"]["groups"] for r in g["rules"] if "alert" in r]
    for rule in rules:
        assert rule["annotations"]["runbook_url"] == f"https://a.example/{rule['alert']}.md"
        assert rule["annotations"]["dashboard_url"].startswith("https://g.example/d/kvbridge-")
    boards = [c for c in of_kind(rendered, "ConfigMap") if c["metadata"]["labels"].get("grafana_dashboard")]
    assert len(boards) == 4
    for board in boards:
        ((file, text),) = board["data"].items()
        shipped = json.loads((DEPLOY / "grafana" / file).read_text())
        served = json.loads(text)
        assert served["panels"] == shipped["panels"]
        assert "https://a.example/" in [link.get("url") for link in served["links"]]


def test_objects_of_operators_need_their_operator(chart):
    values = {"metrics": {"serviceMonitor": {"enabled": True}, "prometheusRule": {"enabled": True}}}
    files = chart.render(values, name="rel", namespace="ns")
    assert {each["apiVersion"] for _, each in objects(files)} & set(OUTSIDE) == set()
    assert "has no Prometheus Operator" in files["kvbridge/templates/NOTES.txt"]


def test_a_fit_shares_out_the_sequences_and_adds_up_all_parts(render):
    accumulate, solve = of_kind(render("fit", GOOD["a fit on three machines"]), "Job")
    assert (accumulate["spec"]["completionMode"], accumulate["spec"]["completions"]) == ("Indexed", 3)
    parts = [f".fit/part-{index}.safetensors" for index in range(3)]
    waits, merges = solve["spec"]["template"]["spec"]["initContainers"]
    assert waits["args"][2:] == parts and merges["args"][-3:] == parts
    flags = solve["spec"]["template"]["spec"]["containers"][0]["args"]
    assert flags[:4] == ["fit", "solve", "--moments=.fit/moments.safetensors", "--out=artifact"] and "--k=4" in flags


def test_the_jobs_of_a_fit_fit(render, tmp_path):
    """Their very commands, on shards made here, with kvbridge on the path."""
    cli = binary("KVBRIDGE_CLI")
    bin_folder = tmp_path / "bin"
    bin_folder.mkdir()
    (bin_folder / "kvbridge").symlink_to(cli)
    shutil.copytree(ROOT / "tests/data/golden/calib/main", tmp_path / "shards")
    accumulate, solve = (job["spec"]["template"]["spec"] for job in of_kind(render("fit", GOOD["a fit on three machines"]), "Job"))

    def run(container, **more):
        environment = {**os.environ, "PATH": f"{bin_folder}:{os.environ['PATH']}", **more}
        environment |= {each["name"]: each["value"] for each in container.get("env", [])}
        command = [*container["command"], *container["args"]]
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr

    for index in range(3):
        run(accumulate["containers"][0], JOB_COMPLETION_INDEX=str(index))
    for container in containers(solve):
        run(container)
    assert list((tmp_path / "artifact").glob("*"))


def test_another_chart_can_hold_the_sidecar(tmp_path):
    parent = shutil.copytree(EXAMPLES / "sidecar-chart", tmp_path / "parent")
    shutil.copytree(CHART, parent / "charts/kvbridge")
    assert helm.lint(parent, strict=True)["errors"] == []
    with helm.Chart.load(parent) as loaded:
        rendered = objects(loaded.render({}, name="rel", namespace="ns"))
    assert sorted(each["kind"] for _, each in rendered) == ["ConfigMap", "Deployment"]
    for _, each in rendered:
        kubernetes_validate.validate(each, KUBERNETES[-1], strict=True)
    (pod,) = (pod for _, pod in pods(rendered))
    (sidecar,) = pod["initContainers"]
    assert (sidecar["name"], sidecar["restartPolicy"]) == ("kvbridged", "Always")
    mounts = {mount["name"] for container in containers(pod) for mount in container["volumeMounts"]}
    assert mounts == {volume["name"] for volume in pod["volumes"]}
    config = yaml.safe_load(of_kind(rendered, "ConfigMap")[0]["data"]["kvbridged.yaml"])
    assert config["listen"]["grpc"] == ["unix:/run/kvbridge/kvbridged.sock"]
    assert config["memory"]["max_bytes"] == "4GiB"
