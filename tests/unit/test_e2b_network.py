"""E2B's network settings as rules of a session, and back."""

from dataclasses import replace
from typing import Any

import pytest

from warren.http.e2b.control.network import read_host_mask, read_network, show_network
from warren.http.previews.headers import for_sandbox
from warren.model.network import NetworkRules
from warren.model.preview import Preview, PreviewRules
from warren.model.session import Session

ALL = "0.0.0.0/0"
SESSION = Session("ses_1", "t", "e2b", "epoch", 0.0, 0.0, 0.0, previews=PreviewRules(everything=True))


@pytest.mark.parametrize(
    ("values", "internet", "rules"),
    [
        ({}, None, None),
        ({}, True, None),
        ({"allowOut": [], "denyOut": None}, None, None),
        ({}, False, NetworkRules()),
        ({"denyOut": [ALL]}, None, NetworkRules(deny=(ALL,))),
        (
            {"allowOut": ["*.example.com", "1.2.3.4", "1.2.3.4"], "denyOut": [ALL]},
            None,
            NetworkRules(allow=("*.example.com", "1.2.3.4"), deny=(ALL,)),
        ),
        ({"allowOut": ["example.com"]}, False, NetworkRules(allow=("example.com",))),
        ({"denyOut": ["8.8.8.8", "10.1.2.3/8"]}, None, NetworkRules(True, deny=("8.8.8.8", "10.0.0.0/8"))),
        ({"allowOut": ["8.8.8.8"]}, None, NetworkRules(True, allow=("8.8.8.8",))),
        ({"allowOut": [ALL], "denyOut": [ALL]}, None, NetworkRules(True)),
        ({"allowOut": ["10.1.2.3", ALL, "10.1.2.3"]}, None, NetworkRules(True, allow=("10.1.2.3",))),
        ({"allowOut": [ALL, "db.internal"], "denyOut": [ALL]}, None, NetworkRules(True, allow=("db.internal",))),
    ],
)
def test_what_a_client_says_becomes_rules(values: dict[str, Any], internet: bool | None, rules: NetworkRules) -> None:
    assert read_network(values, internet) == rules


@pytest.mark.parametrize(
    ("rules", "shown"),
    [
        (NetworkRules(True), {"allowPublicTraffic": True}),
        (NetworkRules(), {"allowPublicTraffic": True, "denyOut": [ALL]}),
        (
            NetworkRules(allow=("example.com",), deny=(ALL,)),
            {"allowPublicTraffic": True, "allowOut": ["example.com"], "denyOut": [ALL]},
        ),
        (NetworkRules(True, deny=("8.8.8.8",)), {"allowPublicTraffic": True, "denyOut": ["8.8.8.8"]}),
    ],
)
def test_rules_are_shown_as_clients_know_them(rules: NetworkRules, shown: dict[str, Any]) -> None:
    assert show_network(replace(SESSION, network=rules)) == shown


@pytest.mark.parametrize("mask", ["${PORT}-app.example.com", "localhost:${PORT}", "app.example.com", "127.0.0.1:80"])
def test_a_host_mask_is_a_host_with_the_port_in_it(mask: str) -> None:
    rules = PreviewRules(everything=True, host_mask=read_host_mask({"maskRequestHost": mask}))
    assert rules.masked_host(3000) == mask.replace("${PORT}", "3000")
    assert show_network(replace(SESSION, previews=rules))["maskRequestHost"] == mask


def test_the_server_inside_sees_the_mask_unless_localhost_was_asked_for() -> None:
    preview = Preview("ses_1", 3000, by_host=True, masked_host="app.example.com:3000")
    origin = (b"origin", b"https://3000-1.preview.example")
    scope = {"type": "http", "scheme": "https", "headers": [(b"host", b"3000-1.preview.example"), origin]}

    def seen(preview: Preview) -> tuple[bytes, bytes]:
        found = dict(for_sandbox(scope, preview, b"3000-1.preview.example"))
        assert found[b"x-forwarded-host"] == b"3000-1.preview.example"
        return found[b"host"], found[b"origin"]

    assert seen(preview) == (b"app.example.com:3000", b"http://app.example.com:3000")
    assert seen(replace(preview, by_host=False))[0] == b"app.example.com:3000"
    assert seen(replace(preview, local_host=True)) == (b"localhost:3000", b"http://localhost:3000")
    assert seen(replace(preview, masked_host="")) == (b"3000-1.preview.example", origin[1])
