"""The contents, system instruction and tools of a Gemini request, checked and turned into a neutral chat."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from kvledger.errors import InvalidRequestError
from kvledger.providers.decode import convert
from kvledger.providers.gemini.fields import objects
from kvledger.text.chat import Chat, Message


class FunctionCall(msgspec.Struct):
    name: str
    args: dict[str, Any] | None = None
    id: str | None = None


class FunctionResponse(msgspec.Struct):
    name: str
    response: dict[str, Any] | None = None
    id: str | None = None


class FunctionDeclaration(msgspec.Struct, rename="camel"):
    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    parameters_json_schema: dict[str, Any] | None = None


BESIDE = frozenset(("thought", "thoughtSignature", "videoMetadata", "mediaResolution", "partMetadata"))
"""Fields of a part that are not its data."""

Body = Mapping[str, Any]


def unsupported(param: str, what: str, instead: str) -> InvalidRequestError:
    """The error for something that Gemini knows and this server does not: what, and what to do `instead`."""
    return InvalidRequestError(f"{what} not supported by this server: {instead}.", param=param)


def read_chat(body: Body, path: str = "") -> Chat:
    """The chat of a request, or of a cached content that stands at `path`."""
    lead = f"{path}." if path else ""
    return Chat((*_system(body, lead), *_contents(body.get("contents"), f"{lead}contents")), tuple(_tools(body, lead)))


def data_of(part: Body, path: str) -> str:
    """The name of the field that holds a part's data; there must be one, and one only."""
    names = [name for name, value in part.items() if name not in BESIDE and value is not None]
    if len(names) != 1:
        found = " and ".join(f"`{name}`" for name in names) or "none"
        raise InvalidRequestError(f"`{path}` must have one field of data, such as `text`: it has {found}.", param=path)
    return names[0]


def _system(body: Body, lead: str) -> Iterator[Message]:
    path = f"{lead}systemInstruction"
    instruction = body.get("systemInstruction")
    if instruction is None:
        return
    if not isinstance(instruction, Mapping):
        raise InvalidRequestError(f"`{path}` must be an object with `parts`.", param=path)
    texts = [_text(part, place) for part, place in _parts(instruction, path)]
    yield Message("system", "".join(texts), path)


def _contents(contents: Any, path: str) -> Iterator[Message]:
    for content, place in objects(contents, path):
        role = content.get("role") or "user"
        if role == "model":
            yield _answer(content, place)
        elif role in ("user", "function"):
            yield from _question(content, place)
        else:
            raise InvalidRequestError(f"`{place}.role` must be user or model, not {role!r:.40}.", param=f"{place}.role")


def _question(content: Body, path: str) -> Iterator[Message]:
    """Texts as one message; each function response as one of its own, where it stands."""
    texts: list[str] = []
    for part, place in _parts(content, path):
        if data_of(part, place) == "functionResponse":
            if texts:
                yield Message("user", "".join(texts), path)
                texts = []
            yield _response(part["functionResponse"], f"{place}.functionResponse")
        else:
            texts.append(_text(part, place))
    if texts:
        yield Message("user", "".join(texts), path)


def _answer(content: Body, path: str) -> Message:
    """An earlier turn of the model. Its thoughts are left out, as chat templates leave them out."""
    texts, calls = [], []
    for part, place in _parts(content, path):
        if data_of(part, place) == "functionCall":
            call = convert(part["functionCall"], FunctionCall, f"{place}.functionCall")
            function = {"name": call.name, "arguments": call.args or {}}
            calls.append({"id": call.id or call.name, "type": "function", "function": function})
        else:
            text = _text(part, place)
            if not part.get("thought"):
                texts.append(text)
    return Message("assistant", "".join(texts), path, {"tool_calls": calls} if calls else {})


def _response(value: Any, path: str) -> Message:
    response = convert(value, FunctionResponse, path)
    content = msgspec.json.encode(response.response or {}).decode()
    return Message("tool", content, path, {"tool_call_id": response.id or response.name, "name": response.name})


def _parts(content: Body, path: str) -> Sequence[tuple[Body, str]]:
    found = list(objects(content.get("parts"), f"{path}.parts"))
    if not found:
        raise InvalidRequestError(f"`{path}.parts` must hold at least one part.", param=f"{path}.parts")
    return found


def _text(part: Body, path: str) -> str:
    kind = data_of(part, path)
    if kind != "text":
        raise unsupported(f"{path}.{kind}", f"`{kind}` in `{path}` is", "send text")
    if not isinstance(part["text"], str):
        raise InvalidRequestError(f"`{path}.text` must be a string.", param=f"{path}.text")
    return part["text"]


def _tools(body: Body, lead: str) -> Iterator[Mapping[str, Any]]:
    """Function declarations as chat templates know them: JSON Schema, types in lower case."""
    for tool, path in objects(body.get("tools"), f"{lead}tools"):
        for name, value in tool.items():
            if name != "functionDeclarations" and value is not None:
                raise unsupported(f"{path}.{name}", f"The tool `{name}` (`{path}`) is", "use `functionDeclarations`")
        for value, place in objects(tool.get("functionDeclarations"), f"{path}.functionDeclarations"):
            declared = convert(dict(value), FunctionDeclaration, place)
            function: dict[str, Any] = {"name": declared.name}
            if declared.description is not None:
                function["description"] = declared.description
            if (schema := declared.parameters_json_schema or declared.parameters) is not None:
                function["parameters"] = _json_schema(schema)
            yield {"type": "function", "function": function}


def _json_schema(schema: Any) -> Any:
    """Google's schema as JSON Schema: the same, but for the types' upper case."""
    if isinstance(schema, list):
        return [_json_schema(item) for item in schema]
    if not isinstance(schema, Mapping):
        return schema
    return {
        name: value.lower() if name == "type" and isinstance(value, str) else _json_schema(value)
        for name, value in schema.items()
    }
