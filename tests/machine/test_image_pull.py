"""`warren image pull` from a real registry, from one that lies, and with bad luck in the middle."""

import base64
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest
import warm_parent
from registry_server import (
    HERE,
    OCI,
    PASSWORD,
    USER,
    Image,
    RegistryServer,
    descriptor,
    digest_of,
    lying_registry,
    running_registry,
    send,
    tar_of,
)
from server_process import ServerProcess, free_port
from this_run import new_state_dir

import warren as package
from warren.images.registry.credentials import Credentials
from warren.images.registry.http import Patience
from warren.images.registry.pull import PullOptions, pull_image
from warren.images.registry.tenant_pulls import pull_for_tenant
from warren.images.store.store import ImageStore, silent
from warren.images.transfer.import_tree import ImportCaps
from warren.interfaces.images import ImageVersion
from warren.kernel.zstd import zstd_module
from warren.model.addresses import read_networks
from warren.model.errors import (
    ImageNotFound,
    InvalidRequest,
    LimitReached,
    PermissionDenied,
    Unavailable,
    WarrenError,
)
from warren.model.image_pulls import ALLOW_LIST, ON, PullRules
from warren.model.oci_image import MAX_MANIFEST
from warren.model.tenant_images import may_use_image, pulled_image, reference_in

SHELL = tar_of({"bin/sh": b"#!", "etc/gone": b"1", "opt/old": b"1", "opt/sub/old": b"1"})
QUICK = PullOptions(
    patience=Patience(connect_s=2, silence_s=1, slow_s=1.5, tries=2, backoff_s=0.05), credentials=Credentials({})
)
Answer = Callable[[BaseHTTPRequestHandler], bool]


@pytest.fixture
def store(tmp_path: Path) -> ImageStore:
    return ImageStore(tmp_path / "state")


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RegistryServer]:
    with running_registry(tmp_path_factory.mktemp("registry") / "one") as server:
        yield server


def left_of(tmp_path: Path) -> list[str]:
    return sorted(name for name in os.listdir(tmp_path / "state/images") if name.startswith(".making"))


def current(store: ImageStore, name: str) -> ImageVersion:
    (found,) = [one for one in store.list() if one.name == name]
    return found


# -- a real registry


def test_an_image_is_pulled_once_and_again_when_it_has_changed(
    registry: RegistryServer, store: ImageStore, tmp_path: Path
) -> None:
    upper = tar_of({"etc/.wh.gone": b"", "opt/.wh..wh..opq": b"", "opt/new": b"2", "etc/motd": b"hello"})
    said = {"Env": ["GREETING=hello world"], "WorkingDir": "/srv/app", "User": "", "Cmd": ["sh"], "Labels": {"a": "b"}}
    image = Image(SHELL, upper, config=said)
    digest = registry.push("team/app", "1", image)
    reference = f"{registry.host}/team/app:1"
    steps: list[tuple[str, float | None]] = []

    made = pull_image(store, reference, "app", lambda step, fraction: steps.append((step, fraction)), options=QUICK)
    root = store.rootfs("app").path
    assert {path.name for path in (root / "opt").iterdir()} == {"new"}
    assert not (root / "etc/gone").exists()
    assert (root / "etc/motd").read_bytes() == b"hello"
    assert (root / "srv/app").is_dir()
    assert made.source == f"registry {reference}@{digest}"
    assert (made.config.digest, made.config.workdir, made.config.env) == (
        digest,
        "/srv/app",
        {"GREETING": "hello world"},
    )
    assert store.rootfs("app").config == made.config
    fractions = [fraction for step, fraction in steps if step.startswith("downloading") and fraction is not None]
    assert fractions == sorted(fractions)
    assert fractions[-1] == 0.95

    assert pull_image(store, reference, "app", options=QUICK) == made
    assert pull_image(store, f"{registry.host}/team/app@{digest}", "app", options=QUICK) == made
    assert pull_image(store, f"{registry.host}/team/app@{digest}", "pinned", options=QUICK).content == made.content
    registry.push("team/app", "1", Image(SHELL, config=said))
    assert pull_image(store, reference, "app", options=QUICK).version != made.version
    assert current(store, "pinned").config.digest == digest
    assert left_of(tmp_path) == []


