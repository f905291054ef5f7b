"""Configuration -> processes; devices; what is checked before anything starts."""

import importlib.util
import json
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from rlctl.config import Config, Loaded, load
from rlctl.config.worlds import PACKAGES
from rlctl.errors import ConfigError
from rlctl.up.planning import checks, devices
from rlctl.up.planning.devices import Split
from rlctl.up.planning.plan import Ports, ProcessSpec, plan
from rlctl.up.supervision import processes
from rlctl.wire.ports import free_port

PORTS = Ports(pool=1001, gateway=1002, rollout=1003, engines=(1004, 1005), sft=1006, train=1007)
RUN = Path("/runs/x")


def config(*overrides: str) -> Config:
    return load([], ['model.init="tiny"', 'env=[{name="frozenlake"}]', *overrides], environ={}).config


def planned(*overrides: str, only: tuple[str, ...] = (), gpus: Split | None = None) -> dict[str, ProcessSpec]:
    made = config(*overrides)
    none = Split(engines=((),) * made.engine.replicas, train=())
    return {spec.name: spec for spec in plan(made, RUN, PORTS, gpus or none, only)}


def problems(loaded: Loaded, without: tuple[str, ...] = ()) -> list[str]:
    """What `check` says of a run before its start; `without`: processes that are elsewhere."""
    specs = plan(loaded.config, RUN, PORTS, Split(((),), ()))
    try:
        checks.check(loaded, [one for one in specs if one.name not in without], hub=lambda model, revision: None)
    except ConfigError as error:
        return error.problems
    return []


def test_the_order_is_that_of_readiness() -> None:
    specs = planned("engine.replicas=2", "sft.max_steps=10")
    assert list(specs) == ["prepare", "pool", "engine-0", "engine-1", "gateway", "reward", "rollout", "sft", "train"]
    for i, spec in enumerate(specs.values()):
        assert set(spec.needs) <= set(list(specs)[:i])
    # both read the tokenizer that `prepare` makes
    assert all("prepare" in specs[name].needs for name in ("gateway", "reward"))
    assert [name for name, spec in specs.items() if spec.ends_run] == ["train"]


def test_without_a_tiny_model_and_warm_start_there_is_nothing_to_prepare() -> None:
    assert list(planned('model.init=""', "model.path=some/model")) == [
        *("pool", "engine-0", "gateway", "reward", "rollout", "train")
    ]


def test_a_run_with_trackers_has_a_process_for_them_that_nothing_waits_for() -> None:
    specs = planned('monitor.trackers=["tensorboard"]')
    assert specs["track"].argv == (sys.executable, "-m", "rlctl", "track", "/runs/x", "--follow")
    assert specs["track"].stage == "mirror" and not specs["track"].needs
    assert not any("track" in spec.needs for spec in specs.values())
    assert "track" not in planned()


def test_a_tracker_whose_package_is_missing_is_found_before_the_start() -> None:
    if importlib.util.find_spec("swanlab"):
        pytest.skip("swanlab is installed")
    settings = ['model.init="tiny"', 'env=[{name="frozenlake"}]', 'monitor.trackers=["tensorboard", "swanlab"]']
    loaded = load([], settings, environ={})
    (problem,) = problems(loaded)
    assert problem.endswith(
        "monitor.trackers: swanlab needs the package swanlab, which is not installed: pip install 'rlctl[swanlab]'"
    )
    assert problems(loaded, without=("track",)) == []


def test_a_module_that_is_nowhere_is_found_before_the_start_and_nobodys_code_is_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "here.py").write_text("raise SystemExit('it was imported')")
    monkeypatch.chdir(tmp_path)  # every component is `python -m rlctl`, which looks here too
    monkeypatch.setitem(PACKAGES, "bandit", "bandits")
    preset = tmp_path / "mine.toml"
    preset.write_text("""[[env]]
name = "here:Env"
[[env]]
name = "frozenlake"
agent = "nobody.agents:Mine"
[[env]]
name = "bandit"
[reward]
good.fn = "here:f"
built_in.fn = "math:sqrt"
bad.fn = "elsewhere:f"
empty.fn = ":f"
[monitor]
trackers = ["nobodys:Tracker"]
""")
    loaded = load([preset], ['model.init="tiny"'], environ={})
    assert problems(loaded) == [
        f"{preset}:7: env.2.name: name = 'bandit' needs a package: pip install bandits",
        f"{preset}:5: env.1.agent: no module 'nobody.agents' can be found, here or in PYTHONPATH",
        f"{preset}:11: reward.bad.fn: no module 'elsewhere' can be found, here or in PYTHONPATH",
        f"{preset}:12: reward.empty.fn: no module '' can be found, here or in PYTHONPATH",
        f"{preset}:14: monitor.trackers: no module 'nobodys' can be found, here or in PYTHONPATH",
    ]
    assert problems(loaded, without=("rollout", "reward", "track")) == []


