"""`warren doctor --attack --url`: a server withstands it; and the probes do notice when one does not."""

import json
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import warm_parent
from e2e.api_client import Api
from machine.conftest import checked_state_dir
from server_process import ServerProcess, running_server

from warren.model.errors import InvalidRequest, Unauthorized, Unavailable
from warren_attack.probe import Finding, Group, Probe, ProbeVerdict
from warren_attack.runner import chosen
from warren_attack.warren.api.arena import ApiArena, Tenant
from warren_attack.warren.api.suite import PROBES, attack_server

pytestmark = pytest.mark.anyio

ADMIN = "the-operator-has-this-key"
SCOPES = ("read", "exec", "files", "sessions")


@pytest.fixture(scope="module")
def server(image_cache: Path) -> Iterator[ServerProcess]:
    with checked_state_dir(image_cache) as path, running_server(path, WARREN_API_KEY=ADMIN) as server:
        yield server


async def new_key(server: ServerProcess, tenant: str) -> str:
    async with Api(server.url, {"X-API-Key": ADMIN}) as admin:
        body = {"name": "attack", "tenant": tenant, "scopes": list(SCOPES)}
        return str((await admin.call("POST", "/api/admin/keys", body, status=201))["key"])


async def attacked(server: ServerProcess, probes: list[Probe[ApiArena]]) -> list[Finding]:
    arena = ApiArena(server.url, await new_key(server, "acme"), await new_key(server, "globex"))
    findings = await attack_server(arena, probes=probes)
    for tenant in (arena.own, arena.other):
        async with Api(server.url, {"X-API-Key": tenant.key}) as api:
            for kind in ("sessions", "snapshots", "volumes"):
                assert (await api.call("GET", f"/api/{kind}"))[kind] == []
    return findings


def open_holes(findings: list[Finding]) -> list[str]:
    return [f"{finding.probe.id}: {finding.outcome.evidence}" for finding in findings if finding.failed]


@pytest.mark.timeout(400)
@pytest.mark.extended
async def test_everything_is_contained(server: ServerProcess) -> None:
    probes = [probe for probe in PROBES if probe.group is not Group.API_LOAD]
    findings = await attacked(server, probes)
    assert len(findings) == len(probes) >= 70
    assert open_holes(findings) == []


@pytest.mark.timeout(400)
@pytest.mark.extended
@pytest.mark.serial
async def test_what_others_wait_is_measured(server: ServerProcess) -> None:
    """How fast a machine is that also runs tests proves nothing: what counts here is that nothing breaks."""
    findings = await attacked(server, chosen(PROBES, (Group.API_LOAD,)))
    without = [finding for finding in findings if not re.search(r"[\d.]+ ms", finding.outcome.evidence)]
    broken = [finding for finding in findings if re.search("requests gave|failed|of no use", finding.outcome.evidence)]
    assert (without, broken) == ([], [])
    for line in open_holes(findings):
        print(line)


class OneTenantTakenForTwo(ApiArena):
    """Both keys are of one tenant, so that everything of the other is served: as by a server that checks nothing."""

    async def _identify(self, tenant: Tenant) -> None:
        await super()._identify(tenant)
        tenant.name += "-other" if tenant is self.other else ""


async def test_a_server_that_does_not_tell_tenants_apart_is_seen_through(server: ServerProcess) -> None:
    arena = OneTenantTakenForTwo(server.url, await new_key(server, "acme"), await new_key(server, "acme"))
    names = ["get-session", "run-command", "exec-socket", "read-file", "flat-download-file", "read-output"]
    names += ["change-session", "e2b", "lists", "threads", "untouched"]
    findings = await attack_server(arena, probes=chosen(PROBES, [f"across-{name}" for name in names]))
    seen = {finding.probe.id for finding in findings if finding.outcome.verdict is ProbeVerdict.GOT_THROUGH}
    assert seen == {f"across-{name}" for name in names}, findings


async def test_without_a_second_tenant_the_rest_is_tried(server: ServerProcess) -> None:
    probes = chosen(PROBES, ("api-near-ids", "across-get-session"))
    arena = ApiArena(server.url, await new_key(server, "acme"))
    verdicts = [finding.outcome.verdict for finding in await attack_server(arena, probes=probes)]
    assert verdicts == [ProbeVerdict.CONTAINED, ProbeVerdict.NOT_APPLICABLE]


async def test_keys_and_servers_that_will_not_do_are_one_sentence(server: ServerProcess) -> None:
    key = await new_key(server, "acme")
    with pytest.raises(Unauthorized, match="does not take this API key"):
        await attack_server(ApiArena(server.url, "wrong"))
    with pytest.raises(InvalidRequest, match="both keys are of the tenant 'acme'"):
        await attack_server(ApiArena(server.url, key, key))
    with pytest.raises(Unavailable, match="cannot be reached"):
        await attack_server(ApiArena("http://127.0.0.1:1", key))


def doctor(environ: dict[str, str], *arguments: str) -> Any:
    argv = [sys.executable, "-m", "warren.cli.main", "doctor", *arguments]
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": ":".join(sys.path), **environ}
    return warm_parent.run(argv, capture_output=True, text=True, env=environment, timeout=120, check=False)


async def test_the_command(server: ServerProcess) -> None:
    keys = {"WARREN_API_KEY": await new_key(server, "acme"), "WARREN_OTHER_API_KEY": await new_key(server, "globex")}
    flags = ("--attack", "--url", server.url, "--only", "across-read-file", "--only", "api-no-key")
    done = doctor(keys, *flags, "--json")
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)["probes"]
    assert {row["id"]: row["verdict"] for row in rows} == {"api-no-key": "contained", "across-read-file": "contained"}
    assert doctor({}, "--url", server.url).returncode == 2
    unknown = doctor(keys, "--attack", "--url", server.url, "--only", "fork-bomb")
    assert (unknown.returncode, "api tenants" in unknown.stderr) == (125, True)