@pytest.mark.parametrize("docker", [False, True])
def test_the_image_of_the_platform_is_chosen_of_several(
    registry: RegistryServer, store: ImageStore, docker: bool
) -> None:
    other = {"os": "linux", "architecture": "s390x"}
    images = {
        f"linux/{HERE['architecture']}": Image(SHELL, tar_of({"which": b"mine"}), docker=docker),
        "linux/s390x": Image(SHELL, tar_of({"which": b"other"}), docker=docker, platform=other),
    }
    path = f"many/{'docker' if docker else 'oci'}"
    registry.push_index(path, "1", images, docker=docker)
    pull_image(store, f"{registry.host}/{path}:1", "mine", options=QUICK)
    assert (store.rootfs("mine").path / "which").read_text() == "mine"
    pull_image(store, f"{registry.host}/{path}:1", "other", options=QUICK, platform="linux/s390x")
    assert (store.rootfs("other").path / "which").read_text() == "other"
    with pytest.raises(InvalidRequest, match="not there for linux/riscv64"):
        pull_image(store, f"{registry.host}/{path}:1", "third", options=QUICK, platform="linux/riscv64")

    registry.push(path, "single", images["linux/s390x"])
    with pytest.raises(InvalidRequest, match="is for linux/s390x"):
        pull_image(store, f"{registry.host}/{path}:single", "single", options=QUICK)


def test_layers_may_be_compressed_in_several_ways(registry: RegistryServer, store: ImageStore) -> None:
    registry.push("forms", "plain", Image(SHELL, packed=bytes))
    assert pull_image(store, f"{registry.host}/forms:plain", "plain", options=QUICK).files
    registry.push("forms", "zstd", Image(SHELL, SHELL, packed=zstd_module().compress))
    assert pull_image(store, f"{registry.host}/forms:zstd", "zstd", options=QUICK).files


def test_a_registry_may_ask_for_a_password(store: ImageStore, tmp_path: Path) -> None:
    with running_registry(tmp_path / "registry", password=True) as registry:
        registry.push("private", "1", Image(SHELL))
        reference = f"{registry.host}/private:1"
        with pytest.raises(PermissionDenied) as caught:
            pull_image(store, reference, "private", options=QUICK)
        assert f"docker login {registry.host}" in caught.value.remedy
        auth = base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()
        (tmp_path / "config.json").write_text(json.dumps({"auths": {registry.host: {"auth": auth}}}))
        known = replace(QUICK, credentials=Credentials({"DOCKER_CONFIG": str(tmp_path)}))
        assert pull_image(store, reference, "private", options=known).files
        wrong = base64.b64encode(f"{USER}:wrong".encode()).decode()
        (tmp_path / "config.json").write_text(json.dumps({"auths": {registry.host: {"auth": wrong}}}))
        with pytest.raises(PermissionDenied):
            pull_image(store, reference, "other", options=known)


def test_what_is_not_there_is_said(registry: RegistryServer, store: ImageStore) -> None:
    with pytest.raises(ImageNotFound):
        pull_image(store, f"{registry.host}/team/none:1", options=QUICK)
    with pytest.raises(Unavailable, match="cannot be talked to"):
        pull_image(store, f"127.0.0.1:{free_port()}/team/none:1", options=QUICK)
    registry.push("library/ubuntu", "22.04", Image(SHELL))
    named = replace(QUICK, registry=f"{registry.host}/library")
    assert pull_image(store, "ubuntu:22.04", options=named).name == "ubuntu:22.04"


# -- a registry that lies

IMAGE = Image(SHELL, tar_of({"big": random.Random(1).randbytes(300_000)}))
LAYER = IMAGE.values["layers"][1]


def for_blob(answer: Callable[[BaseHTTPRequestHandler], None]) -> Answer:
    def act(handler: BaseHTTPRequestHandler) -> bool:
        mine = handler.path.endswith(LAYER["digest"])
        if mine:
            answer(handler)
        return mine

    return act


def for_manifest(answer: Callable[[BaseHTTPRequestHandler], None]) -> Answer:
    def act(handler: BaseHTTPRequestHandler) -> bool:
        mine = "/manifests/" in handler.path
        if mine:
            answer(handler)
        return mine

    return act


def endlessly(handler: BaseHTTPRequestHandler) -> None:
    handler.send_response(200)
    handler.send_header("Connection", "close")
    handler.end_headers()
    while True:
        handler.wfile.write(bytes(65536))


def slowly(handler: BaseHTTPRequestHandler, *, head: bool) -> None:
    for byte in b"HTTP/1.1 200 OK\r\nX-Wait: " + b"x" * 1000 if head else b"":
        handler.wfile.write(bytes([byte]))
        time.sleep(0.1)
    handler.wfile.write(f"HTTP/1.1 200 OK\r\nContent-Length: {LAYER['size']}\r\n\r\n".encode())
    for _ in range(1000):
        handler.wfile.write(b"x")
        time.sleep(0.1)


