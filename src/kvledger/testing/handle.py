"""What a test holds of an emulator: addresses, the clock, receipts and assertions."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from types import TracebackType

from kvledger.api.server import Server, bind, listen
from kvledger.ledger.account import Break, BreakReason
from kvledger.ledger.receipt import Receipt
from kvledger.testing.emulator import Emulator
from kvledger.testing.standin import Script, ScriptedCall

__all__ = ["RunningEmulator", "Script", "ScriptedCall"]

_VOLATILE = (BreakReason.TOOLS_CHANGED, BreakReason.SYSTEM_CHANGED)
_CANNOT_TELL = (BreakReason.NOT_ASKED, BreakReason.BELOW_MINIMUM)


class RunningEmulator:
    """An emulator that serves on a port of this machine, in a thread, while the context lasts."""

    def __init__(self, emulator: Emulator, *, port: int = 0) -> None:
        self._emulator = emulator
        self._listener = bind("127.0.0.1", port)
        listen(self._listener)
        self._server = Server(emulator.app, close_engine=emulator.close, drain=1.0)
        self._thread = threading.Thread(
            target=self._server.run, args=([self._listener],), name="kvledger-emulator", daemon=True
        )
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"

    def __enter__(self) -> RunningEmulator:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._server.should_exit = True
        self._thread.join(20)
        self._listener.close()

    @property
    def openai_url(self) -> str:
        """`base_url` of OpenAI's SDK."""
        return f"{self.url}/v1"

    @property
    def anthropic_url(self) -> str:
        """`base_url` of Anthropic's SDK."""
        return self.url

    @property
    def gemini_url(self) -> str:
        """`base_url` in the `http_options` of Google's SDK."""
        return self.url

    @property
    def receipts(self) -> Sequence[Receipt]:
        """Of every request since the start or the last `reset`, in the order in which they ended."""
        return tuple(self._emulator.kept.receipts)

    def advance(self, seconds: float) -> float:
        """Move the clock, which stands still otherwise; returns its time."""
        return self._emulator.advance(seconds)

    def answer(self, *scripts: Script) -> None:
        """Answer the next requests so, one after another."""
        self._emulator.engine.play(scripts)

    def reset(self) -> None:
        """Forget receipts, scripts and everything cached."""
        self._emulator.reset()

    def assert_reads(self, turn: int, at_least: float = 0.95) -> None:
        """Request `turn`, counted from 1, read that share of its prompt from the provider's cache."""
        receipt = self._turn(turn)
        split = receipt.usage.split
        share = split.read / split.prompt_tokens if split.prompt_tokens else 0.0
        if share < at_least:
            raise AssertionError(
                f"request {turn} ({receipt.model}) read {split.read} of {split.prompt_tokens} tokens, {share:.1%} where"
                f" {at_least:.1%} are wanted.{_why(receipt)}"
            )

    def assert_nothing_expired(self) -> None:
        """No request came too late for what an earlier one had written."""
        self._refuse_breaks((BreakReason.EXPIRED,), "found that what it would have read had expired")

    def assert_no_volatile_prefix(self) -> None:
        """Tools and system prompt stay the same from request to request: no timestamp, no id, no other order.

        It also fails where nothing could be told, because a prompt was too short to be cached or did not ask for it.
        """
        self._refuse_breaks(_VOLATILE, "begins otherwise than the one before")
        for number, receipt in enumerate(self._asked(), 1):
            reasons = {found.reason for found in receipt.account.breaks}
            if number > 1 and not receipt.usage.split.read and reasons & {*_CANNOT_TELL}:
                raise AssertionError(f"request {number} ({receipt.model}) cannot be judged.{_why(receipt)}")

    def _refuse_breaks(self, reasons: Sequence[BreakReason], what: str) -> None:
        for number, receipt in enumerate(self._asked(), 1):
            found = [each for each in receipt.account.breaks if each.reason in reasons]
            if found:
                raise AssertionError(f"request {number} ({receipt.model}) {what}.{_told(found)}")

    def _asked(self) -> list[Receipt]:
        """The requests for an answer; what storage cost has receipts too."""
        return [receipt for receipt in self.receipts if receipt.usage.split.prompt_tokens]

    def _turn(self, turn: int) -> Receipt:
        asked = self._asked()
        if not 1 <= turn <= len(asked):
            raise AssertionError(f"there is no request {turn}: {len(asked)} were made.")
        return asked[turn - 1]


def _why(receipt: Receipt) -> str:
    if receipt.provider == "kvledger":
        return "\n  It was made under the stand-in's own name: use a provider's model name to have its rules."
    return _told(receipt.account.breaks)


def _told(breaks: Sequence[Break]) -> str:
    lines = []
    for found in breaks:
        where = f" at {found.path}" if found.path else ""
        where += f", character {found.offset}" if found.offset is not None else ""
        lines.append(f"\n  {found.reason.value}{where}: {found.tokens} tokens. {found.detail}".rstrip())
        if found.before or found.after:
            lines.append(f"\n    before: {found.before!r}\n    now:    {found.after!r}")
    return "".join(lines)
