"""The errors a user can meet. Each message says what is wrong, where, and what to do about it, in one sentence.

An error carries facts (`param`, needed and available numbers), never an HTTP status or an exit code: the rooms
that talk to people (`api`, `cli`, `providers`) decide how to show it.
"""

from __future__ import annotations


class KvledgerError(Exception):
    """Base of every error that is the user's or the surroundings', not a fault in this program."""


class ModelFileError(KvledgerError):
    """A model file cannot be used: missing, truncated, of an unknown kind, or lacking a tensor."""


class ModelNotFoundError(KvledgerError):
    """A model name that is neither known, nor pulled, nor a path."""


class DownloadError(KvledgerError):
    """A model could not be fetched, or what arrived is not what was asked for."""


class TemplateError(KvledgerError):
    """The chat template refuses these messages or is itself broken."""


class CacheFolderError(KvledgerError):
    """The folder of the disk tier cannot be used: not writable, or in use by another process."""


class InvalidRequestError(KvledgerError):
    """A request that can never be served as it stands.

    `param` is the path of the offending field in the request body (`messages[0].content`), or None for the whole.
    """

    def __init__(self, message: str, *, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param


class PromptTooLongError(InvalidRequestError):
    """A prompt that cannot fit, now or ever. Counts are in tokens; `roughly` is "about" or "at least" for
    a prompt that was not counted exactly."""

    def __init__(self, needed: int, available: int, what: str, *, roughly: str = "") -> None:
        super().__init__(
            f"This prompt needs {f'{roughly} ' if roughly else ''}{needed} tokens and {what} holds {available}:"
            " shorten the prompt.",
            param="messages",
        )
        self.needed = needed
        self.available = available


class OverloadedError(KvledgerError):
    """The bounded queue is full. `retry_after` is in seconds."""

    def __init__(self, message: str, *, retry_after: float) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class ShuttingDownError(KvledgerError):
    """The server is closing and takes no new work."""


class TraceError(KvledgerError):
    """A trace that cannot be used: not a trace, of an unknown format, empty, or not a line of it readable."""


class SimulationError(KvledgerError):
    """A simulation that cannot be run as asked: its capacity, policy, time to live, tiers, order or router."""


class PlanError(KvledgerError):
    """A plan that cannot be worked out as asked: an unknown model, accelerator or data type, or an impossible size."""


class ExplainError(KvledgerError):
    """Something that cannot be shown as asked: a file without a chat or text, or a size outside its limits."""


class LedgerError(KvledgerError):
    """A ledger that cannot be opened, read or written."""


class LedgerConflictError(LedgerError):
    """A second, different receipt of one request."""


class CachedContentNotFoundError(KvledgerError):
    """An explicit cache (Gemini's `cachedContents`) that was never there, has expired, or belongs to another scope."""


class ServerError(KvledgerError):
    """A server that was asked gives no answer, or not the one that was asked for."""


class AuditError(KvledgerError):
    """An audit that cannot be done as asked: no such log, nothing readable in it, or a gate that is none."""
