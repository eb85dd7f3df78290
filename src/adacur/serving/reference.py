"""`/docs`: the API on one page, made from the OpenAPI document; no script, and nothing from other hosts."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from html import escape
from typing import Any

__all__ = ["reference_page"]


def reference_page(document: dict[str, Any]) -> str:
    """The whole page."""
    info = document["info"]
    title = f"{escape(info['title'])} {escape(info['version'])}"
    parts = [
        '<!doctype html><html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f'<link rel="stylesheet" href="page/reference.css"><title>{title}</title></head><body>',
        f"<h1>{title}</h1><p>{_words(info.get('description', ''))}</p>",
        '<p>For programs: <a href="openapi.json">openapi.json</a>. For people: <a href="./">the search page</a>.</p>',
    ]
    for path, routes in document["paths"].items():
        for method, route in routes.items():
            parts += _route(method, path, route, document)
    return "\n".join([*parts, "</body></html>"])


def _route(method: str, path: str, route: dict[str, Any], document: dict[str, Any]) -> Iterator[str]:
    yield f"<h2><code>{method.upper()} {escape(path)}</code></h2>"
    yield f"<p>{_words(route.get('description') or route.get('summary', ''))}</p>"
    body = route.get("requestBody", {}).get("content", {}).get("application/json", {})
    schema = _resolved(body.get("schema", {}), document)
    fields = {one["name"]: {**one["schema"], **one} for one in route.get("parameters", ())}
    fields |= schema.get("properties", {})
    if fields:
        yield "<table><tr><th>field</th><th>type</th><th></th></tr>"
        for name, field in fields.items():
            default = f" Default: `{json.dumps(field['default'])}`." if field.get("default") is not None else ""
            described = _words(field.get("description", "") + default)
            yield f"<tr><td><code>{escape(name)}</code></td><td>{escape(_kind(field, document))}</td>"
            yield f"<td>{described}</td></tr>"
        yield "</table>"
    for example in schema.get("examples", ()):
        yield f"<pre>{escape(json.dumps(example, ensure_ascii=False))}</pre>"
    statuses = route.get("responses", {}).items()
    lines = (f"<li><code>{escape(status)}</code> {_words(one.get('description', ''))}</li>" for status, one in statuses)
    yield f"<ul>{''.join(lines)}</ul>"


def _kind(schema: dict[str, Any], document: dict[str, Any]) -> str:
    schema = _resolved(schema.get("schema", schema), document)
    if "enum" in schema:
        return " | ".join(map(str, schema["enum"]))
    if "anyOf" in schema:
        return " | ".join(_kind(one, document) for one in schema["anyOf"] if one.get("type") != "null")
    if "properties" in schema:
        return f"{{{', '.join(schema['properties'])}}}"
    if schema.get("type") == "array":
        return f"list of {_kind(schema.get('items', {}), document)}"
    # The largest number that a machine counts to is not a limit that a reader needs to know.
    limits = {"from": schema.get("minimum"), "to": schema.get("maximum")}
    bounds = [f"{word} {limit}" for word, limit in limits.items() if limit is not None and limit < 2**31 - 1]
    return " ".join([schema.get("type", "any"), *bounds])


def _resolved(schema: dict[str, Any], document: dict[str, Any]) -> dict[str, Any]:
    if "$ref" not in schema:
        return schema
    resolved: dict[str, Any] = document["components"]["schemas"][schema["$ref"].rsplit("/", 1)[-1]]
    return resolved


def _words(text: str) -> str:
    """A description, of which only `code` is marked up."""
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", escape(text, quote=False))
