"""Templates that the official SDKs of E2B build on a real server, with the oldest and the newest of the versions."""

import os
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import warm_parent
from e2e.image_state import new_image_state
from server_process import ServerProcess, clean_environ, running_server

pytestmark = pytest.mark.extended

ROOT = Path(__file__).parents[2]
SDKS = ROOT / "build" / "e2b-sdks"
NODE = str(SDKS / "js" / "node_modules" / ".bin" / "node")  # that of the distribution may be too old
PROGRAMS = Path(__file__).parent / "building"
KEY = "wk_" + "k" * 40


@pytest.fixture(scope="module")
def server(image_cache: Path) -> Iterator[ServerProcess]:
    """Its images are its own: what a test builds is nobody else's."""
    state = new_image_state(image_cache)
    with running_server(state, "--pool-size", "0", WARREN_API_KEY=KEY) as server:
        yield server
    shutil.rmtree(state)


@pytest.mark.parametrize("sdk", ["2.7.0", "2.63.0", "js"])
def test_a_template_is_built_and_used(sdk: str, server: ServerProcess, tmp_path: Path) -> None:
    assert (SDKS / sdk).exists(), "`make e2b-sdks` installs the SDKs that this test uses"
    argv = [str(SDKS / sdk / "bin" / "python"), "-B", str(shutil.copy(PROGRAMS / "build.py", tmp_path))]
    if sdk == "js":  # node finds packages beside the file that imports them
        (tmp_path / "node_modules").symlink_to(SDKS / "js" / "node_modules")
        argv = [NODE, str(shutil.copy(PROGRAMS / "build.mjs", tmp_path))]
    variables = {
        "PATH": os.environ["PATH"],
        "HOME": str(tmp_path),
        "E2B_API_URL": server.url,
        "E2B_SANDBOX_URL": server.url,
        "E2B_API_KEY": _builders_key(server),
        "TEMPLATE": f"of-{sdk.replace('.', '-')}",
    }
    ran = warm_parent.run(argv, cwd=tmp_path, env=variables, capture_output=True, text=True, timeout=150, check=False)
    assert (ran.returncode, ran.stdout) == (0, "done\n"), ran.stdout + ran.stderr


def _builders_key(server: ServerProcess) -> str:
    argv = [sys.executable, "-m", "warren.cli.main", "keys", "create", "builder", "--e2b", "-q"]
    own = {"WARREN_URL": server.url, "WARREN_API_KEY": KEY}
    made = warm_parent.run(argv, env={**clean_environ(), **own}, capture_output=True, text=True, check=False)
    assert re.fullmatch(r"e2b_[0-9a-f]{80}\n", made.stdout), made.stderr
    return made.stdout.strip()
