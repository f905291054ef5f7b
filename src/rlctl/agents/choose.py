"""Which agent plays an [[env]]: its program, if it names one, else the built-in agent."""

from rlctl.agents import command, environment
from rlctl.agents.call import Call
from rlctl.agents.client import Client
from rlctl.config.serving import Env
from rlctl.wire.samples import Facts


async def play(env: Env, client: Client, call: Call) -> Facts:
    """Run one episode to its end; a failure is data (Facts.error)."""
    if env.command:
        return await command.play(client, call, env.command)
    return await environment.play(env, client, call)
