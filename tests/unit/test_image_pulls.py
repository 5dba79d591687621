"""What a server pulls by itself, for whom, under which name, and how many at once."""

import asyncio
import tomllib
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from warren.cli.network import _refusal_row
from warren.config.settings import read_settings
from warren.images.building.pull_turns import PullTurns
from warren.images.building.refusals import explain_refusals, suggest_networks
from warren.images.store.store import ImageStore
from warren.model.errors import ImageNotFound, InvalidRequest, LimitReached
from warren.model.image_pulls import ALLOW_LIST, OFF, ON, PullRules, read_pattern
from warren.model.image_reference import read_reference
from warren.model.network import NO_HOST, Refusal
from warren.model.tenant_images import may_use_image, pulled_image, reference_in

pytestmark = pytest.mark.anyio
DIGEST = f"sha256:{'a' * 64}"


@pytest.mark.parametrize(
    ("pattern", "fitting", "others"),
    [
        ("python", ["python:3.12", "docker.io/library/python", f"python@{DIGEST}"], ["team/python", "pythons:1"]),
        ("python:3.*", ["python:3.12"], ["python", "python:2", f"python@{DIGEST}", f"python:3.1@{DIGEST}"]),
        (
            "ghcr.io/team/*",
            ["ghcr.io/team/a:1", "ghcr.io/team/a/b"],
            ["ghcr.io/teams/a", "ghcr.io:443/team/a"],
        ),
        ("*", ["ubuntu"], ["team/image", "ghcr.io/x"]),  # the official images of Docker Hub
        ("docker.io/library/*", ["ubuntu", "python:3"], ["team/image", "evil.example.com/docker.io/library/x"]),
    ],
)
def test_a_pattern_names_images(pattern: str, fitting: list[str], others: list[str]) -> None:
    found = read_pattern(pattern)
    assert [text for text in (*fitting, *others) if found.fits(read_reference(text))] == fitting


@pytest.mark.parametrize("text", ["", "*.example.com/x", "a b", "x[ab]", "?", f"x@{DIGEST}", "UPPER/x", "*/x:y/z"])
def test_what_is_no_pattern_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequest):
        read_pattern(text)


def test_what_a_tenant_names_is_pulled_for_it_alone_where_the_operator_allows_it() -> None:
    listed = PullRules.read(ALLOW_LIST, ["python:3.*"])
    name = listed.image_for("acme", "python:3.12")
    assert name == pulled_image("acme", "python:3.12") == PullRules(ON).image_for("acme", "python:3.12")
    assert reference_in(name) == "python:3.12"
    assert may_use_image("acme", name)
    assert not may_use_image("other", name)
    assert listed.image_for("other", name) == pulled_image("other", "python:3.12")
    with pytest.raises(ImageNotFound, match="not one of those that it pulls") as caught:
        listed.image_for("acme", "python:2.7")
    assert "image_pull_allowed" in caught.value.remedy
    assert PullRules(OFF).image_for("acme", "python:3.12") == ""
    for owned in ("template/0123/x/y", "environment/x", "Not A Name", "pulled/x"):
        assert PullRules(ON).image_for("acme", owned) == ""


def test_the_name_that_an_image_has_on_its_machine_opens_no_more_than_the_one_that_the_tenant_knows() -> None:
    name = pulled_image("acme", "python:3.12")
    allowed = [PullRules(mode).pulls_for_tenant(name) for mode in (OFF, ALLOW_LIST, ON)]
    assert allowed == [False, False, True]
    assert PullRules.read(ALLOW_LIST, ["python:3.*"]).pulls_for_tenant(name)
    assert not PullRules.read(OFF, ["python:3.*"]).pulls_for_tenant(name)
    for other in ("python:3.12", "pulled/x", "template/0123/x/y"):
        assert not PullRules(ON).pulls_for_tenant(other)


def test_a_name_that_no_file_can_have_is_refused(tmp_path: Path) -> None:
    (tmp_path / "root").mkdir()
    name = PullRules(ON).image_for("acme", f"a/{'b' * 223}")
    ImageStore(tmp_path / "state").import_directory(name, tmp_path / "root", shell_needed=False)
    with pytest.raises(InvalidRequest, match="is too long for an image that is pulled for you"):
        PullRules(ON).image_for("acme", f"a/{'b' * 224}")


