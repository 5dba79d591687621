"""Images from recipes, in real sandboxes: what steps do, what the cache knows, and builds that end early."""

import asyncio
import os
import signal
import socket
import subprocess
import sys
import tarfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import this_run
from build_world import BuildWorld, configure, copy, run
from marks import first_of
from registry_server import empty_registry

import warren
from warren.model.errors import BuildFailed, ImageNotFound, InvalidRequest, NoSpace
from warren.model.image import Run, Stage
from warren.model.operations import Command
from warren.model.spec import SandboxSpec
from warren.sandboxes.providers.oci import OciProvider


@pytest.fixture(scope="module")
def world(image_cache: Path) -> Iterator[BuildWorld]:
    state = this_run.new_state_dir()
    yield BuildWorld.new(state, image_cache)
    subprocess.run(["rm", "-rf", str(state)], check=True)


@pytest.fixture
def context(tmp_path: Path) -> Path:
    path = tmp_path / "context"
    for name in ("app/main.py", "app/lib/a.py", "notes.md", "run.sh"):
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_text(f"{name}\n")
    (path / "run.sh").chmod(0o750)
    (path / "app/link").symlink_to("/etc/hostname")
    return path


class TestSteps:
    def test_commands_change_the_image_as_root(self, world: BuildWorld) -> None:
        world.build(
            "changed",
            configure("env", {"WHO": "me", "PATH": "/opt:/usr/bin"}),
            run('id -u > /etc/uid; echo "$WHO $PATH $HOME" > /etc/env; rm /usr/bin/tac; mkdir -m 700 /opt/own'),
            configure("workdir", "/srv/app"),
            configure("workdir", "inner"),
            run("pwd > where; chown 33:44 where; ln -s /etc/passwd link"),
        )
        assert world.text("changed", "etc/uid") == "0\n"
        assert world.text("changed", "etc/env") == "me /opt:/usr/bin /root\n"
        assert world.text("changed", "srv/app/inner/where") == "/srv/app/inner\n"
        where = (world.root("changed") / "srv/app/inner/where").stat()
        assert (where.st_uid, where.st_gid) == (33, 44)
        assert not (world.root("changed") / "usr/bin/tac").exists()
        assert (world.root("small") / "usr/bin/tac").exists()
        config = world.images.rootfs("changed").config
        assert (config.workdir, config.env["WHO"]) == ("/srv/app/inner", "me")
        assert world.left() == []

    def test_a_user_of_the_image_runs_what_follows(self, world: BuildWorld) -> None:
        world.build(
            "user",
            run("echo app:x:5000:5000::/home/app:/bin/sh >> /etc/passwd; mkdir -p /home/app; chown 5000 /home/app"),
            configure("user", "app"),
            configure("workdir", "/home/app"),
            run("id -u > uid"),
        )
        assert world.text("user", "home/app/uid") == "5000\n"

    def test_a_directory_for_work_is_the_users(self, world: BuildWorld) -> None:
        add = run("echo app:x:5000:5001::/opt:/bin/sh >> /etc/passwd")
        world.build(
            "workdir",
            configure("workdir", "/srv"),
            add,
            configure("user", "app"),
            configure("workdir", "a/b"),
            run("touch c"),
        )
        root = world.root("workdir") / "srv"
        found = [os.stat(root / path) for path in (".", "a", "a/b", "a/b/c")]
        assert [(each.st_uid, each.st_gid) for each in found] == [(0, 0), *[(5000, 5001)] * 3]

    def test_the_group_of_a_user_is_the_only_one(self, world: BuildWorld) -> None:
        files = (
            "echo app:x:5000:5000::/opt:/bin/sh >> /etc/passwd; printf 'ops:x:6000:\\nmore:x:6001:app\\n' >> /etc/group"
        )
        steps = [run(f"{files}; chmod 777 /opt")]
        for number, user in enumerate(("app", "app:ops", "app:6002", "5000:0", "0:ops")):
            steps += [configure("user", user), run(f"id -u > /opt/{number}; id -G >> /opt/{number}")]
        world.build("groups", *steps)
        found = [world.text("groups", f"opt/{number}").split() for number in range(5)]
        assert found == [["5000", "5000", "6001"], ["5000", "6000"], ["5000", "6002"], ["5000", "0"], ["0", "6000"]]
        with pytest.raises(InvalidRequest, match="no group 'none'"):
            world.build("nogroup", configure("user", "0:none"), run("true"))

    def test_sandboxes_of_the_image_have_what_was_built(self, world: BuildWorld) -> None:
        world.build("used", run("echo built > /opt/made; echo seed > /workspace/seed"))
        assert asyncio.run(_output(world, "used", "cat /opt/made")) == "built\n"

    def test_files_are_copied_from_the_directory(self, world: BuildWorld, context: Path) -> None:
        (context / ".dockerignore").write_text("*.md\n")
        (context / "large").write_bytes(os.urandom(3_000_001))
        Path(os.fsdecode(os.fsencode(context) + b"/app/\xff\n")).write_text("odd")
        world.build(
            "copied",
            configure("workdir", "/srv"),
            copy("app", "code"),
            copy("run.sh", "bin/start"),
            copy("app/*.py", "run.sh", "many/"),
            copy("run.sh", "/usr/bin/", owner="sandboxuser:7", mode="0555"),
            copy(".", "/all"),
            context=context,
        )
        root = world.root("copied")
        assert (root / "srv/code/main.py").read_text() == "app/main.py\n"
        assert os.readlink(root / "srv/code/link") == "/etc/hostname"
        assert ((root / "srv/bin/start").stat().st_mode, (root / "srv/bin/start").stat().st_uid) == (0o100750, 0)
        assert sorted(os.listdir(root / "srv/many")) == ["main.py", "run.sh"]
        start = (root / "usr/bin/run.sh").stat()
        assert (start.st_mode, start.st_uid, start.st_gid) == (0o100555, 1000, 7)
        assert (root / "usr/bin").stat().st_uid == 0
        assert "notes.md" not in os.listdir(root / "all")
        assert (root / "all/large").read_bytes() == (context / "large").read_bytes()
        assert b"\xff\n" in os.listdir(os.fsencode(root / "all/app"))

    def test_links_of_the_image_are_resolved_inside(self, world: BuildWorld, context: Path, tmp_path: Path) -> None:
        outside = tmp_path / "outside"
        outside.mkdir()
        world.build(
            "linked",
            run(f"mkdir -p /data {outside}; ln -s /data /opt/link; ln -s {outside} /opt/out"),
            copy("run.sh", "/opt/link/"),
            copy("run.sh", "/opt/out"),
            context=context,
        )
        assert (world.root("linked") / "data/run.sh").exists()
        assert (world.root("linked") / str(outside).strip("/") / "run.sh").exists()
        assert os.listdir(outside) == []

    def test_an_archive_is_unpacked_by_add_alone(self, world: BuildWorld, context: Path) -> None:
        with tarfile.open(context / "files.tar.gz", "w:gz") as tar:
            tar.add(context / "app", "inner")
        world.build(
            "added",
            copy("files.tar.gz", "/kept/"),
            copy("files.tar.gz", "/unpacked/", unpack=True),
            copy("run.sh", "/unpacked/", unpack=True),
            context=context,
        )
        assert (world.root("added") / "kept/files.tar.gz").is_file()
        assert sorted(os.listdir(world.root("added") / "unpacked")) == ["inner", "run.sh"]
        assert (world.root("added") / "unpacked/inner/lib/a.py").is_file()

    def test_an_archive_is_unpacked_within_the_disk_of_the_build(self, world: BuildWorld, context: Path) -> None:
        with (context / "zeros").open("wb") as file:
            file.truncate(200 << 20)
        with tarfile.open(context / "large.tar.gz", "w:gz", compresslevel=1) as tar:
            tar.add(context / "zeros", "zeros")
        with pytest.raises(InvalidRequest, match="larger than 67108864 bytes"):
            world.build("large", copy("large.tar.gz", "/x/", unpack=True), context=context, image_build_disk_mb=64)
        assert world.left() == []

    def test_owners_are_those_that_docker_gives(self, world: BuildWorld, context: Path) -> None:
        with tarfile.open(context / "owned.tar", "w") as tar:
            for name, uid in (("inner", 70), ("inner/mine", 71), ("inner/far", 4_000_000)):
                member = tarfile.TarInfo(name)
                member.uid, member.gid, member.type = uid, 80, tarfile.DIRTYPE if name == "inner" else tarfile.REGTYPE
                tar.addfile(member)
        for path in (context / "app", context / "app/main.py"):
            os.chown(path, 90, 90)
        made = "mkdir -p /out/deep; touch /out/a /out/deep/b; ln -s a /out/link; chown -hR 60:61 /out"
        world.build(
            "owners",
            Stage("small", (run(made),), name="first"),
            Stage(
                "small",
                (
                    copy("/out", "/kept", stage="first"),
                    copy("/out/a", "/one", stage="first"),
                    copy("/out", "/given", stage="first", owner="50:51"),
                    copy("owned.tar", "/added/", unpack=True),
                    copy("app", "/app"),
                ),
            ),
            context=context,
        )
        root = world.root("owners")
        given = "given given/a given/deep"
        paths = (
            f"kept kept/deep kept/deep/b kept/link one {given} added/inner added/inner/mine added/inner/far app/main.py"
        )
        found = {path: os.lstat(root / path) for path in paths.split()}
        assert {path: (each.st_uid, each.st_gid) for path, each in found.items()} == {
            **dict.fromkeys(("kept/deep", "kept/deep/b", "kept/link", "one"), (60, 61)),
            **dict.fromkeys(given.split(), (50, 51)),
            **{"kept": (0, 0), "app/main.py": (0, 0)},
            **{"added/inner": (70, 80), "added/inner/mine": (71, 80), "added/inner/far": (0, 0)},
        }

    def test_stages_give_files_to_each_other(self, world: BuildWorld) -> None:
        world.build(
            "staged",
            Stage("small", (run("exit 1"),), name="unneeded"),
            Stage(
                "small", (run("mkdir -p /out/deep; echo made > /out/deep/file; ln -s deep/file /out/link"),), "first"
            ),
            Stage("first", (run("echo more >> /out/deep/file"),), name="second"),
            Stage(
                "scratch",
                (
                    copy("/out", "/result", stage="second"),
                    copy("/out/link", "/", stage="1"),
                    copy("/usr/bin/c*t", "/usr/bin/bash", "/bin/", stage="small"),
                    configure("entrypoint", ("/bin/cat",)),
                ),
            ),
        )
        root = world.root("staged")
        assert (root / "result/deep/file").read_text() == "made\nmore\n"
        assert (os.readlink(root / "result/link"), (root / "link").read_text()) == ("deep/file", "made\n")
        assert {"cat", "cut"} <= set(os.listdir(root / "bin"))
        assert (root / "bin/bash").read_bytes() == (world.root("small") / "usr/bin/bash").read_bytes()
        assert not (root / "usr").exists()
        assert world.images.rootfs("staged").config.entrypoint == ("/bin/cat",)

    def test_a_step_reaches_what_the_operator_names_and_the_image_knows_nothing_of_it(
        self, world: BuildWorld, tmp_path: Path
    ) -> None:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect(("192.0.2.1", 9))
            own = probe.getsockname()[0]
        with socket.create_server((own, 0)) as server:
            port = server.getsockname()[1]
            (tmp_path / "presets.yaml").write_text(
                f"python-packages: {{allow: ['{own}:{port}'], env: {{PIP_INDEX_URL: 'http://{own}:{port}/simple'}}}}\n"
            )
            answer = threading.Thread(target=_answer, args=(server,))
            answer.start()
            world.build(
                "reaching",
                run(f"bash -c 'exec 3<>/dev/tcp/{own}/{port}; cat <&3 > /opt/answer'; env | grep -c ^PIP_INDEX_URL"),
                image_network=("python-packages", "git-hosts"),
                egress_presets=tmp_path / "presets.yaml",
                egress_networks=(own,),
            )
            answer.join()
        assert (world.text("reaching", "opt/answer"), world.recorder.text) == ("hello\n", "1\n")
        assert "PIP_INDEX_URL" not in world.images.rootfs("reaching").config.env
        planted = {path.name for path in world.root("reaching").rglob("*") if "warren-build" in path.name}
        assert planted == set()

    def test_many_steps_are_more_layers_than_a_mount_takes(self, world: BuildWorld) -> None:
        world.build("long", *(run(f"echo {number} >> /opt/numbers") for number in range(20)))
        assert world.text("long", "opt/numbers").split() == [str(number) for number in range(20)]


