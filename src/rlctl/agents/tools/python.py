"""`python`: a program in the sandbox; every call starts from nothing, and what it prints is the result."""

import asyncio
import contextlib
import io

from rlctl.agents.tools.tool import Json, Tool, ToolFailed, one_text, text_argument
from rlctl.sandbox.client import Sandbox
from rlctl.sandbox.protocol import Limits

TARGET = "rlctl.agents.tools.python:run"


def run(program: str) -> str:
    """What happens in the sandbox: execute as `__main__`; what was printed. Raises what the program raises."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.suppress(SystemExit):
        exec(compile(program, "program.py", "exec"), {"__name__": "__main__"})
    return printed.getvalue()


def python(timeout_s: float, workers: int) -> tuple[Tool, Sandbox]:
    """The tool and the sandbox behind it, which the caller closes."""
    sandbox = Sandbox([TARGET], workers)
    limits = Limits(time_s=timeout_s)

    async def call(arguments: Json) -> str:
        program = text_argument(arguments, "code")
        result = await asyncio.to_thread(sandbox.call, TARGET, program, limits=limits)
        if result.outcome != "value":
            raise ToolFailed(f"{result.outcome}: {result.text}")
        return str(result.value) or "(nothing was printed)"

    description = "Run a Python program in a sandbox without network. Print what you want to know."
    return Tool("python", description, one_text("code", "the program"), call), sandbox
