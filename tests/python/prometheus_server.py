"""A Prometheus of one's own that scrapes one target every second, for tests of rules and dashboards."""

from __future__ import annotations

import json
import re
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request

import yaml
from operations import tool


class Prometheus:
    """Starts it in `folder` and stops it again. Use as a context manager. clients: a target of a job of its own."""

    def __init__(self, folder, target, rule_files, clients=None):
        self._folder = folder
        config = {
            "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
            "rule_files": [str(path) for path in rule_files],
            "scrape_configs": [
                {"job_name": job, "static_configs": [{"targets": [scraped], "labels": {"namespace": "test"}}]}
                for job, scraped in {"kvbridge": target, "router": clients}.items()
                if scraped
            ],
        }
        (folder / "prometheus.yaml").write_text(yaml.safe_dump(config))
        self._log = folder / "prometheus.log"

    def __enter__(self):
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [
                    tool("prometheus"),
                    f"--config.file={self._folder}/prometheus.yaml",
                    f"--storage.tsdb.path={self._folder}/data",
                    "--web.listen-address=127.0.0.1:0",
                ],
                stdout=log,
                stderr=log,
            )
        try:
            self._address = self._wait_for("its address", self._listening)
            self._wait_for("a first scrape", lambda: self.query("up == 1"))
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        self._process.kill()
        self._process.wait()

    def _listening(self):
        found = re.search(r'msg="Listening on" address=(\S+)', self._log.read_text())
        return found and found[1]

    def _wait_for(self, what, get, seconds=30.0):
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline and self._process.poll() is None:
            try:
                if value := get():
                    return value
            except OSError:
                pass
            time.sleep(0.05)
        raise RuntimeError(f"no {what} from Prometheus:\n{self._log.read_text()[-2000:]}")

    def _get(self, path, **parameters):
        address = f"http://{self._address}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"
        try:
            with urllib.request.urlopen(address, timeout=30) as answer:
                return json.load(answer)["data"]
        except urllib.error.HTTPError as error:
            if error.code == 503:  # it has only just started
                raise
            raise ValueError(json.load(error)["error"]) from None

    def query(self, expression):
        """Series of an instant query, as {labels, value}. ValueError for an expression that it refuses."""
        return self._get("query", query=expression)["result"]

    def query_range(self, expression, seconds):
        """Series over the last seconds, a value each."""
        now = time.time()
        return self._get("query_range", query=expression, start=now - seconds, end=now, step=1)["result"]

    def alerts(self):
        """Alerts that are pending or fire."""
        return self._get("alerts")["alerts"]
