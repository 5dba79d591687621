"""The Helm chart, rendered by Helm's engine with many values: taken by the schemas, and right in what matters.

test_deploy_kubernetes.py looks at the documents that it renders to without any values, which are in deploy/kubernetes.
"""

import functools
import json
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator, Mapping
from itertools import chain, pairwise, product
from typing import Any

import kubernetes_validate
import pytest
import yaml
from deploy_files import DEPLOY, ROOT, SECRET, Document
from machine.test_deploy_kubernetes import NEWEST, OLDEST
from marks import first_of

import warren

CHART = DEPLOY / "helm" / "warren"
Values = dict[str, Any]

_SECRETS = dict.fromkeys(("redis-password", "cluster-secret", "secrets-key", "api-key"), SECRET)
CASES: dict[str, Values] = {
    "defaults": {},
    "stateful": {"worker": {"kind": "StatefulSet", "replicas": 4, "drainSeconds": 1_000_000}},
    "scaled": {"worker": {"kind": "StatefulSet"}},
    "other redis": {"redis": {"own": False, "host": "redis.example", "port": 6380}},
    "address of redis": {"redis": {"own": False, "urlKey": "redis-url"}},
    "monitored": {"serviceMonitor": {"enabled": True, "labels": {"release": "prometheus"}}},
    "own secret": {"secret": {"name": "mine", "values": _SECRETS}},
    "placed": {
        each: {"nodeSelector": {"disk": "fast"}, "tolerations": [{"key": "only", "operator": "Exists"}]}
        for each in ("coordinator", "worker", "redis")
    },
    "narrow": {"networkPolicy": {"clients": [{"podSelector": {"matchLabels": {"app.kubernetes.io/name": "ingress"}}}]}},
    "open": {"networkPolicy": {"enabled": False}},
}
# What each value may be changed to, and what else it takes for it to count.
CHANGES: dict[str, tuple[Any, Values]] = {
    "hosts": (["warren.example.com"], {}),
    "options": ({"WARREN_DEMAND_MOST": "20"}, {}),
    "ipv6": (True, {}),
    "imagePullSecrets": ([{"name": "pull"}], {}),
    "secret.name": ("mine", {}),
    "secret.values": (_SECRETS, {}),
    **{f"{part}.image.repository": (f"registry.example/{part}", {}) for part in ("coordinator", "worker", "redis")},
    **{f"{part}.image.tag": ("9.9", {}) for part in ("coordinator", "worker", "redis")},
    **{f"{part}.image.pullPolicy": ("Always", {}) for part in ("coordinator", "worker", "redis")},
    **{f"{part}.options": ({"WARREN_LOG_LEVEL": "debug"}, {}) for part in ("coordinator", "worker")},
    **{f"{part}.nodeSelector": ({"a": "b"}, {}) for part in ("coordinator", "worker", "redis")},
    **{f"{part}.tolerations": ([{"operator": "Exists"}], {}) for part in ("coordinator", "worker", "redis")},
    **{f"{part}.resources": ({"requests": {"cpu": "3"}}, {}) for part in ("coordinator", "worker", "redis")},
    "coordinator.replicas": (5, {}),
    "coordinator.service.type": ("LoadBalancer", {}),
    "coordinator.service.annotations": ({"a": "b"}, {}),
    "worker.kind": ("StatefulSet", {}),
    "worker.replicas": (7, CASES["scaled"]),
    "worker.drainSeconds": (77, {}),
    "worker.stateDir": ("/data/warren", {}),
    "redis.own": (False, {"redis": {"urlKey": "redis-url"}}),
    "redis.host": ("redis.example", {"redis": {"own": False}}),
    "redis.port": (6390, CASES["other redis"]),
    "redis.urlKey": ("redis-url", {"redis": {"own": False}}),
    "redis.maxmemory": ("4gb", {}),
    "redis.storage.size": ("50Gi", {}),
    "redis.storage.className": ("fast", {}),
    "networkPolicy.enabled": (False, {}),
    "networkPolicy.clients": ([{"podSelector": {}}], {}),
    "serviceMonitor.enabled": (True, {}),
    "serviceMonitor.labels": ({"a": "b"}, CASES["monitored"]),
    "serviceMonitor.interval": ("1m", CASES["monitored"]),
    "serviceMonitor.secret.name": ("other", CASES["monitored"]),
    "serviceMonitor.secret.key": ("other", CASES["monitored"]),
    "serviceMonitor.from": ([{"podSelector": {}}], CASES["monitored"]),
}
REFUSED: list[tuple[Values, str]] = [
    ({"wrker": {}}, "'wrker' not allowed"),
    ({"worker": {"drain": 5}}, "'drain' not allowed"),
    ({"worker": {"kind": "Pod"}}, "'/worker/kind': value must be one of 'DaemonSet', 'StatefulSet'"),
    ({"worker": {"replicas": 3}}, "'/worker/replicas'"),  # of a DaemonSet
    ({"worker": {"drainSeconds": -1}}, "'/worker/drainSeconds'"),
    ({"redis": {"own": False}}, "'/redis/host'"),
    ({"redis": {"host": "redis.example"}}, "'/redis/host'"),  # and its own as well
    ({"redis": {"own": False, "host": "h", "urlKey": "k"}}, "'/redis"),
    ({"options": {"WARREN_CLUSTER_SECRET": "x"}}, "invalid propertyName 'WARREN_CLUSTER_SECRET'"),
    ({"options": {"LOG_LEVEL": "debug"}}, "invalid propertyName 'LOG_LEVEL'"),
    ({"options": {"WARREN_DEMAND_MOST": 20}}, "'/options/WARREN_DEMAND_MOST': got number, want string"),
    ({"secret": {"values": {"api-key": SECRET}}}, "missing properties 'redis-password'"),
    ({"networkPolicy": {"clients": []}}, "'/networkPolicy/clients'"),
]


