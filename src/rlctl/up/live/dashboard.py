"""The picture of `rlctl top`."""

from typing import Any

from rich.bar import Bar
from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from rlctl.up.live.progress import COLOURS

Json = dict[str, Any]
WIDTH = 24


def picture(moment: Json) -> RenderableType:
    """One frame, from `Watch.read()`."""
    run = moment["run"]
    head = Text.assemble(
        (run["name"], "bold"),
        f"  {run['status']}  step {run['step']}/{run['steps']}",
        "" if moment["live"] else ("  the pool is not running: its last numbers", "yellow"),
    )
    side = Table.grid(expand=True, padding=(0, 1))
    side.add_column(ratio=1)
    side.add_column(ratio=1)
    side.add_row(Panel(_queue(moment), title="queue"), Panel(_outcomes(moment["outcomes"]), title="samples"))
    parts: list[RenderableType] = [head, side, Panel(_components(moment), title="components")]
    if moment["ended"]:
        parts.append(Panel(_ended(moment["ended"]), title="last ended"))
    return Group(*parts)


def _queue(moment: Json) -> Table:
    """Training groups by state, and what waits beside them."""
    pool, groups = moment["pool"], moment["groups"]
    table = Table.grid(padding=(0, 1))
    limit = max([1, int(pool.get("groups_limit", 0)), *groups.values()])
    for name, number in groups.items():
        table.add_row(Text(name, "dim"), str(number), Bar(limit, 0, number, width=WIDTH, color="green"))
    table.add_row(
        Text("in flight", "dim"), f"{int(pool.get('groups_in_flight', 0))}/{int(pool.get('groups_limit', 0))}"
    )
    table.add_row(Text("to score", "dim"), str(int(pool.get("queue_unscored", 0))))
    table.add_row(Text("resident", "dim"), f"{pool.get('resident_bytes', 0) / 2**20:.1f} MB")
    return table


def _outcomes(outcomes: dict[str, int]) -> Table:
    """Every training sample by its end."""
    table = Table.grid(padding=(0, 1))
    most = max(1, outcomes["created"])
    for name, number in outcomes.items():
        if number or name in ("created", "open", "trained"):
            colour = "red" if name in ("failed", "expired") else "green"
            table.add_row(Text(name, "dim"), str(number), Bar(most, 0, number, width=WIDTH, color=colour))
    return table


def _components(moment: Json) -> Table:
    table = Table(box=None, pad_edge=False)
    for name in ("name", "state", "version", "per second"):
        table.add_column(name)
    for row in moment["components"]:
        rates = moment["rates"].get(row["name"], {})
        if row["name"] == "pool" and "policy_version" in moment["pool"]:
            row = row | {"policy_version": int(moment["pool"]["policy_version"])}
        table.add_row(
            row["name"],
            Text(row["state"], COLOURS.get(row["state"], "")),
            "" if row["policy_version"] is None else str(row["policy_version"]),
            "  ".join(f"{value:,.1f} {unit}" for unit, value in rates.items()),
        )
    return table


def _ended(ended: list[Json]) -> Table:
    table = Table(box=None, pad_edge=False)
    for name in ("trajectory", "env", "outcome", "reward", "steps", "tokens", "versions"):
        table.add_column(name)
    for row in ended:
        reward = "" if row["reward"] is None else f"{row['reward']:.3g}"
        versions = ",".join(map(str, row["versions"]))
        numbers = (str(row["steps"]), str(row["tokens"]), versions)
        table.add_row(Text(row["uid"]), Text(row["env"]), row["outcome"], reward, *numbers)
    return table
