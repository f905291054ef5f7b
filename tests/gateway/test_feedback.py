"""POST /feedback through a real gateway to a real pool's answers (the fake pool speaks the same messages)."""

from conftest import Stack

from rlctl.errors import WireError
from rlctl.wire.messages import Feedback, FeedbackTaken


async def test_feedback_goes_to_the_pool_with_its_id_and_the_answer_says_whether_it_counts(stack: Stack) -> None:
    seen: list[Feedback] = []

    async def answer(message: Feedback) -> FeedbackTaken:
        seen.append(message)
        if message.trajectory_uid == "nobody":
            raise WireError("no trajectory 'nobody' is known")
        return FeedbackTaken(rescored=True)

    stack.pool.feedback = answer
    body = {"trajectory_uid": "t1", "value": -0.5, "step_index": 2, "text": "rude", "source": "ann", "id": "f1"}
    assert await stack.client.post("/feedback", body) == (200, {"rescored": True, "duplicate": False})
    assert seen == [Feedback("t1", -0.5, 2, "rude", "ann", "f1")]
    await stack.client.post("/feedback", {"trajectory_uid": "t1", "value": 1})
    assert len(seen[1].uid) == 32, "without an id the gateway gives one, so that a repeated message counts once"
    status, error = await stack.client.post("/feedback", {"trajectory_uid": "nobody", "value": 1})
    assert (status, "nobody" in error["error"]["message"]) == (404, True)
    for bad in ({"trajectory_uid": "t1"}, {"trajectory_uid": "t1", "value": "good"}, {"value": 1, "mood": 2}):
        assert (await stack.client.post("/feedback", bad))[0] == 400
