"""What must be true before anything starts; every problem found is reported at once, with its place (ConfigError)."""

import importlib.util
import os
import re
import shutil
from collections.abc import Callable, Iterator
from importlib.machinery import PathFinder
from pathlib import Path

from rlctl.config import Loaded
from rlctl.config.base import MASK
from rlctl.config.root import TRACKERS
from rlctl.config.suggest import nearest
from rlctl.config.worlds import PACKAGES, missing
from rlctl.errors import ConfigError
from rlctl.up.planning.plan import ProcessSpec
from rlctl.wire.ports import in_use

HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*(/[\w.-]+)?")


def check(
    loaded: Loaded, specs: list[ProcessSpec], hub: Callable[[str, str], str | None], starting: bool = True
) -> None:
    """Raise ConfigError for ports in use, a model or files that are not there, ranks that do not fit, missing packages.

    `hub(id, revision)` says why a model id cannot be had, or None (see `hub_problem`). Not `starting`: what only
    matters on the machine that runs it is left out.
    """
    names = {spec.name for spec in specs}
    found = [*_ports(loaded, names), *_model(loaded, hub), *_files(loaded, names), *_ranks(loaded, names)]
    if starting:
        found += [*_task(loaded, names), *_modules(loaded, names), *_packages(names)]
        found += [*_redis(loaded, names), *_trackers(loaded, names)]
    if found:
        raise ConfigError(found)


def place(loaded: Loaded, dotted: str) -> str:
    """ "FILE:LINE: a.b" for a key that was set, "a.b" for a default."""
    where = loaded.places.get(tuple(dotted.split(".")))
    return f"{where}: {dotted}" if where else dotted


def _ports(loaded: Loaded, names: set[str]) -> Iterator[str]:
    config = loaded.config
    seen: dict[int, str] = {}
    for name, section in (("pool", config.pool), ("gateway", config.gateway), ("rollout", config.rollout)):
        if name not in names:
            continue
        key, port = f"{name}.port", section.port
        try:
            taken = in_use(section.host, port)  # port 0 never is, but the address may be another machine's
        except ConfigError as error:
            yield f"{place(loaded, f'{name}.host')}: {error}"
            continue
        if port in seen:
            yield f"{place(loaded, key)}: {port} is also {place(loaded, seen[port])}"
        elif taken:
            yield f"{place(loaded, key)}: {port} is in use on {section.host}; 0 picks a free one"
        if port:
            seen.setdefault(port, key)


def _model(loaded: Loaded, hub: Callable[[str, str], str | None]) -> Iterator[str]:
    path = loaded.config.model.path
    if not path:
        return
    where, folder = place(loaded, "model.path"), Path(path).expanduser()
    if folder.is_dir():
        if not (folder / "config.json").is_file():
            yield f"{where}: {path} has no config.json, so it is no Hugging Face model folder{_near(folder)}"
    elif folder.exists():
        yield f"{where}: {path} is a file; a Hugging Face model folder or id is expected"
    elif not HUB_ID.fullmatch(path):
        yield f"{where}: {path} is not there{_near(folder)}"
    elif problem := hub(path, loaded.config.model.revision):
        yield f"{where}: there is no folder {path}{_near(folder)}, and as a Hugging Face id: {problem}"


def _ranks(loaded: Loaded, names: set[str]) -> Iterator[str]:
    """The trainer's sizes divide its processes; it asks again, where it may run on several hosts."""
    if not names & {"train", "sft"}:
        return
    train = loaded.config.train
    parallel = train.parallel
    together = parallel.tensor * parallel.sequence * parallel.pipeline
    where = place(loaded, "train.processes")
    if train.processes % together:
        yield f"{where}: {train.processes} is no multiple of train.parallel.tensor x sequence x pipeline = {together}"
    elif train.fsdp.shard_size and train.processes // (parallel.tensor * parallel.pipeline) % train.fsdp.shard_size:
        yield (
            f"{where}: {train.processes} / train.parallel.tensor / pipeline is no multiple of "
            f"train.fsdp.shard_size = {train.fsdp.shard_size}"
        )


def hub_problem(model: str, revision: str) -> str | None:
    """Ask the local cache, then the hub, for the model's config.json."""
    from huggingface_hub import hf_hub_download, try_to_load_from_cache
    from huggingface_hub.errors import HfHubHTTPError, RepositoryNotFoundError, RevisionNotFoundError

    if isinstance(try_to_load_from_cache(model, "config.json", revision=revision or None), str):
        return None
    try:
        hf_hub_download(model, "config.json", revision=revision or None, etag_timeout=10)
    except RepositoryNotFoundError:
        return "the hub has no such model (or it needs HF_TOKEN)"
    except RevisionNotFoundError:
        return f"the hub's model has no revision {revision!r}"
    except (HfHubHTTPError, OSError, ValueError) as error:
        return f"not in the local cache, and the hub cannot be asked ({type(error).__name__})"
    return None


