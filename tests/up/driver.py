"""`rlctl up` with components for tests: `driver.py RUN_DIR NAME=BEHAVIOUR[@NEED+NEED]... [-- KEY=VALUE...]`."""

import sys
from pathlib import Path

from rlctl.config import load
from rlctl.up.planning.plan import Ports, ProcessSpec
from rlctl.up.run import Setup, start

COMPONENT = str(Path(__file__).with_name("component.py"))


def specs(run_dir: Path, described: list[str]) -> list[ProcessSpec]:
    """`train` ends the run; `sft` and `prepare` run to their end."""
    found = []
    for text in described:
        name, _, rest = text.partition("=")
        behaviour, _, needs = rest.partition("@")
        stage = name if name in ("prepare", "sft", "train") else "serve"
        found.append(
            ProcessSpec(
                name,
                (sys.executable, COMPONENT, name, str(run_dir), behaviour),
                stage=stage,  # type: ignore[arg-type]
                needs=tuple(needs.split("+")) if needs else (),
                ready_when="exit" if name in ("prepare", "sft") else "announced",
                ends_run=name == "train",
            )
        )
    return found


def main(run_dir: Path, described: list[str], overrides: list[str]) -> int:
    loaded = load([], ['model.init="tiny"', 'env=[{name="frozenlake"}]', *overrides], environ={})
    ports = Ports(pool=0, gateway=0, rollout=0, engines=(), sft=0, train=0)
    return start(Setup(loaded, run_dir, specs(run_dir, described), ports, gpus=()), as_json=True)


if __name__ == "__main__":
    arguments = sys.argv[2:]
    cut = arguments.index("--") if "--" in arguments else len(arguments)
    sys.exit(main(Path(sys.argv[1]), arguments[:cut], arguments[cut + 1 :]))
