"""What the process that builds a template reads: a directory that the server has filled for this build.

STATE_DIR/templates/builds/BUILD_ID/build.json      the base and the steps
                                    HASH            the archives of its COPY steps
                                    context/N/      the files of the step number N, unpacked by this process
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from warren.http.e2b.template_steps import STEP, Made, TemplateStep, as_json, from_json, make_recipe
from warren.images.transfer.import_tree import ImportCaps, unpack_tar
from warren.images.trees.tree import Tree
from warren.model.errors import BuildFailed, InvalidRequest, UnknownUser
from warren.model.image import ImageConfig, Run

TEMPLATES: Final = "templates"
BUILDS: Final = "builds"
_PLAN: Final = "build.json"
_CONTEXT: Final = "context"
_MAX_FILES: Final = 200_000


@dataclass(frozen=True, slots=True)
class Plan:
    """What a template is made of. `user` is who runs commands in sandboxes of the base."""

    base: str
    user: str
    steps: tuple[TemplateStep, ...]
    no_cache: bool = False


@dataclass(frozen=True, slots=True)
class ReadTemplate:
    made: Made
    context: Path
    no_cache: bool


def build_directory(state_dir: Path, image: str) -> Path:
    return state_dir / TEMPLATES / BUILDS / image.rpartition("/")[2]


def write_plan(directory: Path, plan: Plan) -> None:
    values = {"base": plan.base, "user": plan.user, "steps": as_json(plan.steps), "no_cache": plan.no_cache}
    (directory / _PLAN).write_text(json.dumps(values))


def read_template(state_dir: Path, image: str, config_of: Callable[[str], ImageConfig], max_bytes: int) -> ReadTemplate:
    """Reads what the server has written down, and unpacks the files, at most `max_bytes` of them."""
    directory = build_directory(state_dir, image)
    try:
        values = json.loads((directory / _PLAN).read_text())
    except FileNotFoundError:
        raise InvalidRequest(f"nobody builds the image {image} now") from None
    steps = from_json(values["steps"])
    _unpack(directory, steps, max_bytes)
    made = make_recipe(values["base"], config_of(values["base"]), values["user"], steps)
    return ReadTemplate(made, directory / _CONTEXT, values["no_cache"])


def in_words_of_e2b(exc: BuildFailed, made: Made) -> BuildFailed:
    """Returns the error of a RUN step whose user does not exist with the words that E2B's clients look for; any other
    error as it is."""
    cause: BaseException | None = exc
    while cause is not None and not isinstance(cause, UnknownUser):
        cause = cause.__cause__
    match = STEP.match(exc.message)
    step = made.recipe.stages[0].steps[int(match[1]) - 1] if match else None
    if cause is None or match is None or not isinstance(step, Run):
        return exc
    reason = f"command failed: unauthenticated: invalid username: {step.user!r}"
    return BuildFailed(f"{match[0]}failed to run command '{step.argv[-1]}': {reason}")


def _unpack(directory: Path, steps: Sequence[TemplateStep], max_bytes: int) -> None:
    (directory / _CONTEXT).mkdir(mode=0o700)
    for number, step in enumerate(steps, 1):
        if not step.files_hash:
            continue
        place = directory / _CONTEXT / str(number)
        place.mkdir(mode=0o755)
        with open(directory / step.files_hash, "rb") as archive, Tree(place) as tree:
            try:
                unpack_tar(archive, tree, ImportCaps(members=_MAX_FILES, size=max_bytes))
            except InvalidRequest as exc:
                raise InvalidRequest(f"the files of COPY {step.args[0]} cannot be unpacked: {exc.message}") from exc
