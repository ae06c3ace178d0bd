"""The pytest plugin: the fixture `kvledger_emulator`. It is loaded by every pytest, so what is heavy waits for it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from kvledger.testing.handle import RunningEmulator


@pytest.fixture(scope="session")
def _kvledger_server() -> Iterator[RunningEmulator]:
    from kvledger.testing.emulator import Emulator  # noqa: PLC0415
    from kvledger.testing.handle import RunningEmulator  # noqa: PLC0415

    with RunningEmulator(Emulator.create()) as running:
        yield running


@pytest.fixture
def kvledger_emulator(_kvledger_server: RunningEmulator) -> RunningEmulator:
    """An emulator of providers that was not asked anything yet; see `RunningEmulator`."""
    _kvledger_server.reset()
    return _kvledger_server
