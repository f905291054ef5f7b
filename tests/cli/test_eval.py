"""`rlctl eval --base-url`: a foreign OpenAI endpoint, resumed, with pass@k."""

import json
import os
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest


class Endpoint:
    """Answers "4" to every first and third try at a question, else "5"; fails while `broken`."""

    def __init__(self) -> None:
        endpoint = self
        self.asked: list[dict] = []
        self.keys: set[str] = set()
        self.broken = False

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                endpoint.keys.add(self.headers.get("Authorization", ""))
                endpoint.asked.append(body)
                right = len([one for one in endpoint.asked if one["messages"] == body["messages"]]) % 2
                text = "#### 4" if right else "#### 5"
                reply = json.dumps({"choices": [{"message": {"content": text}, "finish_reason": "stop"}]}).encode()
                self.send_response(400 if endpoint.broken else 200)
                self.send_header("Content-Length", str(len(reply)))
                self.end_headers()
                self.wfile.write(reply)

            def log_message(self, *_: object) -> None: ...

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}/v1"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()


@pytest.fixture
def endpoint():
    started = Endpoint()
    yield started
    started.server.shutdown()
    started.server.server_close()


def evaluate(folder: Path, endpoint: Endpoint, *args: str) -> subprocess.CompletedProcess[str]:
    (folder / "train.jsonl").write_text("")
    rows = [{"question": f"{i} + {4 - i}?", "answer": "4"} for i in range(3)]
    (folder / "test.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    preset = (
        f'[model]\ninit = "tiny"\n[[env]]\nname = "questions"\nmax_turns = 1\npath = "{folder}"\nval_split = "test"\n'
    )
    (folder / "q.toml").write_text(preset)
    words = ["eval", str(folder / "q.toml"), "--base-url", endpoint.url, "--model", "gpt", "--episodes", "3"]
    command = [sys.executable, "-m", "rlctl", *words, "--api-key-env", "MY_KEY", "--out", str(folder / "out"), *args]
    environ = {**os.environ, "MY_KEY": "secret"}
    return subprocess.run(command, capture_output=True, text=True, timeout=60, env=environ)


def test_a_foreign_endpoint_is_measured_and_not_asked_twice(tmp_path: Path, endpoint: Endpoint) -> None:
    done = evaluate(tmp_path, endpoint, "--samples", "2", "--json")
    assert done.returncode == 0, done.stderr
    (row,) = json.loads(done.stdout)["results"]
    assert (row["success_rate"], row["pass_at"]["2"]["mean"], row["instances"]) == (0.5, 1.0, 3)
    assert row["floor"] is None and row["ceiling"] is None
    assert endpoint.keys == {"Bearer secret"} and {one["model"] for one in endpoint.asked} == {"gpt"}
    assert "secret" not in "".join(file.read_text() for file in (tmp_path / "out").iterdir())
    episodes = tmp_path / "out" / "episodes.jsonl"
    episodes.write_text("".join(episodes.read_text().splitlines(keepends=True)[:4]) + '{"env": "cut o')
    again = evaluate(tmp_path, endpoint, "--samples", "2")
    assert again.returncode == 0, again.stderr
    assert len(endpoint.asked) == 6 + 2
    assert "unknown" in again.stdout and "pass@2" in again.stdout
    other = evaluate(tmp_path, endpoint, "--samples", "3")
    assert other.returncode == 2 and "another samples" in other.stderr


def test_an_endpoint_that_refuses_everything_is_an_error(tmp_path: Path, endpoint: Endpoint) -> None:
    endpoint.broken = True
    done = evaluate(tmp_path, endpoint)
    assert done.returncode == 1
    assert "every episode failed, the first with: http_400" in done.stderr and "Traceback" not in done.stderr
    endpoint.broken = False
    assert evaluate(tmp_path, endpoint).returncode == 0


def test_greedy_tries_and_unknown_environments_are_refused(tmp_path: Path, endpoint: Endpoint) -> None:
    assert "greedy" in evaluate(tmp_path, endpoint, "--samples", "2", "--temperature", "0").stderr
    assert "no [[env]] has this tag" in evaluate(tmp_path, endpoint, "--env", "maze").stderr
