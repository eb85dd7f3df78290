from __future__ import annotations

from pathlib import Path

import pytest

FIXTURES = Path(__file__).parents[2] / "fixtures"


@pytest.fixture
def beir_folder() -> Path:
    return FIXTURES / "beir"
