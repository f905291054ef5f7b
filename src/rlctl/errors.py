"""Every error a user can meet, and the exit code it ends in.

    RlctlError            1  runtime failure
    ├── ConfigError       2  bad usage or configuration: place and cure in the message
    ├── ComponentDied     3  a component ended for good
    ├── Watchdog          4  no progress
    └── WireError         1  a peer did not answer, or answered nonsense
        └── PeerRefused   1  a peer understood the request and said no

Errors propagate to one boundary, `rlctl.cli.main`, which prints the message without a traceback.
"""


class RlctlError(Exception):
    """A failure with a message meant for the user."""

    exit_code = 1


class ConfigError(RlctlError):
    """One or more problems in configuration or usage; all of them at once, one per line."""

    exit_code = 2

    def __init__(self, problems: list[str] | str) -> None:
        self.problems = [problems] if isinstance(problems, str) else list(problems)
        super().__init__("\n".join(self.problems))


class ComponentDied(RlctlError):
    """A component process ended and is not coming back."""

    exit_code = 3


class Watchdog(RlctlError):
    """Nothing moved for longer than `monitor.watchdog_s`."""

    exit_code = 4


class WireError(RlctlError):
    """A peer could not be reached, timed out, or sent a message that does not decode."""


class PeerRefused(WireError):
    """A peer understood the request and said no; sending it again changes nothing."""
