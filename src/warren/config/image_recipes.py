"""Recipes of images in YAML: the `image:` block of an environment, and `images/*.yaml` of the registry.

The options of `warren image build` become the same block. A recipe's `source` has a digest of it: an image that was
built from another recipe than the one there is now is outdated.

    image:
      from: base
      apt: [graphviz]
      python: [pandas==2.2.*, matplotlib]
      npm: typescript, "@scope/tool@1"
      copy: ["fonts /usr/share/fonts/mine"]
      run: fc-cache
      env: {TZ: UTC}
      workdir: /workspace
      user: user
"""

import hashlib
import json
import os
import re
import shlex
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final, NoReturn

from warren.config.yaml_files import YamlFile
from warren.kernel.logs import get_log
from warren.model.errors import InvalidRequest
from warren.model.image import RECIPE, Configure, Copy, Recipe, Run, Stage, Step
from warren.model.spec import check_env, check_image_name
from warren.model.suggestions import suggest

# The names of images that environments describe begin so; no image made by hand has such a name.
ENVIRONMENT_IMAGES: Final = "environment/"
BLOCK_KEYS: Final = ("from", "apt", "python", "npm", "run", "copy", "env", "workdir", "user", "about")
_COPY_KEYS: Final = ("from", "to", "owner", "mode")
ROOT: Final = "root"
_MAX_ENTRIES: Final = 500
_LONGEST: Final = 100_000
_log = get_log(__name__)

_VERSION: Final = r"[A-Za-z0-9.*+!_-]+"
_PACKAGES: Final = {
    "apt": r"[a-z0-9][a-z0-9+.-]*[a-z0-9+](:[a-z0-9]+)?([=/][A-Za-z0-9.+:~-]*[A-Za-z0-9])?",
    "python": r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?(\[[A-Za-z0-9._, -]*\])?"
    rf"( ?(===|==|~=|!=|<=|>=|<|>) ?{_VERSION}( ?, ?(===|==|~=|!=|<=|>=|<|>) ?{_VERSION})*)?",
    "npm": r"(@[a-z0-9~][a-z0-9._~-]*/)?[A-Za-z0-9~][A-Za-z0-9._~-]*(@[A-Za-z0-9^~*<>=][A-Za-z0-9.^~*+_<>=|-]*)?",
}
_EXAMPLES: Final = {
    "apt": "gcc or gcc=4:12.2.0-3",
    "python": "pandas, pandas==2.2.* or uvicorn[standard]>=0.30",
    "npm": "typescript, typescript@5 or @scope/name",
}
_APT: Final = "apt-get -q -o APT::Sandbox::User=root -o Dpkg::Use-Pty=0"
# Small images have no manual pages; packages such as Java's fail where they are to link theirs.
_PAGES: Final = "mkdir -p /usr/share/man/man1 /usr/share/man/man5 /usr/share/man/man8"
_CLEAN: Final = "apt-get clean && rm -rf /var/lib/apt/lists/*"
_APT_ENV: Final = {"DEBIAN_FRONTEND": "noninteractive"}
_PIP_ENV: Final = {
    **_APT_ENV,
    "PIP_BREAK_SYSTEM_PACKAGES": "1",
    "PIP_DISABLE_PIP_VERSION_CHECK": "1",
    "PIP_NO_CACHE_DIR": "1",
    "PIP_NO_COMPILE": "1",
    "PIP_PROGRESS_BAR": "off",
    "PIP_ROOT_USER_ACTION": "ignore",
}
_NPM: Final = "npm install -g --no-audit --no-fund --loglevel=error"
# Debian's npm is 25,000 files; that of the registry is a tenth of it, and installs itself.
_NPM_INSTALLED: Final = f"""\
if ! command -v npm >/dev/null; then
    command -v node >/dev/null || {{ {_APT} update && {_APT} install -y -- nodejs && {_CLEAN}; }}
    if [ -n "$npm_config_registry" ] && command -v curl >/dev/null; then
        mkdir -p "$npm_config_cache/first"
        curl -fsSL "${{npm_config_registry%/}}/npm/-/npm-10.9.2.tgz" | tar -xz -C "$npm_config_cache/first"
        node "$npm_config_cache/first/package/bin/npm-cli.js" install -g --no-audit --no-fund npm@10
    else
        {_APT} update && {_APT} install -y --no-install-recommends -- npm && {_CLEAN}
    fi
fi"""
_NPM_ENV: Final = {
    **_APT_ENV,
    "npm_config_cache": "/tmp/npm-cache",
    "npm_config_prefix": "/usr/local",
    "npm_config_update_notifier": "false",
}


@dataclass(frozen=True, slots=True)
class Where:
    """Names the place of a mistake: a file and the line of a key in it, or what was given on a command line."""

    file: YamlFile | None
    keys: tuple[str | int, ...] = ()

    def at(self, *keys: str | int) -> "Where":
        return replace(self, keys=(*self.keys, *keys))

    @property
    def key(self) -> str:
        return ".".join(str(key) for key in self.keys)

    def refuse(self, what: str, remedy: str = "") -> NoReturn:
        if self.file is None:
            raise InvalidRequest(what, remedy=remedy)
        raise self.file.error(what, *self.keys, remedy=remedy)


