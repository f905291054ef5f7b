"""Before and after, as texts: the same rows on the terminal and on the page. Pure."""

from typing import Any

Json = dict[str, Any]


def before_and_after(rows: list[Json]) -> list[tuple[str, ...]]:
    """(name, temperature, episodes, floor, before, after, change in points, ceiling) of every evaluation.

    With a single measurement there is no after, and no change.
    """
    several = len({row["env"] for row in rows}) > 1
    found: list[tuple[str, ...]] = []
    for key in dict.fromkeys((row["env"], row["name"]) for row in rows):
        series = [row for row in rows if (row["env"], row["name"]) == key]
        first, last = series[0], series[-1]
        change = 100 * (last["success_rate"] - first["success_rate"])
        again = len(series) > 1
        found.append(
            (
                "/".join(key) if several else key[1],
                f"{first['temperature']:g}" if first["temperature"] else "greedy",
                str(last["episodes"]),
                percent(last["floor"]),
                rate(first),
                rate(last) if again else "",
                f"{change:+.1f}" if again else "",
                percent(last["ceiling"]),
            )
        )
    return found


def rate(row: Json) -> str:
    """ "40.0% ± 3.1%" """
    return f"{row['success_rate']:.1%} ± {row['success_se']:.1%}"


def percent(value: float | None) -> str:
    return "" if value is None else f"{value:.1%}"