def redirect(target: str) -> Callable[[BaseHTTPRequestHandler], None]:
    return lambda handler: send(handler, b"", status=307, Location=target)


def challenge(realm: str) -> Callable[[BaseHTTPRequestHandler], None]:
    words = f'Bearer realm="{realm}",service="s",scope="repository:x:push,pull"'
    return lambda handler: send(handler, b"", status=401, WWW_Authenticate=words)


@pytest.mark.parametrize(
    ("answer", "complaint"),
    [
        (for_blob(lambda h: send(h, b"x" * LAYER["size"])), "sends another layer"),
        (for_blob(lambda h: send(h, b"x" * 10)), "a layer has 10 bytes, not"),
        (for_blob(lambda h: send(h, b"x" * 10, length=LAYER["size"])), "cannot be talked to"),
        (for_blob(endlessly), "sends another layer"),
        (for_blob(lambda h: slowly(h, head=True)), "cannot be talked to"),
        (for_blob(lambda h: slowly(h, head=False)), "cannot be talked to"),
        (for_blob(lambda h: send(h, b"", status=500)), "it answers 500"),
        (for_blob(lambda h: send(h, IMAGE.layers[1], Content_Encoding="gzip")), "packs what it was asked to send"),
        (for_blob(redirect("/v2/again")), "no blobs/"),
        (for_blob(redirect("https://169.254.169.254/latest/meta-data")), "a link-local address"),
        (for_blob(redirect("https://localhost/")), "a loopback address"),
        (for_blob(redirect("https://[::ffff:10.0.0.1]/x")), "a private address"),
        (for_blob(redirect("https://2852039166/")), "a link-local address"),
        (for_blob(redirect("http://203.0.113.1/plain")), "without TLS"),
        (for_blob(redirect("file:///etc/passwd")), "no address"),
        (for_blob(redirect("https://user:secret@example.com/")), "no address"),
        (for_blob(redirect("gopher://example.com/")), "not https"),
        (for_manifest(redirect("/v2/x/manifests/1")), "redirects more than 5 times"),
        (for_manifest(lambda h: send(h, b" " * (MAX_MANIFEST + 1), IMAGE.type)), f"longer than {MAX_MANIFEST} bytes"),
        (for_manifest(endlessly), f"longer than {MAX_MANIFEST} bytes"),
        (for_manifest(lambda h: send(h, b"<html>", "text/html")), "not JSON"),
        (for_manifest(lambda h: send(h, b"{}", "text/html")), "of the type 'text/html'"),
        (for_manifest(challenge("https://10.0.0.1/token")), "a private address"),
        (for_manifest(challenge("https://169.254.169.254/token")), "a link-local address"),
        (for_manifest(challenge("http://auth.example.com/token")), "without TLS"),
    ],
)
def test_a_registry_that_lies_is_found_out(store: ImageStore, tmp_path: Path, answer: Answer, complaint: str) -> None:
    began = time.monotonic()
    with lying_registry(IMAGE, answer) as registry, pytest.raises(WarrenError) as caught:
        pull_image(store, f"{registry.host}/x:1", "x", options=QUICK)
    assert complaint in caught.value.message
    assert time.monotonic() - began < 20
    assert store.list() == []
    assert not (tmp_path / "state/images").exists() or left_of(tmp_path) == []


def test_a_manifest_by_digest_must_have_that_digest(store: ImageStore) -> None:
    with lying_registry(IMAGE) as registry, pytest.raises(InvalidRequest, match="sends the manifest sha256:"):
        pull_image(store, f"{registry.host}/x@sha256:{'0' * 64}", "x", options=QUICK)


def test_a_config_and_a_manifest_must_have_the_size_that_is_said_of_them(store: ImageStore) -> None:
    image = Image(SHELL)
    image.values["config"]["size"] += 1
    with lying_registry(image) as registry, pytest.raises(InvalidRequest, match="sends another config"):
        pull_image(store, f"{registry.host}/x:1", "x", options=QUICK)
    entry = {**descriptor(IMAGE.manifest, IMAGE.type), "platform": HERE}
    index = json.dumps({"schemaVersion": 2, "manifests": [{**entry, "size": entry["size"] + 1}]}).encode()

    def answer(handler: BaseHTTPRequestHandler) -> bool:
        by_name = handler.path.endswith("/manifests/1")
        if by_name:
            send(handler, index, f"{OCI}.index.v1+json")
        return by_name

    with lying_registry(IMAGE, answer) as registry, pytest.raises(InvalidRequest, match="says that a manifest has"):
        pull_image(store, f"{registry.host}/x:1", "x", options=QUICK)


