"""POST /feedback: what a person or a system thinks of an episode or of one call of it, at any later time.

{"trajectory_uid": str, "value": float, "step_index"?: int, "text"?: str, "source"?: str, "id"?: str}
    -> {"rescored": bool, "duplicate": bool}; 404 for a trajectory that the pool does not know

`rescored`: it counts in the reward, for the trajectory is not trained yet; else it is only kept. The same `id` counts
once.
"""

import uuid
from typing import Annotated

import msgspec

from rlctl.errors import PeerRefused
from rlctl.gateway.door.http import Request, Response, answer
from rlctl.gateway.faults import Fault
from rlctl.gateway.sessions.record import Recorder
from rlctl.wire.messages import Feedback


class FeedbackBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the caller sends."""

    trajectory_uid: str
    value: float
    step_index: Annotated[int, msgspec.Meta(ge=-1, lt=2**31)] = -1
    text: str = ""
    source: str = ""
    id: str = ""


class FeedbackRoute:
    """The route, in front of the pool."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder

    async def give(self, request: Request) -> Response:
        body: FeedbackBody = request.json(FeedbackBody)
        uid = body.id or uuid.uuid4().hex
        message = Feedback(body.trajectory_uid, body.value, body.step_index, body.text, body.source, uid)
        try:
            taken = await self._recorder.feedback(message)
        except PeerRefused as refusal:
            raise Fault(404, str(refusal), "feedback_refused") from refusal
        return answer({"rescored": taken.rescored, "duplicate": taken.duplicate})
