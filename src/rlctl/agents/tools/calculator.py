"""`calculator`: exact arithmetic, without running anything."""

from rlctl.agents.tools.tool import Json, Tool, ToolFailed, one_text, text_argument
from rlctl.rules.expressions import evaluate


def calculator() -> Tool:
    async def call(arguments: Json) -> str:
        try:
            value, _ = evaluate(text_argument(arguments, "expression"))
        except ValueError as error:
            raise ToolFailed(str(error)) from error
        return str(value) if value.denominator == 1 else f"{value} = {float(value):.10g}"

    description = "Evaluate arithmetic over whole numbers with + - * / and brackets, exactly."
    return Tool("calculator", description, one_text("expression", "for example (3 + 4) * 12"), call)
