"""Which agent plays an [[env]]: a program, a class of anybody's, the built-in one; verifiers play themselves."""

from rlctl.agents.call import Agent
from rlctl.agents.command import Program
from rlctl.agents.environment import Chat
from rlctl.agents.flow import Flow, made
from rlctl.agents.tooluse import ToolUser
from rlctl.agents.verified import Verifier
from rlctl.config.serving import Env


def agent(env: Env) -> Agent:
    """ConfigError where the class cannot be had; tools are made when the first episode needs them."""
    if env.name == "verifiers":
        return Flow(Verifier(env), "verifiers")
    if env.command:
        return Program(env.command)
    if env.agent:
        return Flow(made(env), env.agent)
    return ToolUser(env) if env.tools else Chat(env)
