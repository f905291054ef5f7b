"""OpenTelemetry traces, where an endpoint is configured: one trace from the agent's request to the Step in the pool.

    POST chat/completions            SERVER   continues the caller's `traceparent`
      engine http://HOST:PORT        CLIENT   one per attempt; the engine gets `traceparent`
      pool submit                    PRODUCER from the hand-over to the pool's acknowledgement, names the Steps

The library (extra `otel`) is imported only here, and this is constructed only when it is wanted: without an endpoint a
request pays three comparisons with None.
"""

import asyncio
import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from rlctl.errors import ConfigError
from rlctl.wire.samples import Step

CLOSE_S = 1.0
"""For the last spans to go out when the gateway ends."""


def configured(endpoint: str) -> "Tracing | None":
    """Tracing to gateway.otlp_endpoint, or where OpenTelemetry's own variables say; None when neither is set."""
    named = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
    return Tracing(endpoint) if endpoint or any(os.environ.get(name) for name in named) else None


class Tracing:
    """Makes spans and sends them in the background. Starts a thread: one per process, after any fork."""

    def __init__(self, endpoint: str) -> None:
        try:
            from opentelemetry import trace
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
            from opentelemetry.sdk.resources import SERVICE_NAME, Resource
            from opentelemetry.sdk.trace import TracerProvider
            from opentelemetry.sdk.trace.export import BatchSpanProcessor
            from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
        except ImportError as error:
            raise ConfigError(f"traces need OpenTelemetry: pip install 'rlctl[otel]' ({error})") from None
        name = os.environ.get("OTEL_SERVICE_NAME") or "rlctl-gateway"
        self._provider = TracerProvider(resource=Resource.create({SERVICE_NAME: name}), shutdown_on_exit=False)
        exporter = OTLPSpanExporter(f"{endpoint.rstrip('/')}/v1/traces") if endpoint else OTLPSpanExporter()
        self._provider.add_span_processor(BatchSpanProcessor(exporter))
        self._tracer = self._provider.get_tracer("rlctl.gateway")
        self._context = TraceContextTextMapPropagator()
        self._kinds = trace.SpanKind
        self._failed = trace.Status(trace.StatusCode.ERROR)

    @contextmanager
    def request(self, scope: dict[str, Any]) -> Iterator[Any]:
        """The span of one request; what happens inside belongs to it, also in tasks begun there."""
        carried = {b"traceparent", b"tracestate"}
        headers = {name.decode(): value.decode("latin-1") for name, value in scope["headers"] if name in carried}
        parent, kind = self._context.extract(headers), self._kinds.SERVER
        with self._tracer.start_as_current_span(scope["method"], parent, kind) as span:
            yield span

    def answered(self, span: Any, method: str, route: str, status: int, uid: str) -> None:
        """What is known when the request has been answered."""
        span.update_name(f"{method} {route}")
        span.set_attributes({"http.request.method": method, "http.route": route, "http.response.status_code": status})
        if uid:
            span.set_attribute("rlctl.trajectory_uid", uid)
        if status >= 500:
            span.set_status(self._failed)

    @contextmanager
    def engine(self, url: str, headers: dict[str, str]) -> Iterator[None]:
        """The span of one call to an engine; `headers` get its `traceparent`."""
        attributes = {"server.address": url}
        with self._tracer.start_as_current_span(f"engine {url}", kind=self._kinds.CLIENT, attributes=attributes):
            self._context.inject(headers)
            yield

    def submitted(self, steps: Sequence[Step], acknowledged: asyncio.Future[None]) -> None:
        """The span of Steps on their way to the pool; it ends when they are on its disk, or refused."""
        attributes: dict[str, Any] = {
            "rlctl.trajectory_uid": steps[0].trajectory_uid,
            "rlctl.step_index": [step.step_index for step in steps],
            "rlctl.response_tokens": sum(len(step.response_ids) // 4 for step in steps),
        }
        span = self._tracer.start_span("pool submit", kind=self._kinds.PRODUCER, attributes=attributes)

        def ended(future: asyncio.Future[None]) -> None:
            if future.cancelled() or future.exception() is not None:
                span.set_status(self._failed)
            span.end()

        acknowledged.add_done_callback(ended)

    def close(self) -> None:
        """Send what is left; a collector that does not answer is not waited for."""
        last = threading.Thread(target=self._provider.shutdown, daemon=True)
        last.start()
        last.join(CLOSE_S)
