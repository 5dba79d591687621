"""A real Prometheus reads live processes, and every expression of deploy/prometheus and deploy/grafana is asked."""

import asyncio
import json
import re
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from cluster_processes import Cluster, running_cluster
from deploy_files import DEPLOY
from e2e.api_client import Api
from e2e.conftest import NewState
from prometheus_process import Prometheus, running_prometheus
from redis_server import RedisServer
from server_process import ServerProcess, running_server
from this_run import patience

pytestmark = pytest.mark.anyio
ADMIN = "the-operator-has-this-key"
RULES = DEPLOY / "prometheus" / "rules.yml"
DASHBOARDS = sorted((DEPLOY / "grafana" / "dashboards").glob("*.json"))
PATIENCE_S = patience(90.0)
_METRIC = re.compile(r"\b(?:\w+:warren_\w+:\w+|warren_\w+|process_\w+)\b")


def promtool(*arguments: object) -> None:
    outcome = subprocess.run(["promtool", *map(str, arguments)], capture_output=True, text=True, timeout=60)
    assert outcome.returncode == 0, outcome.stdout + outcome.stderr


def panels(dashboard: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(dashboard.read_text())["panels"]
    return [panel for panel in found if panel["type"] != "row"]


def expressions(dashboard: Path) -> list[str]:
    """As Grafana sends them."""
    found = [target["expr"] for panel in panels(dashboard) for target in panel["targets"]]
    return [text.replace("$__rate_interval", "15s").replace("$instance", ".*") for text in found]


def rules() -> list[dict[str, Any]]:
    return [rule for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]]


# -- the files by themselves


def test_promtool_takes_configuration_and_rules_and_their_tests_pass(tmp_path: Path) -> None:
    for name in ("prometheus.yml", "rules.yml", "rules_test.yml"):
        (tmp_path / name).write_text((DEPLOY / "prometheus" / name).read_text())
    (tmp_path / "warren-key").write_text("wrn_")
    promtool("check", "config", tmp_path / "prometheus.yml")
    promtool("check", "rules", RULES)
    promtool("test", "rules", DEPLOY / "prometheus" / "rules_test.yml")


def test_every_alert_is_tested_and_documented() -> None:
    alerts = {rule["alert"] for rule in rules() if "alert" in rule}
    tests = yaml.safe_load((DEPLOY / "prometheus" / "rules_test.yml").read_text())["tests"]
    silent, loud = ({case["alertname"] for case in test["alert_rule_test"]} for test in tests)
    assert silent == loud == alerts
    fires = {case["alertname"] for case in tests[1]["alert_rule_test"] if case.get("exp_alerts")}
    assert fires == alerts
    page = (DEPLOY.parent / "docs" / "monitoring.md").read_text()
    assert set(re.findall(r"^\| `(Warren\w+)` \|", page, flags=re.M)) == alerts


def test_compose_scrapes_every_process_it_starts_and_grafana_finds_its_source() -> None:
    services = yaml.safe_load((DEPLOY / "compose.yml").read_text())["services"]
    config = yaml.safe_load((DEPLOY / "prometheus" / "prometheus.yml").read_text())["scrape_configs"][0]
    coordinators = [
        f"{service['networks']['front']['ipv4_address']}:8000"
        for name, service in services.items()
        if name.startswith("coordinator")
    ]
    workers = [service["environment"]["WARREN_ADVERTISE"] for name, service in services.items() if "worker" in name]
    assert [each["targets"] for each in config["static_configs"]] == [coordinators, workers]
    for name in ("prometheus", "grafana"):
        assert services[name]["profiles"] == ["monitoring"]
        for volume in services[name]["volumes"]:
            source = volume.split(":")[0]
            assert not source.startswith(".") or (DEPLOY / source).exists(), source
    source = yaml.safe_load((DEPLOY / "grafana/provisioning/datasources/prometheus.yml").read_text())["datasources"][0]
    for dashboard in DASHBOARDS:
        uids = re.findall(r'"uid": "(\w+)"', dashboard.read_text())
        assert set(uids) == {source["uid"], "warren"}
        ids = [panel["id"] for panel in json.loads(dashboard.read_text())["panels"]]
        assert len(set(ids)) == len(ids)


