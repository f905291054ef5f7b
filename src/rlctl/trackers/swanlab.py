"""SwanLab. Its own variables hold: SWANLAB_API_KEY, SWANLAB_WORKSPACE, SWANLAB_MODE=offline | local, ..."""

import swanlab

from rlctl.trackers.tracker import About, Picture, Row


class SwanLab:
    """One SwanLab experiment per rlctl run, resumed with it. It keeps the first value of a tag and step."""

    def __init__(self, about: About) -> None:
        self._run = swanlab.init(
            project=about.project,
            name=about.name,
            id=about.id,
            resume="allow",
            log_dir=str(about.folder),
            config=dict(about.config),
        )

    def row(self, row: Row) -> None:
        self._run.log(row.values, step=row.step)

    def picture(self, picture: Picture) -> None:
        self._run.log({picture.tag: swanlab.Video(str(picture.gif), caption=picture.caption)}, step=picture.step)

    def flush(self) -> None:
        """Its own threads send what was logged."""

    def close(self) -> None:
        self._run.finish()
