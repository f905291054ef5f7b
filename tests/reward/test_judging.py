"""A real tiny classifier, a vLLM-like /classify server, and judges behind real HTTP servers."""

import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from rlctl.config.serving import Reward
from rlctl.errors import ConfigError
from rlctl.reward.functions import Sample
from rlctl.reward.judging import Disrm, Genrm
from rlctl.reward.values import Failure

Mind = Callable[[str, dict[str, Any]], Any]


class Server:
    """POST `path` with JSON -> `mind(path, body)`: JSON, or a status number."""

    def __init__(self, mind: Mind) -> None:
        self.seen: list[tuple[str, dict[str, Any]]] = []
        self.keys: set[str | None] = set()
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                server.seen.append((self.path, body))
                server.keys.add(self.headers["Authorization"])
                answer = mind(self.path, body)
                data = json.dumps(answer).encode()
                self.send_response(answer if isinstance(answer, int) else 200)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *args: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def serve() -> Iterator[Callable[[Mind], Server]]:
    made: list[Server] = []

    def start(mind: Mind) -> Server:
        made.append(Server(mind))
        return made[-1]

    yield start
    for server in made:
        server.close()


def chat(text: str) -> dict[str, Any]:
    return {"choices": [{"message": {"role": "assistant", "content": text}}]}


def samples(*responses: str) -> list[Sample]:
    return [Sample([response], {"question": "2+2?"}) for response in responses]


# ---------------------------------------------------------------- classifiers


@pytest.fixture(scope="module")
def classifier(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Qwen2 with a classification head of random weights, and its tokenizer."""
    import torch
    from transformers import AutoConfig, Qwen2ForSequenceClassification

    from rlctl.config.learning import Tiny
    from rlctl.models.tiny import build_tiny

    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("classifier")
    build_tiny(folder, Tiny(hidden_size=32, layers=1, heads=1, mlp=32), max_context=64, seed=0)
    config = AutoConfig.from_pretrained(folder, num_labels=2)
    torch.manual_seed(0)
    Qwen2ForSequenceClassification(config).save_pretrained(folder)
    return folder


def test_a_classifier_gives_the_probability_of_its_last_class_whatever_the_batch(classifier: Path) -> None:
    texts = ["up", "left right", "a long answer " * 3, "down", "x" * 1000]
    alone = [Disrm("d", Reward(kind="disrm", model=str(classifier), batch_size=1)).values(samples(t))[0] for t in texts]
    together = Disrm("d", Reward(kind="disrm", model=str(classifier), batch_size=4)).values(samples(*texts))
    assert together == pytest.approx(alone, abs=1e-5)
    assert all(0 < value < 1 for value in together)
    assert len(set(together)) == len(texts)


def test_a_classifier_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    from rlctl.errors import RlctlError

    with pytest.raises(RlctlError, match="cannot load the classifier"):
        Disrm("d", Reward(kind="disrm", model=str(tmp_path / "nothing")))


def test_a_pooling_server_is_asked_in_batches_and_its_order_restored(serve) -> None:
    def mind(path: str, body: dict[str, Any]) -> Any:
        rows = [{"index": i, "probs": [0.0, len(text) / 100]} for i, text in enumerate(body["input"])]
        return {"data": rows[::-1]}

    server = serve(mind)
    part = Disrm("d", Reward(kind="disrm", url=server.url, model="rm", batch_size=2, template="{question} {response}"))
    assert part.values(samples("a", "bb", "ccc")) == [0.06, 0.07, 0.08]
    assert sorted((path, body["model"], len(body["input"])) for path, body in server.seen) == [
        ("/classify", "rm", 1),
        ("/classify", "rm", 2),
    ]


# ---------------------------------------------------------------- judges


def test_a_judge_reads_the_template_and_its_last_score_counts(serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JUDGE_KEY", "secret")
    server = serve(lambda path, body: chat("Score: 1? No. Score: 7.5"))
    section = Reward(
        kind="genrm", url=f"{server.url}/v1", model="big", key_env="JUDGE_KEY", template="Q {question} A {response}"
    )
    assert Genrm("j", section, "").values(samples("four")) == [7.5]
    ((path, body),) = server.seen
    assert path == "/v1/chat/completions"
    assert (body["model"], body["temperature"]) == ("big", 0.0)
    assert body["messages"] == [{"role": "user", "content": "Q 2+2? A four"}]
    assert server.keys == {"Bearer secret"}


def test_votes_are_averaged_and_one_without_a_score_is_asked_again(serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rlctl.reward.remote.PAUSE_S", 0.01)
    said = iter(["Score: 2", "I cannot say", "Score: 4", 503, "Score: 6"])
    server = serve(lambda path, body: chat(text) if isinstance(text := next(said), str) else text)
    part = Genrm("j", Reward(kind="genrm", url=server.url, votes=3, workers=1), "")
    assert part.values(samples("x")) == [4.0]
    assert part.counts == {}


def test_a_judge_without_a_score_is_a_failure_with_a_name_and_the_others_go_on(serve, monkeypatch) -> None:
    monkeypatch.setattr("rlctl.reward.remote.PAUSE_S", 0.01)
    server = serve(lambda path, body: chat("hm" if "bad" in body["messages"][0]["content"] else "score: 3"))
    part = Genrm("j", Reward(kind="genrm", url=server.url, retries=1), "")
    bad, good = part.values(samples("bad", "good"))
    assert (good, bad.kind) == (3.0, "no_score")
    assert "'hm'" in bad.text
    assert part.counts == {"no_score": 1}
    server.close()
    (gone,) = part.values(samples("x"))
    assert (gone.kind, isinstance(gone, Failure)) == ("unreachable", True)


def test_the_runs_own_engines_are_asked_on_a_channel_that_is_not_trained(serve) -> None:
    def mind(path: str, body: dict[str, Any]) -> Any:
        return {"base_url": f"{server.url}/t/p/v1"} if path == "/init_trajectory" else chat("Score: 1")

    server = serve(mind)
    assert Genrm("j", Reward(kind="genrm"), server.url).values(samples("x")) == [1.0]
    paths = ["/init_trajectory", "/t/p/v1/chat/completions", "/t/p/v1/complete_trajectory"]
    assert [path for path, _ in server.seen] == paths
    assert server.seen[0][1] == {"channel": "judge"}


@pytest.mark.parametrize(
    ("settings", "words"),
    [({"pattern": "("}, "pattern"), ({"pattern": "x"}, "no group"), ({"key_env": "NOT_SET_HERE"}, "NOT_SET_HERE")],
)
def test_what_cannot_work_is_told_at_the_start(settings: dict[str, str], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        Genrm("j", Reward(kind="genrm", **settings), "")


def test_a_template_with_an_unknown_name_says_what_there_is() -> None:
    (found,) = Genrm("j", Reward(kind="genrm", template="{answer}"), "").values(samples("x"))
    assert (found.kind, "there are: question, response, responses, task" in found.text) == ("raised", True)
