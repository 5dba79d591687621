"""Whose sandboxes the orchestrator (packages/compat) works on: a server's, or this machine's and E2B's."""

import pytest
from orchestrator.target import Target, choose_target
from orchestrator.unified_manager import _NO_PROVIDER
from server_process import free_port

from warren.cluster.placement import Candidate, Requirements, explain_no_worker
from warren.model.capability import choose_provider
from warren.model.errors import InvalidRequest

OWN, FAR = "wk_own", "https://warren.example.com"
LOCAL, REMOTE = Target("local"), Target("remote")


@pytest.mark.parametrize(
    ("environ", "key", "target"),
    [
        ({}, "", LOCAL),
        ({}, None, LOCAL),
        ({}, "e2b_key", Target("local", e2b_api_key="e2b_key")),
        ({}, OWN, Target("remote", OWN, is_e2b=True)),
        ({"WARREN_API_KEY": ""}, OWN, Target("remote", OWN, is_e2b=True)),
        ({"WARREN_API_KEY": OWN}, OWN, Target("remote", OWN, is_e2b=True)),
        ({"WARREN_URL": "http://here"}, None, REMOTE),
        ({"WARREN_API_KEY": OWN}, None, REMOTE),
        ({"E2B_API_URL": FAR}, "wk_far", Target("local", e2b_api_key="wk_far")),
        ({"E2B_DOMAIN": "e2b.example.com"}, "wk_far", Target("local", e2b_api_key="wk_far")),
        ({"E2B_API_URL": FAR, "WARREN_URL": f"{FAR}/"}, OWN, Target("remote", OWN, is_e2b=True)),
    ],
)
def test_a_key_and_the_environment_say_whose_sandboxes_they_are(
    monkeypatch: pytest.MonkeyPatch, environ: dict[str, str], key: str | None, target: Target
) -> None:
    for name in ("WARREN_URL", "WARREN_API_KEY", "E2B_API_URL", "E2B_DOMAIN", "WARREN_E2B_API_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("WARREN_PORT", str(free_port()))
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    assert choose_target(key) == target


def test_a_far_side_s_key_is_not_used_on_a_server_and_a_warning_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WARREN_API_KEY", OWN)
    for key in ("wk_far", "e2b_key"):
        with pytest.warns(
            UserWarning, match="^e2b_api_key is not used: a server has its own key for E2B, if it has the provider$"
        ):
            assert choose_target(key) == REMOTE


def test_the_words_of_a_server_and_of_a_coordinator_without_a_provider_are_known() -> None:
    with pytest.raises(InvalidRequest) as caught:
        choose_provider({"oci": frozenset()}, "e2b")
    assert _NO_PROVIDER.match(caught.value.message)
    worker = Candidate(
        *("a", ("oci",), {}), 1, 0, 0, {}, waiting=0, pressure=0.0, draining=False, alive=True, assigned=0
    )
    assert _NO_PROVIDER.match(explain_no_worker(Requirements("base", "tenant", "e2b"), [worker]))
