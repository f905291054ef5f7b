"""A proxy in front of an engine that remembers every completion: the independent witness of what was sampled."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit


@dataclass
class Witness:
    """What passed through: (context ids, response ids, logprobs, versions header) of every completion."""

    url: str = ""
    calls: list[tuple[tuple[int, ...], tuple[int, ...], tuple[float, ...], str]] = field(default_factory=list)


@contextmanager
def recording(upstream: str) -> Iterator[Witness]:
    """A proxy on a free port, until the block ends."""
    witness = Witness()
    target = urlsplit(upstream).netloc

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, format: str, *args: Any) -> None:
            """Quiet."""

        def forward(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            connection = HTTPConnection(target, timeout=60)
            headers = {k: v for k, v in self.headers.items() if k.lower() not in ("host", "content-length")}
            connection.request(self.command, self.path, body, headers)
            response = connection.getresponse()
            answer = response.read()
            connection.close()
            if self.path == "/v1/completions" and response.status == 200:
                self.witness_call(json.loads(body), json.loads(answer), response.getheader("X-Policy-Versions", ""))
            self.send_response(response.status)
            for name, value in response.getheaders():
                if name.lower() not in ("connection", "content-length", "transfer-encoding", "date", "server"):
                    self.send_header(name, value)
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def witness_call(self, request: dict[str, Any], answer: dict[str, Any], versions: str) -> None:
            (choice,) = answer["choices"]
            logprobs = tuple(choice["logprobs"]["token_logprobs"])
            witness.calls.append((tuple(request["prompt"]), tuple(choice["token_ids"]), logprobs, versions))

        do_GET = do_POST = do_PUT = forward

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    witness.url = f"http://127.0.0.1:{server.server_port}"
    try:
        yield witness
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
