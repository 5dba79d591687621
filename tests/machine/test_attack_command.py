"""`warren-attack --exec`: any sandbox that runs a command is attacked, by a program that needs no Warren."""

import json
import shlex
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from docker_engine import DockerEngine
from machine.remote_cli import RemoteCli

import warren_attack
from warren.images.store.store import ImageStore
from warren_attack.elsewhere import needs_warren
from warren_attack.probes import PROBES

PACKAGE = Path(warren_attack.__file__).parents[1]
# Without anything that is installed: neither Warren nor another package can be imported.
ALONE = f"import sys; sys.path.insert(0, {str(PACKAGE)!r}); from warren_attack.main import main; sys.exit(main())"
WEAK = (
    *("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"),
    *("unshare", "--user", "--map-root-user", "--mount", "--pid", "--fork", "--mount-proc", "--net", "sh", "-c"),
)
NO_PYTHON = ("env", "-i", "PATH=/no-such-folder", "/bin/sh", "-c")


def attacked(prefix: tuple[str, ...], *flags: str, **environ: str) -> "subprocess.CompletedProcess[str]":
    argv = [sys.executable, "-I", "-S", "-c", ALONE, "--exec", shlex.join(prefix), *flags]
    return subprocess.run(argv, capture_output=True, text=True, timeout=170, check=False, env=environ or None)


def only(*names: str) -> tuple[str, ...]:
    return tuple(word for name in names for word in ("--only", name))


def verdicts(done: "subprocess.CompletedProcess[str]") -> dict[str, str]:
    return {row["id"]: row["verdict"] for row in json.loads(done.stdout)["probes"]}


def test_a_namespace_with_all_capabilities_is_seen_through() -> None:
    done = attacked(WEAK, "--json")
    assert done.returncode == 1, done.stderr
    report: dict[str, Any] = json.loads(done.stdout)
    found = verdicts(done)
    open_holes = ("unshare", "clone3", "mount", "umount", "chroot", "capabilities", "seccomp", "no-new-privs", "sysctl")
    assert {found[name] for name in open_holes} == {"GOT THROUGH"}
    assert {found[name] for name in ("interfaces", "routes", "kexec", "modules", "file-handles")} == {"contained"}
    assert found["write-system"] == "not applicable"  # it is root in there
    elsewhere = {probe.id for probe in needs_warren()}
    assert {found[name] for name in elsewhere} == {"not applicable"}
    assert set(found) == elsewhere | {probe.id for probe in PROBES}
    assert report["counts"] == Counter(found.values())
    assert all(row["evidence"] for row in report["probes"])


def test_what_a_shell_can_try_is_tried_without_python_and_the_rest_is_undecided() -> None:
    done = attacked(NO_PYTHON, "--json", *only("capabilities", "seccomp", "kernel-secrets", "routes", "mount"))
    assert done.returncode == 1
    rows = {row["id"]: row for row in json.loads(done.stdout)["probes"]}
    assert rows["capabilities"]["verdict"] == rows["seccomp"]["verdict"] == "GOT THROUGH"
    assert rows["kernel-secrets"]["verdict"] == "GOT THROUGH"
    assert "/proc/cmdline" in rows["kernel-secrets"]["evidence"]
    assert rows["routes"]["verdict"] in ("contained", "GOT THROUGH")
    assert rows["mount"]["verdict"] == "UNDECIDED"
    assert "python3" in rows["mount"]["evidence"]


def test_a_sandbox_of_warren_is_contained(cli: RemoteCli, session: str) -> None:
    names = only("capabilities", "seccomp", "mount", "kernel-secrets", "huge-memory", "namespaces", "unique-uid")
    prefix = (*cli.argv("exec", session), "--", "sh", "-c")
    done = attacked(prefix, *names, **cli.environ)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.startswith("as uid 1000, with python3 3.")
    assert "5 of 5 contained, 2 not applicable" in done.stdout
    assert "namespaces, unique-uid" in done.stdout
    assert "warren doctor --attack" in done.stdout
    assert cli.say("exec", session, "--", "sh", "-c", "ls -A /tmp") == ""  # the code is gone


