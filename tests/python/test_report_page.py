"""`kvbridge report` of the family's artifact, as Chromium shows it on a phone and on a desk."""

from __future__ import annotations

import subprocess

import pytest
from chromium import VIEWS, Chromium
from conftest import ARTIFACT, FAMILY, binary


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    folder = tmp_path_factory.mktemp("report")
    native, page = folder / "artifact", folder / "report.html"
    configs = [f"--{end}-config={FAMILY}/{member}/config.json" for end, member in (("source", "small"), ("target", "large"))]
    for arguments in (["artifact", "convert", *configs, ARTIFACT, native], ["report", native, "-o", page]):
        subprocess.run([binary("KVBRIDGE_CLI"), *arguments], check=True, capture_output=True)
    return page.as_uri()


@pytest.fixture(scope="module")
def browser():
    with Chromium() as running:
        yield running


@pytest.mark.parametrize("width,dark", VIEWS)
def test_the_page_fits_loads_nothing_and_complains_of_nothing(report, browser, width, dark):
    page = browser.open(report, width, dark)
    page.save(f"report-{width}-{'dark' if dark else 'light'}")
    assert page.complaints == [] and page.overflow <= 0
    assert [request for request in page.requests if not request.startswith("data:")] == [report]
    assert "UNPROVEN" in page.text and "kvbridge-family/small" in page.text
