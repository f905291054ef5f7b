"""What the launcher tells the face inside vLLM, through one environment variable."""

import json
import os
from dataclasses import asdict, dataclass

ENVIRONMENT = "RLCTL_VLLM_FACE"


@dataclass(frozen=True)
class FaceSettings:
    """Who this engine is."""

    run_dir: str
    """Absolute run directory; empty: none."""
    name: str
    """engine-0, engine-1, ..."""
    url: str
    """Where it serves."""
    model: str
    """Folder of the model it starts from; empty when that is a Hugging Face id."""

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_environment(cls) -> "FaceSettings":
        return cls(**json.loads(os.environ[ENVIRONMENT]))
