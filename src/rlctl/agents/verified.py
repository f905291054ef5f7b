"""Rollouts of a verifiers environment in the rollout process: it talks to the model at the episode's own address.

call.task {"data", "row"} --> row --> environment.run_rollout --OpenAI client--> gateway
                                           '--> reward, metrics --> Facts
"""

from typing import Any

from rlctl.agents.call import Call
from rlctl.agents.client import Client
from rlctl.config import worlds
from rlctl.config.serving import Env
from rlctl.envs.adapters.verified import load, rows
from rlctl.errors import RlctlError
from rlctl.wire.samples import Facts

EMPTY = "EmptyModelResponseError"
"""What verifiers calls an answer without a token: the model's doing, so an episode like others, worth nothing."""


class Verifier:
    """Plays one environment (for rlctl.agents.flow, which guards it)."""

    def __init__(self, env: Env) -> None:
        self._enough = worlds.Verifiers.model_validate(env.options).success_reward
        self._environment = load(env)
        self._http: Any = None
        """Connections of all episodes (a client of its own for each would cost more than the episode)."""

    async def play(self, client: Client, call: Call) -> Facts:
        """RlctlError when the environment says that its rollout failed."""
        from openai import AsyncOpenAI, DefaultAsyncHttpxClient
        from verifiers.clients import OpenAIChatCompletionsClient

        self._http = self._http or DefaultAsyncHttpxClient()
        row = rows(self._environment, call.task["data"])[int(call.task["row"])]
        model = AsyncOpenAI(base_url=call.base_url, api_key="none-needed", http_client=self._http)
        sampling = dict(call.sampling)
        output = await self._environment.run_rollout(row, OpenAIChatCompletionsClient(model), "policy", sampling)
        error = output.get("error")
        if error and error["error"] != EMPTY:
            raise RlctlError(f"the environment failed: {error}")
        talk = output.get("completion") or []
        answers = [str(message.get("content") or "") for message in talk if message["role"] == "assistant"]
        call.episode.feed("\n".join(answers))
        reward = float(output["reward"])
        return Facts(
            env_reward=reward,
            success=reward >= self._enough,
            format_errors=int(bool(error)),
            actions=len(answers),
            truncated=bool(output.get("is_truncated")),
            extra={name: float(value) for name, value in (output.get("metrics") or {}).items()},
        )

    async def close(self) -> None:
        if self._http:
            await self._http.aclose()
