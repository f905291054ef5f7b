"""Messages to text to token ids, and sampled text to reasoning, content and tool calls: pure."""
