"""The documents for Kubernetes: taken by its schemas, unknown fields refused; and what they say fits together."""

import re

import kubernetes_validate
import pytest
import yaml
from deploy_files import DEPLOY, SECRET, manifest, manifests, pod, settings_from

OLDEST, NEWEST = "1.29", kubernetes_validate.latest_version()


@pytest.mark.parametrize("version", [OLDEST, NEWEST])
def test_kubernetes_takes_every_document(version: str) -> None:
    for each in manifests():
        kubernetes_validate.validate(each, version, strict=True)


def test_a_mistake_in_a_document_would_be_refused() -> None:
    broken = manifest("DaemonSet")
    broken["spec"]["template"]["spec"]["containers"][0]["volumeMount"] = []
    with pytest.raises(kubernetes_validate.ValidationError, match="volumeMount"):
        kubernetes_validate.validate(broken, NEWEST, strict=True)


def test_the_kustomization_names_every_file() -> None:
    names = yaml.safe_load((DEPLOY / "kubernetes/kustomization.yaml").read_text())["resources"]
    assert {*names, "kustomization.yaml"} == {path.name for path in (DEPLOY / "kubernetes").iterdir()}


def environment(kind: str) -> dict[str, str]:
    """What the container finds: of the ConfigMap, of the Secret, of the pod, and what is made of these."""
    (container,) = pod(kind)["containers"]
    secrets = dict.fromkeys(manifest("Secret")["stringData"], SECRET)
    fields = {"status.podIP": "10.1.2.3", "spec.nodeName": "node-7.example"}
    found = dict(manifest("ConfigMap")["data"])
    for each in container["env"]:
        source = each.get("valueFrom", {})
        if source.get("secretKeyRef", {}).get("optional"):
            continue
        if "secretKeyRef" in source:
            found[each["name"]] = secrets[source["secretKeyRef"]["key"]]
        elif "fieldRef" in source:
            found[each["name"]] = fields[source["fieldRef"]["fieldPath"]]
        else:
            found[each["name"]] = re.sub(r"\$\((\w+)\)", lambda name: found[name[1]], each["value"])
    return found


@pytest.mark.parametrize(("kind", "port"), [("Deployment", 8000), ("DaemonSet", 5000)])
def test_warren_knows_every_option_that_kubernetes_sets(kind: str, port: int) -> None:
    settings = settings_from(environment(kind))
    (container,) = pod(kind)["containers"]
    assert settings.advertise == f"10.1.2.3:{port}"
    assert [each["containerPort"] for each in container["ports"]] == [port]
    assert pod(kind)["terminationGracePeriodSeconds"] > settings.stop_grace_s
    assert pod(kind)["enableServiceLinks"] is False  # a Service `redis` would say REDIS_PORT=tcp://…
    assert (settings.worker_id == "node-7.example") is (kind == "DaemonSet")


@pytest.mark.parametrize("kind", ["Deployment", "StatefulSet", "DaemonSet"])
def test_a_controller_finds_its_pods_and_a_pod_has_its_volumes(kind: str) -> None:
    spec = manifest(kind)["spec"]
    assert spec["selector"]["matchLabels"] == spec["template"]["metadata"]["labels"]
    claims = {each["metadata"]["name"] for each in spec.get("volumeClaimTemplates", [])}
    mounted = {each["name"] for container in pod(kind)["containers"] for each in container["volumeMounts"]}
    assert mounted == {each["name"] for each in pod(kind)["volumes"]} | claims


def test_only_workers_have_rights() -> None:
    for kind in ("Deployment", "StatefulSet"):
        (container,) = pod(kind)["containers"]
        assert pod(kind)["securityContext"]["runAsNonRoot"] is True
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
    assert pod("DaemonSet")["containers"][0]["securityContext"]["privileged"] is True


def test_workers_are_reached_by_coordinators_only() -> None:
    policies = {each["metadata"]["name"]: each["spec"] for each in manifests() if each["kind"] == "NetworkPolicy"}
    assert policies["nobody-by-default"] == {"podSelector": {}, "policyTypes": ["Ingress"]}
    assert policies["workers"]["podSelector"] == manifest("DaemonSet")["spec"]["selector"]
    (rule,) = policies["workers"]["ingress"]
    assert rule["from"] == [{"podSelector": manifest("Deployment")["spec"]["selector"]}]
    assert rule["ports"] == [{"protocol": "TCP", "port": 5000}]
