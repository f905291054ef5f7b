"""A proxy in front of an engine that remembers every completion: the independent witness of what was sampled."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.client import HTTPConnection, HTTPResponse
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple
from urllib.parse import urlsplit

HOP = ("connection", "content-length", "transfer-encoding", "date", "server", "keep-alive")


class Call(NamedTuple):
    """One choice of one answered completion."""

    context: tuple[int, ...]
    response: tuple[int, ...]
    logprobs: tuple[float, ...]
    versions: str
    """Run-length, as in X-Policy-Versions."""
    session: str
    """X-Session-Id of the request: the trajectory."""
    streamed: bool


@dataclass
class Witness:
    """What passed through."""

    url: str = ""
    calls: list[Call] = field(default_factory=list)


@contextmanager
def recording(upstream: str) -> Iterator[Witness]:
    """A proxy on a free port, until the block ends."""
    witness = Witness()
    target = urlsplit(upstream).netloc

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def log_message(self, format: str, *args: Any) -> None:
            """Quiet."""

        def forward(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            connection = HTTPConnection(target, timeout=60)
            headers = {k: v for k, v in self.headers.items() if k.lower() not in ("host", "content-length")}
            connection.request(self.command, self.path, body, headers)
            response = connection.getresponse()
            sampled = self.path == "/v1/completions" and response.status == 200
            stream = sampled and response.getheader("Content-Type", "").startswith("text/event-stream")
            if stream:
                choices, versions = put_together(self.relayed(response))
            else:
                answer = response.read()
                choices = json.loads(answer)["choices"] if sampled else []
                versions = response.getheader("X-Policy-Versions", "")
            connection.close()
            if sampled:  # before the answer is out: who reads the witness after the answer finds it
                asked, session = json.loads(body), self.headers.get("X-Session-Id", "")
                for one, part in zip(choices, versions.split(";"), strict=True):
                    logprobs = tuple(one["logprobs"]["token_logprobs"])
                    ids = tuple(one["token_ids"])
                    witness.calls.append(Call(tuple(asked["prompt"]), ids, logprobs, part, session, stream))
            if stream:
                self.wfile.write(b"0\r\n\r\n")
                return
            self.head(response)
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def head(self, response: HTTPResponse) -> None:
            self.send_response(response.status)
            for name, value in response.getheaders():
                if name.lower() not in HOP:
                    self.send_header(name, value)

        def relayed(self, response: HTTPResponse) -> Iterator[bytes]:
            """Pieces of a stream, each passed on as it comes; the last chunk's end is the caller's to send."""
            self.head(response)
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            while piece := response.read1():
                self.wfile.write(b"%x\r\n%s\r\n" % (len(piece), piece))
                yield piece

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


def put_together(pieces: Iterator[bytes]) -> tuple[list[dict[str, Any]], str]:
    """Choices of a streamed completion, as a whole answer has them, and its policy versions."""
    found: dict[int, dict[str, Any]] = {}
    versions = ""
    for line in b"".join(pieces).split(b"\n"):
        data = line.strip().removeprefix(b"data: ")
        if not data or data == b"[DONE]":
            continue
        chunk = json.loads(data)
        versions = chunk.get("policy_versions") or versions
        for part in chunk.get("choices", ()):
            one = found.setdefault(part["index"], {"token_ids": [], "logprobs": {"token_logprobs": []}})
            one["token_ids"] += part.get("token_ids") or ()
            one["logprobs"]["token_logprobs"] += (part.get("logprobs") or {}).get("token_logprobs") or ()
    return [found[index] for index in sorted(found)], versions