def _near(folder: Path) -> str:
    """A hint: the model folder beside it with the most similar name."""
    parent = folder.parent
    if not parent.is_dir():
        return ""
    models = [item.name for item in parent.iterdir() if (item / "config.json").is_file() and item.name != folder.name]
    hint = nearest(folder.name, models)
    return f"; did you mean {parent / hint}?" if hint else ""


def _files(loaded: Loaded, names: set[str]) -> Iterator[str]:
    config = loaded.config
    data = config.sft.data.path
    if "sft" in names and data and not Path(data).is_file():
        yield f"{place(loaded, 'sft.data.path')}: {data} is not there"
    python = config.engine.vllm_python
    if python and not os.access(python, os.X_OK):
        yield f"{place(loaded, 'engine.vllm_python')}: {python} is no executable; `make vllm-cpu` builds one"


def _task(loaded: Loaded, names: set[str]) -> Iterator[str]:
    if not loaded.config.env and names & {"rollout", "prepare"}:
        yield "the configuration has no [[env]]: what is the model to learn?"
    for number, env in enumerate(loaded.config.env if "rollout" in names else []):
        if env.command and shutil.which(env.command[0]) is None:
            yield f"{place(loaded, f'env.{number}.command')}: no program {env.command[0]!r} can be found"


def _modules(loaded: Loaded, names: set[str]) -> Iterator[str]:
    """Packages of environments, and everybody's `module:name`, wherever a process of the run will import them."""
    config, written = loaded.config, list[tuple[str, str]]()
    for number, env in enumerate(config.env if "rollout" in names else []):
        if env.name in PACKAGES and not _importable(env.name):
            yield f"{place(loaded, f'env.{number}.name')}: {missing(env.name)}"
        written += [(f"env.{number}.name", env.name), (f"env.{number}.agent", env.agent)]
    if "reward" in names:
        written += [(f"reward.{name}.fn", part.fn) for name, part in config.reward.items()]
    if "track" in names:
        written += [("monitor.trackers", name) for name in config.monitor.trackers]
    for key, value in written:
        module, colon, _ = value.partition(":")
        if colon and not _importable(module):
            yield f"{place(loaded, key)}: no module {module!r} can be found, here or in PYTHONPATH"


def _importable(module: str) -> bool:
    """Whether `python -m rlctl`, started here, finds it (its topmost package: nobody's code is run to tell)."""
    top = module.partition(".")[0]
    return bool(top) and (importlib.util.find_spec(top) or PathFinder.find_spec(top, [str(Path.cwd())])) is not None


def _packages(names: set[str]) -> Iterator[str]:
    for needed in ("torch", "transformers"):
        if names & {"train", "sft", "prepare"} and importlib.util.find_spec(needed) is None:
            yield f"training needs {needed}, which is not installed: pip install 'rlctl[train]'"


def _redis(loaded: Loaded, names: set[str]) -> Iterator[str]:
    if "pool" not in names or not loaded.config.pool.in_redis:
        return
    where = place(loaded, "pool.url")
    if importlib.util.find_spec("redis") is None:
        yield f"{where}: Redis needs the package redis, which is not installed: pip install 'rlctl[redis]'"
    if MASK in loaded.config.pool.url:
        yield f"{where}: the password is not kept in resolved.toml: give the address again, e.g. in RLCTL__POOL__URL"


def _trackers(loaded: Loaded, names: set[str]) -> Iterator[str]:
    for name in loaded.config.monitor.trackers if "track" in names else []:
        if name in TRACKERS and importlib.util.find_spec(name) is None:
            where = place(loaded, "monitor.trackers")
            yield f"{where}: {name} needs the package {name}, which is not installed: pip install 'rlctl[{name}]'"


def claim(run_dir: Path, resume: bool, where: str) -> None:
    """Make the run directory; ConfigError when it holds another run (unless resuming) or cannot be made."""
    try:
        run_dir.mkdir(parents=True, exist_ok=True)
        empty = not any(run_dir.iterdir())
    except OSError as error:
        raise ConfigError(f"{where}: {run_dir} cannot be used: {error.strerror}") from None
    if not empty and not resume:
        raise ConfigError(f"{where}: {run_dir} is not empty; `rlctl up --resume {run_dir}` goes on with that run")