def test_a_layer_must_unpack_to_what_the_config_says(store: ImageStore) -> None:
    image = Image(SHELL, packed=lambda _: tar_of({"bin/sh": b"evil"}))
    with lying_registry(image) as registry, pytest.raises(InvalidRequest, match="unpacks to"):
        pull_image(store, f"{registry.host}/x:1", "x", options=QUICK)


def test_an_image_that_says_it_is_too_large_is_not_downloaded(store: ImageStore) -> None:
    with lying_registry(IMAGE) as registry, pytest.raises(InvalidRequest, match="larger than 1000 bytes"):
        pull_image(store, f"{registry.host}/x:1", "x", options=replace(QUICK, caps=ImportCaps(size=1000)))
    assert not any(LAYER["digest"] in path for path, _ in registry.asked)


def test_passwords_do_not_follow_redirects_and_private_addresses_need_leave(store: ImageStore, tmp_path: Path) -> None:
    auth = base64.b64encode(b"u:p").decode()
    with lying_registry(IMAGE) as elsewhere, lying_registry(IMAGE) as registry:

        def answer(handler: BaseHTTPRequestHandler) -> bool:
            if handler.path.startswith("/token"):
                assert handler.headers["Authorization"] == f"Basic {auth}"
                assert "scope=repository%3Ax%3Apull" in handler.path
                send(handler, b'{"token": "let-me-in"}', "application/json")
            elif handler.headers.get("Authorization") != "Bearer let-me-in":
                challenge(f"http://{registry.host}/token")(handler)
            else:
                return for_blob(redirect(f"http://{elsewhere.host}/cdn/{LAYER['digest']}"))(handler)
            return True

        registry.answer = answer
        (tmp_path / "config.json").write_text(json.dumps({"auths": {registry.host: {"auth": auth}}}))
        known = replace(QUICK, credentials=Credentials({"DOCKER_CONFIG": str(tmp_path)}))
        with pytest.raises(InvalidRequest, match="a loopback address") as caught:
            pull_image(store, f"{registry.host}/x:1", "x", options=known)
        assert "image_registry_networks" in caught.value.remedy
        assert elsewhere.asked == []

        allowed = replace(known, networks=read_networks(["127.0.0.0/8"]))
        assert pull_image(store, f"{registry.host}/x:1", "x", options=allowed).files
        ((path, headers),) = elsewhere.asked
        assert path.startswith("/cdn/")
        assert "Authorization" not in headers


def test_a_token_that_expires_in_the_middle_is_replaced(store: ImageStore) -> None:
    tokens: list[str] = []

    def answer(handler: BaseHTTPRequestHandler) -> bool:
        if handler.path.startswith("/token"):
            tokens.append(f"token-{len(tokens)}")
            send(handler, json.dumps({"access_token": tokens[-1]}).encode(), "application/json")
            return True
        if tokens and handler.headers.get("Authorization") == f"Bearer {tokens[-1]}" and len(tokens) == 2:
            return False
        if tokens and handler.headers.get("Authorization") == f"Bearer {tokens[-1]}" and "/manifests/" in handler.path:
            return False
        challenge(f"http://{registry.host}/token")(handler)
        return True

    with lying_registry(Image(SHELL), answer) as registry:
        assert pull_image(store, f"{registry.host}/x:1", "x", options=QUICK).files
    assert len(tokens) == 2


def test_a_broken_connection_is_tried_again(store: ImageStore) -> None:
    tries: list[str] = []

    def answer(handler: BaseHTTPRequestHandler) -> bool:
        tries.append(handler.path)
        if tries.count(handler.path) == 1:
            sizes = {each["digest"]: each["size"] for each in IMAGE.values["layers"]}
            size = sizes.get(handler.path.rpartition("/")[2])
            send(handler, b"x", length=size) if size else send(handler, b"", status=503)
            handler.close_connection = True
            return True
        return False

    with lying_registry(IMAGE, answer) as registry:
        assert pull_image(store, f"{registry.host}/x:1", "x", options=QUICK).files


# -- for tenants