def test_processes_are_this_interpreter_and_trainers_run_under_torchrun() -> None:
    specs = planned("train.processes=2", "sft.max_steps=1")
    tail = ("--config", "/runs/x/resolved.toml")
    assert specs["pool"].argv == (sys.executable, "-m", "rlctl", "pool", *tail)
    assert specs["engine-0"].argv == (sys.executable, "-m", "rlctl", "engine", *tail, "--index", "0")
    torchrun = (sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-addr", "127.0.0.1")
    assert specs["train"].argv == (*torchrun, "--master-port", "1007", "-m", "rlctl", "train", *tail)
    assert specs["sft"].argv == (*torchrun, "--master-port", "1006", "-m", "rlctl", "sft", *tail)


def test_the_environment_makes_every_derived_address_right() -> None:
    specs = planned("engine.replicas=2", "engine.threads=3")
    environment = specs["gateway"].env
    child = load([], ['model.init="tiny"', "rollout.max_tokens=8"], environ=environment).config
    assert child.pool_url == "tcp://127.0.0.1:1001"
    assert child.gateway_url == "http://127.0.0.1:1002"
    assert child.rollout_url == "tcp://127.0.0.1:1003"
    assert child.engine.urls == ["http://127.0.0.1:1004", "http://127.0.0.1:1005"]
    assert child.run_dir == RUN
    assert environment["OMP_NUM_THREADS"] == "1"
    assert specs["engine-1"].env["OMP_NUM_THREADS"] == "3"
    assert "CUDA_VISIBLE_DEVICES" not in environment


def test_what_runs_elsewhere_is_not_started() -> None:
    specs = planned('engine.urls=["http://10.0.0.5:8001"]', 'pool.url="tcp://10.0.0.6:7001"')
    assert list(specs) == ["prepare", "gateway", "reward", "rollout", "train"]
    assert specs["gateway"].env["RLCTL__ENGINE__URLS"] == '["http://10.0.0.5:8001"]'


def test_a_pool_over_redis_is_started_and_its_password_is_in_no_plan() -> None:
    url = "redis://:secret@10.0.0.6:6379/0"
    specs = planned(f"pool.url={url}")
    assert "pool" in specs
    assert "secret" not in str(specs)
    assert processes.secrets(config(f"pool.url={url}")) == {"pool": {"RLCTL__POOL__URL": url}}
    assert processes.secrets(config("pool.url=redis://10.0.0.6:6379/0")) == {}


def test_a_secret_reaches_its_process_and_no_other(tmp_path: Path) -> None:
    launch = processes.Launcher(tmp_path, "mark", {"pool": {"RLCTL__POOL__URL": "u"}})
    code = "import os, sys; sys.exit(os.environ.get('RLCTL__POOL__URL') == 'u')"
    for name, found in (("pool", 1), ("gateway", 0)):
        child = launch(ProcessSpec(name, argv=(sys.executable, "-c", code)))
        while (ended := child.poll()) is None:
            time.sleep(0.01)
        assert ended == found, name


def test_a_masked_password_is_asked_for_before_anything_starts(tmp_path: Path) -> None:
    loaded = load([], ['model.init="tiny"', 'env=[{name="frozenlake"}]', "pool.url=redis://:***@h:1/0"], environ={})
    specs = list(planned("pool.url=redis://:***@h:1/0").values())
    with pytest.raises(ConfigError, match=r"pool\.url: the password is not kept in resolved\.toml"):
        checks.check(loaded, specs, hub=lambda model, revision: None)


def test_only_a_subset_waits_only_for_itself() -> None:
    specs = planned("engine.replicas=2", only=("pool", "engine", "gateway"))
    assert list(specs) == ["pool", "engine-0", "engine-1", "gateway"]
    assert specs["gateway"].needs == ("pool", "engine-0", "engine-1")
    with pytest.raises(ConfigError, match="did you mean 'gateway'"):
        planned(only=("gatway",))


@pytest.mark.parametrize(
    ("overrides", "gpus", "engines", "train"),
    [
        ((), (), ((),), ()),
        (("deploy.device=cpu",), (0, 1), ((),), ()),
        ((), (0,), ((0,),), (0,)),
        ((), (0, 1), ((0,),), (1,)),
        (("train.processes=2", "engine.replicas=2"), (0, 1, 2, 3), ((0,), (1,)), (2, 3)),
        (("train.processes=2", "engine.replicas=2"), (0, 1), ((0,), (1,)), (0, 1)),
        (("engine.vllm={tensor_parallel_size=2}",), (0, 1, 2), ((0, 1),), (2,)),
        (("deploy.train_gpus=[0]",), (0, 1, 2), ((1,),), (0,)),
        (("deploy.engine_gpus=[2]",), (0, 1, 2), ((2,),), (1,)),
    ],
)
def test_gpus_are_split_and_shared_only_where_they_are_too_few(
    overrides: tuple[str, ...], gpus: tuple[int, ...], engines: tuple[tuple[int, ...], ...], train: tuple[int, ...]
) -> None:
    assert devices.split(config(*overrides), gpus) == Split(engines, train)


@pytest.mark.parametrize(
    ("overrides", "gpus", "message"),
    [
        (("deploy.device=cuda",), (), "there is no GPU"),
        (("train.processes=4",), (0, 1), "need a GPU each"),
        (("deploy.train_gpus=[7]",), (0, 1), r"GPU \[7\] is not among the visible ones"),
        (("engine.vllm={tensor_parallel_size=4}",), (0, 1), "tensor_parallel_size = 4"),
    ],
)
def test_a_split_that_does_not_fit_is_refused(overrides: tuple[str, ...], gpus: tuple[int, ...], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        devices.split(config(*overrides), gpus)


def test_each_process_sees_its_own_gpus_only() -> None:
    specs = planned(gpus=Split(engines=((0,),), train=(1,)))
    seen = {name: spec.env["CUDA_VISIBLE_DEVICES"] for name, spec in specs.items()}
    assert seen["engine-0"] == "0"
    assert seen["train"] == "1"
    assert seen["pool"] == seen["gateway"] == ""


def test_problems_before_the_start_are_found_all_at_once_with_their_places(tmp_path: Path) -> None:
    preset = tmp_path / "mine.toml"
    (tmp_path / "models" / "good").mkdir(parents=True)
    (tmp_path / "models" / "good" / "config.json").write_text("{}")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        preset.write_text(
            f'[model]\npath = "{tmp_path}/models/goood"\n\n[pool]\nport = {port}\n\n[[env]]\nname = "sokoban"\n'
            '[gateway]\nhost = "192.0.2.1"\nadmin_key_env = "KEY"\n'
        )
        found = problems(load([preset], environ={}))
    assert found == [
        f"{preset}:5: pool.port: {port} is in use on 127.0.0.1; 0 picks a free one",
        f"{preset}:10: gateway.host: 192.0.2.1 is no address of this machine",
        f"{preset}:2: model.path: {tmp_path}/models/goood is not there; did you mean {tmp_path}/models/good?",
    ]


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (
            ("train.processes=3", "train.parallel.tensor=2"),
            "3 is no multiple of train.parallel.tensor x sequence x pipeline = 2",
        ),
        (
            ("train.parallel.sequence=2",),
            "train.processes: 1 is no multiple of train.parallel.tensor x sequence x pipeline = 2",
        ),
        (
            ("train.processes=3", "train.parallel.pipeline=2"),
            "3 is no multiple of train.parallel.tensor x sequence x pipeline = 2",
        ),
        (
            ("train.processes=4", "train.parallel.tensor=2", 'train.fsdp={strategy="hybrid", shard_size=4}'),
            "4 / train.parallel.tensor / pipeline is no multiple of train.fsdp.shard_size = 4",
        ),
    ],
)
def test_ranks_that_do_not_fit_the_trainers_processes_are_found_before_the_start(
    overrides: tuple[str, ...], words: str
) -> None:
    loaded = load([], ['model.init="tiny"', 'env=[{name="frozenlake"}]', *overrides], environ={})
    specs = plan(loaded.config, RUN, PORTS, Split(((),), ()))
    with pytest.raises(ConfigError, match=words):
        checks.check(loaded, specs, hub=lambda model, revision: None, starting=False)
    other = [spec for spec in specs if spec.name != "train"]
    checks.check(loaded, other, hub=lambda model, revision: None, starting=False)


def test_a_model_id_is_asked_for_at_the_hub_and_a_folder_without_config_is_none(tmp_path: Path) -> None:
    def problems(path: str) -> str:
        loaded = load([], [f'model.path="{path}"', 'env=[{name="sokoban"}]'], environ={})
        with pytest.raises(ConfigError) as caught:
            checks.check(loaded, [], hub=lambda model, revision: f"no {model} there")
        return str(caught.value)

    assert problems("Qwen/Nothing").endswith("as a Hugging Face id: no Qwen/Nothing there")
    assert f"{tmp_path} has no config.json, so it is no Hugging Face model folder" in problems(str(tmp_path))


def test_torchrun_runs_rlctl_as_a_module(tmp_path: Path) -> None:
    argv = planned()["train"].argv
    cut = argv.index("rlctl")
    command = [*argv[:cut], "rlctl", "config", "show", "frozenlake-cpu", "--json"]
    command[command.index("1007")] = str(free_port())
    done = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1])["run"]["name"] == "frozenlake-cpu"
