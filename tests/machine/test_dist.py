"""What people install: the wheel that pip makes of the sources works, and `make dist` makes a whole release.

Both are installed into a fresh environment, from which a server is started in an empty directory.
"""

import json
import os
import platform
import re
import shutil
import struct
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import click
import pytest
from server_process import running_server
from this_run import new_state_dir

import warren

ROOT = Path(__file__).parents[2]
NAME = f"warren_sandbox-{warren.__version__}"
PROGRAMS = {"warren-agent": "--version", "warren-launch": "version"}
_PROGRAM = """\
import sys, warren
with warren.SandboxClient(sys.argv[1]) as sandbox:
    print(warren.__file__)
    print(sandbox.execute("echo $((6 * 7)) $(id -un)").output, end="")
"""
MACHINES = {"x86_64": 62, "aarch64": 183}  # as ELF numbers them
ET_DYN = 3  # an ELF file without an address of its own


def build(target: str, source: Path, folder: Path, **environ: str) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-m", "hatchling", "build", "--target", target, "--directory", str(folder)]
    return subprocess.run(argv, cwd=source, env={**os.environ, **environ}, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The archive of the sources, made in a checkout that has programs of this machine, and unpacked."""
    folder = tmp_path_factory.mktemp("sources")
    done = build("sdist", ROOT, folder)
    assert done.returncode == 0, done.stderr
    with tarfile.open(folder / f"{NAME}.tar.gz") as archive:
        archive.extractall(folder, filter="data")
    return folder / NAME


def runners() -> set[str]:
    """The programs of code contexts, as git knows them: of any language, so not only those that Python would import."""
    argv = ("git", "ls-files", "--cached", "--others", "--exclude-standard", "src/warren/runners")
    listed = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    return {name.removeprefix("src/") for name in listed}


def wheel_name(machine: str) -> str:
    return f"{NAME}-py3-none-manylinux_2_17_{machine}.musllinux_1_1_{machine}.whl"


def check_contents(wheel: Path, machine: str) -> None:
    """It has the two programs, both of that machine and loaded anywhere, and can be used by type checkers."""
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        assert {name for name in names if "/bin/" in name} == {f"warren/bin/{program}" for program in PROGRAMS}
        for program in PROGRAMS:
            head = archive.read(f"warren/bin/{program}")[:20]
            assert head[:4] == b"\x7fELF"
            assert struct.unpack("<HH", head[16:20]) == (ET_DYN, MACHINES[machine])
        assert {"warren/py.typed", "warren/registry_data/environments/base.yaml"} <= set(names)
        assert {name for name in names if name.startswith("warren/runners/")} == runners()


def install(folder: Path, *wheels: Path) -> Path:
    """A fresh environment with these wheels; the packages that they need are those of the tests, without Warren."""
    venv = folder / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", venv], check=True)
    argv = [
        sys.executable,
        "-m",
        "pip",
        "--python",
        venv / "bin/python",
        "install",
        "--quiet",
        "--no-index",
        "--no-deps",
    ]
    subprocess.run([*argv, *wheels], check=True)
    (site,) = venv.glob("lib/python3*/site-packages")
    (site / "packages_of_the_tests.pth").write_text(f"{Path(click.__file__).parents[1]}\n")
    return venv


def check_that_it_serves(venv: Path, image_cache: Path, folder: Path) -> None:
    """Starts its server in an empty directory and runs a command in a sandbox."""
    empty = folder / "empty"
    empty.mkdir()
    (site,) = venv.glob("lib/python3*/site-packages")
    environ = {"PYTHONPATH": "", "PATH": f"{venv / 'bin'}:{os.environ['PATH']}"}
    state = new_state_dir(image_cache)
    argv = ("env", f"--chdir={empty}", "warren", "serve")
    try:
        with running_server(state, "--pool-size", "1", argv=argv, **environ) as server:
            argv = (venv / "bin/python", "-c", _PROGRAM, server.url)
            done = subprocess.run(argv, cwd=empty, env=environ, capture_output=True, text=True, check=True)
            assert done.stdout.splitlines() == [str(site / "warren/__init__.py"), "42 sandboxuser"]
    finally:
        shutil.rmtree(state)
    assert list(empty.iterdir()) == []


@pytest.mark.extended
def test_the_wheel_that_is_built_from_the_sources_works(sources: Path, image_cache: Path, tmp_path: Path) -> None:
    assert not (sources / "src/warren/bin").exists()
    done = build("wheel", sources, tmp_path)
    assert done.returncode == 0, done.stderr
    (wheel,) = tmp_path.glob("*.whl")
    assert wheel.name == wheel_name(platform.machine())
    check_contents(wheel, platform.machine())
    check_that_it_serves(install(tmp_path, wheel), image_cache, tmp_path)


@pytest.mark.parametrize(
    ("environ", "sentence"),
    [
        ({"PATH": "/nonexistent"}, "Compiling Warren's agent needs make and a C compiler: apt-get install "),
        ({"WARREN_WHEEL_ARCH": "riscv64"}, "Warren makes sandboxes on x86_64 and aarch64, not on riscv64; "),
        ({"WARREN_WHEEL_ARCH": next(iter({*MACHINES} - {platform.machine()}))}, "Compiling for "),
    ],
    ids=["no compiler", "unknown machine", "other machine"],
)
def test_a_wheel_that_cannot_be_built_says_why_in_one_sentence(
    sources: Path, tmp_path: Path, environ: dict[str, str], sentence: str
) -> None:
    done = build("wheel", sources, tmp_path, **environ)
    assert done.returncode != 0
    assert done.stderr.startswith(sentence)
    assert done.stderr.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_a_wheel_without_programs_is_for_clients_on_every_machine(sources: Path, tmp_path: Path) -> None:
    assert build("wheel", sources, tmp_path, WARREN_WHEEL_ARCH="none").returncode == 0
    (wheel,) = tmp_path.iterdir()
    assert wheel.name == f"{NAME}-py3-none-any.whl"
    assert not any("/bin/" in name for name in zipfile.ZipFile(wheel).namelist())


@pytest.fixture(scope="module")
def release(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("release") / "dist"
    subprocess.run(["make", "--silent", "dist", f"DIST={folder}"], cwd=ROOT, check=True)
    return folder


@pytest.mark.timeout(900)
@pytest.mark.extended
class TestRelease:
    def test_it_has_all_files_and_their_sums(self, release: Path) -> None:
        others = {"warren_attack-0.1.0-py3-none-any.whl", "warren_sandbox_compat-0.1.0-py3-none-any.whl"}
        wheels = {*map(wheel_name, MACHINES), *others}
        more = {f"{NAME}.tar.gz", f"{NAME}.cdx.json", "requirements.lock", "SHA256SUMS"}
        assert {path.name for path in release.iterdir()} == wheels | more
        argv = ["sha256sum", "--check", "--strict", "SHA256SUMS"]
        done = subprocess.run(argv, cwd=release, capture_output=True, text=True, check=True)
        assert {line.partition(":")[0] for line in done.stdout.splitlines()} == (wheels | more) - {"SHA256SUMS"}

    def test_the_programs_of_each_machine_run(self, release: Path, tmp_path: Path) -> None:
        for machine in MACHINES:
            check_contents(release / wheel_name(machine), machine)
            place = tmp_path / machine
            shutil.unpack_archive(release / wheel_name(machine), place, "zip")
            argv = [str(ROOT / "scripts/foreign-machine"), machine]
            native = machine == platform.machine()
            qemu = [] if native else [subprocess.run(argv, capture_output=True, text=True, check=True).stdout.strip()]
            for program, flag in PROGRAMS.items():
                path = place / "warren/bin" / program
                path.chmod(0o755)
                done = subprocess.run([*qemu, path, flag], capture_output=True, text=True, check=True)
                assert re.fullmatch(rf"{program} \d+\n", done.stdout)

    def test_its_wheel_works(self, release: Path, image_cache: Path, tmp_path: Path) -> None:
        others = [*release.glob("warren_sandbox_compat-*.whl"), *release.glob("warren_attack-*.whl")]
        venv = install(tmp_path, release / wheel_name(platform.machine()), *others)
        names = "import sandbox_client, sandbox_client_v2, orchestrator.lifecycle, warren_attack.warren.suite"
        subprocess.run([venv / "bin/python", "-I", "-c", names], check=True)
        subprocess.run([venv / "bin/warren-attack", "--list"], stdout=subprocess.DEVNULL, check=True)
        check_that_it_serves(venv, image_cache, tmp_path)

    def test_the_list_of_components_has_every_locked_package(self, release: Path) -> None:
        bom = json.loads((release / f"{NAME}.cdx.json").read_text())
        assert (bom["bomFormat"], bom["specVersion"]) == ("CycloneDX", "1.6")
        assert bom["metadata"]["component"]["purl"] == f"pkg:pypi/warren-sandbox@{warren.__version__}"
        locked = re.findall(r"^([\w.-]+)==(\S+)", (ROOT / "requirements.lock").read_text(), flags=re.M)
        found = {part["purl"] for part in bom["components"]}
        assert {f"pkg:pypi/{name}@{version}" for name, version in locked} < found
        assert any(purl.startswith("pkg:generic/musl@") for purl in found)
        assert not any(purl.startswith("pkg:npm/") for purl in found)