def test_a_tenant_reaches_no_private_registry_and_has_no_password_of_the_operator(
    store: ImageStore, tmp_path: Path
) -> None:
    with running_registry(tmp_path / "guarded", password=True) as registry:
        registry.push("team/app", "1", Image(SHELL))
        auth = base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()
        (tmp_path / "config.json").write_text(json.dumps({"auths": {registry.host: {"auth": auth}}}))
        options = replace(QUICK, credentials=Credentials({"DOCKER_CONFIG": str(tmp_path)}))
        name = pulled_image("acme", f"{registry.host}/team/app:1")
        with pytest.raises(InvalidRequest, match="from which nothing is pulled for tenants"):
            pull_for_tenant(store, name, silent, options=options, rules=PullRules(ON), max_bytes=1 << 30)
        mirrored = replace(options, mirrors=(f"docker.io={registry.host}",))
        short = pulled_image("acme", "team/app:1")
        with pytest.raises(PermissionDenied, match="does not let us have team/app"):
            pull_for_tenant(store, short, silent, options=mirrored, rules=PullRules(ON), max_bytes=1 << 30)
        named = PullRules.read(ALLOW_LIST, [f"{registry.host}/team/*"])
        made = pull_for_tenant(store, name, silent, options=options, rules=named, max_bytes=1 << 30)
        assert [one.name for one in store.list()] == [made.name] == [name]


def test_the_images_of_a_tenant_have_a_bound_and_the_unused_ones_make_room(store: ImageStore, tmp_path: Path) -> None:
    large = Image(tar_of({"bin/sh": b"#!", "large": bytes(1_000_000)}))
    with lying_registry(large) as registry:
        options = replace(QUICK, mirrors=(f"docker.io={registry.host}",))

        def pull(tenant: str, reference: str, max_bytes: int = 2_500_000) -> ImageVersion:
            name = pulled_image(tenant, reference)
            return pull_for_tenant(store, name, silent, options=options, rules=PullRules(ON), max_bytes=max_bytes)

        def kept(tenant: str) -> list[str]:
            names = (one.name for one in store.list() if one.current and may_use_image(tenant, one.name))
            return sorted(reference_in(name) for name in names)

        pull("other", "theirs:1")
        for number, reference in enumerate(("a:1", "b:1")):
            made = pull("acme", reference)
            os.utime(store.folder / ".versions" / made.version / "uses", (number, number))
        (tmp_path / "sandboxes/one").mkdir(parents=True)
        store.hold(pulled_image("acme", "a:1"), tmp_path / "sandboxes/one")
        pull("acme", "c:1")
        assert (kept("acme"), kept("other")) == (["a:1", "c:1"], ["theirs:1"])
        (tmp_path / "sandboxes/two").mkdir()
        store.hold(pulled_image("acme", "c:1"), tmp_path / "sandboxes/two")
        with pytest.raises(LimitReached, match="take more than 2 MiB together"):
            pull("acme", "d:1")
        assert kept("acme") == ["a:1", "c:1"]
        with pytest.raises(InvalidRequest, match="larger than 500000"):
            pull("acme", "e:1", 500_000)


# -- bad luck


def test_the_default_image_may_be_one_that_was_pulled(registry: RegistryServer) -> None:
    program = (Path(package.__file__).parent / "bin/warren-agent").read_bytes()
    registry.push("library/ubuntu", "22.04", Image(tar_of({"bin/sh": program}), config={"WorkingDir": "/srv"}))
    state = new_state_dir()
    server = ServerProcess(state, "--on-stop", "destroy", "--pool-size", "1", CONTAINER_IMAGE="ubuntu:22.04")
    try:
        server.start(wait=False)
        server.wait_until_ready("/health")
        status, answer = post(server, "/api/sessions", {})
        assert status == 404
        assert "warren image pull ubuntu:22.04" in answer["remedy"]
        options = replace(QUICK, registry=f"{registry.host}/library")
        pull_image(ImageStore(state), "ubuntu:22.04", options=options)
        status, answer = post(server, "/api/sessions", {})
        assert status == 201
        command = {"command": ["/bin/sh", "--version"]}
        status, answer = post(server, f"/api/sessions/{answer['session_id']}/exec", command)
        assert answer["stdout"].startswith("warren-agent ")
    finally:
        server.stop()
        shutil.rmtree(state)


def post(server: ServerProcess, path: str, body: dict[str, Any]) -> tuple[int, Any]:
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(f"{server.url}{path}", json.dumps(body).encode(), headers)
    try:
        with urllib.request.urlopen(request, timeout=60) as response:
            return response.status, json.load(response)
    except urllib.error.HTTPError as exc:
        return exc.code, json.load(exc)