@pytest.mark.extended
def test_a_container_of_docker_holds_what_docker_promises(docker_engine: DockerEngine, image_store: ImageStore) -> None:
    docker_engine.import_rootfs(image_store.rootfs("base").path, "warren-tests/base:1")
    docker_engine.docker("run", "--detach", "--name", "attacked", "--net=none", "warren-tests/base:1", "sleep", "600")
    try:
        done = attacked(("docker", "--host", docker_engine.url, "exec", "-i", "attacked", "sh", "-c"), "--json")
    finally:
        docker_engine.docker("rm", "--force", "attacked")
    found = verdicts(done)
    assert "UNDECIDED" not in found.values(), done.stdout
    assert {found[name] for name in ("seccomp", "mount", "unshare", "kexec", "interfaces")} == {"contained"}
    assert {found[name] for name in ("capabilities", "no-new-privs")} == {
        "GOT THROUGH"
    }  # by default it is root in there


def test_nothing_passes_after_a_sandbox_was_lost(tmp_path: Path) -> None:
    """It runs commands until `mount` has been tried, and after that only the one that clears up."""
    script = tmp_path / "dying"
    script.write_text(
        '#!/bin/sh\ncase $1 in "rm -f"*);; *) [ ! -e gone ] || exit 1;; esac\n'
        'case $1 in *mount_filesystems*) touch gone;; esac\nsh -c "$1"\n'
    )
    script.chmod(0o755)
    prefix = ("env", f"--chdir={tmp_path}", "setpriv", "--no-new-privs", str(script))
    done = attacked(prefix, "--json", *only("no-new-privs", "mount", "clone", "chroot"))
    rows = {row["id"]: row for row in json.loads(done.stdout)["probes"]}
    assert done.returncode == 1
    assert (rows["mount"]["verdict"], rows["chroot"]["verdict"]) == ("GOT THROUGH", "UNDECIDED")
    assert "of no use afterwards" in rows["mount"]["evidence"]
    assert "of no use any more" in rows["chroot"]["evidence"]


@pytest.mark.parametrize(
    ("prefix", "flags", "sentence"),
    [
        (("false",), (), "does not run a command"),
        (("no-such-command",), (), "No such file or directory"),
        ((), (), "--exec COMMAND"),
        (("sh", "-c"), only("no-such-probe"), "there is no probe 'no-such-probe'; groups are: escape, "),
    ],
)
def test_where_nothing_is_tried_a_sentence_says_why(
    prefix: tuple[str, ...], flags: tuple[str, ...], sentence: str
) -> None:
    done = attacked(prefix, *flags)
    assert (done.returncode, done.stdout) == (2, "")
    assert sentence in done.stderr
    assert "Traceback" not in done.stderr


def test_what_takes_warren_alone_is_never_a_success() -> None:
    done = attacked(("sh", "-c"), *only("api load", "destroyed"))
    assert done.returncode == 1
    assert "0 of 0 contained, 20 not applicable" in done.stdout


def test_the_list_has_every_probe() -> None:
    lines = attacked((), "--list").stdout.splitlines()
    assert len(lines) == len(PROBES) + len(needs_warren())
    assert next(line for line in lines if " new-mount-api " in line).endswith("fsconfig")
    assert next(line for line in lines if " fork-bomb " in line).endswith("(needs Warren)")


def test_without_the_attacks_the_doctor_says_how_to_install_them() -> None:
    start = "import sys; sys.modules['warren_attack'] = None; from warren.cli.main import main; main()"
    for flags in ((), ("--url", "http://127.0.0.1:1")):
        argv = [sys.executable, "-c", start, "doctor", "--attack", *flags]
        done = subprocess.run(argv, capture_output=True, text=True, check=False, env={"PYTHONPATH": ":".join(sys.path)})
        assert done.returncode == 125
        assert done.stderr.count("\n") <= 2
        assert "pip install 'warren-sandbox[attack]'" in done.stderr
