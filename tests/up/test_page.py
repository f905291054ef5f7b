"""report.html: what stands on it, and what a real browser makes of it."""

import json
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from rlctl.config import load
from rlctl.config.serving import Env
from rlctl.envs.lookup import family
from rlctl.pictures import files
from rlctl.pictures.record import Recorder
from rlctl.up.planning import provenance
from rlctl.up.report import report
from rlctl.up.report.page import samples
from rlctl.up.report.page.charts import Chart, Line, Point, figure, number, thinned, ticks
from rlctl.up.report.page.curves import rates
from rlctl.up.report.page.markup import Html, single, table, tag
from tests.up.browser import screenshot, visit

LARGEST = 5_000_000


def keep(run_dir: Path, step: int, answers: list[str], series: str = "val", uid: str = "val-1") -> None:
    env = Env.model_validate({"name": "frozenlake", "max_turns": 4})
    made = family(env)
    instance = next(made.distinct("val", 0))
    recorder = Recorder(made.episode(instance, 0))
    for answer in answers:
        recorder.feed(answer)
    where = {"uid": uid, "env": "frozenlake", "tag": "frozenlake", "series": series, "step": step, "number": 0}
    files.save(run_dir, recorder.episode(recorder.facts(), instance=instance.key, **where))  # type: ignore[arg-type]


@pytest.fixture
def page(run_dir: Path) -> Path:
    """The page of a finished run with an evaluation's episode before and after."""
    loaded = load(["frozenlake-cpu"], ["run.steps=80"], environ={})
    (run_dir / "resolved.toml").write_text(loaded.toml())
    provenance.note(run_dir, loaded)
    keep(run_dir, 0, ["<script>alert('out')</script>"], uid="val-before")
    keep(run_dir, 80, ["<answer>Left</answer>", "<answer>Up</answer>"], uid="val-after")
    report.report(run_dir)
    return run_dir / "report.html"


def test_the_page_opens_in_a_browser_without_a_word_on_the_console(page: Path, tmp_path: Path) -> None:
    document, console = visit(page, tmp_path)
    assert console == []
    assert document.count("<polyline") >= 6
    assert document.count('class="episode"') == 2
    assert re.search(r'<img src="data:image/png;base64,[^"]{500,}" alt="frozenlake: start"', document)


def test_an_error_of_a_page_would_be_seen(tmp_path: Path) -> None:
    broken = tmp_path / "broken.html"
    broken.write_text("<script>nothing.there()</script>")
    _, console = visit(broken, tmp_path)
    assert "nothing is not defined" in "".join(console)


def test_frames_can_be_stepped_through(page: Path, tmp_path: Path) -> None:
    click = "<script>document.querySelectorAll('[data-move=\"1\"]')[1].click()</script></body>"
    page.write_text(page.read_text().replace("</body>", click))
    document, console = visit(page, tmp_path)
    assert console == []
    assert 'alt="turn 1: Left, reward 0"' in document
    assert re.search(r'<li data-turn="1" class="now">', document)


@pytest.mark.parametrize("dark", [False, True])
def test_curves_and_frames_can_be_seen(page: Path, tmp_path: Path, dark: bool) -> None:
    with Image.open(screenshot(page, tmp_path, 1280, 3000, dark)) as picture:
        seen = picture.convert("RGB")
    paper = seen.getpixel((5, 5))
    assert isinstance(paper, tuple) and (max(paper) < 60) == dark
    colours = {colour for _, colour in seen.getcolors(2_000_000) or []}
    curve = (0x6A, 0xA5, 0xE8) if dark else (0x1F, 0x5F, 0xA8)
    assert curve in colours
    assert any(abs(r - 0xE4) < 4 and abs(g - 0xF0) < 4 and abs(b - 0xF8) < 6 for r, g, b in colours)  # ice


def test_what_a_model_said_never_becomes_markup(page: Path) -> None:
    text = page.read_text()
    assert "&lt;script&gt;alert(&#x27;out&#x27;)&lt;/script&gt;" in text
    assert "<script>alert" not in text


def test_nothing_is_loaded_from_outside_and_the_page_is_small(page: Path) -> None:
    text = page.read_text()
    assert not re.search(r"""(src|href)=["'](?!data:)""", text)
    assert "default-src 'none'" in text
    assert len(text.encode()) < LARGEST


def test_the_page_names_rates_with_error_floor_and_ceiling_and_origins(page: Path) -> None:
    text = page.read_text()
    assert "40.0% ± 3.1%" in text and "77.2% ± 2.6%" in text and "+37.2" in text
    assert "random 13.7%" in text and "optimal 100%" in text
    assert "<td>-s run.steps=80</td>" in re.sub(r"</?span[^>]*>", "", text)
    assert re.search(r"frozenlake-cpu\.toml:\d+", text)
    assert "21,000" in text and "zero_variance" in text


