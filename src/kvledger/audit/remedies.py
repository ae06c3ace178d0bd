"""What to do about a cause: in words, as a patch on one request's body, and as a change that a replay can apply."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from kvledger.audit import edits, patches
from kvledger.audit.causes import Loss
from kvledger.audit.findings import Change, Code
from kvledger.audit.lineage import Kin
from kvledger.audit.minimum import minimum_of
from kvledger.audit.replay import Edit
from kvledger.audit.request import Request
from kvledger.audit.volatile import Span
from kvledger.providers.prompt import Level, Part, ProviderPrompt


@dataclass(frozen=True, slots=True)
class Remedy:
    """`edit` is None where no change of bodies helps. With `began_at_once` every response of the replay begins at once:
    that is what waiting for the first of a fan-out comes to."""

    change: Change
    edit: Edit | None = None
    began_at_once: bool = False


def remedy(losses: Sequence[Loss], requests: Sequence[Request], kins: Sequence[Kin]) -> Remedy:
    """The remedy for losses of one code at one place. `losses` are not empty; the first is the example."""
    return _BY_CODE[losses[0].code](losses, requests, kins)


def _volatile(losses: Sequence[Loss], requests: Sequence[Request], kins: Sequence[Kin]) -> Remedy:
    first = losses[0]
    spans = [each.contrast.span for each in losses if each.contrast and each.contrast.span]
    text = "Move what changes behind the static text and behind the last mark, or send it as a message at the end."
    part = _part_at(first.request, first.path)
    if part is None or not spans:
        return Remedy(Change(text))
    change = functools.reduce(Span.joined, spans)
    if change.before + change.after > len(part.content):
        change = Span(min(change.before, len(part.content)), 0, change.shape)
    patch = patches.moved_behind(first.request, part, change) if part.level is not Level.TOOLS else ()
    return Remedy(Change(text, patch), edits.moved_behind(first.path, change, part.content))


def _tools_reordered(losses: Sequence[Loss], requests: Sequence[Request], kins: Sequence[Kin]) -> Remedy:
    text = "Send the tools in one fixed order, sorted by name."
    return Remedy(Change(text, patches.sorted_tools(_parts(losses[0].request))), edits.sorted_tools)


def _tools_changed(losses: Sequence[Loss], requests: Sequence[Request], kins: Sequence[Kin]) -> Remedy:
    text = "Send the same tools with every request of a conversation, and limit their use with `tool_choice` instead."
    first = losses[0]
    earlier = [part for part in _parts(first.earlier) if part.level is Level.TOOLS]

    def edit(request: Request, prompt: ProviderPrompt) -> ProviderPrompt:
        rest = (part for part in prompt.parts if part.level is not Level.TOOLS)
        return edits.with_parts(prompt, (*earlier, *rest))

    return Remedy(Change(text), edit)


def _key_order(losses: Sequence[Loss], requests: Sequence[Request], kins: Sequence[Kin]) -> Remedy:
    part = _part_at(losses[0].request, losses[0].path)
    text = "Serialise JSON with its keys in one fixed order."
    return Remedy(Change(text, patches.sorted_keys(part) if part else ()), edits.sorted_keys)


def _examples(losses: Sequence[Loss], requests: Sequence[Request], kins: Sequence[Kin]) -> Remedy:
    first = losses[0]
    assert first.contrast is not None
    was = {(part.kind, part.role, part.content): part for part in _parts(first.earlier)[first.shared :]}
    now = [part for part in _parts(first.request)[first.shared :] if (part.kind, part.role, part.content) in was]
    order = list(was)
    wanted = sorted(now, key=lambda part: order.index((part.kind, part.role, part.content)))
    reference = [part for part in _parts(first.earlier)[first.shared :]]
    text = "Keep the examples in one fixed order, and where the cache works by marks, put one on the last example."
    marked = (
        [part for part in wanted if part.tokens][-1:] if any(part.breakpoint for part in _parts(first.request)) else []
    )
    patch = (*patches.in_order(now, wanted), *(op for part in marked for op in _mark_last(first.request, now, part)))
    return Remedy(Change(text, patch), edits.in_order_of(reference))


def _mark_last(request: Request, now: Sequence[Part], last: Part) -> patches.Patch:
    """A mark on what stands last once the moves are made: where the last of the pieces stands now."""
    return patches.mark(request, replace(last, path=[part.path for part in now if part.tokens][-1]))


def _history(losses: Sequence[Loss], requests: Sequence[Request], kins: Sequence[Kin]) -> Remedy:
    text = "Keep the history as it was sent and append only; shorten it rarely and in large steps."
    earlier = {each.request.index: each.earlier for each in losses if each.earlier is not None}
    return Remedy(Change(text), edits.appended_only(kins, earlier))


def _model(losses: Sequence[Loss], requests: Sequence[Request], kins: Sequence[Kin]) -> Remedy:
    first = losses[0]
    before = first.earlier.model if first.earlier else ""
    patch = ({"op": "add", "path": "/model", "value": before},)
    text = "Stay with one model in a conversation: the caches of two models share nothing."
    return Remedy(Change(text, patch), edits.on_first_model(requests))


def _params(losses: Sequence[Loss], requests: Sequence[Request], kins: Sequence[Kin]) -> Remedy:
    first = losses[0]
    assert first.earlier is not None
    assert first.earlier.prompt is not None
    value = first.earlier.prompt.settings.get(first.path)
    text = f"Keep `{first.path}` the same within a conversation."
    return Remedy(Change(text, patches.setting(first.path, value)), edits.with_setting(first.path, value))


def _mark_missing(losses: Sequence[Loss], requests: Sequence[Request], kins: Sequence[Kin]) -> Remedy:
    request = losses[0].request
    assert request.prompt is not None
    if "prompt_cache_options.mode" in request.prompt.settings:
        patch = patches.setting("prompt_cache_options.mode", '"implicit"')
        edit = edits.with_setting("prompt_cache_options.mode", "implicit")
        return Remedy(Change("Use the implicit mode, or set a breakpoint behind the text that stays.", patch), edit)
    wanted = _stable(losses)
    place = wanted_place(losses[0])
    if any(each.request.ids[: each.shared] == _ids(each.earlier) for each in losses):
        # The whole earlier prompt comes back: a mark at the end of each request serves the next.
        wanted |= {each.request.ids for each in losses} | {_ids(each.earlier) for each in losses}
        if request.provider == "anthropic":
            patch = ({"op": "add", "path": "/cache_control", "value": {"type": "ephemeral"}},)
            text = 'Ask for caching: `"cache_control": {"type": "ephemeral"}` at the top level of the body.'
            return Remedy(Change(text, patch), edits.marked_at(wanted, "5m"))
        place = _parts(request)[-1]
    text = f"Ask for caching: put a mark (`cache_control`) on `{place.path}`, the end of what stays."
    return Remedy(Change(text, patches.mark(request, place)), edits.marked_at(wanted, "5m"))


def _mark_moved(losses: Sequence[Loss], requests: Sequence[Request], kins: Sequence[Kin]) -> Remedy:
    place = wanted_place(losses[0])
    text = f"Put a mark on `{place.path}`: the last piece that stays the same from request to request."
    return Remedy(Change(text, patches.mark(losses[0].request, place)), edits.marked_at(_stable(losses), "5m"))


def _breakpoint(losses: Sequence[Loss], requests: Sequence[Request], kins: Sequence[Kin]) -> Remedy:
    place = wanted_place(losses[0])
    text = f"Set an explicit breakpoint on `{place.path}`: the implicit one ends with text that does not come back."
    return Remedy(Change(text, patches.mark(losses[0].request, place)), edits.marked_at(_stable(losses), "30m"))


def _look_back(losses: Sequence[Loss], requests: Sequence[Request], kins: Sequence[Kin]) -> Remedy:
    first, wanted, place = losses[0], set[tuple[int, ...]](), None
    for each in losses:
        marks = [index for index, part in enumerate(_parts(each.earlier)) if part.breakpoint and index < each.shared]
        end = (marks[-1] if marks else each.shared - 1) + 1
        wanted.add(each.request.ids[:end])
        if each is first:
            place = _parts(each.request)[end - 1]
    text = "Set a second mark where the request before ended: a mark looks back over a limited number of blocks."
    patch = patches.mark(first.request, place) if place and place.tokens else ()
    return Remedy(Change(text, patch), edits.marked_at(wanted, "5m"))


def _minimum(losses: Sequence[Loss], requests: Sequence[Request], kins: Sequence[Kin]) -> Remedy:
    text = (
        "The mark has no effect here: leave it out, put more of what stays (examples, tools) before it, up to the"
        " minimum, or use a model with a lower one."
    )
    request = losses[0].request
    minimum = minimum_of(request)
    return Remedy(Change(text, patches.unmark(request, _parts(request))), edits.padded(minimum) if minimum else None)


def _expired(losses: Sequence[Loss], requests: Sequence[Request], kins: Sequence[Kin]) -> Remedy:
    request = losses[0].request
    text = "Ask for a longer lifetime, or keep the entry alive with a small request before it expires."
    parts = _parts(request)
    if request.prompt is None:
        return Remedy(Change(text))
    if request.provider in ("openai", "azure"):
        newer = "prompt_cache_options.ttl" in request.prompt.settings
        patch = patches.setting("prompt_cache_retention", '"24h"')
        if newer:
            patch = patches.longer(request, parts, "12h")
        return Remedy(Change(text, patch), edits.longer_lived)
    marked = next((part.breakpoint for part in parts if part.breakpoint), None)
    if marked is None or marked.ttl not in edits.LONGER:
        return Remedy(Change("This provider sells no longer lifetime: send related requests closer together."))
    return Remedy(Change(text, patches.longer(request, parts, edits.LONGER[marked.ttl])), edits.longer_lived)


def _fan_out(losses: Sequence[Loss], requests: Sequence[Request], kins: Sequence[Kin]) -> Remedy:
    text = "Send one request first, and the others once its response has begun: until then nothing can be read."
    return Remedy(Change(text), lambda request, prompt: prompt, began_at_once=True)


def _isolated(losses: Sequence[Loss], requests: Sequence[Request], kins: Sequence[Kin]) -> Remedy:
    if losses[0].path == "prompt_cache_key":
        text = "Use one `prompt_cache_key` for requests that share a prefix, up to about 15 a minute."
        return Remedy(Change(text, patches.setting("prompt_cache_key", None)), edits.shared_by_all)
    return Remedy(Change("Send requests with the same prefix through one key or workspace."), edits.shared_by_all)


def _unmarked(losses: Sequence[Loss], requests: Sequence[Request], kins: Sequence[Kin]) -> Remedy:
    request = losses[0].request
    text = "Leave the marks out: what they write costs more than what is read."
    return Remedy(Change(text, patches.unmark(request, _parts(request))), edits.unmarked)


def _unexplained(losses: Sequence[Loss], requests: Sequence[Request], kins: Sequence[Kin]) -> Remedy:
    return Remedy(Change("Nothing in the requests explains this: show these requests to the provider."))


def wanted_place(loss: Loss) -> Part:
    """The last part with text among those that stayed."""
    parts = _parts(loss.request)[: max(loss.shared, 1)]
    return next((part for part in reversed(parts) if part.tokens), parts[-1])


def _stable(losses: Sequence[Loss]) -> set[tuple[int, ...]]:
    found = set()
    for each in losses:
        place = wanted_place(each)
        found.add(each.request.ids[: _parts(each.request).index(place) + 1])
    return found


def _part_at(request: Request, path: str) -> Part | None:
    return next((part for part in _parts(request) if part.path == path), None)


def _parts(request: Request | None) -> tuple[Part, ...]:
    return request.prompt.parts if request is not None and request.prompt is not None else ()


def _ids(request: Request | None) -> tuple[int, ...]:
    return request.ids if request is not None else ()


_BY_CODE: dict[Code, Callable[[Sequence[Loss], Sequence[Request], Sequence[Kin]], Remedy]] = {
    Code.VOLATILE_PREFIX: _volatile,
    Code.TOOLS_REORDERED: _tools_reordered,
    Code.TOOLS_CHANGED: _tools_changed,
    Code.KEY_ORDER_CHANGED: _key_order,
    Code.EXAMPLES_REORDERED: _examples,
    Code.HISTORY_REWRITTEN: _history,
    Code.MODEL_SWITCHED: _model,
    Code.PARAMS_CHANGED: _params,
    Code.MARK_MISSING: _mark_missing,
    Code.MARK_ON_CHANGING_CONTENT: _mark_moved,
    Code.IMPLICIT_BREAKPOINT_ON_SUFFIX: _breakpoint,
    Code.LOOKBACK_EXCEEDED: _look_back,
    Code.BELOW_MINIMUM: _minimum,
    Code.TTL_EXPIRED: _expired,
    Code.PARALLEL_FAN_OUT: _fan_out,
    Code.ISOLATED: _isolated,
    Code.WRITE_NEVER_READ: _unmarked,
    Code.NOT_WORTH_CACHING: _unmarked,
    Code.UNEXPLAINED: _unexplained,
}
