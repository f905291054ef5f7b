"""Traces, sent to a real OTLP receiver."""

import subprocess
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from conftest import running
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from rlctl.gateway import tracing

HELLO = [{"role": "user", "content": "hello"}]
TRACE, CALLER = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


class Collector:
    """POST /v1/traces."""

    def __init__(self) -> None:
        self.spans: list[Span] = []
        self.services: set[str] = set()

    async def start(self) -> "Collector":
        app = web.Application()
        app.router.add_post("/v1/traces", self.take)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}"
        return self

    async def take(self, request: web.Request) -> web.Response:
        for resource in ExportTraceServiceRequest.FromString(await request.read()).resource_spans:
            self.services |= {
                one.value.string_value for one in resource.resource.attributes if one.key == "service.name"
            }
            for scope in resource.scope_spans:
                self.spans.extend(scope.spans)
        return web.Response(content_type="application/x-protobuf")

    async def stop(self) -> None:
        await self._runner.cleanup()

    def named(self, name: str) -> list[Span]:
        return [span for span in self.spans if span.name == name]


@pytest.fixture
async def collector() -> AsyncIterator[Collector]:
    one = await Collector().start()
    yield one
    await one.stop()


def attributes(span: Span) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for one in span.attributes:
        kind = one.value.WhichOneof("value")
        value = getattr(one.value, kind)
        found[one.key] = [item.int_value for item in value.values] if kind == "array_value" else value
    return found


async def test_one_trace_leads_from_the_callers_span_to_the_step(tmp_path: Path, collector: Collector) -> None:
    headers = {"traceparent": f"00-{TRACE}-{CALLER}-01"}
    async with running(tmp_path, otlp_endpoint=collector.url) as stack:
        body = {"messages": HELLO, "n": 2}
        assert (await stack.client.post("/t1/p1/v1/chat/completions", body, headers=headers))[0] == 200
        engine = stack.engine
    (request,) = collector.named("POST chat/completions")
    (call,) = collector.named(f"engine {engine.url}")
    (submit,) = collector.named("pool submit")
    assert {span.trace_id.hex() for span in (request, call, submit)} == {TRACE}
    assert request.parent_span_id.hex() == CALLER
    assert call.parent_span_id == submit.parent_span_id == request.span_id
    assert engine.headers[-1]["traceparent"] == f"00-{TRACE}-{call.span_id.hex()}-01"
    assert attributes(submit)["rlctl.trajectory_uid"] == "t1" and attributes(submit)["rlctl.step_index"] == [0, 1]
    assert attributes(request)["http.response.status_code"] == 200
    assert request.start_time_unix_nano <= call.start_time_unix_nano <= call.end_time_unix_nano
    assert call.end_time_unix_nano <= submit.end_time_unix_nano <= request.end_time_unix_nano
    assert collector.services == {"rlctl-gateway"}


async def test_a_streamed_call_is_one_trace_of_its_own_and_a_failed_engine_a_span(
    tmp_path: Path, collector: Collector, monkeypatch
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url)
    monkeypatch.setenv("OTEL_SERVICE_NAME", "door")
    async with running(tmp_path, engines=2) as stack:
        stack.engines[0].status = 500
        for uid in ("t1", "t2", "t3"):
            body = {"messages": HELLO, "stream": True}
            async with stack.client.http.post(f"{stack.client.url}/{uid}/{uid}/v1/chat/completions", json=body) as one:
                assert "[DONE]" in await one.text()
        await stack.client.get("/ready")
    requests = collector.named("POST chat/completions")
    assert len({span.trace_id for span in requests}) == 3 and not any(span.parent_span_id for span in requests)
    assert len(collector.named("pool submit")) == 3
    assert len([span for span in collector.spans if span.name.startswith("engine")]) > 3, "each attempt"
    assert not any("ready" in span.name for span in collector.spans)
    assert collector.services == {"door"}


async def test_a_collector_that_is_away_costs_no_call_and_no_long_end(tmp_path: Path) -> None:
    async with running(tmp_path, otlp_endpoint="http://127.0.0.1:9") as stack:
        await stack.client.chat("t1", HELLO)
        started = time.monotonic()
    assert time.monotonic() - started < 3


def test_without_an_endpoint_nothing_is_imported(monkeypatch) -> None:
    for name in ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"):
        monkeypatch.delenv(name, raising=False)
    assert tracing.configured("") is None
    code = "import sys, rlctl.gateway.server; print([name for name in sys.modules if 'opentelemetry' in name])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"