def test_a_run_that_was_stopped_before_a_second_measurement_claims_no_change(run_dir: Path) -> None:
    path = run_dir / "metrics" / "eval.jsonl"
    first = [line for line in path.read_text().splitlines(keepends=True) if json.loads(line)["step"] == 0]
    path.write_text("".join(first))
    written = report.report(run_dir)
    from rich.console import Console

    console = Console(width=140, record=True, file=open("/dev/null", "w"))  # noqa: SIM115, PTH123
    report.show(console, run_dir, written)
    shown = console.export_text()
    assert "at step 0" in shown and "after 0 steps" not in shown and "+0.0" not in shown
    assert "→" not in (run_dir / "report.html").read_text()


def test_a_run_without_anything_has_a_page(tmp_path: Path) -> None:
    report.report(tmp_path)
    assert "unknown" in (tmp_path / "report.html").read_text()


def test_episodes_beyond_the_budget_are_left_out_and_counted(
    page: Path,
    run_dir: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(samples, "BUDGET", 2_000)
    report.report(run_dir)
    text = page.read_text()
    assert "2 more are in pictures/ of the run directory" in text
    assert 'class="episode"' not in text and "data:image/png" not in text


def test_markup_is_escaped_unless_it_is_markup() -> None:
    assert tag("p", "a < b", class_="x") == '<p class="x">a &lt; b</p>'
    assert tag("p", Html("<b>x</b>"), hidden=True, title=None) == "<p hidden><b>x</b></p>"
    assert single("img", alt='"') == '<img alt="&quot;"/>'
    assert '<th class="number" scope="col">n</th>' in table(("a", "n"), [("x", 1)], "")


@given(st.floats(-1e3, 1e3), st.floats(1e-3, 1e3))
def test_all_of_a_chart_stands_within_its_frame(low: float, span: float) -> None:
    drawn = figure(Chart("x", [Line("a", [Point(0, low), Point(1, low + span)])]), width=340, height=190)
    heights = [float(found) for found in re.findall(r' y[12]?="([^"]+)"', drawn)]
    heights += [float(y) for points in re.findall(r'points="([^"]+)"', drawn) for y in re.findall(r",(\S+)", points)]
    assert min(heights) >= 0
    assert max(heights) <= 190


def test_ticks_are_round_and_cover_the_values() -> None:
    assert ticks(0.0, 1.0, 5) == [0.0, 0.2, 0.4, 0.6, 0.8, 1.0]
    assert ticks(-0.48, -0.21) == [-0.5, -0.4, -0.3, -0.2]
    assert ticks(3.0, 3.0)[0] <= 3.0
    assert (number(0.301, True), number(12345.6), number(0.000123)) == ("30.1%", "12,346", "0.000123")


def test_long_lines_become_means_of_equal_stretches() -> None:
    points = [Point(i, 2 * i, 0) for i in range(1000)]
    fewer = thinned(points, 100)
    assert len(fewer) == 100 and fewer[0] == Point(4.5, 9.0, 0)
    assert thinned(points[:5], 100) == points[:5]


def test_a_chart_without_points_is_nothing_and_one_point_is_a_mark() -> None:
    assert figure(Chart("x", [Line("a", [])])) == ""
    assert "<circle" in figure(Chart("x", [Line("a", [Point(3, 0.5)])]))


def test_a_step_after_a_resume_has_no_rate() -> None:
    rows = [
        {"t": 0.0, "step": 1, "tokens": 10},
        {"t": 2.0, "step": 2, "tokens": 10},
        {"t": 9.0, "step": 4, "tokens": 1},
    ]
    assert rates(rows) == [Point(2, 5.0)]


def test_a_resumed_run_keeps_the_origins_it_had(tmp_path: Path) -> None:
    first = load(["frozenlake-cpu"], ["run.steps=80"], environ={})
    provenance.note(tmp_path, first)
    (tmp_path / "resolved.toml").write_text(first.toml())
    again = load([str(tmp_path / "resolved.toml")], ["train.optim.lr=1e-5"], environ={})
    provenance.note(tmp_path, again)
    places = provenance.read(tmp_path)["places"]
    assert places["run.steps"] == "-s run.steps=80"
    assert places["train.optim.lr"] == "-s train.optim.lr=1e-5"
    assert places["run.seed"].endswith("frozenlake-cpu.toml:6")
