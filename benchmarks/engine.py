"""The embedded engine and vLLM for CPU, through HTTP, in one run on one machine.

    python benchmarks/engine.py [--vllm-python PYTHON] [--shape demo|wide] [--replicas N] [--repeats 3] [--out FILE]

One engine is up at a time. Each workload of `load.py` is run once to warm up and then `--repeats` times, with the load
generator in a process of its own; the median counts. Both serve the same random Qwen2-architecture model: that of the
demo (0.18M parameters: hidden 64, 3 layers, 2 heads) or a wider one (0.89M: hidden 128, 4 layers, 4 heads). Each has
the whole machine: vLLM by its defaults, the embedded engine with one single-threaded replica per core, over which the
load generator spreads the sessions as the gateway does; --replicas 1 measures one alone.
"""

import argparse
import json
import os
import platform
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from processes import end_group

from rlctl.wire.ports import free_port

HERE = Path(__file__).parent
CONTEXT = 512
CACHE_TOKENS = 65536
"""KV cache over all replicas: room for the 64 contexts that are ever open, twice. (vLLM gets 1 GiB, which is more.)"""
REQUESTS = {"answers": 512, "turns": 1920}
"""Requests of one repetition; a slow engine is measured on fewer of them (see `measure`)."""
GOALS = {"answers": ("tokens_per_s", 1.5), "turns": ("requests_per_s", 4.0)}
"""What counts, and how many times vLLM's figure the embedded engine is to reach."""
SHAPES = {"demo": {}, "wide": {"hidden_size": 128, "layers": 4, "heads": 4, "mlp": 384}}
"""Models served, as `[model.tiny]`; the demo's is the default of that section."""
LONGEST_S = 60.0


@contextmanager
def serving(commands: list[list[str]], urls: list[str], environment: dict[str, str], log: Path) -> Iterator[list[int]]:
    """Run an engine's processes until the block ends; yields their pids once each answers a completion."""
    with log.open("w") as file:
        settings: dict[str, Any] = {"env": os.environ | environment, "stdout": file, "stderr": file}
        processes = [subprocess.Popen(command, start_new_session=True, **settings) for command in commands]
    try:
        deadline = time.monotonic() + 600
        for process, url in zip(processes, urls, strict=True):
            while not answers(url):
                if process.poll() is not None or time.monotonic() > deadline:
                    raise SystemExit(f"engine did not start: {' '.join(commands[0])}\n{log.read_text()[-3000:]}")
                time.sleep(0.5)
        yield [process.pid for process in processes]
    finally:
        for process in processes:
            end_group(process)


