"""The neutral chat request: what every provider's wire format is turned into before a template sees it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Message:
    """One message of a chat.

    `path` says where it stood in the request body (`messages[2]`), so that a token can be traced back to it.
    `fields` are further keys that a template may read (`name`, `tool_calls`, `tool_call_id`), as plain JSON values.
    """

    role: str
    content: str
    path: str
    fields: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Chat:
    """Messages in order, and the tool definitions (plain JSON values) that the template may render."""

    messages: tuple[Message, ...]
    tools: tuple[Mapping[str, Any], ...] = ()
