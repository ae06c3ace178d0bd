"""`max_tokens: 0`: a request that writes the cache and wants no answer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kvledger.errors import InvalidRequestError


def check_prewarm(body: Mapping[str, Any]) -> None:
    """Raise `InvalidRequestError` for what the API refuses together with `max_tokens: 0`."""
    if body.get("max_tokens") != 0 or isinstance(body.get("max_tokens"), bool):
        return
    kind = {name: value.get("type") for name, value in body.items() if isinstance(value, dict)}
    format = body["output_config"].get("format") if "output_config" in kind else None
    for param, refused, instead in (
        ("stream", bool(body.get("stream")), "leave `stream` out"),
        ("thinking", kind.get("thinking") not in (None, "disabled"), "disable thinking"),
        ("output_config.format", format is not None, "leave the format out"),
        ("tool_choice", kind.get("tool_choice") in ("any", "tool"), "use tool_choice auto or none"),
    ):
        if refused:
            raise InvalidRequestError(f"`{param}` cannot go with `max_tokens` 0: {instead}.", param=param)
