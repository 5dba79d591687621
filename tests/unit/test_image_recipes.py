"""The `image:` block of an environment, and recipes of the registry: what is made of them, and what is refused."""

from pathlib import Path

import pytest

from warren.config.image_recipes import ImageRecipes, Where, recipe_of, split_packages
from warren.config.registry import Registry, packaged_registry, read_environment
from warren.model.errors import InvalidRequest
from warren.model.image import Configure, Copy, Run

BLOCK = """\
name: plots
image:
  from: debian:bookworm
  apt: [gcc, "g++", "vim=2:9.0*"]
  python: pandas==2.2.*, uvicorn[standard,x]>=0.30,<1, matplotlib
  npm: ["@scope/tool@^1.2", typescript]
  env: {TZ: UTC}
  workdir: /srv
  copy:
    - data .
    - {from: a b, to: /x/, owner: "1000:1000", mode: "644"}
  run: |
    echo one
    echo two
  user: user
  about: 2 min
"""


def write(directory: Path, text: str, name: str = "plots", kind: str = "environments") -> Path:
    (directory / kind).mkdir(exist_ok=True)
    path = directory / kind / f"{name}.yaml"
    path.write_text(text)
    return path


def refusal(directory: Path, text: str) -> str:
    with pytest.raises(InvalidRequest) as caught:
        read_environment(write(directory, text))
    return str(caught.value).removeprefix(str(directory))


def test_a_block_with_everything(tmp_path: Path) -> None:
    text = BLOCK.replace("vim=2:9.0*", "vim=2:9.0.1378-2")
    environment = read_environment(write(tmp_path, text))
    assert environment.image == "environment/plots"
    assert environment.recipe is not None
    assert environment.recipe.about == "2 min"
    (stage,) = environment.recipe.stages
    assert stage.base == "debian:bookworm"
    apt, python, npm, env, workdir, data, mapped, run, user = stage.steps
    assert isinstance(apt, Run)
    assert apt.argv[2].startswith("apt-get")
    assert "install -y --no-install-recommends -- gcc g++ vim=2:9.0.1378-2 && " in apt.argv[2]
    assert apt.argv[2].endswith("rm -rf /var/lib/apt/lists/*")
    assert isinstance(python, Run)
    assert python.argv[2].endswith("pip install -q -- 'pandas==2.2.*' 'uvicorn[standard,x]>=0.30,<1' matplotlib")
    assert isinstance(npm, Run)
    assert "npm install -g --no-audit --no-fund --loglevel=error -- '@scope/tool@^1.2' typescript\n" in npm.argv[2]
    assert env == Configure("env", {"TZ": "UTC"}, "env")
    assert workdir == Configure("workdir", "/srv", "workdir /srv")
    assert isinstance(data, Copy)
    assert (data.sources, data.target) == (("data",), "/srv/.")
    assert isinstance(mapped, Copy)
    assert (mapped.sources, mapped.target, mapped.owner, mapped.mode) == (("a b",), "/x/", "1000:1000", "644")
    assert isinstance(run, Run)
    assert run.argv == ("/bin/sh", "-ec", "echo one\necho two\n")
    assert user == Configure("user", "user", "user user")


@pytest.mark.parametrize(
    ("lines", "what"),
    [
        (["  phyton: x"], "line 3: there is no key image.phyton (did you mean python? the keys are from, apt,"),
        (["  python: [--index-url=x]"], "line 3: '--index-url=x' is not the name of a package (such as pandas"),
        (["  apt:", "    - gcc", "    - -o"], "line 5: '-o' is not the name of a package"),
        (["  apt: gcc-"], "'gcc-' is not the name"),
        (["  apt: 'gcc; id'"], "'gcc; id' is not the name"),
        (["  python: pandas; id"], "'pandas; id' is not the name"),
        (["  python: 'x @ https://example.com/x.whl'"], "is not the name of a package"),
        (["  python: ['$(id)']"], "'$(id)' is not the name"),
        (["  npm: ../x"], "'../x' is not the name"),
        (["  npm: owner/repository"], "'owner/repository' is not the name"),
        (["  npm: 7"], "image.npm is 7, it must be a list of packages"),
        (["  run: [7]"], "image.run.0 is 7, it must be a text"),
        (["  copy: [../secret /x]"], "'../secret' is not below the directory of the build"),
        (["  copy: [/etc/shadow /x]"], "'/etc/shadow' is not below"),
        (["  copy: [a]"], "'a' is not a source and a target"),
        (["  copy: [{from: a, target: b}]"], "the keys are from, to, owner, mode"),
        (["  env: {A: 1}"], "line 3: image.env.A must be a text"),
        (["  workdir: x"], "line 3: 'x' is not an absolute path"),
        (["  user: '-x'"], "'-x' is not a user"),
        (["  from: 'a b'"], "line 3: 'a b' is not an image name"),
    ],
)
def test_refusals_name_file_and_line(tmp_path: Path, lines: list[str], what: str) -> None:
    said = refusal(tmp_path, "\n".join(["name: plots", "image:", *lines]))
    assert said.startswith("/environments/plots.yaml, line ")
    assert what in said


def test_packages_are_split_at_the_right_commas() -> None:
    assert split_packages("a, b>=1,<2 ,c[x,y]==1,,d") == ["a", "b>=1,<2", "c[x,y]==1", "d"]


def test_a_changed_recipe_makes_its_image_outdated_and_no_other() -> None:
    first = recipe_of({"python": ["pandas"]}, Where(None))
    same = recipe_of({"python": "pandas", "about": "long"}, Where(None))
    other = recipe_of({"python": ["pandas", "numpy"]}, Where(None))
    assert first.source == same.source != other.source
    assert not same.made_another(first.source)
    assert other.made_another(first.source)
    assert not other.made_another("tar from stdin")


def test_recipes_of_the_registry(tmp_path: Path) -> None:
    recipes = ImageRecipes(packaged_registry(), tmp_path)
    assert {"python", "node", "polyglot", "code-interpreter"} <= set(recipes.names())
    for name in recipes.names():
        found = recipes.find(name)
        assert found is not None
        assert found.recipe.about
        assert found.description
    assert recipes.find("nope") is None
    assert recipes.find("../environments/base") is None

    path = write(tmp_path, "name: python\nrun: echo mine\n", "python", "images")
    mine = recipes.find("python")
    assert mine is not None
    assert mine.directory == path.parent
    path.write_text("name: python\nrunn: echo mine\n")
    assert recipes.find("python") is None  # the log says why
    path.unlink()
    packaged = recipes.find("python")
    assert packaged is not None
    assert packaged.recipe.source != mine.recipe.source


def test_environments_of_the_registry_use_images_there_are_recipes_for() -> None:
    registry, recipes = Registry(packaged_registry()), ImageRecipes(packaged_registry())
    images = {registry.environment(name).image for name in registry.names}
    assert images - {"base", "host"} <= set(recipes.names())


def test_the_recipe_of_an_environment_knows_its_directory(tmp_path: Path) -> None:
    write(tmp_path, "name: plots\nimage: {copy: data /data}\n")
    write(tmp_path, "name: plain\nimage: base\n", "plain")
    registry = Registry(tmp_path)
    found = registry.recipe("plots")
    assert found is not None
    assert (found.name, found.directory) == ("environment/plots", tmp_path / "environments")
    assert registry.recipe("plain") is None
