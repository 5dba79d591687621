"""Names of images in registries, passwords for them, and the JSON that registries send."""

import base64
import json
from pathlib import Path
from typing import Any

import pytest

from warren.images.registry.credentials import Credentials
from warren.model.errors import InvalidRequest, UnknownUser
from warren.model.image import ImageConfig
from warren.model.image_reference import read_reference
from warren.model.oci_image import (
    Platform,
    choose,
    config_json,
    is_index,
    read_config,
    read_manifest,
    read_platform,
)

DIGEST = f"sha256:{'a' * 64}"
OCI = "application/vnd.oci.image"


@pytest.mark.parametrize(
    ("text", "registry", "expected"),
    [
        ("registry.example.com/team/image:1.0", "", "registry.example.com/team/image:1.0"),
        ("registry.example.com:5000/image", "", "registry.example.com:5000/image:latest"),
        ("localhost/image", "", "localhost/image:latest"),
        ("[::1]:5000/image", "", "[::1]:5000/image:latest"),
        (f"r.example.com/image@{DIGEST}", "", f"r.example.com/image@{DIGEST}"),
        (f"r.example.com/image:1@{DIGEST}", "", f"r.example.com/image:1@{DIGEST}"),
        ("R.Example.com/image", "", "r.example.com/image:latest"),
        ("ubuntu:22.04", "r.example.com/library", "r.example.com/library/ubuntu:22.04"),
        ("team/image", "r.example.com/library", "r.example.com/team/image:latest"),
        ("ubuntu", "r.example.com:5000", "r.example.com:5000/ubuntu:latest"),
        ("ubuntu:22.04", "", "docker.io/library/ubuntu:22.04"),
        ("team/image", "", "docker.io/team/image:latest"),
        ("docker.io/ubuntu", "r.example.com", "docker.io/library/ubuntu:latest"),
        ("index.docker.io/team/image:1", "", "docker.io/team/image:1"),
    ],
)
def test_a_reference_says_where_an_image_is(text: str, registry: str, expected: str) -> None:
    assert str(read_reference(text, registry)) == expected


@pytest.mark.parametrize(
    "text",
    [
        *("", "/", "r.example.com/", "r.example.com/UPPER", "r.example.com/a:b:c", "r.example.com/../x"),
        *("r.example.com/a@sha256:abc", f"r.example.com/a@sha512:{'a' * 64}", "http://r.example.com/a", "-x.example/a"),
        *(
            "user@r.example.com/a",
            "r.example.com:99999/a",
            "r.example.com:0/a",
            "r.example.com/a b",
            "r.example.com/a?b",
        ),
        *("r.example.com/a#b", "r.example.com/a:\n", f"r.example.com/{'a' * 300}", "r..example.com/a", "[::1/a"),
    ],
)
def test_what_is_no_reference_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequest):
        read_reference(text)


@pytest.mark.parametrize(
    ("text", "mirrors", "asked"),
    [
        ("ubuntu:22.04", (), "registry-1.docker.io/library/ubuntu:22.04"),
        ("ubuntu", ("docker.io=cache.example.com:5000",), "cache.example.com:5000/library/ubuntu:latest"),
        ("team/x:1", ("ghcr.io=a.example.com", "docker.io=b.example.com/hub"), "b.example.com/hub/team/x:1"),
        ("ghcr.io/team/x:1", ("docker.io=cache.example.com",), "ghcr.io/team/x:1"),
    ],
)
def test_docker_hub_and_mirrored_registries_have_another_host(text: str, mirrors: tuple[str, ...], asked: str) -> None:
    assert str(read_reference(text).served_by(mirrors)) == asked


def credentials(tmp_path: Path, values: Any) -> Credentials:
    (tmp_path / "config.json").write_text(values if isinstance(values, str) else json.dumps(values))
    return Credentials({"DOCKER_CONFIG": str(tmp_path), "HOME": "/nowhere"})


def packed(text: str) -> dict[str, str]:
    return {"auth": base64.b64encode(text.encode()).decode()}


def test_the_longest_name_of_a_registry_counts(tmp_path: Path) -> None:
    found = credentials(
        tmp_path,
        {
            "auths": {
                "https://r.example.com/v1/": packed("u:p:w"),
                "r.example.com/team": packed("team:1"),
                "other.example.com:5000": packed("o:o"),
                "empty.example.com": {},
            }
        },
    )
    assert found.find("r.example.com", "image") == ("u", "p:w")
    assert found.find("r.example.com", "team/image") == ("team", "1")
    assert found.find("r.example.com", "teams/image") == ("u", "p:w")
    assert found.find("other.example.com:5000", "x") == ("o", "o")
    assert found.find("other.example.com", "x") is None
    assert found.find("example.com", "x") is None
    assert found.find("empty.example.com", "x") is None


def test_passwords_of_docker_hub_are_kept_under_its_old_address(tmp_path: Path) -> None:
    found = credentials(tmp_path, {"auths": {"https://index.docker.io/v1/": packed("u:p")}})
    assert found.find("registry-1.docker.io", "library/ubuntu") == ("u", "p")
    assert found.find("r.example.com", "library/ubuntu") is None


def test_a_file_of_its_own_comes_first(tmp_path: Path) -> None:
    own = tmp_path / "auth.json"
    own.write_text(json.dumps({"auths": {"r.example.com": packed("own:1")}}))
    credentials(tmp_path, {"auths": {"r.example.com": packed("docker:1")}})
    found = Credentials({"REGISTRY_AUTH_FILE": str(own), "DOCKER_CONFIG": str(tmp_path)})
    assert found.find("r.example.com", "x") == ("own", "1")
    assert Credentials({"HOME": str(tmp_path / "none")}).find("r.example.com", "x") is None


