from __future__ import annotations

import pytest

from adacur.errors import InputError
from adacur.extras.server import ServerSettings


@pytest.mark.parametrize(
    "wrong",
    [
        {"max_k": 0},
        {"max_budget": 1.5},
        {"queue": -1},
        {"seconds": 0},
        {"seconds": float("inf")},
        {"seconds": float("nan")},
        {"grace_seconds": -1.0},
        {"api_keys": ("",)},
        {"api_keys": (" ",)},
        {"api_keys": ("schlüssel",)},
        {"api_keys": ("fine", "not fine ")},
        {"api_keys": "secret"},
        {"allowed_hosts": "example.com"},
        {"allowed_hosts": ("http://example.com",)},
        {"allowed_hosts": ("example.com:80",)},
        {"allowed_hosts": ("[::1]",)},
        {"allowed_hosts": ("*",)},
        {"allowed_hosts": ("",)},
        {"allowed_hosts": ("Example.com",)},
        {"max_filter_values": 0},
    ],
)
def test_a_limit_that_is_none_is_refused(wrong):
    with pytest.raises(InputError):
        ServerSettings(**wrong)


def test_the_defaults_are_limits_that_clients_are_told():
    limits = ServerSettings().limits()
    assert limits["budget"] == 1000
    assert limits["seconds"] == 60.0
    assert "api_keys" not in limits
