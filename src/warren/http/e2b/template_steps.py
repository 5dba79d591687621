"""The steps of a template, and the recipe of an image that they become.

A step is `{"type": "RUN", "args": [...]}`, with COPY, ENV, WORKDIR and USER beside RUN. The files of a COPY come in an
archive of their own, named by a hash that the client has made. Commands run as `user` in /home/user unless the template
says otherwise.
"""

import posixpath
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from warren.http.e2b.errors import E2bError
from warren.images.building.dockerfile import DEFAULT_PATH
from warren.model.image import Configure, Copy, ImageConfig, Recipe, Run, Stage, Step
from warren.model.spec import USER, USER_UID, check_env

DEFAULT_USER: Final = "user"
DEFAULT_DIRECTORY: Final = "/home/user"
ROOT: Final = "root"
_SOURCE: Final = "template"
# Commands of templates may name the user: `chown user:user`. Another user of that name stays as it is.
_ADD_USER: Final = """\
add() {
    if grep -q "^user:" "$1" && ! grep -q "^user:[^:]*:1000:" "$1"; then return; fi
    { echo "$2"; grep -v "^user:" "$1" || true; } > "$1.new"
    cat "$1.new" > "$1"
    rm "$1.new"
}
add /etc/passwd user:x:1000:1000::/home/user:/bin/bash
add /etc/group user:x:1000:
"""
# Login shells, in which clients run their commands, take PATH from /etc/profile.
_KEEP_PATH: Final = 'mkdir -p /etc/profile.d; printf "%s\\n" "$1" > /etc/profile.d/template-path.sh'
STEP: Final = re.compile(r"step (\d+) of (\d+): ")
"""How the builder names a step: its number in the recipe, and how many there are."""
_MAX_STEPS: Final = 500
_LONGEST: Final = 100_000
_HASH: Final = re.compile(r"[0-9a-f]{16,128}", re.ASCII)
_USER: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*(:[A-Za-z0-9_][A-Za-z0-9_.-]*)?", re.ASCII)
_MODE: Final = re.compile(r"[0-7]{3,4}", re.ASCII)
_VARIABLE: Final = re.compile(r"\$(?:([A-Za-z_]\w*)|\{([A-Za-z_]\w*)\})", re.ASCII)
_COUNTS: Final = {"RUN": (1, 2), "COPY": (2, 4), "ENV": (2, 2 * _MAX_STEPS), "WORKDIR": (1, 1), "USER": (1, 1)}


@dataclass(frozen=True, slots=True)
class TemplateStep:
    kind: str
    args: tuple[str, ...]
    files_hash: str = ""


@dataclass(frozen=True, slots=True)
class Made:
    """A recipe, and how many of its steps come before and after the template's own."""

    recipe: Recipe
    before: int
    after: int


def check_hash(text: Any) -> str:
    if not isinstance(text, str) or not _HASH.fullmatch(text):
        raise E2bError(400, "the hash of files must be 16 to 128 hexadecimal digits")
    return text


def read_steps(values: Any) -> tuple[TemplateStep, ...]:
    """Raises E2bError for what is no list of steps."""
    if values is None:
        return ()
    if not isinstance(values, list) or len(values) > _MAX_STEPS:
        raise E2bError(400, f"steps must be a list of at most {_MAX_STEPS} steps")
    return tuple(_read_step(value, f"step {number}") for number, value in enumerate(values, 1))


def _read_step(value: Any, where: str) -> TemplateStep:
    kind = value.get("type") if isinstance(value, dict) else None
    if not isinstance(kind, str) or kind.upper() not in _COUNTS:
        raise E2bError(400, f"{where}: its type must be one of {', '.join(_COUNTS)}")
    kind, args = kind.upper(), value.get("args") or []
    if not isinstance(args, list) or not all(isinstance(arg, str) for arg in args):
        raise E2bError(400, f"{where}: args must be a list of texts")
    if any("\0" in arg or len(arg) > _LONGEST for arg in args):
        raise E2bError(400, f"{where}: an argument has a NUL character, or more than {_LONGEST} characters")
    fewest, most = _COUNTS[kind]
    if not fewest <= len(args) <= most or not args[0] or (kind == "ENV" and len(args) % 2):
        raise E2bError(400, f"{where}: {kind} does not take these arguments")
    files_hash = check_hash(value.get("filesHash")) if kind == "COPY" else ""
    _check_arguments(kind, args, where)
    return TemplateStep(kind, tuple(args), files_hash)