def _answer(server: socket.socket) -> None:
    connection, _ = server.accept()
    with connection:
        connection.sendall(b"hello\n")


async def _output(world: BuildWorld, image: str, text: str) -> str:
    provider = OciProvider(world.state, world.images, Path(warren.__file__).parent / "bin")
    try:
        sandbox = await provider.create(SandboxSpec(image))
        try:
            return (await sandbox.exec(Command(shell=text))).output
        finally:
            await provider.destroy(sandbox.id)
    finally:
        await provider.close()


class TestCache:
    def test_what_has_not_changed_is_not_made_again(self, world: BuildWorld, context: Path) -> None:
        steps = [
            run("echo 1 > /opt/one"),
            configure("workdir", "/srv"),
            copy("app", "app"),
            run("ls app > listed", env={"KEY": "1"}),
        ]
        first = world.build("cached", *steps, context=context)
        assert world.recorder.cached == [False] * 4
        assert world.build("cached", *steps, context=context).version == first.version
        assert world.recorder.steps[-1] == "up to date"
        other = world.build("other-name", *steps, context=context)
        assert (other.version != first.version, world.recorder.cached) == (True, [True] * 4)
        (context / "app/main.py").write_text("changed")
        second = world.build("cached", *steps, context=context)
        assert (second.version != first.version, world.recorder.cached) == (True, [True, True, False, False])
        os.utime(context / "app/main.py", (1, 1))
        assert world.build("cached", *steps, context=context).version == second.version
        for number, changed in enumerate(
            (
                run("echo 2 > /opt/one"),
                configure("workdir", "/other"),
                copy("app", "app", mode="700"),
                run("ls app > listed", env={"KEY": "2"}),
            )
        ):
            different = [*steps[:number], changed, *steps[number + 1 :]]
            world.build("cached", *different, context=context)
            assert world.recorder.cached == [True] * number + [False] * (4 - number)
        world.build("cached", *steps, context=context, no_cache=True)
        assert world.recorder.cached == [False] * 4

    def test_a_variable_counts_from_where_it_is_set(self, world: BuildWorld) -> None:
        steps = [run("true # first"), configure("env", {"A": "1"}), run("true # second")]
        world.build("env", *steps)
        steps[1] = configure("env", {"A": "2"})
        world.build("env", *steps)
        assert world.recorder.cached == [True, False]

    def test_only_the_config_changes_without_a_layer(self, world: BuildWorld) -> None:
        first = world.build("config", run("true # config"))
        second = world.build("config", run("true # config"), configure("cmd", ("/bin/true",)))
        assert first.version != second.version
        assert world.images.rootfs("config").config.cmd == ("/bin/true",)

    def test_another_version_of_the_base_is_another_base(self, world: BuildWorld) -> None:
        world.build("below", run("echo 1 > /opt/x"))
        world.build("above", Stage("below", (run("cat /opt/x > /opt/y"),)))
        world.build("below", run("echo 2 > /opt/x"))
        world.build("above", Stage("below", (run("cat /opt/x > /opt/y"),)))
        assert world.text("above", "opt/y") == "2\n"

    def test_the_cache_is_bounded_and_can_be_dropped(self, world: BuildWorld) -> None:
        world.build("large", *(run(f"head -c 3000000 /dev/urandom > /opt/{number}") for number in range(4)))
        world.build("large", run("true # bound"), image_cache_mb=7)
        use = world.images.prune_layers()
        assert (0 < use.bytes <= 7 << 20, use.removed) == (True, 0)
        world.images.prune_layers(everything=True)
        assert os.listdir(world.images.folder / ".layers") == []
        assert world.text("large", "etc/hostname") == "sandbox\n"


