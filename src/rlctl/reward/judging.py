"""Parts made of models: `disrm`, a sequence-classification model, and `genrm`, a judge that writes a score."""

import math
import re
from collections import Counter
from collections.abc import Sequence

from rlctl.config.serving import Reward
from rlctl.errors import ConfigError
from rlctl.reward.functions import Sample
from rlctl.reward.remote import Client, Retry, Session
from rlctl.reward.values import Failure, Value, checked

JUDGE = (
    "Judge an answer to a task.\n\nTask:\n{task}\n\nAnswer:\n{response}\n\n"
    'How good is the answer? End with "Score: N", N from 0 (wrong) to 10 (perfect).'
)
JUDGE_CHANNEL = "judge"
"""Channel of the judge's own trajectories when it is asked through the run's gateway: recorded, never trained on."""


def filled(template: str, sample: Sample) -> str | Failure:
    """The text for the model: `{name}` of the task, {response}, {responses}, {task}."""
    task = "\n".join(f"{key}: {value}" for key, value in sample.task.items())
    fields = {**sample.task, "task": task, "responses": "\n".join(sample.responses)}
    if sample.responses:
        fields["response"] = sample.response
    try:
        return template.format_map(fields)
    except (KeyError, IndexError, ValueError) as error:
        there = ", ".join(sorted(fields))
        return Failure("raised", f"the template cannot be filled: {type(error).__name__} {error} (there are: {there})")


class _Model:
    """What both kinds share: fill the template, ask for what is not a failure yet, count."""

    needs_text = True

    def __init__(self, name: str, section: Reward, template: str) -> None:
        self.name, self.weight, self.section, self.template = name, section.weight, section, template
        self.counts: dict[str, int] = Counter()

    def values(self, samples: Sequence[Sample]) -> list[Value]:
        texts = [filled(self.template, sample) for sample in samples]
        asked = [text for text in texts if isinstance(text, str)]
        answers = iter(self.ask(asked) if asked else [])
        found = [next(answers) if isinstance(text, str) else text for text in texts]
        for value in found:
            if isinstance(value, Failure):
                self.counts[value.kind] += 1
        return found

    def ask(self, texts: Sequence[str]) -> Sequence[Value]:
        raise NotImplementedError

    def close(self) -> None:
        pass


class Disrm(_Model):
    """`kind = "disrm"`, loaded here or behind vLLM's POST /classify (its last class, as for a loaded one)."""

    def __init__(self, name: str, section: Reward) -> None:
        super().__init__(name, section, section.template or "{response}")
        if section.url:
            self._client = Client(section.timeout_s, section.workers, section.retries, section.key_env)
        else:
            try:
                from rlctl.models.classify import Classifier
            except ImportError as error:
                raise ConfigError(
                    f"reward.{name}: a classifier needs torch and transformers (pip install 'rlctl[train]'): {error}"
                ) from error
            self._classifier = Classifier(section.model, section.batch_size)

    def ask(self, texts: Sequence[str]) -> Sequence[Value]:
        if not self.section.url:
            return [checked(value, 0) for value in self._classifier.scores(texts)]
        size = self.section.batch_size
        batches = [texts[i : i + size] for i in range(0, len(texts), size)]
        answers = self._client.each(batches, self._classify)
        found: list[Value] = []
        for batch, answer in zip(batches, answers, strict=True):
            found += [answer] * len(batch) if isinstance(answer, Failure) else answer
        return found

    async def _classify(self, session: Session, texts: Sequence[str]) -> list[Value]:
        url = f"{self.section.url.rstrip('/')}/classify"
        answer = await session.post(url, {"model": self.section.model, "input": list(texts)})
        try:
            rows = sorted(answer["data"], key=lambda row: row["index"])
            values = [checked(row["probs"][-1], 0) for row in rows]
        except (KeyError, TypeError, IndexError) as error:
            raise Retry(f"{url} answered without data[].probs: {error!r}") from error
        if len(values) != len(texts):
            raise Retry(f"{url} answered {len(values)} scores for {len(texts)} texts")
        return values


class Genrm(_Model):
    """`kind = "genrm"`: a chat model is asked, its score read with a regular expression, votes averaged."""

    def __init__(self, name: str, section: Reward, gateway_url: str) -> None:
        super().__init__(name, section, section.template or JUDGE)
        try:
            self._pattern = re.compile(section.pattern)
        except re.error as error:
            raise ConfigError(f"reward.{name}.pattern = {section.pattern!r}: {error}") from error
        if self._pattern.groups < 1:
            raise ConfigError(f"reward.{name}.pattern = {section.pattern!r} has no group for the score")
        self._gateway_url = gateway_url
        self._client = Client(section.timeout_s, section.workers, section.retries, section.key_env)

    def ask(self, texts: Sequence[str]) -> Sequence[Value]:
        asked = [text for text in texts for _ in range(self.section.votes)]
        answers = self._client.each(asked, self._vote)
        size = self.section.votes
        return [_mean(answers[i : i + size]) for i in range(0, len(answers), size)]

    async def _vote(self, session: Session, text: str) -> float:
        if self.section.url:
            return await self._judge(session, self.section.url.rstrip("/"), text)
        opened = await session.post(f"{self._gateway_url}/init_trajectory", {"channel": JUDGE_CHANNEL})
        try:
            return await self._judge(session, opened["base_url"], text)
        finally:
            await session.post(f"{opened['base_url']}/complete_trajectory", {})

    async def _judge(self, session: Session, base_url: str, text: str) -> float:
        section = self.section
        body = {
            "model": section.model or "default",
            "messages": [{"role": "user", "content": text}],
            "max_tokens": section.max_tokens,
            "temperature": section.temperature,
        }
        answer = await session.post(f"{base_url}/chat/completions", body)
        try:
            said = answer["choices"][0]["message"]["content"] or ""
        except (KeyError, TypeError, IndexError) as error:
            raise Retry(f"{base_url} answered no chat completion: {error!r}") from error
        found = list(self._pattern.finditer(said))
        try:
            value = float(found[-1][1]) if found else math.nan
        except (TypeError, ValueError):
            value = math.nan
        if not math.isfinite(value):
            raise Retry(f"the judge gave no score: {said[-200:]!r}")
        return value


def _mean(votes: Sequence[float | Failure]) -> Value:
    """Mean of the votes that came; a failure only when none did."""
    came = [vote for vote in votes if not isinstance(vote, Failure)]
    return math.fsum(came) / len(came) if came else votes[0]
