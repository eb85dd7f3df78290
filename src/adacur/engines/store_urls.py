"""placeholder until the Qdrant branch lands"""

from typing import Any


def open_store(url: str, **options: Any) -> Any:
    raise NotImplementedError