class TestFailures:
    def test_the_error_says_which_step_and_shows_its_last_output(self, world: BuildWorld) -> None:
        with pytest.raises(BuildFailed) as caught:
            world.build(
                "failing", run("true"), run("seq 1000; printf 'no newline' >&2; exit 7", line=12), run("touch /never")
            )
        lines = caught.value.message.splitlines()
        assert lines[0] == (
            "step 2 of 3: RUN seq 1000; printf 'no newline' >&2; exit 7 (line 12): it ended with exit code 7"
        )
        assert [line.strip() for line in lines[-2:]] == ["1000", "no newline"]
        assert len(caught.value.last_lines) == 40
        assert "\n500\n" in world.recorder.text
        with pytest.raises(ImageNotFound):
            world.images.version("failing")
        assert world.left() == []

    @pytest.mark.parametrize(
        ("step", "message"),
        [
            (run("sleep 1000"), "ran longer than 2 s"),
            (run("yes x | tr -d '\\n' | tail"), "more than 64 MiB of memory"),
            (run("head -c 100000000 /dev/zero > /opt/big"), "No space left on device"),
            (run("kill -9 $$"), "was ended, with exit code 137"),
        ],
    )
    def test_a_step_has_limits(self, world: BuildWorld, step: object, message: str) -> None:
        with pytest.raises((BuildFailed, NoSpace), match=message):
            world.build(
                *("limited", step),  # type: ignore[arg-type]
                image_build_timeout_s=2 if "sleep" in str(step) else 60,
                image_build_memory_mb=64,
                image_build_disk_mb=32,
            )
        assert world.left() == []

    @pytest.mark.parametrize(
        ("steps", "message"),
        [
            ([configure("user", "nobody-there"), run("true")], "nobody-there"),
            ([configure("user", "root"), copy("missing", "/x")], "has no 'missing'"),
            ([copy("../outside", "/x")], "leads out"),
            ([copy("run.sh", "/x", owner="nobody-there")], "no user 'nobody-there'"),
            ([copy("run.sh", "/x", mode="u+x")], "the mode 'u\\+x'"),
            ([copy("/missing", "/x", stage="small")], "there is no '/missing'"),
        ],
    )
    def test_what_cannot_be_is_said(self, world: BuildWorld, context: Path, steps: list[object], message: str) -> None:
        with pytest.raises(InvalidRequest, match=message):
            world.build("impossible", *steps, context=context)  # type: ignore[arg-type]
        assert world.recorder.steps[-1].startswith(f"step {len(steps)} of {len(steps)}: ")

    @pytest.mark.extended
    def test_what_the_network_refused_is_said(self, world: BuildWorld) -> None:
        """Programs only say that a connection was refused; the network knows why."""
        command = "exec 3<>/dev/tcp/10.255.255.1/443; echo hello >&3; read -t 20 <&3"
        connect = Run(("/bin/bash", "-c", command), "RUN connect")
        with pytest.raises(BuildFailed, match=r"the network refused 10.255.255.1:443, because it is") as caught:
            world.build("indexed", Stage("base", (connect,)), image_network=("10.0.0.0/8",))
        assert "egress_networks would have to have its network" in caught.value.message
        assert "WARREN_EGRESS_NETWORKS=10.255.255.1/32" in caught.value.remedy
        with pytest.raises(BuildFailed, match=r"image_network would have to allow 10.255.255.1:443"):
            world.build("indexed", Stage("base", (connect,)), image_network=("example.com",))

    def test_a_base_that_nobody_has_is_said_with_what_to_do(self, world: BuildWorld) -> None:
        with empty_registry() as registry:
            mirrors = (f"docker.io={registry.host}",)
            with pytest.raises(ImageNotFound, match="no manifests/1 of no-such/image") as caught:
                world.build("x", Stage("no-such/image:1"), image_mirrors=mirrors)
        assert "image_registry" in caught.value.remedy

    @pytest.mark.parametrize("size", first_of([55, 90]))
    def test_a_full_disk_keeps_the_old_image(self, world: BuildWorld, tmp_path: Path, size: int) -> None:
        """The folder of the images is on a small file system, which only this test's processes see."""
        place = tmp_path / "state"
        place.mkdir()
        code = (
            "import sys, shutil; from pathlib import Path; from build_world import *\n"
            "world, state = BuildWorld(Path(sys.argv[1])), Path(sys.argv[2])\n"
            "full = BuildWorld(state)\n"
            "full.images.import_directory('small', world.images.rootfs('small').path)\n"
            "first = full.build('kept', run('echo 1 > /opt/x'), image_build_disk_mb=100)\n"
            "try:\n"
            f"    full.build('kept', run('head -c {size}000000 /dev/urandom > /opt/big'), image_build_disk_mb=100)\n"
            "except Exception as exc:\n"
            "    print(type(exc).__name__, exc)\n"
            "print(full.images.version('kept') == first.version, full.left())\n"
        )
        command = ["unshare", "--mount", "sh", "-ec", f'mount -t tmpfs -o size=110m none {place}; exec "$@"', "-"]
        done = subprocess.run(
            [*command, sys.executable, "-c", code, str(world.state), str(place)],
            env={**os.environ, "PYTHONPATH": ":".join(sys.path)},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.stdout.splitlines()[-1:] == ["True []"], done.stdout + done.stderr
        assert NoSpace.__name__ in done.stdout, done.stdout + done.stderr


def start(world: BuildWorld, name: str, *lines: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-m", "build_world", str(world.state), name, *lines],
        env={**os.environ, "PYTHONPATH": ":".join(sys.path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def sandboxes_of(world: BuildWorld) -> list[Path]:
    return list(world.images.folder.glob(".making-*/state/sandboxes/*"))


def wait_until(condition: object, seconds: float = 30.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < deadline
        time.sleep(0.05)


class TestEnds:
    @pytest.mark.parametrize("number", first_of([signal.SIGINT, signal.SIGTERM, signal.SIGKILL]))
    def test_a_build_that_is_stopped_leaves_nothing(self, world: BuildWorld, number: int) -> None:
        before = world.build("stopped", run("echo before > /opt/x"))
        marker = f"sleep 98765{number}"
        with start(world, "stopped", "echo after > /opt/x", marker) as process:
            wait_until(lambda: _runs(marker))
            process.send_signal(number)
            assert process.wait(30) != 0
        wait_until(lambda: not _runs(marker))
        assert world.images.version("stopped") == before.version
        if number == signal.SIGKILL:
            assert len(sandboxes_of(world)) == 1
            ids = [path.name for path in sandboxes_of(world)]
            world.images.prune_layers()  # the next command about images
            assert [path for path, _, _ in os.walk("/sys/fs/cgroup") if os.path.basename(path) in ids] == []
        assert world.left() == []
        assert world.build("stopped", run("echo after > /opt/x")).version != before.version
        assert world.recorder.cached == [True]  # the step that was done is kept

    def test_two_builds_of_one_name_both_end_well(self, world: BuildWorld) -> None:
        steps = ["echo same > /opt/same; sleep 1"]
        processes = [start(world, "both", *steps, f"echo {number} > /opt/number") for number in range(2)]
        versions = []
        for process in processes:
            out, err = process.communicate(timeout=120)
            assert process.returncode == 0, err
            versions.append(out.strip())
        assert world.images.version("both") in versions
        assert world.text("both", "opt/same") == "same\n"
        assert world.left() == []

    def test_the_base_stays_while_it_is_used(self, world: BuildWorld) -> None:
        world.build("held", run("echo held > /opt/x"))
        errors: list[Exception] = []

        def replace_base() -> None:
            try:
                wait_until(lambda: sandboxes_of(world))
                world.build("held", run("echo new > /opt/x"))
                world.images.prune()
            except Exception as exc:
                errors.append(exc)

        with start(world, "on-held") as process:
            process.communicate()
        other = threading.Thread(target=replace_base)
        with subprocess.Popen(
            [
                *(sys.executable, "-c"),
                "import sys; from pathlib import Path; from build_world import *\n"
                "world = BuildWorld(Path(sys.argv[1]))\n"
                "world.build('on-held', Stage('held', (run('sleep 3'), run('cp /opt/x /opt/y'))))",
                str(world.state),
            ],
            env={**os.environ, "PYTHONPATH": ":".join(sys.path)},
        ) as process:
            other.start()
            assert process.wait(120) == 0
        other.join()
        assert errors == []
        assert world.text("on-held", "opt/y") == "held\n"


def _runs(command: str) -> bool:
    wanted = command.replace(" ", "\0") + "\0"
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if entry.read_text() == wanted:
                return True
        except OSError:
            continue
    return False
