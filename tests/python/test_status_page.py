"""/statusz of a real kvbridged that has seen every fallback, as Chromium shows it on a phone and on a desk."""

from __future__ import annotations

import json

import pytest
from chromium import VIEWS, Chromium
from conftest import ROUTE, binary
from forced_reasons import DRILLED, SETTINGS, all_routes, certificate, drill, overload, streams
from kvbridge.testing import LocalServer
from kvbridge.v1 import admin_pb2, admin_pb2_grpc, transfer_pb2, transfer_pb2_grpc
from test_attacks import answer, connect


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    folder = tmp_path_factory.mktemp("status")
    settings = {"listen": {"tls": certificate(folder)}, **SETTINGS}
    with LocalServer(binary("KVBRIDGED"), all_routes(folder), settings) as running:
        with connect(running) as channel:
            stub = transfer_pb2_grpc.KvBridgeStub(channel)
            for _ in range(20):
                assert answer(stub, streams()["applied"])[0] == "applied"
            for reason, stream in streams().items():
                assert answer(stub, stream)[0] == reason
            assert overload(stub) == "overload"
            admin_pb2_grpc.AdminStub(channel).SetRoute(
                admin_pb2.SetRouteRequest(route="pair", stage=transfer_pb2.ROUTE_STAGE_CANARY, canary_share=0.25)
            )
        yield running


@pytest.fixture(scope="module")
def browser():
    with Chromium() as running:
        yield running


@pytest.mark.parametrize("width,dark", VIEWS)
def test_the_page_fits_loads_nothing_and_complains_of_nothing(server, browser, width, dark):
    address = f"http://{server.admin}/statusz"
    page = browser.open(address, width, dark)
    page.save(f"statusz-{width}-{'dark' if dark else 'light'}")
    assert page.complaints == []
    assert [request for request in page.requests if not request.startswith("data:")] == [address]
    assert page.overflow <= 0
    shown = ("degraded", "canary 25 %", "UNPROVEN", "overload", "stage: live → canary", "days left")
    assert [text for text in shown if text not in page.text] == []


def test_a_server_that_did_nothing_has_a_page_too(browser):
    with LocalServer(binary("KVBRIDGED"), [], {"memory": {"socket": ""}}) as server:
        page = browser.open(f"http://{server.admin}/statusz", 400, False)
        page.save("statusz-empty")
    assert page.complaints == [] and page.overflow <= 0
    assert "None is configured" in page.text and "speaks plaintext" in page.text


def test_the_page_as_json_counts_what_happened(server):
    status = json.loads(server.get("/statusz?format=json"))
    assert status["schema"] == "kvbridge.status/v1"
    routes = {route["route"]: route for route in status["routes"]}
    assert set(routes) == {"pair", "off", "unproven", "missing", "damaged", *map(drill, DRILLED)}
    assert routes["drill.internal"]["detail"] == "drill: 100 % of transfers fall back with internal"
    assert routes["pair"]["stage"] == "canary" and routes["pair"]["source"] == "kvbridge-family/small"
    assert routes["damaged"]["artifact"] == "" and "mapper.safetensors" in routes["damaged"]["detail"]
    assert len(status["fallbacks"]) == 12 and status["fallbacks"][0]["reason"] == "overload"
    assert status["changes"][0]["to"] == "canary"
    assert status["tls"] and status["certificates"][0]["role"] == "server"
    pools = {pool["name"]: pool for pool in status["memory"]}
    assert pools["resident weights"]["used_bytes"] == sum(route["resident_bytes"] for route in status["routes"])
    assert pools["whole process"]["used_bytes"] > pools["resident weights"]["used_bytes"] > 0


def test_rates_count_a_transfer_once():
    with LocalServer(binary("KVBRIDGED"), [ROUTE]) as server, connect(server) as channel:
        stub = transfer_pb2_grpc.KvBridgeStub(channel)
        for _ in range(3):
            assert answer(stub, streams()["applied"])[0] == "applied"
        assert answer(stub, streams()["app_gate"])[0] == "app_gate"
        # Events leave on a thread of their own, in order, and the last is waited for here.
        while len(json.loads(server.get("/eventz"))["events"]) < 4:
            pass
        status = json.loads(server.get("/statusz?format=json"))
    assert status["minute"] == {"applied": 3, "fell_back": 1, "tokens": 3 * 299}
    assert status["routes"][0]["minute"] == status["minute"]
    assert status["applied_ms"]["samples"] == 3
