"""Values that several verbs read from their options in the same way."""

from __future__ import annotations

import os
from datetime import UTC, datetime
from pathlib import Path

from kvledger.clock import SystemClock
from kvledger.errors import InvalidRequestError


def moment(text: str | None, option: str) -> float:
    """Seconds since the Unix epoch meant by an ISO date or time (UTC unless it says otherwise); now if None."""
    if text is None:
        return SystemClock().now()
    try:
        parsed = datetime.fromisoformat(text)
    except ValueError as error:
        raise InvalidRequestError(
            f"{option} is {text!r}, which is no date: write it like 2026-11-30 or 2026-11-30T12:00Z."
        ) from error
    return (parsed if parsed.tzinfo else parsed.replace(tzinfo=UTC)).timestamp()


def ledger_address(given: str | None) -> str:
    """The ledger that was named, or the one in the user's data folder (or in that of KVLEDGER_HOME)."""
    import platformdirs

    home = os.environ.get("KVLEDGER_HOME") or platformdirs.user_data_dir("kvledger")
    return given or str(Path(home).expanduser() / "ledger.db")