def at(path: str, value: Any) -> Values:
    return functools.reduce(lambda inner, name: {name: inner}, reversed(path.split(".")), value)


def merged(one: Mapping[str, Any], other: Mapping[str, Any]) -> Values:
    both = {name: merged(one[name], other[name]) for name in one.keys() & other.keys() if isinstance(one[name], dict)}
    return {**one, **other, **both}


@functools.cache
def batch() -> tuple[list[Document], ...]:
    """All that is rendered here, by one process, as Helm's engine stays out of this one: cases, changes, refusals."""
    pairs = [each for path, (value, base) in CHANGES.items() for each in (base, merged(base, at(path, value)))]
    wanted = [*CASES.values()], pairs, [values for values, _ in REFUSED]
    argv = [sys.executable, str(ROOT / "scripts/render_chart.py"), "--batch"]
    done = subprocess.run(argv, input=json.dumps([*chain(*wanted)]), capture_output=True, text=True, timeout=150)
    assert done.returncode == 0, done.stderr
    found = iter(json.loads(done.stdout))
    return tuple([next(found) for _ in part] for part in wanted)


@functools.cache
def rendered(case: str) -> list[Document]:
    found = dict(zip(CASES, batch()[0], strict=True))[case]
    texts = [text for name, text in found["documents"].items() if name.endswith(".yaml")]
    return [each for text in texts for each in yaml.safe_load_all(text)]


def of_kind(case: str, kind: str) -> dict[str, Document]:
    return {each["metadata"]["name"]: each for each in rendered(case) if each["kind"] == kind}


def pods(case: str) -> dict[str, Document]:
    kinds = ("Deployment", "DaemonSet", "StatefulSet")
    return {name: each["spec"]["template"]["spec"] for kind in kinds for name, each in of_kind(case, kind).items()}


def test_the_plain_documents_are_what_the_chart_renders_to() -> None:
    argv = [sys.executable, str(ROOT / "scripts/render_chart.py"), "--check"]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr


def test_the_chart_has_the_version_of_the_package() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert chart["version"] == chart["appVersion"] == warren.__version__
    page = (ROOT / "docs" / "kubernetes.md").read_text()
    assert set(re.findall(r"warren-(?:coordinator|worker):([\w.]+)", page)) == {warren.__version__}


@pytest.mark.parametrize("version", first_of((NEWEST, OLDEST)))
def test_kubernetes_takes_what_is_rendered(version: str) -> None:
    every = [each for case in CASES for each in rendered(case) if each["kind"] != "ServiceMonitor"]
    for each in {json.dumps(document): document for document in every}.values():
        kubernetes_validate.validate(each, version, strict=True)
        if each["kind"] not in ("NetworkPolicy", "Secret"):
            assert each["metadata"]["name"] in ("coordinator", "worker", "redis", "warren")


@pytest.mark.extended
def test_the_operator_of_prometheus_takes_its_document() -> None:
    """Its models drop what they do not know, so nothing may be missing afterwards. They are large: another process."""
    (document,) = of_kind("monitored", "ServiceMonitor").values()
    program = """import json, sys
from cloudcoil.models.prometheus_operator.v1 import ServiceMonitor
found = ServiceMonitor.model_validate(json.load(sys.stdin))
json.dump(found.model_dump(mode="json", by_alias=True, exclude_unset=True), sys.stdout)"""
    argv = [sys.executable, "-c", program]
    done = subprocess.run(argv, input=json.dumps(document), capture_output=True, text=True, timeout=150)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == document
    services = of_kind("monitored", "Service")
    assert {name: services[name]["spec"]["ports"][0]["name"] for name in ("warren", "worker")} == {
        "warren": document["spec"]["endpoints"][0]["port"],
        "worker": document["spec"]["endpoints"][0]["port"],
    }


def leaves(values: Values, prefix: str = "") -> Iterator[str]:
    """The names of all values: of what is free to have any content, of the whole."""
    for name, value in values.items():
        path = f"{prefix}{name}"
        if isinstance(value, dict) and value and path not in CHANGES:
            yield from leaves(value, f"{path}.")
        else:
            yield path


def test_no_value_is_ignored() -> None:
    assert set(leaves(yaml.safe_load((CHART / "values.yaml").read_text()))) == set(CHANGES)
    for number, path in enumerate(CHANGES):
        before, after = batch()[1][2 * number : 2 * number + 2]
        assert "error" not in after, (path, after)
        assert before != after, f"{path} changes nothing"


@pytest.mark.parametrize("number", range(len(REFUSED)))
def test_a_wrong_value_is_refused_by_its_name(number: int) -> None:
    assert REFUSED[number][1] in batch()[2][number].get("error", "nothing")


@pytest.mark.parametrize("case", CASES)
def test_every_process_is_probed_and_stopped_in_order(case: str) -> None:
    for name, pod in pods(case).items():
        (container,) = pod["containers"]
        assert {"startupProbe", "livenessProbe", "readinessProbe", "resources"} <= container.keys(), name
        assert (pod["automountServiceAccountToken"], pod["enableServiceLinks"]) == (False, False)
    worker = pods(case)["worker"]
    hook = worker["containers"][0]["lifecycle"]["preStop"]["exec"]["command"]
    goes_for_good = "worker" in of_kind(case, "StatefulSet")
    leave = ["warren", "cluster", "leave", *(["--for-good"] if goes_for_good else []), "--wait"]
    assert hook[:-1] == leave  # test_leaving.py runs it
    assert worker["terminationGracePeriodSeconds"] >= int(hook[-1]) + 60  # stop_grace_s, and the pool
    destroys = {"name": "WARREN_ON_STOP", "value": "destroy"} in worker["containers"][0]["env"]
    assert (destroys, "affinity" in worker) == (goes_for_good, goes_for_good)


def test_voluntary_disruptions_leave_all_but_one() -> None:
    budgets = of_kind("stateful", "PodDisruptionBudget")
    assert {name: each["spec"]["maxUnavailable"] for name, each in budgets.items()} == {"coordinator": 1, "worker": 1}
    assert of_kind("defaults", "PodDisruptionBudget").keys() == {"coordinator"}  # nodes are drained beside a DaemonSet


