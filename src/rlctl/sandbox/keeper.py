"""The keeper process: imports the functions once, then runs every call in a forked child and says how it ended.

    stdin --Call--> fork --> child: confine, call, write the result into a pipe, exit
                     |-- pipe closed, deadline, or reward process gone --> kill the child's group, remove its folder
    stdout <-Result--'

Started as `python -m rlctl.sandbox.keeper MODULE...`; single-threaded, so that forking is safe.
"""

import contextlib
import importlib
import numbers
import os
import select
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import msgspec

from rlctl.sandbox import confine, protocol
from rlctl.sandbox.protocol import Call, Result

decode_call = msgspec.msgpack.Decoder(Call).decode
decode_result = msgspec.msgpack.Decoder(Result).decode
encode = msgspec.msgpack.Encoder().encode


def main() -> None:
    """Serve until stdin ends."""
    stdin, stdout = os.dup(0), os.dup(1)
    nothing = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1):
        os.dup2(nothing, descriptor)  # what imported modules print must not get into the stream
    sys.path.insert(0, str(Path.cwd()))
    for module in sys.argv[1:]:
        protocol.write(stdout, encode(imported(module)))
    means = confine.available()
    while (message := protocol.read(stdin)) is not None:
        protocol.write(stdout, encode(run(decode_call(message), stdin, means)))


def imported(target: str) -> Result:
    """Whether `module:function` is there; `text` says why not."""
    try:
        value = found(target)
    except (Exception, SystemExit) as error:  # whatever importing a user's module raises is the user's to read
        return Result("raised", text=f"{type(error).__name__}: {error}")
    if not callable(value):
        return Result("wrong_type", text=f"is {type(value).__name__}, not a function")
    return Result("value")


def found(target: str) -> Any:
    """What `module:attribute` names."""
    module, _, attribute = target.partition(":")
    return getattr(importlib.import_module(module), attribute)


def run(call: Call, stdin: int, means: list[str]) -> Result:
    """One call in a child of its own, in a folder of its own; both are gone afterwards."""
    folder = Path(tempfile.mkdtemp(prefix="rlctl-sandbox-")).resolve()
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        _child(call, folder, writing, means)
    os.close(writing)
    deadline = time.monotonic() + call.limits.time_s
    try:
        data, reason = _collect(reading, stdin, deadline, call.limits.reply_bytes)
    finally:
        status = _end(child)
        os.close(reading)
        shutil.rmtree(folder, ignore_errors=True)
    return _judged(data, reason, status, call.limits)


def _collect(reading: int, stdin: int, deadline: float, most: int) -> tuple[bytes, str]:
    """What the child wrote until it closed its end; else why we stopped listening."""
    data = bytearray()
    poll = select.poll()
    poll.register(reading, select.POLLIN)
    poll.register(stdin, 0)  # hang-ups only
    while (left := deadline - time.monotonic()) > 0:
        for descriptor, event in poll.poll(max(1, int(left * 1000))):
            if descriptor == stdin and event & (select.POLLHUP | select.POLLERR):
                return b"", "crash"
            if descriptor == reading:
                part = os.read(reading, 1 << 16)
                data += part
                if not part:
                    return bytes(data), ""
                if len(data) > most:
                    return b"", "too much"
    return b"", "timeout"


def _end(child: int) -> int:
    """Kill the child and what it started; its wait status."""
    finished, status = os.waitpid(child, os.WNOHANG)
    if not finished:
        time.sleep(0.001)  # it has closed its pipe and is about to exit
        finished, status = os.waitpid(child, os.WNOHANG)
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child, signal.SIGKILL)
    if finished:
        return status
    with contextlib.suppress(ProcessLookupError):
        os.kill(child, signal.SIGKILL)
    return os.waitpid(child, 0)[1]


def _judged(data: bytes, reason: str, status: int, limits: protocol.Limits) -> Result:
    if reason == "timeout":
        return Result("timeout", text=f"ran longer than {limits.time_s:g} s")
    if reason == "too much":
        return Result("wrong_type", text=f"returned more than {limits.reply_bytes} bytes")
    if data:
        try:
            return decode_result(data)
        except msgspec.DecodeError:
            return Result("crash", text="wrote something else than a result")
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        if number == signal.SIGXCPU:
            return Result("timeout", text=f"used more than {limits.time_s:g} s of CPU")
        return Result("crash", text=f"died of {signal.Signals(number).name}")
    return Result("crash", text=f"exited with code {os.waitstatus_to_exitcode(status)} without a result")


def _child(call: Call, folder: Path, writing: int, means: list[str]) -> None:
    """Never returns: the process ends here."""
    code = 1
    try:
        os.setsid()
        confine.die_with_parent()
        for descriptor in (1, 2):
            os.dup2(0, descriptor)
        os.dup2(writing, 3)
        os.closerange(4, 4096)
        os.chdir(folder)
        os.environ.update(HOME=str(folder), TMPDIR=str(folder))
        tempfile.tempdir = str(folder)
        confine.confine(folder, call.limits, means)
        protocol_data = encode(_called(call))
        while protocol_data:
            protocol_data = protocol_data[os.write(3, protocol_data) :]
        code = 0
    finally:
        os._exit(code)


def _called(call: Call) -> Result:
    """The function's value or what it raised. Nothing a function does may get past here."""
    try:
        arguments = (
            [msgspec.msgpack.decode(call.payload, type=found(call.argument))]
            if call.argument
            else msgspec.msgpack.decode(call.payload)
        )
        value = found(call.target)(*arguments, **call.keywords)
        return Result("value", _plain(value))
    except MemoryError:
        return Result("memory", text=f"used more than {call.limits.memory_mb} MB")
    except _WrongType as error:
        return Result("wrong_type", text=str(error))
    except BaseException as error:  # also SystemExit and KeyboardInterrupt: all of it is an outcome
        return Result("raised", text=f"{type(error).__name__}: {error}"[:2000])


class _WrongType(Exception):
    """The function returned something that is no value."""


def _plain(value: Any) -> object:
    """A number, text, or a list of numbers, without numpy's and the like's own types."""
    if isinstance(value, str):
        return value if type(value) is str else str(value)
    if isinstance(value, numbers.Real):
        return float(value)
    if isinstance(value, list | tuple) and all(isinstance(one, numbers.Real) for one in value):
        return [float(one) for one in value]
    raise _WrongType(f"returned {type(value).__name__}, not a number")


if __name__ == "__main__":
    main()
