"""Manifests, indexes and configs of container images: the JSON of OCI and of Docker (schema 2), read strictly. Pure.

`read_manifest` returns the layers of an image, `choose` picks the image for a platform from an index, `read_config`
returns what the image says of itself. `config_json` and `manifest_json` write the same documents.
"""

import json
import os
import posixpath
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from warren.model.errors import InvalidRequest
from warren.model.image import ImageConfig
from warren.model.image_reference import is_digest
from warren.model.operations import check_user
from warren.model.spec import check_env, check_env_size

MAX_MANIFEST: Final = 4 << 20
MAX_CONFIG: Final = 8 << 20
MAX_LAYERS: Final = 512
MANIFEST: Final = "application/vnd.oci.image.manifest.v1+json"
INDEX: Final = "application/vnd.oci.image.index.v1+json"
CONFIG: Final = "application/vnd.oci.image.config.v1+json"
LAYER: Final = "application/vnd.oci.image.layer.v1.tar"
_DOCKER: Final = "application/vnd.docker.distribution.manifest"
_MANIFESTS: Final = (MANIFEST, f"{_DOCKER}.v2+json")
_INDEXES: Final = (INDEX, f"{_DOCKER}.list.v2+json")
_LAYERS: Final = (
    *(LAYER, f"{LAYER}+gzip", f"{LAYER}+zstd"),
    *("application/vnd.docker.image.rootfs.diff.tar.gzip", "application/vnd.docker.image.rootfs.diff.tar"),
    "application/vnd.docker.image.rootfs.diff.tar.zstd",
)
ACCEPT: Final = ", ".join((*_MANIFESTS, *_INDEXES))
_ARCHITECTURES: Final = {"x86_64": "amd64", "aarch64": "arm64", "armv7l": "arm", "i686": "386"}
_PLATFORM_WORD: Final = re.compile(r"[a-z0-9]{1,20}")
_MAX_TEXT: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class Descriptor:
    digest: str
    size: int
    media_type: str = ""


@dataclass(frozen=True, slots=True)
class Manifest:
    config: Descriptor
    layers: tuple[Descriptor, ...]

    @property
    def size(self) -> int:
        return sum(layer.size for layer in self.layers)


@dataclass(frozen=True, slots=True)
class Platform:
    system: str
    architecture: str
    variant: str = ""

    def __str__(self) -> str:
        return "/".join(part for part in (self.system, self.architecture, self.variant) if part)


@dataclass(frozen=True, slots=True)
class ReadConfig:
    """`diff_ids` are the digests of the unpacked layers."""

    config: ImageConfig
    diff_ids: tuple[str, ...]
    platform: Platform


def read_platform(text: str) -> Platform:
    """Reads OS/ARCHITECTURE[/VARIANT]. An empty text gives the platform of this machine. Raises InvalidRequest."""
    if not text:
        machine = os.uname().machine
        return Platform("linux", _ARCHITECTURES.get(machine, machine))
    parts = text.split("/")
    if len(parts) not in (2, 3) or not all(_PLATFORM_WORD.fullmatch(part) for part in parts):
        raise InvalidRequest(f"{text!r} is not a platform", remedy="write it like linux/arm64")
    return Platform(*parts)


def is_index(data: bytes, content_type: str = "") -> bool:
    values = _object(_parse(data, "the manifest"), "the manifest")
    kind = values.get("mediaType") or content_type
    if "manifests" in values and (kind in _INDEXES or not kind):
        return True
    if kind in _MANIFESTS or (not kind and "layers" in values):
        return False
    old = " (the format before 2017)" if values.get("schemaVersion") == 1 else ""
    raise InvalidRequest(f"the registry has something of the type {str(kind)[:100]!r} there{old}, and not an image")


