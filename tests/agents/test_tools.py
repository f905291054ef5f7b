"""Each tool against the real thing: the sandbox's processes, an MCP server's process, files."""

import json
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import psutil
import pytest

from rlctl.agents.tools.box import LONGEST, Box
from rlctl.agents.tools.search import Index, Passage
from rlctl.errors import ConfigError, RlctlError

SERVER = f"mcp:{sys.executable} {Path(__file__).parent / 'mcp_server.py'}"


@asynccontextmanager
async def opened(*names: str, timeout_s: float = 10.0) -> AsyncIterator[Box]:
    box = Box(list(names), timeout_s)
    try:
        await box.open()
        yield box
    finally:
        await box.close()


async def ask(box: Box, name: str, **arguments: object) -> tuple[str, bool]:
    return await box.call(name, json.dumps(arguments))


async def test_the_calculator_is_exact() -> None:
    async with opened("calculator") as box:
        assert await ask(box, "calculator", expression="(3 + 4) * 12") == ("84", True)
        assert await ask(box, "calculator", expression="1/3") == ("1/3 = 0.3333333333", True)
        text, worked = await ask(box, "calculator", expression="__import__('os')")
        assert not worked and text.startswith("error: only whole numbers")


async def test_python_runs_in_the_sandbox_and_a_program_that_hangs_is_an_answer() -> None:
    async with opened("python", timeout_s=1.0) as box:
        assert await ask(box, "python", code="print(sum(range(10)))") == ("45\n", True)
        assert await ask(box, "python", code="x = 1") == ("(nothing was printed)", True)
        assert await ask(box, "python", code="print(y)") == ("error: raised: NameError: name 'y' is not defined", False)
        text, worked = await ask(box, "python", code="while True: pass")
        assert not worked and text.startswith("error: timeout")
        text, worked = await ask(box, "python", code="import socket; socket.create_connection(('127.0.0.1', 9), 1)")
        assert not worked
    assert not [p for p in psutil.Process().children(recursive=True) if "keeper" in " ".join(p.cmdline())]


async def test_an_mcp_server_is_a_process_whose_tools_can_be_called() -> None:
    async with opened(SERVER) as box:
        assert {spec["function"]["name"] for spec in box.specs} == {"stock", "leave"}
        (spec,) = [spec["function"] for spec in box.specs if spec["function"]["name"] == "stock"]
        assert spec["parameters"]["properties"]["item"]["type"] == "string"
        assert await ask(box, "stock", item="apples") == ("12", True)
        assert not (await ask(box, "stock", item="plums"))[1]
    assert not [p for p in psutil.Process().children(recursive=True) if "mcp_server" in " ".join(p.cmdline())]


async def test_the_death_of_an_mcp_server_is_an_answer_too() -> None:
    async with opened(SERVER, timeout_s=5.0) as box:
        for _ in range(2):
            text, worked = await ask(box, "leave")
            assert not worked and text.startswith("error:")


async def test_an_mcp_server_that_is_not_there_is_an_error_at_the_start() -> None:
    with pytest.raises(RlctlError, match="failed"):
        async with opened("mcp:no-such-program-anywhere"):
            pass


async def test_functions_get_their_schema_from_their_signature() -> None:
    async with opened("tests.agents.handmade:weather", "tests.agents.handmade:slow", timeout_s=0.2) as box:
        weather = box.specs[0]["function"]
        assert weather["description"] == "The weather of a city."
        assert weather["parameters"]["required"] == ["city"]
        assert await ask(box, "weather", city="Rome", days=2) == ('{"city": "Rome", "days": 2}', True)
        assert (await ask(box, "weather", city="Atlantis"))[0] == "error: LookupError: no such city"
        text, worked = await ask(box, "weather", town="Rome")
        assert not worked and "city: Field required" in text and "town" in text


async def test_what_the_model_writes_wrong_is_told_to_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rlctl.agents.tools.box.GRACE_S", 0.0)
    async with opened("calculator", "tests.agents.handmade:slow", timeout_s=0.2) as box:
        assert (await box.call("calculater", "{}"))[0].startswith("error: there is no tool 'calculater'; there are:")
        assert (await box.call("calculator", "{"))[0].startswith("error: arguments are no JSON")
        assert await box.call("calculator", "[1]") == ("error: arguments are no JSON object", False)
        assert (await ask(box, "calculator", text="1"))[0].startswith("error: expected an argument 'expression'")
        began = time.monotonic()
        assert await ask(box, "slow", seconds=30) == ("error: no result after 0.2 s", False)
        assert time.monotonic() - began < 5


async def test_search_finds_passages_of_files(tmp_path: Path) -> None:
    corpus = tmp_path / "corpus.jsonl"
    rows = [{"title": "Whales", "text": "Whales are mammals."}, {"title": "Sharks", "text": "Sharks are fish."}]
    corpus.write_text("\n".join(map(json.dumps, rows)))
    folder = tmp_path / "notes"
    folder.mkdir()
    (folder / "a.md").write_text("Bees make honey.\n\n" + "wax " * LONGEST)
    async with opened(f"search:{corpus}") as box:
        assert await ask(box, "search", query="what are whales?") == (
            "[1] Whales\nWhales are mammals.\n\n[2] Sharks\nSharks are fish.",
            True,
        )
        assert await ask(box, "search", query="zebra") == ("nothing found", True)
    async with opened(f"search:{folder}") as box:
        assert (await ask(box, "search", query="honey"))[0] == "[1] a.md\nBees make honey."


def test_bm25_by_hand() -> None:
    index = Index([Passage("", "a a b"), Passage("", "a c"), Passage("", "c c c c")])
    # idf(b) is larger than idf(a); only passage 0 has b
    assert [passage.text for passage in index.best("b a")] == ["a a b", "a c"]
    # both have c; 4 of 4 words weigh more than 1 of 2: 4*2.2/(4+1.2*(.25+.75*4/3)) > 1*2.2/(1+1.2*(.25+.75*2/3))
    assert [passage.text for passage in index.best("c")] == ["c c c c", "a c"]


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["calculater"], "no tool 'calculater'"),
        (["search:/no/such/corpus"], "no such file or folder"),
        (["tests.agents.handmade:missing"], "cannot be imported"),
        (["tests.agents.handmade:anything"], "has no name"),
        (["calculator", "calculator"], "same name: calculator"),
    ],
)
async def test_tools_that_cannot_be_had_are_configuration_errors(names: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        async with opened(*names):
            pass
