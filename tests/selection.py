"""Which tests `make test` leaves to `make test-all`, which run alone, and which belong on the same process.

`make test` runs every behaviour once; where the same tests run in several ways it runs one of them. This is the one
place that says which: by patterns that are searched in the names of the tests.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import pytest

EXTENDED: Final = "extended"
SERIAL: Final = "serial"

_EXTENDED: Final = (
    # The same contract with another provider, runtime, build of the agent, event loop, or kind of Redis.
    r"contract/test_(docker|agent_sanitized|agent_uvloop)\.py",
    r"contract/test_oci\.py::Test(Crun|Runc)",
    r"contract/test_oci\.py::test_.*-(crun|runc)\]",
    r"integration/test_direct\.py::test_the_sanitized",
    r"contract/test_contexts_core\.py::Test(Docker|Sanitized)",
    r"contract/test_sudo\.py::(Test|test_.*\[(crun|runc))",
    r"contract/test_redis_store\.py::TestRedisStore(InSteps|OnACluster)",
    r"contract/test_audit\.py::TestFileAuditOfManyFiles",
    r"e2e/test_api_docker\.py",
    r"integration/test_(docker|image_docker)\.py",
    r"faults/test_docker_restart\.py",
    # Of the cluster, `make test` runs the suites that tell whether requests find their sessions.
    r"e2e/test_api_cluster\.py::Test(?!Once|Flat|Server)",
    # Long ones: many faults, whole programs, all attacks.
    r"faults/test_random_kills\.py",
    r"faults/test_artifact_kills\.py::test_twenty",
    r"faults/cluster/test_cluster_(partitions|pauses|spread|random_faults)\.py",
    r"faults/cluster/test_cluster_failures\.py::(?!test_a_rolling_restart)",
    r"integration/test_ordinary_programs\.py",
    r"integration/test_attack(_api)?\.py::test_(everything_is_contained|rules_of_a_network|what_a_neighbour_keeps|what_others_wait)",
    r"integration/test_dist\.py::TestRelease",
    r"runners/test_python_libraries\.py::test_cells_give",
    r"integrations/test_mcp_versions\.py::test_it_works_beside",  # needs a package index
    r"integrations/test_vendor_suite\.py::test_86",
    r"e2e/test_image_recipes\.py::test_packages_of_every_kind",  # needs package indexes, and a minute or two
    r"e2e/test_schema\.py::test_no_random_value",
    r"e2e/test_request_cost\.py::test_no_request",
    # Of the SDKs `make test` runs the newest in both modes, and the oldest in one.
    r"e2b/test_sdks\.py::.*\[(one-port-2\.(20|34|44|50)|domain-2\.(7|20|34|44|50))\.",
)
"""Left to `make test-all`."""

_FIRST: Final = "first"
_ONE_OF: Final[Mapping[str, Sequence[str]]] = {
    r"contract/test_sdk\.py::TestAsync": (r"\[local-fake", r"\[local-oci"),
    r"contract/test_sdk\.py::Test(?!Async)": (r"\[remote-fake", r"\[remote-oci"),
    r"e2e/": (r"\[alone", r""),
    r"integrations/test_mcp_tools\.py::TestEveryTransport": (r"\[(http|handshake)",),
    r"faults/test_kill_points\.py": (_FIRST,),
    r"faults/test_clock_jump\.py": (_FIRST,),
    r"faults/test_artifact_kills\.py": (_FIRST,),
    r"integration/test_cluster_bad_input\.py::test_settings_that_cannot_be": (_FIRST,),
}
"""Of the variants of one test `make test` runs those that match the first of these patterns that matches any."""

SUITES_OF_THE_FAKE: Final = {
    *(
        "ArtifactSuite",
        "CodeSuite",
        "CommandSuite",
        "ExpirySuite",
        "FiguresSuite",
        "FileSuite",
        "FlatSuite",
        "OnceSuite",
        "ProcessSuite",
    ),
    *("ServerSuite", "SessionSuite", "SocketSuite", "StreamSuite"),
}
"""What the fake provider can do as well is left to `make test-all` on oci."""

_SERIAL: Final = (
    # They say how long something may take.
    r"e2e/test_request_cost\.py::test_no_request",
    r"faults/test_clock_jump\.py",
    r"integration/test_http_guard\.py::TestManyConnections::test_two_thousand_idle",
    # They measure how much of the processors eight busy processes get.
    r"integration/test_attack\.py::test_a_weakened_sandbox_is_seen_through\[without_limits",
    r"integration/test_attack\.py::test_everything_is_contained",
    r"integration/test_attack(_api)?\.py::test_what_(a_neighbour_keeps|others_wait)",
)
"""Run when no other test does."""

_GROUPS: Final = {
    r"/test_(docker|api_docker|image_docker|docker_restart)\.py": "docker",
    r"(contract/test_sdk\.py).*\[(\w+-\w+)": r"\1[\2]",
    r"(e2b/test_sdks\.py).*\[(one-port|domain)-([\d.]+|js)-": r"\1[\2-\3]",
    r"(contract/test_(oci|stores|redis_store|audit)\.py::\w+)": r"\1",
}
"""Tests that share what is dear to make: they run in one process. All others go by file."""

_LONGEST: Final = (
    *("docker", "faults/test_random", "faults/cluster/", "faults/", "e2e/test_api_cluster", "e2e/test_schema"),
    *("integration/test_documents", "integration/test_cli_remote", "browser/", "e2e/", "integration/", "integrations/"),
    *("contract/test_stores_alike", "contract/"),
)
"""Groups that begin with these are started first, so that no process is left with a long one at the end."""


def idle_patterns(names: Iterable[str]) -> list[str]:
    """Patterns that match none of all tests: a test that they were written for has another name by now."""
    everything = "\n".join(names)
    return [pattern for pattern in (*_EXTENDED, *_ONE_OF, *_SERIAL, *_GROUPS) if not re.search(pattern, everything)]


def marks(tests: Sequence[pytest.Item]) -> Iterable[tuple[pytest.Item, str]]:
    chosen = _variants(test.nodeid for test in tests)
    for test in tests:
        if any(re.search(pattern, test.nodeid) for pattern in _SERIAL):
            yield test, SERIAL
        if _is_extended(test) or test.nodeid not in chosen:
            yield test, EXTENDED


def _is_extended(test: pytest.Item) -> bool:
    if "e2e/test_api_oci.py" in test.nodeid:
        assert isinstance(test, pytest.Function)
        return test.function.__qualname__.partition(".")[0] in SUITES_OF_THE_FAKE
    return any(re.search(pattern, test.nodeid) for pattern in _EXTENDED)


def _variants(names: Iterable[str]) -> set[str]:
    """Of each test, the variants that are not left out by _ONE_OF."""
    by_test: dict[str, list[str]] = {}
    for name in names:
        by_test.setdefault(name.partition("[")[0], []).append(name)
    return {name for test, variants in by_test.items() for name in _chosen(test, variants)}


def _chosen(test: str, variants: Sequence[str]) -> Sequence[str]:
    for pattern, preferences in _ONE_OF.items():
        if re.search(pattern, test):
            for preference in preferences:
                if preference == _FIRST:
                    return variants[:1]
                if found := [name for name in variants if re.search(preference, name)]:
                    return found
            return ()
    return variants


def group(name: str) -> str:
    for pattern, template in _GROUPS.items():
        if found := re.search(pattern, name):
            return found.expand(template)
    return name.partition("::")[0].removeprefix("tests/")


def start_order(name: str) -> int:
    return next((number for number, start in enumerate(_LONGEST) if group(name).startswith(start)), len(_LONGEST))