def recipe_of(block: Mapping[str, Any], where: Where) -> Recipe:
    """Returns the recipe that a block describes. Raises InvalidRequest, with the file and the line."""
    for key in block:
        if key not in BLOCK_KEYS:
            at = where.at(str(key))
            at.refuse(f"there is no key {at.key}", f"{suggest(key, BLOCK_KEYS)}the keys are {', '.join(BLOCK_KEYS)}")
    base = _text(block.get("from", "base"), where.at("from"))
    try:
        check_image_name(base.removeprefix("docker:").removeprefix("oci:"))
    except InvalidRequest as exc:
        where.at("from").refuse(exc.message, "such as base or debian:bookworm")
    workdir = _text(block.get("workdir", ""), where.at("workdir"))
    steps: list[Step] = [*_package_steps(block, where)]
    if env := _variables(block.get("env", {}), where.at("env")):
        steps.append(Configure("env", env, "env"))
    if workdir:
        if not re.fullmatch(r"/[^\0\n]*", workdir) or ".." in workdir.split("/"):
            where.at("workdir").refuse(f"{workdir!r} is not an absolute path")
        steps.append(Configure("workdir", workdir, f"workdir {workdir}"))
    steps += [_copy(each, where.at("copy", n), workdir) for n, each in enumerate(_list(block, "copy", where))]
    for number, command in enumerate(_list(block, "run", where)):
        text = _text(command, where.at("run", number))
        if not text.strip():
            where.at("run", number).refuse("a command is empty")
        steps.append(Run(("/bin/sh", "-ec", text), f"run {text.strip()}", user=ROOT))
    if user := _text(block.get("user", ""), where.at("user")):
        if not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.-]*(:[A-Za-z0-9_][A-Za-z0-9_.-]*)?", user):
            where.at("user").refuse(f"{user!r} is not a user")
        steps.append(Configure("user", user, f"user {user}"))
    about = _text(block.get("about", ""), where.at("about"))
    return _with_source(Recipe((Stage(base, tuple(steps)),), about=about))


def _with_source(recipe: Recipe) -> Recipe:
    text = json.dumps([asdict(stage) for stage in recipe.stages], sort_keys=True)
    return replace(recipe, source=f"{RECIPE} {hashlib.sha256(text.encode()).hexdigest()[:16]}")


# -- packages


def _package_steps(block: Mapping[str, Any], where: Where) -> list[Run]:
    found: list[Run] = []
    if names := _packages(block, "apt", where):
        install = f"{_APT} install -y --no-install-recommends -- {_quoted(names)}"
        script = f"{_APT} update && {_PAGES} && {install} && {_CLEAN}"
        found.append(Run(("/bin/sh", "-ec", script), f"apt {', '.join(names)}", env=_APT_ENV, user=ROOT))
    if names := _packages(block, "python", where):
        script = f"{_installed('pip3', 'python3-pip')}\npython3 -m pip install -q -- {_quoted(names)}"
        found.append(Run(("/bin/sh", "-ec", script), f"python {', '.join(names)}", env=_PIP_ENV, user=ROOT))
    if names := _packages(block, "npm", where):
        script = f'{_NPM_INSTALLED}\n{_NPM} -- {_quoted(names)}\nrm -rf "$npm_config_cache"'
        found.append(Run(("/bin/sh", "-ec", script), f"npm {', '.join(names)}", env=_NPM_ENV, user=ROOT))
    return found


def _installed(program: str, package: str) -> str:
    """Returns shell text that installs a program if the base lacks it."""
    install = f"{_APT} update && {_APT} install -y --no-install-recommends -- {package} && {_CLEAN}"
    return f"command -v {program} >/dev/null || {{ {install}; }}"


def _quoted(names: list[str]) -> str:
    return " ".join(shlex.quote(name) for name in names)


def _packages(block: Mapping[str, Any], kind: str, where: Where) -> list[str]:
    given = block.get(kind) or []
    at = where.at(kind)
    names = split_packages(given) if isinstance(given, str) else given
    if not isinstance(names, list):
        at.refuse(f"{at.key} is {_shown(given)}, it must be a list of packages")
    if len(names) > _MAX_ENTRIES:
        at.refuse(f"{at.key} has {len(names)} entries, {_MAX_ENTRIES} are the most")
    for number, name in enumerate(names):
        if not isinstance(name, str) or len(name) > 200 or not re.fullmatch(_PACKAGES[kind], name):
            at.at(number).refuse(f"{_shown(name)} is not the name of a package", f"such as {_EXAMPLES[kind]}")
    return list(dict.fromkeys(names))


def split_packages(text: str) -> list[str]:
    """Splits at commas, but not within brackets, nor before another bound of the same package: `a[x,y]>=1,<2,b`."""
    parts: list[str] = []
    for part in re.split(r",(?![^\[\]]*\])", text[:_LONGEST]):
        if parts and re.match(r"\s*[<>=!~]", part):
            parts[-1] += f",{part.strip()}"
        elif part.strip():
            parts.append(part.strip())
    return parts