def test_a_mirror_may_name_docker_hub_in_each_way() -> None:
    for host in ("docker.io", "index.docker.io", "Registry-1.docker.io"):
        variables = {"WARREN_CONFIG": "/dev/null", "WARREN_IMAGE_MIRRORS": f"{host}=mirror.example.com/hub"}
        settings = read_settings(variables)
        assert read_reference("ubuntu").served_by(settings.image_mirrors).host == "mirror.example.com"


def test_what_an_environment_names_is_pulled_unless_pulls_are_off() -> None:
    assert [PullRules(mode).pulls_own("ubuntu:22.04") for mode in (OFF, ALLOW_LIST, ON)] == [False, True, True]
    assert not PullRules(ON).pulls_own("environment/x")


def test_what_the_operator_names_itself_is_pulled_under_its_own_name() -> None:
    assert PullRules(ON, is_own=True).image_for("", "python:3.12") == ""
    with pytest.raises(ImageNotFound):
        PullRules(ALLOW_LIST, is_own=True).image_for("", "python:3.12")


async def test_tenants_pull_one_at_a_time_and_do_not_wait_for_each_other() -> None:
    turns, running, most = PullTurns(at_once=2, waiting=3), list[str](), list[int]()
    ended = asyncio.Event()

    async def pull(tenant: str) -> None:
        async with turns.turn(tenant):
            running.append(tenant)
            most.append(len(running))
            await ended.wait()
            running.remove(tenant)
        turns.leave(tenant)

    tasks = []
    for tenant in ("a", "a", "a", "b", "c"):
        turns.join(tenant)
        tasks.append(asyncio.create_task(pull(tenant)))
    with pytest.raises(LimitReached, match="3 images are being pulled for you already"):
        turns.join("a")
    for _ in range(5):
        await asyncio.sleep(0)
    assert running == ["a", "b"]
    ended.set()
    await asyncio.gather(*tasks)
    assert (max(most), turns._locks, turns._pulls.in_all) == (2, {}, 0)
    turns.join("a")


def test_what_the_network_refused_is_named_with_the_option_that_allows_it() -> None:
    private = Refusal(1.0, "index.example.com", "10.1.2.3", 443, "it is a private address")
    other = Refusal(1.0, "pypi.example.com", "", 0, "no rule allows its name", "pypi.example.com")
    text = explain_refusals([private, private, other])
    assert text == (
        "the network refused index.example.com:443 (10.1.2.3), because it is a private address: egress_networks would "
        "have to have its network; the network refused pypi.example.com, because no rule allows its name: "
        "image_network would have to allow pypi.example.com"
    )
    assert explain_refusals([]) == ""
    assert [each.is_special for each in (private, other, replace(private, reason=NO_HOST))] == [True, False, False]
    shown = {**asdict(private), "at": "2026-01-01T00:00:00Z"}
    assert _refusal_row(shown)[3] == "the operator: egress_networks"
    assert _refusal_row({**shown, "rule": "10.1.2.3"})[3] == "--add --allow 10.1.2.3"


async def test_the_operator_gets_a_line_that_opens_the_address_which_was_refused() -> None:
    """What the network reports has no address of a name: the name is looked up."""
    by_name = Refusal(1.0, "10.66051", "", 443, "it is a private address")  # a spelling that is looked up
    by_address = Refusal(1.0, "", "203.0.113.80", 443, "it is an address for documentation")
    text = await suggest_networks([by_address, by_address])
    assert text.startswith("WARREN_EGRESS_NETWORKS=203.0.113.80/32, or `egress_networks = [")
    assert tomllib.loads(text.split("`")[1]) == {"egress_networks": ["203.0.113.80/32"]}
    assert text.endswith("a server needs it too, and a restart")
    assert "WARREN_EGRESS_NETWORKS=10.1.2.3/32,203.0.113.80/32, or" in await suggest_networks([by_name, by_address])
    assert await suggest_networks([replace(by_name, name="nowhere.invalid"), replace(by_name, name="localhost")]) == ""
    assert await suggest_networks([replace(by_name, rule="index.example.com")]) == ""