def test_a_redis_of_ones_own_or_another() -> None:
    for case, there in (("defaults", True), ("other redis", False), ("address of redis", False)):
        assert ("redis" in pods(case), "redis" in of_kind(case, "NetworkPolicy")) == (there, there)
        variables = {each["name"] for each in pods(case)["worker"]["containers"][0]["env"]}
        by_address = case == "address of redis"
        assert ("WARREN_REDIS_URL" in variables, "REDIS_PASSWORD" in variables) == (by_address, not by_address)
    config = of_kind("other redis", "ConfigMap")["warren"]["data"]
    assert (config["REDIS_HOST"], config["REDIS_PORT"]) == ("redis.example", "6380")


# -- who reaches whom

Place = tuple[str, str]  # namespace, and app.kubernetes.io/name


def selects(selector: Document, labels: Mapping[str, str]) -> bool:
    rules = selector.get("matchExpressions", [])
    return all(labels.get(name) == value for name, value in selector.get("matchLabels", {}).items()) and all(
        labels.get(rule["key"]) in rule["values"] for rule in rules if rule["operator"] == "In"
    )


def is_peer(peer: Document, source: Place) -> bool:
    namespace = {"kubernetes.io/metadata.name": source[0]}
    near = selects(peer["namespaceSelector"], namespace) if "namespaceSelector" in peer else source[0] == "warren"
    return near and selects(peer.get("podSelector", {}), {"app.kubernetes.io/name": source[1]})


def reaches(case: str, source: Place, target: str, port: int) -> bool:
    labels = {"app.kubernetes.io/name": target}
    policies = [each["spec"] for each in of_kind(case, "NetworkPolicy").values()]
    rules = [each.get("ingress", []) for each in policies if selects(each["podSelector"], labels)]
    return not rules or any(
        rule["ports"] == [{"protocol": "TCP", "port": port}] and any(is_peer(peer, source) for peer in rule["from"])
        for rule in chain(*rules)
    )


@pytest.mark.parametrize("case", ["defaults", "stateful", "monitored", "narrow", "open"])
def test_the_network_lets_in_what_it_must_and_nothing_else(case: str) -> None:
    coordinator, worker, redis, ingress = (("warren", name) for name in ("coordinator", "worker", "redis", "ingress"))
    stranger, prometheus = ("default", "anything"), ("monitoring", "prometheus")
    sources = (coordinator, worker, redis, ingress, stranger, prometheus)
    clients = (ingress,) if case == "narrow" else sources
    must = {(source, "coordinator", 8000) for source in (*clients, worker)}
    must |= {(coordinator, "worker", 5000), (coordinator, "redis", 6379), (worker, "redis", 6379)}
    if case == "monitored":
        must.add((prometheus, "worker", 5000))
    every = set(product(sources, ("coordinator", "worker", "redis"), (22, 5000, 6379, 8000)))
    assert {each for each in every if reaches(case, *each)} == (every if case == "open" else must)


# -- the page


def blocks(language: str) -> list[str]:
    page = (ROOT / "docs" / "kubernetes.md").read_text()
    return [part.partition("\n")[2] for part in page.split("```")[1::2] if part.partition("\n")[0] == language]


def test_the_page_names_values_that_there_are() -> None:
    known = yaml.safe_load((CHART / "values.yaml").read_text())
    documents = [each for text in blocks("yaml") for each in yaml.safe_load_all(text)]
    shown = [each for each in documents if "kind" not in each]
    for line in (line for text in blocks("bash") for line in text.replace("\\\n", " ").splitlines()):
        words = shlex.split(line, comments=True)
        for before, word in pairwise(words):
            if before == "--set":
                path, _, text = word.partition("=")
                shown.append(at(path, yaml.safe_load(text)))
    assert shown
    for values in shown:
        assert set(leaves(values)) <= set(leaves(known)), values