def choose(data: bytes, platform: Platform) -> Descriptor:
    """Returns the manifest for this platform, or a further index that contains it."""
    values = _object(_parse(data, "the index"), "the index")
    others = []
    for entry in _list(values.get("manifests"), "the index has no list of manifests"):
        found = _object(entry, "an entry of the index")
        of = found.get("platform")
        its = _platform(of) if isinstance(of, dict) else Platform("", "")
        if found.get("mediaType", MANIFEST) in (*_MANIFESTS, *_INDEXES) and _fits(its, platform):
            return _descriptor(found)
        others.append(str(its))
    has = ", ".join(sorted({name[:40] for name in others if name and "unknown" not in name})[:20]) or "none"
    raise InvalidRequest(f"the image is not there for {platform}; it is for {has}", remedy="choose one by --platform")


def entries_of(data: bytes, platform: Platform) -> list[Descriptor]:
    """Returns the images in the index of a layout, without those that name another platform."""
    values = _object(_parse(data, "the index"), "the index")
    found = []
    for entry in _list(values.get("manifests"), "the index has no list of manifests"):
        its = _object(entry, "an entry of the index").get("platform")
        if not isinstance(its, dict) or _fits(_platform(its), platform):
            found.append(_descriptor(entry))
    return found


@dataclass(frozen=True, slots=True)
class SavedImage:
    """An image in an archive that `docker save` wrote: the names of its files."""

    config: str
    layers: tuple[str, ...]


def read_saved(data: bytes) -> list[SavedImage]:
    found = []
    for entry in _list(_parse(data, "the manifest"), "manifest.json of the archive is no list"):
        values = _object(entry, "an entry of manifest.json")
        found.append(SavedImage(_text(values.get("Config")), _texts(values.get("Layers"))))
    return found


def _platform(values: Mapping[str, Any]) -> Platform:
    return Platform(*(_text(values.get(name)) for name in ("os", "architecture", "variant")))


def _fits(found: Platform, wanted: Platform) -> bool:
    if (found.system, found.architecture) != (wanted.system, wanted.architecture):
        return False
    return not wanted.variant or found.variant == wanted.variant


def check_platform(found: Platform, wanted: Platform) -> None:
    if found.architecture and not _fits(replace(found, variant=wanted.variant), wanted):
        raise InvalidRequest(
            f"the image is for {found}, and not for {wanted}",
            remedy=f"pull an image for {wanted}, or pass --platform {found} to have it all the same",
        )


def read_manifest(data: bytes) -> Manifest:
    values = _object(_parse(data, "the manifest"), "the manifest")
    if values.get("schemaVersion") != 2:
        raise InvalidRequest("the manifest of the image is not of schema 2")
    layers = tuple(_descriptor(each) for each in _list(values.get("layers"), "the manifest has no list of layers"))
    if len(layers) > MAX_LAYERS:
        raise InvalidRequest(f"the image has {len(layers)} layers, at most {MAX_LAYERS} are taken")
    for layer in layers:
        if layer.media_type not in _LAYERS:
            raise InvalidRequest(
                f"the image has a layer of the type {layer.media_type[:100]!r}, which is not supported"
            )
    config = _descriptor(values.get("config"))
    if config.size > MAX_CONFIG:
        raise InvalidRequest(f"the config of the image is {config.size} bytes long, at most {MAX_CONFIG} are taken")
    return Manifest(config, layers)


def read_config(data: bytes, *, digest: str = "") -> ReadConfig:
    values = _object(_parse(data, "the config"), "the config of the image")
    root = values.get("rootfs")
    diff_ids = _list(root.get("diff_ids") if isinstance(root, dict) else None, "the config has no list of diff_ids")
    if len(diff_ids) > MAX_LAYERS or not all(is_digest(each) for each in diff_ids):
        raise InvalidRequest("the config of the image has diff_ids that are no digests by sha256, or too many")
    said = values.get("config")
    config = replace(engine_config(said if isinstance(said, dict) else {}), digest=digest)
    return ReadConfig(config, tuple(diff_ids), _platform(values))