@pytest.mark.parametrize(
    ("values", "complaint"),
    [
        ({"credHelpers": {"r.example.com": "helper"}}, "credHelpers"),
        ({"credsStore": "desktop", "auths": {"r.example.com": {}}}, "credsStore"),
        ({"auths": {"r.example.com": {**packed("u:p"), "identitytoken": "t"}}}, "identity token"),
        ({"auths": {"r.example.com": {"auth": "!"}}}, "not base64"),
        ("{", "not JSON"),
    ],
)
def test_passwords_that_cannot_be_read_are_named(tmp_path: Path, values: Any, complaint: str) -> None:
    with pytest.raises(InvalidRequest, match=complaint):
        credentials(tmp_path, values).find("r.example.com", "x")


def entry(platform: dict[str, str] | None, digest: str = DIGEST) -> dict[str, Any]:
    found: dict[str, Any] = {"mediaType": f"{OCI}.manifest.v1+json", "digest": digest, "size": 10}
    return found | ({"platform": platform} if platform else {})


def test_an_index_is_searched_for_the_platform() -> None:
    other, third = f"sha256:{'b' * 64}", f"sha256:{'c' * 64}"
    index = json.dumps(
        {
            "schemaVersion": 2,
            "manifests": [
                entry({"os": "unknown", "architecture": "unknown"}),
                entry({"os": "linux", "architecture": "arm64", "variant": "v8"}, other),
                entry({"os": "linux", "architecture": "arm", "variant": "v7"}, third),
                entry({"os": "windows", "architecture": "amd64"}),
            ],
        }
    ).encode()
    assert is_index(index)
    assert choose(index, Platform("linux", "arm64")).digest == other
    assert choose(index, read_platform("linux/arm/v7")).digest == third
    with pytest.raises(InvalidRequest, match="it is for linux/arm/v7, linux/arm64/v8, windows/amd64"):
        choose(index, Platform("linux", "amd64"))
    for wrong in ("linux", "Linux/arm64", "linux/", "a/b/c/d", "linux/../x"):
        with pytest.raises(InvalidRequest, match="not a platform"):
            read_platform(wrong)


LAYER = {"mediaType": f"{OCI}.layer.v1.tar+gzip", "digest": DIGEST, "size": 1}
GOOD = {"schemaVersion": 2, "config": {"digest": DIGEST, "size": 2}, "layers": [LAYER]}


@pytest.mark.parametrize(
    "manifest",
    [
        *("[]", "{", "null", '{"schemaVersion": 1, "fsLayers": []}', "[" * 100_000),
        json.dumps({**GOOD, "layers": {}}),
        json.dumps({**GOOD, "layers": [LAYER] * 513}),
        json.dumps({**GOOD, "config": None}),
        json.dumps({**GOOD, "config": {"digest": DIGEST, "size": 1 << 30}}),
        json.dumps({**GOOD, "layers": [{**LAYER, "size": -1}]}),
        json.dumps({**GOOD, "layers": [{**LAYER, "size": True}]}),
        json.dumps({**GOOD, "layers": [{**LAYER, "size": 1e9}]}),
        json.dumps({**GOOD, "layers": [{**LAYER, "digest": "sha256:../../etc/passwd"}]}),
        json.dumps({**GOOD, "layers": [{**LAYER, "mediaType": f"{OCI}.layer.v1.tar+gzip+encrypted"}]}),
        json.dumps({**GOOD, "layers": [{**LAYER, "mediaType": "text/html"}]}),
    ],
)
def test_a_manifest_that_is_none_is_refused(manifest: str) -> None:
    assert read_manifest(json.dumps(GOOD).encode()).size == 1
    with pytest.raises(InvalidRequest):
        read_manifest(manifest.encode())


def test_what_is_neither_index_nor_manifest_is_refused() -> None:
    for text, kind in (('{"schemaVersion": 1}', "application/vnd.docker.distribution.manifest.v1+prettyjws"),
                       (json.dumps(GOOD), "text/html")):  # fmt: skip
        with pytest.raises(InvalidRequest, match="not an image"):
            is_index(text.encode(), kind)


def test_a_config_is_read_and_written() -> None:
    said = ImageConfig(
        {"PATH": "/opt/bin:/bin", "EMPTY": ""}, "/app", "app:staff", ("a",), ("b", "c"), ("80/tcp",), {"l": "v"}
    )
    assert read_config(config_json(said, DIGEST)).config == said
    assert read_config(config_json(said, DIGEST)).diff_ids == (DIGEST,)


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ({}, ImageConfig()),
        ({"Env": None, "Cmd": "x", "Labels": [], "ExposedPorts": None, "User": 5}, ImageConfig()),
        ({"Env": ["A=b=c", "no", "=x", "a-b=1", "1A=2", 5]}, ImageConfig({"A": "b=c"})),
        ({"WorkingDir": "app/../x//y/"}, ImageConfig(workdir="/x/y")),
        ({"WorkingDir": "/../.."}, ImageConfig(workdir="/")),
    ],
)
def test_what_an_image_says_of_itself_is_taken_with_care(said: Any, expected: ImageConfig) -> None:
    assert read_config(json.dumps({"config": said, "rootfs": {"diff_ids": []}}).encode()).config == expected


@pytest.mark.parametrize(
    "said",
    [
        *({"Env": ["A=\0"]}, {"Env": [f"A={'x' * 200_000}"]}, {"WorkingDir": "a\0b"}),
        *({"Labels": {"x": "y" * 2_000_000}}, {"User": "x" * 300}, {"User": "\ud800"}),
    ],
)
def test_what_no_program_could_start_with_is_refused(said: Any) -> None:
    with pytest.raises((InvalidRequest, UnknownUser)):
        read_config(json.dumps({"config": said, "rootfs": {"diff_ids": []}}).encode())
