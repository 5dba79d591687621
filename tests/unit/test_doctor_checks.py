"""What the doctor makes of what it finds: tables in, rows out."""

from pathlib import Path

import pytest

from warren.doctor.check import Check, Level
from warren.doctor.kernel_state import (
    check_cores,
    check_dumpable,
    check_line_disciplines,
    check_network,
    check_terminals,
)
from warren.doctor.machine import check_cgroups, check_kernel, check_user_namespaces
from warren.doctor.parts import (
    check_lost_cgroups,
    check_programs,
    judge_docker,
    judge_runtimes,
    known_holes,
    missing_layer,
    parse_version,
)
from warren.model.spec import Layer
from warren.sandboxes.host.cgroups import Hierarchies
from warren.sandboxes.host.isolation import UNREADABLE
from warren.sandboxes.providers.oci_runtime import Runtime, RuntimeReport


@pytest.mark.parametrize(
    ("system", "release", "machine", "level"),
    [
        ("Linux", "6.18.44-fc", "aarch64", Level.OK),
        ("Linux", "5.19.0", "x86_64", Level.OK),
        ("Linux", "5.15.0-100-generic", "x86_64", Level.FAIL),
        ("Linux", "6.1.0", "riscv64", Level.FAIL),
        ("Darwin", "23.1.0", "arm64", Level.FAIL),
    ],
)
def test_kernels(system: str, release: str, machine: str, level: Level) -> None:
    assert check_kernel(system, release, machine).level is level


@pytest.mark.parametrize(
    ("pattern", "level", "said"),
    [
        ("core", Level.OK, "no program"),
        ("|/usr/share/apport/apport -p%p", Level.WARN, "but not one in a sandbox"),
        ("@/run/coredump.socket", Level.WARN, "also one in a sandbox"),
    ],
)
def test_what_crashes_start(pattern: str, level: Level, said: str) -> None:
    check = check_cores(pattern)
    assert check.level is level
    assert said in check.found


@pytest.mark.parametrize(
    ("most", "reserve", "level"), [(4096, 1024, Level.OK), (1024, 512, Level.WARN), (4096, 0, Level.WARN)]
)
def test_terminals_are_enough_for_many_sandboxes_and_the_host(most: int, reserve: int, level: Level) -> None:
    assert check_terminals(most, reserve).level is level


@pytest.mark.parametrize(("value", "level"), [("0", Level.OK), ("1", Level.FAIL), ("2", Level.OK)])
def test_processes_that_changed_their_user_must_not_be_dumpable(value: str, level: Level) -> None:
    assert check_dumpable(value).level is level


@pytest.mark.parametrize(("autoload", "said"), [("0", False), ("1", True), ("", True)])
def test_line_disciplines_that_the_kernel_loads_for_anybody_are_mentioned(autoload: str, said: bool) -> None:
    assert ("dev.tty.ldisc_autoload=0" in check_line_disciplines(autoload).found) is said


def test_a_kernel_whose_network_settings_are_the_machines_gets_a_remedy() -> None:
    assert check_network({}).level is Level.OK
    found = check_network({"net.core.tstamp_allow_data": "0"})
    assert (found.level, found.remedy) == (Level.WARN, "sysctl net.core.tstamp_allow_data=0")


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("runc version 1.1.5+ds1", (1, 1, 5)),
        ("crun version 1.8.1", (1, 8, 1)),
        ("29.5.1", (29, 5, 1)),
        ("unknown", ()),
        ("1.2", (1, 2, 0)),
    ],
)
def test_versions(text: str, number: tuple[int, ...]) -> None:
    assert parse_version(text) == number


@pytest.mark.parametrize(
    ("version", "count"),
    [
        ("runc version 1.1.5", 3),
        ("runc version 1.1.12", 2),
        ("1.2.8", 1),
        ("1.3.2", 2),
        ("1.3.3", 1),
        ("1.3.6", 0),
        ("1.4.2", 1),
        ("1.4.3", 0),
        ("1.5.0", 0),
    ],
)
def test_holes_of_runc_are_told_by_its_version(version: str, count: int) -> None:
    checks = list(known_holes("runc", version))
    assert [check.level for check in checks] == [Level.WARN] * count
    assert list(known_holes("crun", version)) == []


