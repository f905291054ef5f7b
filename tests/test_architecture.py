"""The house rules of docs/architecture.md, checked on the source text."""

import ast
import re
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src" / "rlctl"
MODULES = {
    ".".join(path.relative_to(SOURCE.parent).with_suffix("").parts).removesuffix(".__init__"): path
    for path in sorted(SOURCE.rglob("*.py"))
}
PROCESSES = {"gateway", "pool", "reward", "rollout", "train", "engines", "up", "trackers"}
"""Packages of one process each: they share wire messages, never code."""
MAINS = {
    *("gateway.server", "pool.server", "reward.server", "rollout.runner", "train.loop", "train.sft", "sftgen.main"),
    *("engines.launch", "engines.embedded.server", "trackers.runner"),
    *("up.run", "up.planned", "up.prepare", "up.evaluate", "up.supervision.supervisor"),
}
SIDEWAYS = {("rlctl.up.prepare", "rlctl.sftgen.main")}
"""`rlctl up` makes demonstrations exactly as `rlctl sft-gen` does."""
FOUNDATIONS = {"errors", "config", "disk", "wire", "telemetry"}
TORCH_ALLOWED = ("train.", "models.", "engines.")
FLOORS = {
    "gateway": (
        *("faults tracing", "text door", "sampling", "dialects routing sessions", "calls", "report", "workers"),
        *("routes", "server"),
    ),
    "train": ("data", "objective", "layout", "ranks", "model", "weights monitor gather start", "learning", "loop sft"),
    "engines": ("embedded vllm", "launch"),
    "envs": ("base", "text exchange splits", "episode seeded", "boards", "grids tasks adapters", "lookup"),
    "up": ("planning history", "supervision live", "report", "run prepare evaluate", "planned"),
}
"""Inside a package, from the ground up: folders and modules of one floor do not know one another, nor those above."""
HEAP = 16
"""Files of one folder that a reader can still survey."""


def name_in(module: str) -> str:
    return module.removeprefix("rlctl").removeprefix(".")


def layer(module: str) -> int:
    """4 cli, 3 mains, 1 everything between (adapters and cores are told apart by what they import), 0 foundations."""
    name = name_in(module)
    package = name.partition(".")[0]
    if package in ("cli", "__main__"):
        return 4
    if name in MAINS:
        return 3
    return 0 if package in FOUNDATIONS or not package else 1


def floor(module: str) -> tuple[str, int]:
    """(folder or module just inside the package, its floor)."""
    package, _, rest = name_in(module).partition(".")
    group = rest.partition(".")[0]
    return group, next((i for i, names in enumerate(FLOORS[package]) if group in names.split()), -1)


CORES = {"solvers": {"solvers"}, "envs": {"envs", "solvers", "rules", *FOUNDATIONS}}
"""Packages that know only these: environments solve with `solvers`, and demonstrations (`sftgen`) play environments."""