# -- values


def _list(block: Mapping[str, Any], key: str, where: Where) -> list[Any]:
    given = block.get(key)
    found = [] if given is None else [given] if isinstance(given, str | dict) else given
    if not isinstance(found, list):
        where.at(key).refuse(f"{where.at(key).key} is {_shown(given)}, it must be a list")
    if len(found) > _MAX_ENTRIES:
        where.at(key).refuse(f"{where.at(key).key} has {len(found)} entries, {_MAX_ENTRIES} are the most")
    return found


def _text(value: Any, at: Where) -> str:
    if not isinstance(value, str):
        at.refuse(f"{at.key} is {_shown(value)}, it must be a text")
    if "\0" in value or len(value) > _LONGEST:
        at.refuse(f"{at.key} has a NUL byte or more than {_LONGEST} characters")
    return value


def _variables(value: Any, at: Where) -> dict[str, str]:
    if not isinstance(value, dict):
        at.refuse(f"{at.key} is {_shown(value)}, it must be names and values")
    for name, text in value.items():
        if not isinstance(name, str) or not isinstance(text, str):
            at.at(str(name)).refuse(f"{at.key}.{name} must be a text; put it in quotes")
        try:
            check_env(name, text)
        except InvalidRequest as exc:
            at.at(name).refuse(exc.message, exc.remedy)
    return value


def _copy(value: Any, at: Where, workdir: str) -> Copy:
    """Reads a copy step: `source target`, or keys. Paths with blanks in them need the keys."""
    if isinstance(value, str):
        words = value.split()
        if len(words) != 2:
            at.refuse(f"{_shown(value)} is not a source and a target", "such as `data /data`")
        value = {"from": words[0], "to": words[1]}
    if not isinstance(value, dict) or not {"from", "to"} <= set(value) <= set(_COPY_KEYS):
        at.refuse(f"{_shown(value)} is not what to copy and where to", f"the keys are {', '.join(_COPY_KEYS)}")
    given = {key: _text(each, at.at(key)) for key, each in value.items()}
    source, target = given["from"], given["to"]
    if source.startswith("/") or ".." in source.split("/") or not source:
        at.refuse(f"{source!r} is not below the directory of the build", "copy it there first")
    if ".." in target.split("/") or not target:
        at.refuse(f"{target!r} is not a path to copy to")
    if not target.startswith("/"):
        target = f"{workdir or ''}/{target}"
    text = f"copy {source} {target}"
    return Copy((source,), target, owner=given.get("owner", ""), mode=given.get("mode", ""), text=text)


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}…"


# -- the recipes of the registry


@dataclass(frozen=True, slots=True)
class NamedRecipe:
    """`directory` has the files that the recipe copies."""

    name: str
    recipe: Recipe
    directory: Path
    description: str = ""


class ImageRecipes:
    """`images/*.yaml` of the directories of a registry, by name; later directories win. A changed file is read again
    when its image is next needed."""

    def __init__(self, *directories: Path) -> None:
        self._folders = [directory / "images" for directory in directories]
        self._read: dict[Path, tuple[tuple[int, ...], NamedRecipe | None]] = {}

    def names(self) -> list[str]:
        return sorted({path.stem for folder in self._folders for path in folder.glob("*.y*ml")})

    def find(self, name: str) -> NamedRecipe | None:
        """Returns None if there is no such recipe, or if its file has a mistake, which is logged. Costs a few calls of
        stat."""
        path = self.path(name)
        try:
            found = path.stat() if path else None
        except OSError:
            found = None  # removed just now
        if path is None or found is None:
            return None
        stamp = (found.st_mtime_ns, found.st_ino, found.st_size)
        known = self._read.get(path)
        if known is None or known[0] != stamp:
            known = self._read[path] = stamp, _read_or_log(path)
        return known[1]

    def path(self, name: str) -> Path | None:
        if "/" in name or name.startswith("."):
            return None
        candidates = (f"{folder}/{name}{end}" for folder in reversed(self._folders) for end in (".yaml", ".yml"))
        found = next((path for path in candidates if os.path.isfile(path)), None)
        return Path(found) if found is not None else None


def _read_or_log(path: Path) -> NamedRecipe | None:
    try:
        return read_recipe(path)
    except InvalidRequest as exc:
        _log.warning("image_recipe_broken", image=path.stem, error=exc.message)
        return None


def read_recipe(path: Path) -> NamedRecipe:
    """Raises InvalidRequest, with the file and what is wrong in it."""
    file = YamlFile(path)
    where = Where(file)
    if not isinstance(file.values, dict):
        where.refuse("keys and values are expected")
    values = dict(file.values)
    name, description = values.pop("name", ""), values.pop("description", "")
    if name != path.stem:
        where.at("name").refuse(f"name is {_shown(name)}, the file's name says {path.stem!r}")
    return NamedRecipe(name, recipe_of(values, where), path.parent, _text(description, where.at("description")))
