"""Questions and answers over ZeroMQ: many in flight, sent again, across restarts of the peer."""

import asyncio
import time

import pytest
import zmq

from rlctl.errors import WireError
from rlctl.wire.messages import (
    Done,
    GetStatistics,
    Nack,
    Refused,
    Reply,
    Request,
    Statistics,
)
from rlctl.wire.sockets import Answer, Ask, AskBlocking


class Server:
    """Answers Nack("NAME") with how often that question was taken up, after `delay_s`."""

    def __init__(self, delay_s: float = 0.0) -> None:
        self.delay_s = delay_s
        self.taken_up: list[str] = []
        self.asked = asyncio.Event()

    async def handle(self, request: Request) -> Reply:
        if not isinstance(request, Nack):
            raise WireError("only Nack here")
        self.taken_up.append(request.lease)
        self.asked.set()
        await asyncio.sleep(self.delay_s)
        return Done(accepted=len(self.taken_up))


async def serving(server: Server, port: int = 0) -> tuple[Answer, asyncio.Task[None]]:
    answer = Answer("127.0.0.1", port)
    return answer, asyncio.create_task(answer.serve(server.handle))


async def stop(answer: Answer, task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    answer.close()


async def test_a_thousand_questions_in_flight_get_their_own_answers() -> None:
    async def echo(request: Request) -> Reply:
        await asyncio.sleep(0.001 * (hash(request.lease) % 20))
        return Refused("no") if request.lease == "13" else Statistics({request.lease: 1.0})

    answer = Answer("127.0.0.1")
    task = asyncio.create_task(answer.serve(echo))
    ask = Ask(answer.url)
    replies = await asyncio.gather(*(ask.ask(Nack(str(i))) for i in range(1000)), return_exceptions=True)
    assert isinstance(replies.pop(13), WireError)
    assert [list(reply.values) for reply in replies] == [[str(i)] for i in range(1000) if i != 13]
    ask.close()
    await stop(answer, task)


async def test_a_question_sent_again_while_it_is_being_answered_is_taken_up_once() -> None:
    server = Server(delay_s=0.5)
    answer, task = await serving(server)
    ask = Ask(answer.url, retry_s=0.05)
    await ask.ask(Nack("slow"))
    assert server.taken_up == ["slow"]
    ask.close()
    await stop(answer, task)


async def test_a_peer_that_restarts_is_asked_again() -> None:
    first = Server(delay_s=60)
    answer, task = await serving(first)
    ask = Ask(answer.url, retry_s=0.2)
    asking = asyncio.create_task(ask.ask(Nack("x"), timeout_s=20))
    await first.asked.wait()
    await stop(answer, task)
    await asyncio.sleep(0.2)
    second = Server()
    answer, task = await serving(second, answer.port)
    assert await asking == Done(accepted=1)
    assert second.taken_up == ["x"]
    ask.close()
    await stop(answer, task)


async def test_no_answer_is_an_error_that_names_the_peer_and_the_question() -> None:
    ask = Ask("tcp://127.0.0.1:9", retry_s=0.1)
    start = time.monotonic()
    with pytest.raises(WireError, match=r"no answer from tcp://127.0.0.1:9 to GetStatistics within 0.3 s"):
        await ask.ask(GetStatistics(), timeout_s=0.3)
    assert time.monotonic() - start < 5
    ask.close()


async def test_the_handlers_wire_errors_and_nonsense_are_refusals() -> None:
    answer, task = await serving(Server())
    ask = Ask(answer.url)
    with pytest.raises(WireError, match="only Nack here"):
        await ask.ask(GetStatistics())
    raw = zmq.Context.instance().socket(zmq.DEALER)
    raw.connect(answer.url)
    raw.send_multipart([b"12345678", b"\xc1 no msgpack"])
    raw.send_multipart([b"no id"])
    _, reply = await asyncio.to_thread(raw.recv_multipart)
    assert b"does not decode" in reply
    raw.close(linger=0)
    assert await ask.ask(Nack("still there")) == Done(accepted=1)
    ask.close()
    await stop(answer, task)


async def test_an_error_of_the_handler_itself_ends_the_server() -> None:
    async def broken(request: Request) -> Reply:
        raise ZeroDivisionError

    answer = Answer("127.0.0.1")
    task = asyncio.create_task(answer.serve(broken))
    ask = Ask(answer.url)
    with pytest.raises(WireError):
        await ask.ask(GetStatistics(), timeout_s=0.5)
    with pytest.raises(ZeroDivisionError):
        await task
    ask.close()
    answer.close()


async def test_the_blocking_client_speaks_the_same_protocol() -> None:
    answer, task = await serving(Server(delay_s=0.5))

    def blocking() -> list[Reply]:
        ask = AskBlocking(answer.url, retry_s=0.3)  # one repetition, far from the answer
        replies = [ask.ask(Nack(name)) for name in ("a", "b")]
        ask.close()
        return replies

    assert await asyncio.to_thread(blocking) == [Done(accepted=1), Done(accepted=2)]
    await stop(answer, task)


async def test_a_port_in_use_is_named() -> None:
    answer = Answer("127.0.0.1")
    with pytest.raises(WireError, match=f"cannot listen on tcp://127.0.0.1:{answer.port}"):
        Answer("127.0.0.1", answer.port)
    answer.close()