def answers(url: str) -> bool:
    """Whether the engine at `url` completes a prompt."""
    body = json.dumps({"prompt": [3, 4, 5], "max_tokens": 2}).encode()
    request = urllib.request.Request(f"{url}/v1/completions", body, {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=60) as reply:
            return bool(reply.status == 200)
    except (urllib.error.URLError, OSError):
        return False


def embedded(model: Path, port: int, replicas: int) -> tuple[list[str], dict[str, str]]:
    """Command and environment of one replica of the embedded engine."""
    settings = {
        "model.path": f"'{model}'",
        "model.max_context": CONTEXT,
        "rollout.max_tokens": 64,
        "engine.cache_tokens": CACHE_TOKENS // replicas,
        "engine.kind": "'embedded'",
        "engine.urls": f"['http://127.0.0.1:{port}']",
    }
    code = "import sys; from rlctl.config import load; from rlctl.engines.launch import main; "
    code += "main(load([], sys.argv[1:], {}).config, 0)"
    overrides = [f"{key}={value}" for key, value in settings.items()]
    return [sys.executable, "-c", code, *overrides], {"OMP_NUM_THREADS": "1"}


def vllm(python: str, model: Path, port: int) -> tuple[list[str], dict[str, str]]:
    """Command and environment of vLLM for CPU."""
    command = [python, "-m", "vllm.entrypoints.cli.main", "serve", str(model), "--dtype", "float32"]
    command += ["--max-model-len", str(CONTEXT), "--host", "127.0.0.1", "--port", str(port)]
    command += ["--logprobs-mode", "processed_logprobs", "--no-enable-log-requests", "--disable-uvicorn-access-log"]
    return command, {"VLLM_CPU_KVCACHE_SPACE": "1", "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"}


def cpu_seconds(groups: list[int]) -> float:
    """CPU seconds of all processes of these process groups, from /proc (0 where there is none)."""
    total = 0
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rsplit(")", 1)[1].split()
        except OSError:
            continue
        if int(fields[2]) in groups:
            total += int(fields[11]) + int(fields[12])
    return total / os.sysconf("SC_CLK_TCK")


def measure(urls: list[str], groups: list[int], repeats: int) -> dict[str, list[dict[str, Any]]]:
    """All repetitions of both workloads; fewer requests for an engine that would need longer than LONGEST_S."""
    results: dict[str, list[dict[str, Any]]] = {}
    for work, requests in REQUESTS.items():
        warm = drive(urls, work, 1280 if work == "turns" else 64, seed=0)
        fitting = int(warm["requests_per_s"] * LONGEST_S) // 640 * 640
        count = max(64 if work == "answers" else 640, min(requests, fitting))
        results[work] = []
        for repeat in range(repeats):
            before = cpu_seconds(groups)
            result = drive(urls, work, count, seed=1 + repeat)
            results[work].append(result | {"engine_cpu_s": round(cpu_seconds(groups) - before, 3)})
            print(f"  {work}: {result[GOALS[work][0]]:.0f} {GOALS[work][0]}", file=sys.stderr)
    return results


def drive(urls: list[str], work: str, requests: int, seed: int) -> dict[str, Any]:
    """One run of the load generator; what it complains of is shown."""
    command = [sys.executable, str(HERE / "load.py"), ",".join(urls), work, "--requests", str(requests)]
    done = subprocess.run([*command, "--seed", str(seed)], check=True, stdout=subprocess.PIPE, text=True)
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def machine() -> dict[str, Any]:
    """What the figures were measured on."""
    cpu = next(
        (line.split(":")[1].strip() for line in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in line),
        platform.processor(),
    )
    return {
        "cpu": cpu,
        "cores": os.cpu_count(),
        "load_average_before": round(os.getloadavg()[0], 2),
        "python": platform.python_version(),
        "date": time.strftime("%Y-%m-%d"),
    }


def table(results: dict[str, dict[str, list[dict[str, Any]]]]) -> dict[str, dict[str, float]]:
    """Print and return the medians, and how they compare."""
    summary: dict[str, dict[str, float]] = {}
    print(f"{'workload':<10}{'figure':<17}" + "".join(f"{name:>12}" for name in results) + f"{'ratio':>9}{'goal':>7}")
    for work, (figure, goal) in GOALS.items():
        row = {name: statistics.median(run[figure] for run in runs[work]) for name, runs in results.items()}
        line = f"{work:<10}{figure:<17}" + "".join(f"{value:>12.0f}" for value in row.values())
        if "vllm" in row:
            row["ratio"] = row["embedded"] / row["vllm"]
            line += f"{row['ratio']:>8.2f}x{goal:>6.1f}x"
        print(line)
        summary[work] = {"goal": goal} | row
    return summary


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vllm-python", default="", help="interpreter of the vLLM venv; empty: embedded only")
    parser.add_argument("--shape", choices=list(SHAPES), default="demo", help="of the random model that is served")
    parser.add_argument("--replicas", type=int, default=os.cpu_count() or 1, help="processes of the embedded engine")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out", default="", help="JSON file for all results")
    asked = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the engine under test is ended too
    facts = machine() | {"shape": asked.shape, "replicas": asked.replicas}
    results = {}
    with tempfile.TemporaryDirectory() as scratch:
        model = build(Path(scratch) / "model", asked.shape)
        ports = [free_port() for _ in range(asked.replicas)]
        urls = [f"http://127.0.0.1:{port}" for port in ports]
        engines = {"embedded": ([embedded(model, port, asked.replicas) for port in ports], urls)}
        if asked.vllm_python:
            engines["vllm"] = ([vllm(asked.vllm_python, model, ports[0])], urls[:1])
        for name, (started, at) in engines.items():
            print(f"{name}: starting", file=sys.stderr)
            commands, environment = [command for command, _ in started], started[0][1]
            with serving(commands, at, environment, Path(scratch) / f"{name}.log") as groups:
                results[name] = measure(at, groups, asked.repeats)
    summary = table(results)
    if asked.out:
        Path(asked.out).write_text(json.dumps({"machine": facts, "summary": summary, "runs": results}, indent=2) + "\n")


def build(folder: Path, shape: str) -> Path:
    """A random model."""
    from rlctl.config.learning import Tiny
    from rlctl.models.tiny import build_tiny

    build_tiny(folder, Tiny.model_validate(SHAPES[shape]), CONTEXT, seed=0)
    return folder


if __name__ == "__main__":
    main()
