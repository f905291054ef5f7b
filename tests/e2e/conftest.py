"""No run outlives its test."""

from collections.abc import Iterator

import pytest

from tests.e2e import running


@pytest.fixture(autouse=True)
def no_run_goes_on() -> Iterator[None]:
    before = len(running.started)
    yield
    for process in running.started[before:]:
        if process.poll() is None:
            process.kill()  # its leash ends the others
            process.communicate()