def _check_arguments(kind: str, args: Sequence[str], where: str) -> None:
    if kind == "ENV":
        for name, text in zip(args[::2], args[1::2], strict=True):
            check_env(name, text)
    user = {"RUN": args[1:2], "COPY": args[2:3], "USER": args[:1]}.get(kind, [])
    for name in user:
        if name and not _USER.fullmatch(name):
            raise E2bError(400, f"{where}: {name[:80]!r} is not a user; write a name, or name:group")
    if kind == "COPY":
        if args[0].startswith("/") or ".." in args[0].split("/"):
            raise E2bError(400, f"{where}: {args[0][:80]!r} does not lie below the directory of the build")
        if "**" in args[0].split("/"):
            raise E2bError(400, f"{where}: ** in {args[0][:80]!r} is not supported; copy a directory as a whole")
        if len(args) > 3 and args[3] and not _MODE.fullmatch(args[3]):
            raise E2bError(400, f"{where}: the mode {args[3][:80]!r} must be octal digits, such as 0755")
        if not args[1]:
            raise E2bError(400, f"{where}: it does not say where to copy to")


def last_user(steps: Sequence[TemplateStep], first: str) -> str:
    """Who runs commands in sandboxes of the template."""
    return next((step.args[0] for step in reversed(steps) if step.kind == "USER"), first)


def as_json(steps: Sequence[TemplateStep]) -> list[dict[str, Any]]:
    return [asdict(step) for step in steps]


def from_json(values: Sequence[Mapping[str, Any]]) -> tuple[TemplateStep, ...]:
    return tuple(TemplateStep(each["kind"], tuple(each["args"]), each["files_hash"]) for each in values)


def make_recipe(base: str, config: ImageConfig, user: str, steps: Sequence[TemplateStep]) -> Made:
    """`config` and `user` are those of the base. The files of the step number N lie in the directory `N` of the
    build, counted from 1."""
    made: list[Step] = [Run(("/bin/sh", "-ec", _ADD_USER), "add user", user=ROOT)]
    env, directory = {"PATH": DEFAULT_PATH, **config.env}, config.workdir
    if directory in ("", "/"):
        directory = DEFAULT_DIRECTORY
        made.append(Configure("workdir", directory, f"WORKDIR {directory}"))
    before = len(made)
    for number, step in enumerate(steps, 1):
        args, text = step.args, f"{step.kind} {' '.join(step.args)}"
        if step.kind == "RUN":
            runner = (args[1] if len(args) > 1 else "") or user
            argv = ("/bin/bash", "-c", args[0])
            made.append(Run(argv, f"RUN {args[0]}", env=_home_of(runner), user=_account(runner)))
        elif step.kind == "COPY":
            owner, mode = (*args[2:], "", "")[:2]
            source, target = f"{number}/{args[0]}", posixpath.join(directory, args[1])
            text = f"COPY {args[0]} {args[1]}"
            made.append(Copy((source,), target, owner=_owner(owner or user), mode=mode, text=text))
        elif step.kind == "ENV":
            values = {name: _expand(value, env) for name, value in zip(args[::2], args[1::2], strict=True)}
            env.update(values)
            made.append(Configure("env", values, f"ENV {' '.join(values)}"))
        elif step.kind == "WORKDIR":
            directory = posixpath.normpath(posixpath.join(directory, args[0]))
            made.append(Configure("workdir", directory, text))
        else:
            user = args[0]
            # An image without a user has E2B's `user`: the one who runs commands in sandboxes.
            made.append(Configure("user", "" if user == DEFAULT_USER else user, text))
    if any(step.kind == "ENV" and "PATH" in step.args[::2] for step in steps):
        line = f"export PATH={shlex.quote(env['PATH'])}"
        made.append(Run(("/bin/sh", "-ec", _KEEP_PATH, "sh", line), "keep PATH for login shells", user=ROOT))
    return Made(Recipe((Stage(base, tuple(made)),), _SOURCE), before, len(made) - before - len(steps))


def _expand(value: str, env: Mapping[str, str]) -> str:
    """Puts in the variables that are known; others stay as they are written."""
    return _VARIABLE.sub(lambda match: env.get(match[1] or match[2], match[0]), value)


def _account(user: str) -> str:
    return USER if user in (DEFAULT_USER, f"{DEFAULT_USER}:{DEFAULT_USER}") else user


def _owner(user: str) -> str:
    name, _, group = user.partition(":")
    parts = [str(USER_UID) if part == DEFAULT_USER else part for part in (name, group) if part]
    return ":".join(parts)


def _home_of(user: str) -> dict[str, str]:
    name = user.partition(":")[0]
    homes = {DEFAULT_USER: DEFAULT_DIRECTORY, ROOT: "/root"}
    return {"HOME": homes[name], "USER": name, "LOGNAME": name} if name in homes else {}
