"""The parameters beside the prompt, and from which level on a change of each loses the cache."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from kvledger.providers.anthropic.editions import Model, rules
from kvledger.providers.anthropic.parts import deferred_tools, shows_image
from kvledger.providers.decode import check_depth
from kvledger.providers.prompt import Level, Part, ProviderPrompt

_PROMPT = frozenset(("model", "tools", "system", "messages", "cache_control"))
_CITABLE = frozenset(("document", "search_result", "tool_result"))


def read_settings(body: Mapping[str, Any], parts: tuple[Part, ...]) -> dict[str, str]:
    """Everything of a body that is not the prompt itself, as JSON by name. Defaults are left out where sending them is
    no change; two settings are read off the blocks: `citations` (any asked for) and `images` (which there are)."""
    values: dict[str, Any] = {}
    for name, value in body.items():
        if name in _PROMPT or value is None:
            continue
        check_depth(value, name)
        if name == "output_config" and isinstance(value, dict):
            values |= {f"{name}.{key}": inner for key, inner in value.items() if inner is not None}
        else:
            values[name] = _bare(name, value)
    if any(part.kind in _CITABLE and '"citations":{"enabled":true' in part.content for part in parts):
        values["citations"] = True
    if images := [part.identity.hex() for part in parts if shows_image(part)]:
        values["images"] = images
    if deferred := deferred_tools(body):
        values["tools.deferred"] = deferred
    defaults = rules().defaults
    return {name: _json(value) for name, value in values.items() if defaults.get(name) != value}


def by_level(prompt: ProviderPrompt, model: Model) -> dict[Level, dict[str, str]]:
    """Those settings of `prompt` that its cache depends on, each at the level it is lost from."""
    found: dict[Level, dict[str, str]] = {}
    table = rules()
    for name, level in table.settings.items():
        if (value := prompt.settings.get(name)) is not None:
            at = Level.TOOLS if model.leads and name in table.leading else level
            found.setdefault(at, {})[name] = value
    return found


def mixed(levels: Mapping[Level, Mapping[str, str]]) -> dict[Level, str]:
    """The text that stands for each level's settings in the digest of a prefix."""
    return {level: _json(values) for level, values in levels.items()}


def _bare(name: str, value: Any) -> Any:
    """`value` without what does not reach the prompt."""
    if name == "thinking" and isinstance(value, dict):
        return {key: inner for key, inner in value.items() if key != "display"}
    if name == "tool_choice" and isinstance(value, dict) and not value.get("disable_parallel_tool_use"):
        return {key: inner for key, inner in value.items() if key != "disable_parallel_tool_use"}
    return value


def _json(value: Any) -> str:
    return msgspec.json.encode(value, order="deterministic").decode()