def engine_config(said: Mapping[str, Any]) -> ImageConfig:
    """Reads the config of an image in Docker's words: `Env`, `WorkingDir`, `User` and so on. Raises InvalidRequest."""
    try:
        size = len(json.dumps(said, default=str, ensure_ascii=False).encode())
    except (UnicodeError, RecursionError) as exc:
        raise InvalidRequest("what the image says of itself is not text") from exc
    if size > _MAX_TEXT:
        raise InvalidRequest(f"what the image says of itself is longer than {_MAX_TEXT} bytes")
    ports = said.get("ExposedPorts")
    labels = said.get("Labels")
    health = said.get("Healthcheck")
    return ImageConfig(
        env=_env(_texts(said.get("Env"))),
        workdir=_workdir(_text(said.get("WorkingDir"))),
        user=check_user(_text(said.get("User"))),
        entrypoint=_texts(said.get("Entrypoint")),
        cmd=_texts(said.get("Cmd")),
        exposed_ports=tuple(sorted(_texts(list(ports)))) if isinstance(ports, dict) else (),
        labels={name: _text(value) for name, value in labels.items()} if isinstance(labels, dict) else {},
        healthcheck=health if isinstance(health, dict) else {},
    )


def _env(pairs: Sequence[str]) -> dict[str, str]:
    """Reads variables. Those whose names no shell can use are left out."""
    env = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if equals and name.isidentifier() and name.isascii():
            check_env(name, value)
            env[name] = value
    check_env_size(env)
    return env


def _workdir(text: str) -> str:
    if "\0" in text or len(text) > 4095:
        raise InvalidRequest("the working directory of the image cannot be a path")
    return posixpath.normpath(f"/{text.lstrip('/')}") if text else ""


# -- writing


def engine_words(config: ImageConfig) -> dict[str, Any]:
    said: dict[str, Any] = {
        "Env": [f"{name}={value}" for name, value in config.env.items()],
        "WorkingDir": config.workdir,
        "User": config.user,
        "Entrypoint": list(config.entrypoint),
        "Cmd": list(config.cmd),
        "ExposedPorts": {port: {} for port in config.exposed_ports},
        "Labels": dict(config.labels),
        "Healthcheck": dict(config.healthcheck),
    }
    return {name: value for name, value in said.items() if value}


def config_json(config: ImageConfig, diff_id: str) -> bytes:
    platform = read_platform("")
    return _dumped(
        {
            "architecture": platform.architecture,
            "os": platform.system,
            "config": engine_words(config),
            "rootfs": {"type": "layers", "diff_ids": [diff_id]},
        }
    )


def manifest_json(config: Descriptor, layer: Descriptor) -> bytes:
    return _dumped(
        {
            "schemaVersion": 2,
            "mediaType": MANIFEST,
            "config": as_json(config),
            "layers": [as_json(layer)],
        }
    )


def index_json(manifest: Descriptor, name: str) -> bytes:
    entry = {**as_json(manifest), "annotations": {"org.opencontainers.image.ref.name": name}}
    return _dumped({"schemaVersion": 2, "mediaType": INDEX, "manifests": [entry]})


def as_json(found: Descriptor) -> dict[str, Any]:
    return {"mediaType": found.media_type, "digest": found.digest, "size": found.size}


def _dumped(values: Mapping[str, Any]) -> bytes:
    return json.dumps(values, sort_keys=True, separators=(",", ":")).encode()


# -- strict readers of single values


def _parse(data: bytes, what: str) -> Any:
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as exc:
        raise InvalidRequest(f"{what} of the image is not JSON") from exc


def _object(value: Any, what: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise InvalidRequest(f"{what} is not an object of JSON")
    return value


def _list(value: Any, complaint: str) -> list[Any]:
    if not isinstance(value, list):
        raise InvalidRequest(complaint)
    return value


def _descriptor(value: Any) -> Descriptor:
    values = _object(value, "a descriptor of the image")
    digest, size = values.get("digest"), values.get("size")
    if not is_digest(digest):
        raise InvalidRequest("the image is described by something else than a digest by sha256")
    if isinstance(size, bool) or not isinstance(size, int) or not 0 <= size <= 1 << 50:
        raise InvalidRequest("a part of the image is described without its size")
    return Descriptor(str(digest), size, _text(values.get("mediaType")))


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _texts(value: Any) -> tuple[str, ...]:
    return tuple(each for each in value if isinstance(each, str)) if isinstance(value, list) else ()
