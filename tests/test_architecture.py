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
PROCESSES = {"gateway", "pool", "reward", "rollout", "train", "engines", "up"}
"""Packages of one process each: they share wire messages, never code."""
MAINS = {
    *("gateway.server", "pool.server", "reward.server", "rollout.runner", "train.loop", "train.sft", "sftgen.main"),
    *("engines.server", "engines.launch", "up.run", "up.planned", "up.supervisor", "up.prepare", "up.evaluate"),
}
SIDEWAYS = {("rlctl.up.prepare", "rlctl.sftgen.main")}
"""`rlctl up` makes demonstrations exactly as `rlctl sft-gen` does."""
FOUNDATIONS = {"errors", "config", "wire", "telemetry"}
TORCH_ALLOWED = ("train.", "models.", "engines.")


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
