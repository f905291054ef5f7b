"""`rlctl gateway | pool | engine | rollout | train | sft`: one component as a process of its own."""

from typing import Annotated

import typer

from rlctl.cli.options import ConfigFile, Set, loaded


def gateway(
    config: ConfigFile,
    set_: Set = [],
    pool: Annotated[str, typer.Option(help="Pool address, tcp://HOST:PORT.")] = "",
    engines: Annotated[str, typer.Option(help="Engines, HOST:PORT,HOST:PORT.")] = "",
    tokenizer_path: Annotated[str, typer.Option(help="Folder or id of the tokenizer.")] = "",
    prompt_length: Annotated[int, typer.Option(help="Longest prompt in tokens.")] = 0,
    response_length: Annotated[int, typer.Option(help="Longest response in tokens.")] = 0,
    reward: Annotated[str, typer.Option(help="Reward service, http://HOST:PORT.")] = "",
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "",
    port: Annotated[int, typer.Option(help="Port to listen on; 0: as configured.")] = 0,
) -> None:
    """The HTTP door for agents: OpenAI-compatible, exact tokens recorded."""
    flags = {
        "pool.url": pool,
        "engine.urls": [e if "://" in e else f"http://{e}" for e in engines.split(",") if e],
        "gateway.prompt_length": prompt_length,
        "gateway.response_length": response_length,
        "gateway.host": host,
        "gateway.port": port,
    }
    overrides = [
        f"{key}={value if not isinstance(value, list) else str(value)}" for key, value in flags.items() if value
    ]
    from rlctl.gateway.server import main

    main(loaded(config, [*set_, *overrides]).config, tokenizer_path=tokenizer_path, reward_url=reward)


def pool(config: ConfigFile, set_: Set = []) -> None:
    """The durable store between agents and trainer."""
    from rlctl.pool.server import main

    main(loaded(config, set_).config)


def engine(
    config: ConfigFile, set_: Set = [], index: Annotated[int, typer.Option(help="Which of engine.urls to serve.")] = 0
) -> None:
    """One engine: token ids in, token ids and log-probabilities out, weights updated in flight."""
    from rlctl.engines.launch import main

    main(loaded(config, set_).config, index)


def rollout(config: ConfigFile, set_: Set = []) -> None:
    """Runs agents on environments against the gateway."""
    from rlctl.rollout.runner import main

    main(loaded(config, set_).config)


def train(config: ConfigFile, set_: Set = []) -> None:
    """The trainer; run it under torchrun for several processes."""
    from rlctl.train.loop import main

    main(loaded(config, set_).config)


def sft(config: ConfigFile, set_: Set = []) -> None:
    """The supervised warm start, stopped at a measured success rate."""
    from rlctl.train.sft import main

    main(loaded(config, set_).config)


def register(app: typer.Typer) -> None:
    for command in (gateway, pool, engine, rollout, train, sft):
        app.command(rich_help_panel="Components")(command)