def levels(checks: list[Check]) -> dict[str, Level]:
    return {check.name: check.level for check in checks}


def test_no_working_runtime_fails_with_a_remedy() -> None:
    broken = Runtime("crun", "/usr/bin/crun", "1.8", False, "it said no")
    checks = list(judge_runtimes(RuntimeReport((broken,), "", "none of them works here")))
    assert levels(checks) == {"runtime crun": Level.WARN, "runtime": Level.FAIL}
    assert "install" in checks[-1].remedy


def test_the_chosen_runtime_says_why() -> None:
    good = Runtime("crun", "/usr/bin/crun", "crun version 1.8", True, "a sandbox was tried")
    (check,) = judge_runtimes(RuntimeReport((good,), "crun", "the first that works"))
    assert check.level is Level.OK
    assert "chosen: the first that works" in check.found


def test_cgroups_that_are_missing_fail(tmp_path: Path) -> None:
    assert levels(list(check_cgroups(Hierarchies({})))) == {"cgroups": Level.FAIL}
    (tmp_path / "cgroup.controllers").write_text("cpu pids\n")
    assert levels(list(check_cgroups(Hierarchies({"": tmp_path})))) == {
        "cgroups": Level.OK,
        "cgroup memory": Level.FAIL,
        "cgroup cpu": Level.OK,
        "cgroup pids": Level.OK,
    }


def test_a_docker_engine_without_live_restore_is_warned_of() -> None:
    off = levels(list(judge_docker({"ServerVersion": "20.10.24", "LiveRestoreEnabled": False, "SecurityOptions": []})))
    assert off["docker live-restore"] is Level.WARN
    assert "docker archive API" in off
    new = levels(list(judge_docker({"ServerVersion": "29.5.1", "LiveRestoreEnabled": True, "SecurityOptions": None})))
    assert new["docker live-restore"] is Level.OK
    assert "docker archive API" not in new


def test_programs_that_are_missing_broken_or_old_fail(tmp_path: Path) -> None:
    assert {check.level for check in check_programs(tmp_path)} == {Level.FAIL}
    (tmp_path / "warren-agent").write_text("#!/bin/sh\necho warren-agent 0\n")
    (tmp_path / "warren-launch").write_text("no program\n")
    for path in tmp_path.iterdir():
        path.chmod(0o755)
    agent, launcher = check_programs(tmp_path)
    assert "version 1 is needed" in agent.found
    assert (agent.level, launcher.level) == (Level.FAIL, Level.FAIL)
    assert "make build" in agent.remedy


def test_a_layer_that_cannot_be_read_has_another_remedy_than_one_that_is_missing() -> None:
    unreadable = missing_layer(Layer.SYSTEM_CALLS, f"{UNREADABLE}no right")
    assert (unreadable.level, "SYS_PTRACE" in unreadable.remedy) == (Level.WARN, True)
    assert "--require user_namespace" in missing_layer(Layer.USER_NAMESPACE, "the same as the host's").remedy


@pytest.mark.parametrize(("value", "level"), [("0", Level.OK), ("1", Level.WARN), ("2", Level.WARN)])
def test_apparmor_that_restricts_user_namespaces_is_named_with_its_switch(
    tmp_path: Path, value: str, level: Level
) -> None:
    switch = tmp_path / "apparmor_restrict_unprivileged_userns"
    switch.write_text(f"{value}\n")
    check = check_user_namespaces(switch)
    assert check.level is level
    assert (f"sysctl kernel.{switch.name}=0" in check.remedy) == (level is Level.WARN)


def test_leftover_cgroups_are_shown_with_their_place(tmp_path: Path) -> None:
    for name in ("one/sbx_known", "one/sbx_lost", "two/sbx_lost"):
        (tmp_path / name).mkdir(parents=True)
    tops = {tmp_path / name for name in ("one", "two", "three")}
    (check,) = check_lost_cgroups(tops, {"sbx_known"})
    assert (check.level, check.found) == (Level.WARN, f"1, such as {tmp_path}/one/sbx_lost")
    assert list(check_lost_cgroups(tops, {"sbx_known", "sbx_lost"})) == []
