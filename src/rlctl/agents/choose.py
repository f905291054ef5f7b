"""Which agent plays an [[env]]: its program, a class of anybody's, the built-in one with tools or without."""

from rlctl.agents.call import Agent
from rlctl.agents.command import Program
from rlctl.agents.environment import Chat
from rlctl.agents.flow import Flow
from rlctl.agents.tooluse import ToolUser
from rlctl.config.serving import Env


def agent(env: Env) -> Agent:
    """ConfigError where the class cannot be had; tools are made when the first episode needs them."""
    if env.command:
        return Program(env.command)
    if env.agent:
        return Flow(env)
    return ToolUser(env) if env.tools else Chat(env)
