"""The API on one page, made from the OpenAPI document: no script, and nothing from elsewhere."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from html import escape
from typing import Any

__all__ = ["reference_page"]

# What a machine can count to is no limit that a reader needs to know.
_NO_LIMIT = 2**31 - 1


def reference_page(document: dict[str, Any]) -> str:
    """The whole page."""
    info = document["info"]
    parts = [
        "<!doctype html>",
        '<html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        '<link rel="stylesheet" href="page/reference.css">',
        f"<title>{escape(info['title'])} API</title></head><body>",
        f"<h1>{escape(info['title'])} {escape(info['version'])}</h1>",
        f"<p>{_words(info.get('description', ''))}</p>",
        '<p>For programs: <a href="openapi.json">openapi.json</a>. For people: <a href="./">the search page</a>.</p>',
    ]
    for path, routes in document["paths"].items():
        for method, route in routes.items():
            parts += _route(method, path, route, document)
    return "\n".join([*parts, "</body></html>"])


def _route(method: str, path: str, route: dict[str, Any], document: dict[str, Any]) -> Iterator[str]:
    yield f"<h2><code>{method.upper()} {escape(path)}</code></h2>"
    yield f"<p>{_words(route.get('description') or route.get('summary', ''))}</p>"
    rows = [
        (one["name"], one["schema"], one.get("description", ""), one.get("required", False))
        for one in route.get("parameters", ())
    ]
    body = route.get("requestBody", {}).get("content", {}).get("application/json")
    if body is not None:
        schema = _resolved(body["schema"], document)
        required = set(schema.get("required", ()))
        rows += [
            (name, one, one.get("description", ""), name in required) for name, one in schema["properties"].items()
        ]
    if rows:
        yield "<table><tr><th>field</th><th>type</th><th>default</th><th></th></tr>"
        for name, schema, words, needed in rows:
            default = "" if needed or schema.get("default") is None else json.dumps(schema["default"])
            yield (
                f"<tr><td><code>{escape(name)}</code></td><td>{escape(_kind(schema, document))}</td>"
                f"<td>{'required' if needed else f'<code>{escape(default)}</code>'}</td><td>{_words(words)}</td></tr>"
            )
        yield "</table>"
    for example in (body or {}).get("examples", {}).values():
        shown = escape(json.dumps(example["value"], indent=1, ensure_ascii=False))
        yield f"<h3>{escape(example['summary'])}</h3><pre>{shown}</pre>"
    yield "<table><tr><th>status</th><th></th></tr>"
    for status, answer in route.get("responses", {}).items():
        yield f"<tr><td><code>{escape(status)}</code></td><td>{_words(answer.get('description', ''))}</td></tr>"
    yield "</table>"


def _kind(schema: dict[str, Any], document: dict[str, Any]) -> str:
    schema = _resolved(schema, document)
    if "enum" in schema:
        kind = f"{schema['type']}: " if "type" in schema else ""
        return kind + " | ".join(map(str, schema["enum"]))
    if "anyOf" in schema:
        return " | ".join(_kind(one, document) for one in schema["anyOf"] if one.get("type") != "null")
    kind = str(schema.get("type", "any"))
    if kind == "array":
        kind = f"list of {_kind(schema.get('items', {}), document)}"
    if "properties" in schema:
        kind = f"{{{', '.join(schema['properties'])}}}"
    least, most = schema.get("minimum"), schema.get("maximum")
    if most is not None and most < _NO_LIMIT:
        kind += f", {least if least is not None else ''} … {most}"
    elif least is not None:
        kind += f", at least {least}"
    return kind


def _resolved(schema: dict[str, Any], document: dict[str, Any]) -> dict[str, Any]:
    if "$ref" in schema:
        found: dict[str, Any] = document["components"]["schemas"][schema["$ref"].rsplit("/", 1)[-1]]
        return found
    return schema


def _words(text: str) -> str:
    """A description, of which only `code` is marked up."""
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", escape(text, quote=False))