def imports(path: Path, module: str) -> list[tuple[str, int]]:
    """(imported module of rlctl or of others, line), also those inside functions; `from a import b` is a.b where that
    is a module.
    """
    found = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found += [(alias.name, node.lineno) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{module}:{node.lineno}: relative import"
            for alias in node.names:
                full = f"{node.module}.{alias.name}"
                found.append((full if full in MODULES else str(node.module), node.lineno))
    return found


@pytest.mark.parametrize("module", MODULES)
def test_imports_go_downwards_only(module: str) -> None:
    for target, line in imports(MODULES[module], module):
        if target.startswith("rlctl"):
            same = name_in(module).partition(".")[0] == name_in(target).partition(".")[0]
            assert layer(target) <= layer(module), f"{module}:{line} imports upwards: {target}"
            apart = layer(target) == layer(module) == 3 and not same and (module, target) not in SIDEWAYS
            assert not apart, f"{module}:{line} imports another main: {target}"


INSIDE = [module for module in MODULES if name_in(module).partition(".")[0] in FLOORS and name_in(module).count(".")]


@pytest.mark.parametrize("module", INSIDE)
def test_folders_of_a_package_know_only_the_floors_below(module: str) -> None:
    package = name_in(module).partition(".")[0]
    group, own = floor(module)
    assert own >= 0, f"{module} stands on no floor: name {group} in FLOORS"
    for target, line in imports(MODULES[module], module):
        if target.startswith(f"rlctl.{package}."):
            other, its = floor(target)
            assert other == group or its < own, f"{module}:{line} imports {target}, which is not below {group}"


@pytest.mark.parametrize("package", FLOORS)
def test_every_floor_stands_and_no_folder_is_a_heap(package: str) -> None:
    groups = {floor(module)[0] for module in INSIDE if name_in(module).startswith(f"{package}.")}
    assert groups == set(" ".join(FLOORS[package]).split())
    for folder in (SOURCE / package, *(path.parent for path in (SOURCE / package).rglob("__init__.py"))):
        assert len(list(folder.glob("*.py"))) <= HEAP, f"{folder} has too many files to survey"


@pytest.mark.parametrize("package", [module for module in INSIDE if MODULES[module].name == "__init__.py"])
def test_a_folder_says_what_it_holds_and_hands_nothing_on(package: str) -> None:
    assert len(ast.parse(MODULES[package].read_text(encoding="utf-8")).body) == 1, (
        f"{package} holds more than its words"
    )


@pytest.mark.parametrize("module", [module for module in INSIDE if name_in(module).startswith("train.data.")])
def test_samples_and_batches_are_made_without_torch(module: str) -> None:
    for target, line in imports(MODULES[module], module):
        assert target.partition(".")[0] not in ("torch", "transformers"), f"{module}:{line} imports {target}"


@pytest.mark.parametrize("module", MODULES)
def test_processes_share_messages_never_code(module: str) -> None:
    package = name_in(module).partition(".")[0]
    if package not in PROCESSES:
        return
    for target, line in imports(MODULES[module], module):
        other = name_in(target).partition(".")[0] if target.startswith("rlctl") else ""
        assert other not in PROCESSES - {package}, f"{module}:{line} imports {target}"


@pytest.mark.parametrize("module", [module for module in MODULES if name_in(module).partition(".")[0] in CORES])
def test_solvers_know_no_environment_and_environments_no_demonstrations(module: str) -> None:
    allowed = CORES[name_in(module).partition(".")[0]]
    for target, line in imports(MODULES[module], module):
        if target.startswith("rlctl."):
            assert name_in(target).partition(".")[0] in allowed, f"{module}:{line} imports {target}"


@pytest.mark.parametrize("module", MODULES)
def test_torch_only_where_models_are(module: str) -> None:
    if name_in(module).startswith(TORCH_ALLOWED):
        return
    for target, line in imports(MODULES[module], module):
        assert target.partition(".")[0] not in ("torch", "transformers", "peft"), f"{module}:{line} imports {target}"


@pytest.mark.parametrize("module", MODULES)
def test_files_and_functions_are_short_and_say_what_they_are_for(module: str) -> None:
    text = MODULES[module].read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 400, f"{module} is over 400 lines"
    tree = ast.parse(text)
    assert ast.get_docstring(tree), f"{module} has no docstring"
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = (node.end_lineno or 0) - node.lineno + 1
            assert length <= 80, f"{module}:{node.lineno}: {node.name} has {length} lines"


@pytest.mark.parametrize("module", MODULES)
def test_nothing_is_swallowed(module: str) -> None:
    for node in ast.walk(ast.parse(MODULES[module].read_text(encoding="utf-8"))):
        if isinstance(node, ast.ExceptHandler):
            broad = node.type is None or (isinstance(node.type, ast.Name) and node.type.id == "Exception")
            silent = all(isinstance(item, ast.Pass) for item in node.body)
            assert not (broad and silent), f"{module}:{node.lineno}: swallows every exception"


def test_there_is_no_drawer_for_odds_and_ends() -> None:
    for module in MODULES:
        assert not re.search(r"\b(utils?|common|helpers?|misc)\b", module), module


def test_the_package_of_an_engine_client_is_the_only_one_that_knows_vllm() -> None:
    for module, path in MODULES.items():
        for target, line in imports(path, module):
            assert target.partition(".")[0] != "vllm" or name_in(module).startswith("engines."), f"{module}:{line}"
