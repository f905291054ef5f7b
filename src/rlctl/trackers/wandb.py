"""Weights & Biases. Its own variables hold: WANDB_API_KEY, WANDB_ENTITY, WANDB_BASE_URL, WANDB_MODE=offline, ...

Offline runs lie in `RUN/trackers/wandb/wandb`; `wandb sync` uploads them later.
"""

import wandb

from rlctl.trackers.source import SERIES
from rlctl.trackers.tracker import About, Picture, Row


class WandB:
    """One W&B run per rlctl run, resumed with it. Every series has a step axis of its own (SERIES/step): W&B's own
    counter may not go back, and a resumed run does."""

    def __init__(self, about: About) -> None:
        self._run = wandb.init(
            project=about.project,
            name=about.name,
            id=about.id,
            resume="allow",
            dir=str(about.folder),
            config=dict(about.config),
            settings=wandb.Settings(console="off"),
        )
        for series in (*SERIES, "pictures"):
            self._run.define_metric(f"{series}/step", hidden=True)
            self._run.define_metric(f"{series}/*", step_metric=f"{series}/step")

    def row(self, row: Row) -> None:
        self._run.log({f"{row.series}/step": row.step, **row.values})

    def picture(self, picture: Picture) -> None:
        shown = wandb.Video(str(picture.gif), caption=picture.caption, format="gif")
        self._run.log({"pictures/step": picture.step, picture.tag: shown})

    def flush(self) -> None:
        """Its own process has what was logged, and writes it to disk by itself."""

    def close(self) -> None:
        self._run.finish()
