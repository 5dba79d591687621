"""Shared by tests of deploy/: where the files are, the documents for Kubernetes, and secrets to try them with."""

from pathlib import Path
from typing import Any

import yaml

from warren.config.settings import Settings, read_settings

ROOT = Path(__file__).parents[1]
DEPLOY = ROOT / "deploy"
SECRET = "5a" * 32

Document = dict[str, Any]


def settings_from(environ: dict[str, str]) -> Settings:
    """Returns the settings that Warren reads from a container's environment; it must know every variable."""
    settings = read_settings(environ, uid=0, config_file=Path("/dev/null"))
    assert settings.warnings == ()
    assert settings.cluster_secret == settings.redis_password == settings.secrets_key == SECRET
    return settings


def manifests() -> list[Document]:
    """Returns all documents that the kustomization names."""
    folder = DEPLOY / "kubernetes"
    names = yaml.safe_load((folder / "kustomization.yaml").read_text())["resources"]
    return [each for name in names for each in yaml.safe_load_all((folder / name).read_text())]


def manifest(kind: str) -> Document:
    (found,) = (each for each in manifests() if each["kind"] == kind)
    return found


def pod(kind: str) -> Document:
    found: Document = manifest(kind)["spec"]["template"]["spec"]
    return found
