"""What the oldest and the newest SDK of E2B meet on a server that is not ready for them, or that they do not find."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from e2e.image_state import new_image_state
from local_names import LocalNames
from server_process import ServerProcess, running_server

pytestmark = [pytest.mark.extended, pytest.mark.timeout(300)]

SDKS = Path(__file__).parents[2] / "build" / "e2b-sdks"
HERE = Path(__file__).parent
WAIT_S = 6
"""How long the server lets a caller wait for an image. The newest SDK asks again then, for as long as it has time."""
RECIPE = """\
name: {name}
pool: {{size: 0, min: 0, max: 2}}
image:
  run: ["sleep 9; echo {name}", echo made > /made]
"""

both = pytest.mark.parametrize("sdk", ["2.7.0", "2.63.0"])


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("registry")
    (folder / "environments").mkdir()
    return folder


@pytest.fixture(scope="module")
def server(image_cache: Path, registry: Path) -> Iterator[ServerProcess]:
    state = new_image_state(image_cache)
    options = {"WARREN_IMAGE_WAIT_S": str(WAIT_S), "WARREN_REGISTRY_DIR": str(registry)}
    with running_server(state, "--pool-size", "0", **options) as server:
        yield server
    shutil.rmtree(state)


def run(sdk: str, program: str, server: ServerProcess, folder: Path, **more: str) -> None:
    assert (SDKS / sdk).exists(), "`make e2b-sdks` installs the SDKs that this test uses"
    variables = {
        "PATH": os.environ["PATH"],
        "HOME": str(folder),
        "PYTHONPATH": str(HERE / "programs"),
        "E2B_API_URL": server.url,
        "E2B_API_KEY": "e2b_" + "0" * 80,
        **more,
    }
    argv = [str(SDKS / sdk / "bin" / "python"), "-B", str(HERE / "first_steps" / program)]
    with LocalNames(folder) as names:
        inside = names.command(argv)
        ran = subprocess.run(inside, env=variables, capture_output=True, text=True, timeout=120, check=False)
    assert ran.returncode == 0, f"{ran.stdout}\n{ran.stderr}\n---- server\n{server.log[-3000:]}"


@both
def test_the_first_sandbox_while_its_image_is_built(
    sdk: str, server: ServerProcess, registry: Path, tmp_path: Path
) -> None:
    name = f"of-{sdk.replace('.', '-')}"
    (registry / "environments" / f"{name}.yaml").write_text(RECIPE.format(name=name))
    wanted = {"TEMPLATE": name, "PATIENCE_S": str(WAIT_S + 4), "E2B_SANDBOX_URL": server.url}
    run(sdk, "image_being_built.py", server, tmp_path, **wanted)


@both
def test_the_address_of_the_control_plane_alone(sdk: str, server: ServerProcess, tmp_path: Path) -> None:
    run(sdk, "no_sandbox_url.py", server, tmp_path)
    assert "tls_on_plain_port" in server.log
