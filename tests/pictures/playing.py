"""Episodes as pictures are made of them, played with given answers."""

from rlctl.config.serving import Env
from rlctl.envs.lookup import family
from rlctl.pictures.record import Recorded, Recorder


def played(answers: list[str], step: int = 20, **keys: object) -> tuple[Recorded, Recorder]:
    """The first training instance of an [[env]] with these keys, played with these answers."""
    env = Env.model_validate({"max_turns": 3, "max_actions": 6, **keys})
    made = family(env)
    instance = next(made.distinct("train", 0))
    recorder = Recorder(made.episode(instance, 0))
    for answer in answers:
        recorder.feed(answer)
    where = {"uid": "val-x-0", "env": env.name, "tag": env.name, "series": "val", "step": step, "number": 0}
    return recorder.episode(recorder.facts(), instance=instance.key, **where), recorder  # type: ignore[arg-type]
