"""Line numbers of keys, against TOML texts that hypothesis writes."""

from typing import Any

import tomli
import tomli_w
from hypothesis import given, settings
from hypothesis import strategies as st

from rlctl.config.locate import lines

names = st.text("abcdefgh_-0123456789", min_size=1, max_size=6)
scalars = st.one_of(
    st.integers(-(2**60), 2**60), st.booleans(), st.floats(allow_nan=False, allow_infinity=False), st.text(max_size=12)
)
values = st.one_of(scalars, st.lists(scalars, max_size=4))
tables = st.recursive(
    st.dictionaries(names, values, max_size=4),
    lambda inner: st.dictionaries(names, st.one_of(values, inner, st.lists(inner, min_size=1, max_size=3)), max_size=4),
    max_leaves=12,
)


def leaves(value: Any, at: tuple[str, ...] = ()) -> dict[tuple[str, ...], Any]:
    """Path -> value of everything that is not a table or a list of tables."""
    if isinstance(value, dict):
        return {key: leaf for name, item in value.items() for key, leaf in leaves(item, (*at, name)).items()}
    if isinstance(value, list) and value and all(isinstance(item, dict) for item in value):
        return {key: leaf for i, item in enumerate(value) for key, leaf in leaves(item, (*at, str(i))).items()}
    return {at: value}


@settings(max_examples=150, deadline=None)
@given(tables)
def test_every_key_is_found_on_the_line_that_sets_it(tree: dict[str, Any]) -> None:
    text = tomli_w.dumps(tree)
    rows = text.split("\n")
    found = lines(text)
    for path, value in leaves(tomli.loads(text)).items():
        assert path in found, (path, text)
        row = rows[found[path] - 1].strip()
        inline = row.endswith(("[", "{")) or "{" in row  # keys of an inline table stand on the line where it begins
        expected = path[:-1] if inline else path[-1:]
        assert row.startswith(tuple(form for name in (*expected, path[-1]) for form in (name, f'"{name}"'))), (
            path,
            row,
        )
        if isinstance(value, int) and not isinstance(value, bool) and not inline:
            assert str(value) in row


@settings(max_examples=50, deadline=None)
@given(tables, st.integers(0, 5))
def test_lines_before_a_text_move_it_down(tree: dict[str, Any], above: int) -> None:
    text = tomli_w.dumps(tree)
    moved = lines("# comment\n" * above + text)
    assert moved == {path: line + above for path, line in lines(text).items()}


def test_hand_written_toml() -> None:
    text = """\
top = 1

[run] # comment
name = "a = b [x]"
list = [
  1,   # one
  2,
]
after = 2
inline = { x = 1, y = [3] }
a.b = 1

[[env]]
name = "one"
[env.deep]
k = 1
[[env]]
name = "two"

[ "quoted" . key ]
v = '''
[not.a.table]
w = 1
'''
z = 1
"""
    found = lines(text)
    assert found["top",] == 1
    assert found["run",] == 3
    assert found["run", "name"] == 4
    assert found["run", "list"] == found["run", "list", "1"] == 5
    assert found["run", "after"] == 9
    assert found["run", "inline", "y", "0"] == 10
    assert found["run", "a", "b"] == 11
    assert found["env", "0", "name"] == 14
    assert found["env", "0", "deep", "k"] == 16
    assert found["env", "1", "name"] == 18
    assert found["quoted", "key", "v"] == 21
    assert found["quoted", "key", "z"] == 25
    assert ("not", "a", "table") not in found