def warren(tmp_path: Path, *arguments: str, **more: str) -> "subprocess.Popen[str]":
    environ = {
        **more,
        "PATH": os.environ["PATH"],
        "PYTHONPATH": ":".join(sys.path),
        "WARREN_STATE_DIR": str(tmp_path / "state"),
    }
    argv = [sys.executable, "-m", "warren.cli.main", "image", *arguments]
    return warm_parent.Popen(argv, env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def said(process: "subprocess.Popen[str]") -> str:
    out, err = process.communicate(timeout=60)
    assert "Traceback" not in err
    return out + err


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
def test_a_pull_that_is_ended_leaves_the_old_image_in_use(store: ImageStore, tmp_path: Path, number: int) -> None:
    stuck, go_on = threading.Event(), threading.Event()

    def answer(handler: BaseHTTPRequestHandler) -> bool:
        if handler.path.endswith(LAYER["digest"]):
            handler.wfile.write(f"HTTP/1.1 200 OK\r\nContent-Length: {LAYER['size']}\r\n\r\nhalf".encode())
            stuck.set()
            go_on.wait(30)
        return handler.path.endswith(LAYER["digest"])

    with lying_registry(Image(SHELL)) as registry:
        before = pull_image(store, f"{registry.host}/x:1", "x", options=QUICK)
        registry.image, registry.answer = IMAGE, answer
        with warren(tmp_path, "pull", f"{registry.host}/x:1", "--name", "x") as process:
            assert stuck.wait(30)
            process.send_signal(number)
            assert process.wait(20) == (-number if number == signal.SIGKILL else 128 + number)
            go_on.set()
    assert current(store, "x") == before
    assert (store.rootfs("x").path / "bin/sh").exists()
    store.remove("x")
    assert left_of(tmp_path) == []


def test_a_full_disk_is_one_sentence_and_the_old_image_stays(tmp_path: Path) -> None:
    state = tmp_path / "state"
    state.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=6m", "tmpfs", str(state)], check=True)
    try:
        store = ImageStore(state)
        large = Image(SHELL, tar_of({"large": random.Random(1).randbytes(4_000_000)}), packed=bytes)
        with lying_registry(Image(SHELL)) as registry:
            before = pull_image(store, f"{registry.host}/x:1", "x", options=QUICK)
            registry.image = large
            with warren(tmp_path, "pull", f"{registry.host}/x:1", "--name", "x") as process:
                assert "the disk of" in (text := said(process))
                assert "is full" in text
        assert [*store.list()] == [before]
        assert left_of(tmp_path) == []
    finally:
        subprocess.run(["umount", str(state)], check=True)


def test_a_short_name_is_docker_hubs_which_a_mirror_may_stand_for(registry: RegistryServer, tmp_path: Path) -> None:
    digest = registry.push("hub/library/ubuntu", "22.04", Image(SHELL))
    mirror = {"WARREN_IMAGE_MIRRORS": f"docker.io={registry.host}/hub"}
    assert digest in said(warren(tmp_path, "pull", "ubuntu:22.04", **mirror))
    found = current(ImageStore(tmp_path / "state"), "ubuntu:22.04")
    assert found.source == f"registry docker.io/library/ubuntu:22.04@{digest}"
    text = said(warren(tmp_path, "pull", "ubuntu:9", **mirror))
    assert f"the registry {registry.host} has no manifests/9 of hub/library/ubuntu" in text
    text = said(warren(tmp_path, "pull", "ubuntu:22.04", "--name", "pulled/x/y", **mirror))
    assert "are those of tenants' images" in text


def test_the_command_says_what_it_did(registry: RegistryServer, tmp_path: Path) -> None:
    digest = registry.push("cli", "1", Image(SHELL, config={"Env": ["A=b"], "User": "0"}))
    reference = f"{registry.host}/cli:1"
    assert digest in said(warren(tmp_path, "pull", reference, "--name", "mine"))
    assert f"is up to date: {digest}" in said(warren(tmp_path, "pull", reference, "--name", "mine"))
    answer: dict[str, Any] = json.loads(
        warren(tmp_path, "pull", reference, "--name", "mine", "--json").communicate()[0]
    )
    assert (answer["new"], answer["config"]["digest"]) == (False, digest)
    shown = said(warren(tmp_path, "show", "mine"))
    assert f"digest       {digest}" in shown
    assert "env          A=b" in shown
    assert digest_of(b"") not in shown