# -- a live system


@pytest.fixture(scope="module")
def server(new_state: NewState) -> Iterator[ServerProcess]:
    with running_server(
        new_state(), "--pool-size", "1", WARREN_API_KEY=ADMIN, WARREN_POOL_MAX="2", POOL_MIN="1"
    ) as server:
        yield server


@pytest.fixture(scope="module")
def cluster(new_state: NewState) -> Iterator[Cluster]:
    states = [new_state(), new_state()]
    redis = RedisServer(states[0] / "redis")
    cluster = Cluster(redis, states[:1], states[1:], "--on-stop", "destroy", provider="fake", WARREN_API_KEY=ADMIN)
    with running_cluster(cluster):
        yield cluster


async def new_key(url: str) -> str:
    async with Api(url, {"X-API-Key": ADMIN}) as admin:
        body = {"name": "prometheus", "scopes": ["metrics"]}
        return str((await admin.call("POST", "/api/admin/keys", body, status=201))["key"])


async def use(url: str) -> None:
    """More sessions at once than are ready, commands, and a request that is refused."""

    async def one() -> None:
        async with Api(url, {"X-API-Key": ADMIN}) as api, api.session() as session:
            await session.post("/exec", {"command": "echo hello"})

    await asyncio.gather(*(one() for _ in range(4)))


def config_for(server: ServerProcess, cluster: Cluster, keys: tuple[str, str], directory: Path) -> Path:
    """The file of deploy/, with the addresses and keys of the processes of this test, and less patience."""
    config = yaml.safe_load((DEPLOY / "prometheus" / "prometheus.yml").read_text())
    config["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
    (job,) = config["scrape_configs"]
    targets = [f"127.0.0.1:{server.port}"], [f"127.0.0.1:{process.port}" for process in cluster.processes]
    jobs = []
    for number, (key, addresses) in enumerate(zip(keys, targets, strict=True)):
        (directory / f"key-{number}").write_text(key)
        relabel = [{"target_label": "job", "replacement": job["job_name"]}]
        jobs.append(
            {
                **job,
                "job_name": f"part-{number}",
                "authorization": {"credentials_file": f"key-{number}"},
                "static_configs": [{"targets": addresses}],
                "relabel_configs": relabel,
            }
        )
    config["scrape_configs"] = jobs
    (directory / "rules.yml").write_text(RULES.read_text())
    path = directory / "prometheus.yml"
    path.write_text(yaml.safe_dump(config))
    return path


def without_data(prometheus: Prometheus) -> list[str]:
    shown = [text for dashboard in DASHBOARDS for text in expressions(dashboard)]
    read = {name for rule in rules() for name in _METRIC.findall(rule["expr"])}
    made = {rule["record"] for rule in rules() if "record" in rule}
    return [text for text in (*shown, *sorted(read | made)) if not prometheus.values(text)]


async def test_every_expression_of_dashboards_and_rules_has_data(
    server: ServerProcess, cluster: Cluster, tmp_path: Path
) -> None:
    urls = server.url, cluster.urls[0]
    config = config_for(server, cluster, (await new_key(urls[0]), await new_key(urls[1])), tmp_path)
    deadline = time.monotonic() + PATIENCE_S
    with running_prometheus(config, tmp_path / "data") as prometheus:
        while True:
            for url in urls:
                await use(url)
            missing = await asyncio.to_thread(without_data, prometheus)
            if not missing:
                break
            assert time.monotonic() < deadline, missing
        assert prometheus.values('up{job="warren"}') == [1.0, 1.0, 1.0]
        groups = prometheus.ask("rules")["groups"]
        states = {rule["name"]: (rule["health"], rule.get("lastError")) for group in groups for rule in group["rules"]}
        assert states == dict.fromkeys(states, ("ok", None))
        assert len(states) == len(rules())
        assert prometheus.values("sum(warren_leaks)") == [0.0]
