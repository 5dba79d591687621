"""What a session's sandbox may reach: given at its creation or by its environment, shown, changed, refused."""

from typing import Any

import pytest
from e2e.api_client import Api, SessionApi
from e2e.session_suite import unique

_CONNECT = """python3 - <<'END'
import socket
try:
    socket.create_connection(("{host}", {port}), timeout=20).recv(1)
except OSError as exc:
    print(type(exc).__name__)
END"""
CLOSED: dict[str, Any] = {"internet": False, "allow": [], "deny": []}


async def connect(session: SessionApi, host: str, port: int = 443) -> str:
    """The name of the error that a program gets."""
    result = await session.exec(_CONNECT.format(host=host, port=port))
    return str(result["stdout"]).strip()


def path(session: SessionApi) -> str:
    return f"/api/sessions/{session.id}/network"


@pytest.mark.anyio
class NetworkSuite:
    async def test_a_session_reaches_nothing_unless_it_asks(self, api: Api) -> None:
        async with api.session() as session:
            assert session.found["network"] == CLOSED
            shown = await api.get(path(session))
            assert {name: shown[name] for name in CLOSED} == CLOSED
            assert (shown["connections"], shown["refused"], shown["refusals"]) == (0, 0, [])
            isolation = (await api.get(f"/api/sessions/{session.id}"))["isolation"]
            assert "no_network" in isolation["in_force"]
            assert await connect(session, "api.example.com") == "gaierror"

    async def test_rules_of_a_pooled_session_hold_from_its_first_command_on(self, api: Api) -> None:
        async with api.session(network={"allow": ["api.example.com:443"]}) as session:
            assert session.found["network"]["allow"] == ["api.example.com:443"]
            assert (await session.exec("getent hosts api.example.com"))["stdout"].startswith("198.18.")
            assert (await session.exec("getent hosts www.example.com"))["exit_code"] != 0
            assert await connect(session, "93.184.216.34", 80) == "ConnectionResetError"
            refusals = (await api.get(path(session)))["refusals"]
            assert [one["rule"] for one in refusals if one["port"] == 80] == ["93.184.216.34:80"]
            assert (await session.get("/ports"))["ports"] == []  # the resolver is Warren's
            isolation = (await api.get(f"/api/sessions/{session.id}"))["isolation"]
            assert "api.example.com:443" in isolation["missing"]["no_network"]
            assert "no_network" not in isolation["in_force"]

    async def test_rules_are_replaced_as_a_whole_while_it_runs(self, api: Api) -> None:
        async with api.session() as session:
            opened = await api.call("PUT", path(session), {"allow": ["one.example", "*.two.example"]})
            assert opened["allow"] == ["one.example", "*.two.example"]
            assert (await session.exec("getent hosts a.two.example"))["exit_code"] == 0
            changed = await api.call("PUT", path(session), {"allow": ["three.example"]})
            assert changed["allow"] == ["three.example"]
            assert (await session.exec("getent hosts a.two.example"))["exit_code"] != 0
            assert (await session.exec("getent hosts three.example"))["exit_code"] == 0
            assert (await api.call("PUT", path(session), {}))["allow"] == []
            assert (await session.exec("getent hosts three.example"))["exit_code"] != 0
            assert (await api.get(f"/api/sessions/{session.id}"))["network"] == CLOSED

    async def test_a_thread_keeps_the_rules_of_its_session(self, api: Api) -> None:
        thread = unique()
        async with api.session(thread_id=thread, network={"allow": ["one.example"]}):
            again = {"thread_id": thread, "network": {"internet": True}}
            found = await api.post("/api/sessions", again, status=200)
            assert found["network"] == {**CLOSED, "allow": ["one.example"]}

    async def test_who_requires_no_network_never_gets_one(self, api: Api) -> None:
        both = {"require": ["no_network"], "network": {"internet": True}}
        refused = await api.refused("POST", "/api/sessions", both, status=422, code="invalid_request")
        assert "no_network" in refused["detail"]
        async with api.session(require=["no_network"]) as session:
            await api.refused("PUT", path(session), {"allow": ["one.example"]}, status=409, code="conflict")
            assert (await api.call("PUT", path(session), {}))["allow"] == []

    @pytest.mark.parametrize("rule", ["", "*", "a b", "10.0.0.0/33", "host:0", "host:70000", "https://host", "a..b"])
    async def test_what_is_no_rule_is_refused(self, api: Api, rule: str) -> None:
        network = {"network": {"allow": [rule]}}
        await api.refused("POST", "/api/sessions", network, status=422, code="invalid_request")
        async with api.session(network={"allow": ["kept.example"]}) as session:
            await api.refused("PUT", path(session), {"allow": [rule]}, status=422, code="invalid_request")
            assert (await api.get(path(session)))["allow"] == ["kept.example"]
