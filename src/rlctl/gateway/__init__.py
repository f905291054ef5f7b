"""The HTTP door for agents: OpenAI-compatible in front, exact token ids behind.

    request -> dialect (chat, completions) -> session (which known step does it extend?) -> engine -> record -> reply

Adding a dialect is one module that turns its JSON into a `chat.ChatCall` and a `sampling.Outcome` back into its JSON.
"""
