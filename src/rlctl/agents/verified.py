"""Rollouts of a verifiers environment in the rollout process: it talks to the model at the episode's own address.

call.task {"data", "row"} --> row --> environment.run_rollout --OpenAI client--> gateway
                                           '--> reward, metrics --> Facts
"""

from rlctl.agents.call import Call
from rlctl.agents.client import Client
from rlctl.config import worlds
from rlctl.config.serving import Env
from rlctl.envs.verified import load, rows
from rlctl.errors import RlctlError
from rlctl.wire.samples import Facts

KEY = "OPENAI_API_KEY"


class Verifier:
    """Plays one environment (for rlctl.agents.flow, which guards it)."""

    def __init__(self, env: Env) -> None:
        self._enough = worlds.Verifiers.model_validate(env.options).success_reward
        self._environment = load(env)

    async def play(self, client: Client, call: Call) -> Facts:
        """RlctlError when the environment says that its rollout failed."""
        from verifiers import ClientConfig
        from verifiers.clients import resolve_client

        row = rows(self._environment, call.task["data"])[int(call.task["row"])]
        theirs = resolve_client(ClientConfig(api_base_url=call.base_url, api_key_var=KEY))
        try:
            output = await self._environment.run_rollout(row, theirs, "policy", dict(call.sampling))
        finally:
            await theirs.close()
        if output.get("error"):
            raise RlctlError(f"the environment failed: {output['error']}")
        answers = [message["content"] for message in output["completion"] if message["role"] == "assistant"]
        call.episode.feed("\n".join(answers))
        reward = float(output["reward"])
        return Facts(
            env_reward=reward,
            success=reward >= self._enough,
            actions=len(answers),
            truncated=bool(output.get("is_truncated")),
            extra={name: float(value) for name, value in (output.get("metrics") or {}).items()},
        )
