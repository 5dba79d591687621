"""`warren image build`, and what builds images for `warren environments build`, `warren run` and a server.

A server starts `warren image build --report PID NAME`: progress is then lines of JSON on stdout, and the build ends
when the process PID does.
"""

import ctypes
import os
import re
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from warren.cli.build_lines import ReportLines, StepLines, shown_steps
from warren.cli.options import json_option, parse_pairs
from warren.cli.output import ProgressLine, print_json, printable
from warren.config.image_recipes import ENVIRONMENT_IMAGES, ImageRecipes, NamedRecipe, Where, recipe_of
from warren.config.settings import Settings, read_settings
from warren.model.errors import BuildFailed, InvalidRequest, WarrenError
from warren.model.spec import MIB, check_image_name
from warren.model.suggestions import suggest
from warren.model.tenant_images import OWNED_IMAGES, TENANT_IMAGES, pulled_for, reference_in

if TYPE_CHECKING:
    from warren.images.building.settings import BuildProgress
    from warren.images.store.store import ImageStore
    from warren.images.trees.own_images import Progress
    from warren.interfaces.images import ImageVersion
    from warren.model.image import ImageConfig, Recipe

_PLAIN: Final = ("base", "host")  # built from this machine, without a recipe
_SET_PDEATHSIG: Final = 1
_OUTPUT_LINES: Final = 40


# -- building


def build_named(
    settings: Settings, named: NamedRecipe, progress: "BuildProgress", *, no_cache: bool = False, again: bool = True
) -> "ImageVersion":
    """Builds an image, one build of it at a time among all processes. Before that it builds the images that this one is
    built on, if they are missing and there is a recipe for them. Without `again`, an image that is up to date when it
    is this build's turn is left as it is."""
    from warren.app.wiring import build_images

    images = build_images(settings)
    for stage in named.recipe.stages:
        build_missing_base(settings, stage.base, progress, above=(named.name,))
    with locked_image(settings, named.name, progress):
        found = None if again else _current(images, named.name)
        if found is not None and not named.recipe.made_another(found.source):
            return found
        return _build_recipe(settings, images, named, progress, no_cache)


def build_missing_base(settings: Settings, base: str, progress: "BuildProgress", above: tuple[str, ...] = ()) -> None:
    """Builds `base`, if it is missing, after what it is built on itself. `above`: what is going to be built on it.
    Does nothing for an image that neither Warren nor a recipe makes."""
    from warren.app.wiring import build_images, build_recipes

    images = build_images(settings)
    if _current(images, base) is not None:
        return
    inner = _StepsOf(base, progress)
    if base in _PLAIN:
        _build_plain(settings, base, inner, again=False)
    elif pulled_for(base):
        _pull(settings, base, lambda step, fraction: progress(f"image {reference_in(base)}: {step}", fraction))
    elif (named := build_recipes(settings)(base)) is not None:
        if base in above:
            raise InvalidRequest(f"the image {base} is built on itself: {' from '.join((*above, base))}")
        for stage in named.recipe.stages:
            build_missing_base(settings, stage.base, progress, (*above, base))
        build_named(settings, named, inner, again=False)


@dataclass(frozen=True, slots=True)
class _StepsOf:
    """Reports the steps of an image that another one is built on."""

    image: str
    progress: "BuildProgress"

    def __call__(self, step: str, fraction: float | None) -> None:
        self.progress(f"image {self.image}: {step}", None)

    def output(self, text: str) -> None:
        self.progress.output(text)


def _build_recipe(
    settings: Settings, images: "ImageStore", named: NamedRecipe, progress: "BuildProgress", no_cache: bool
) -> "ImageVersion":
    from warren.app.image_wiring import build_image_settings
    from warren.images.building.builder import build_recipe

    return build_recipe(
        images,
        named.name,
        named.recipe,
        context=named.directory,
        settings=build_image_settings(settings, for_tenant=named.name.startswith(TENANT_IMAGES)),
        progress=progress,
        no_cache=no_cache,
    )


def _current(images: "ImageStore", name: str) -> "ImageVersion | None":
    return next((one for one in images.list() if one.name == name and one.current), None)


def _build_plain(settings: Settings, image: str, progress: "Progress", *, again: bool = True) -> "ImageVersion":
    """Builds `base` or `host`. Without `again` one that another process has just built is good enough."""
    from warren.app.wiring import build_images

    images = build_images(settings)
    with locked_image(settings, image, progress):
        return (None if again else _current(images, image)) or images.build(image, progress)


def _pull(settings: Settings, image: str, progress: "Progress") -> "ImageVersion":
    """Pulls an image by its name here: one of a tenant, or one that the operator has named."""
    from warren.app.image_wiring import pull_own_image, pull_tenant_image
    from warren.app.wiring import build_images

    with locked_image(settings, image, progress):
        return (pull_tenant_image if pulled_for(image) else pull_own_image)(
            settings, build_images(settings), image, progress
        )


@contextmanager
def locked_image(settings: Settings, image: str, progress: "Progress") -> Iterator[None]:
    """Waits for the process that makes the image now, and lets the others wait for this one."""
    from warren.images.building.build_locks import building_lock

    with building_lock(
        settings.state_dir / "images", image, lambda: progress("waiting for another process that makes it", None)
    ):
        yield


def ensure_image(settings: Settings, image: str) -> None:
    """Builds an image that is missing or outdated, if there is a recipe for it, and shows the progress. Pulls one that
    has none, if the operator lets servers pull."""
    from warren.app.wiring import build_images, build_pull_rules, build_recipes

    named = build_recipes(settings)(image)
    found = _current(build_images(settings), image)
    if named is None:
        if found is None and image == _PLAIN[0]:
            click.echo(f"building the image {image}, which is not here yet; this takes about a minute", err=True)
            with ProgressLine(f"image {image}") as progress:
                _build_plain(settings, image, progress, again=False)
        elif found is None and build_pull_rules(settings).pulls_own(image):
            with ProgressLine(f"image {image}") as progress:
                _pull(settings, image, progress)
        return
    if found is not None and not named.recipe.made_another(found.source):
        return
    about = f"; this takes about {named.recipe.about}" if named.recipe.about else ""
    click.echo(f"building the image {image}, which is {'outdated' if found else 'not here yet'}{about}", err=True)
    with shown_steps(f"image {image}") as progress:
        build_named(settings, named, progress, again=False)


# -- the command


def _packages(option: str, what: str) -> Callable[[Any], Any]:
    return click.option(option, multiple=True, metavar="P[,P]", help=f"{what} to install; may be repeated.")


@click.command()
@click.argument("words", nargs=-1, metavar="[NAME] [CONTEXT]")
@click.option("--from", "base", default="", metavar="IMAGE", help="What to build on.  [base]")
@_packages("--apt", "Packages of Debian")
@_packages("--python", "Packages of Python")
@_packages("--npm", "Packages of npm")
@click.option("--run", "commands", multiple=True, metavar="COMMAND", help="A command to run as root; may be repeated.")
@click.option("--copy", "copies", multiple=True, metavar="SRC:DST", help="A file or directory below this one to copy.")
@click.option("-e", "--env", "variables", multiple=True, metavar="K=V", help="A variable for commands in the image.")
@click.option("--workdir", default="", metavar="DIR", help="The directory in which commands start.")
@click.option("--user", default="", metavar="USER", help="The user that runs commands.")
@click.option("-f", "--file", "dockerfile", default="", metavar="DOCKERFILE", help="Build a Dockerfile with CONTEXT.")
@click.option("--build-arg", "build_args", multiple=True, metavar="K=V", help="A value for an ARG of the Dockerfile.")
@click.option("--target", default="", metavar="STAGE", help="The stage of the Dockerfile to build.  [the last]")
@click.option("--with", "engine", default="", metavar="docker", help="Let the Docker engine build the Dockerfile.")
@click.option("--no-cache", is_flag=True, help="Run all steps, also those whose layers are there.")
@click.option("--if-missing", is_flag=True, help="Do nothing if the image exists.")
@click.option("--report", type=int, hidden=True)
@json_option
def build(
    words: tuple[str, ...],
    dockerfile: str,
    build_args: tuple[str, ...],
    target: str,
    engine: str,
    no_cache: bool,
    if_missing: bool,
    report: int | None,
    as_json: bool,
    **options: Any,
) -> int | None:
    """Build an image on this machine.

    With --apt, --python, --npm, --run … from packages and commands; with -f from a Dockerfile; without these `base`
    (a small Debian, about a minute), `host` (this machine's /usr, at once), or a recipe of the registry: python, node,
    polyglot, code-interpreter. Steps run in a sandbox and are kept as layers.

    Example: sudo warren image build plots --python pandas,matplotlib --apt graphviz
    """
    settings = read_settings()
    given = {name: value for name, value in options.items() if value}
    chosen = _DockerfileOptions(dockerfile, build_args, target, engine)
    if report is not None:
        return _build_for_server(settings, words, report)
    if dockerfile or (not given and (len(words) == 2 or (words and _is_directory(words[0])))):
        if given:
            raise click.UsageError(f"--{_flag(next(iter(given)))} and a Dockerfile do not go together")
        made = _build_dockerfile(settings, words, chosen, no_cache=no_cache, if_missing=if_missing)
    elif chosen != _DockerfileOptions():
        raise click.UsageError("--build-arg, --target and --with are for a Dockerfile: give -f")
    elif len(words) > 1 or (given and not words):
        raise click.UsageError("give one NAME for the image")
    else:
        made = _build_by_name(settings, words[0] if words else "base", given, no_cache, if_missing)
    print_made(made, as_json)
    return None


def _is_directory(word: str) -> bool:
    """Whether a word is written as a directory: names of images begin with a letter or digit, and do not end with /."""
    return word.startswith((".", "/", "~")) or word.endswith("/")


def _flag(name: str) -> str:
    return {"base": "from", "commands": "run", "copies": "copy", "variables": "env"}.get(name, name)


def _build_by_name(
    settings: Settings, name: str, given: dict[str, Any], no_cache: bool, if_missing: bool
) -> "ImageVersion":
    from warren.app.wiring import build_images

    images = build_images(settings)
    if if_missing and (found := _current(images, name)) is not None:
        return found
    if given:
        named = NamedRecipe(name, replace(_recipe_of_options(given), source="options of image build"), Path.cwd())
        check_own_name(name)
    elif name in _PLAIN:
        with ProgressLine(f"image {name}") as progress:
            return _build_plain(settings, name, progress)
    else:
        named = find_recipe(settings, name)
    with shown_steps(f"image {name}") as lines:
        return build_named(settings, named, lines, no_cache=no_cache)


def find_recipe(
    settings: Settings, image: str, otherwise: str = "or give --python, --apt, --run, or -f"
) -> NamedRecipe:
    """Returns the recipe of an image by the image's name. Raises InvalidRequest, with the mistake if its file has one,
    and with what to do `otherwise` if there is none."""
    from warren.app.wiring import build_registry, recipe_folders
    from warren.config.image_recipes import read_recipe

    if image.startswith(ENVIRONMENT_IMAGES):
        registry, name = build_registry(settings), image.removeprefix(ENVIRONMENT_IMAGES)
        registry.read(name)
        named = registry.recipe(name)
        if named is None:
            raise InvalidRequest(f"the environment {name!r} does not say how its image is made")
        return named
    recipes = ImageRecipes(*recipe_folders(settings))
    path = recipes.path(image)
    if path is None:
        known = [*_PLAIN, *recipes.names()]
        raise InvalidRequest(
            f"Warren has no recipe for an image {image!r}",
            remedy=f"{suggest(image, known)}it builds {', '.join(known)}; {otherwise}",
        )
    return read_recipe(path)


def check_own_name(name: str) -> None:
    """Raises InvalidRequest for a text that is no name of an image, and for names of images that environments
    describe or that belong to tenants."""
    check_image_name(name)
    if name.startswith(OWNED_IMAGES):
        raise InvalidRequest(
            f"names that begin with {' or '.join(OWNED_IMAGES)} are those of tenants' images",
            remedy="give it another name here: --name",
        )
    if name.startswith(ENVIRONMENT_IMAGES):
        raise InvalidRequest(
            f"names that begin with {ENVIRONMENT_IMAGES} are those of environments",
            remedy="give it another name; `warren environments build` builds what an environment's file describes",
        )


def _recipe_of_options(given: dict[str, Any]) -> "Recipe":
    block: dict[str, Any] = {kind: ",".join(given[kind]) for kind in ("apt", "python", "npm") if kind in given}
    block |= {key: given[key] for key in ("workdir", "user") if key in given}
    if "base" in given:
        block["from"] = given["base"]
    if "commands" in given:
        block["run"] = list(given["commands"])
    if "variables" in given:
        block["env"] = parse_pairs("--env", given["variables"])
    if "copies" in given:
        block["copy"] = [_copy_of(text) for text in given["copies"]]
    return recipe_of(block, Where(None))


def _copy_of(text: str) -> dict[str, str]:
    source, colon, target = text.partition(":")
    if not colon or not source or not target:
        raise click.UsageError(f"--copy takes SRC:DST, not {text!r}")
    return {"from": source, "to": target}


# -- Dockerfiles


@dataclass(frozen=True, slots=True)
class _DockerfileOptions:
    """`file` is empty for the Dockerfile of the context."""

    file: str = ""
    build_args: tuple[str, ...] = ()
    target: str = ""
    engine: str = ""

    def path(self, context: Path) -> Path:
        return Path(self.file) if self.file else context / "Dockerfile"

    @property
    def args(self) -> dict[str, str]:
        return parse_pairs("--build-arg", self.build_args)


def _build_dockerfile(
    settings: Settings, words: tuple[str, ...], options: _DockerfileOptions, *, no_cache: bool, if_missing: bool
) -> "ImageVersion":
    from warren.app.wiring import build_images

    name, context = _name_and_context(words, options.file)
    check_own_name(name)
    images = build_images(settings)
    if if_missing and (found := _current(images, name)) is not None:
        return found
    with shown_steps(f"image {name}") as lines:
        if options.engine:
            return _build_with_docker(settings, images, name, context, options, lines, no_cache=no_cache)
        recipe = _parse(settings, images, context, options, lines)
        return build_named(settings, NamedRecipe(name, recipe, context), lines, no_cache=no_cache)


def _name_and_context(words: tuple[str, ...], dockerfile: str) -> tuple[str, Path]:
    if len(words) > 2:
        raise click.UsageError("give a NAME for the image and the CONTEXT, a directory")
    beside = Path(dockerfile).parent if dockerfile and dockerfile != "-" else Path()
    if len(words) == 2:
        name, context = words[0], Path(words[1])
    elif words and Path(words[0]).is_dir():
        name, context = "", Path(words[0])
    else:
        name, context = (words[0] if words else ""), beside
    if not context.is_dir():
        raise InvalidRequest(f"there is no directory {context}")
    if not name:
        name = re.sub(r"[^a-z0-9._-]+", "-", context.resolve().name.lower()).strip("-._")
        if not name:
            raise click.UsageError("give a NAME for the image")
    return name, context


def _parse(
    settings: Settings, images: "ImageStore", context: Path, options: _DockerfileOptions, lines: StepLines
) -> "Recipe":
    from warren.app.image_wiring import build_image_settings
    from warren.images.building.builder import base_config
    from warren.images.building.dockerfile import parse_dockerfile

    building, file = build_image_settings(settings), options.path(context)

    def config_of(base: str) -> "ImageConfig":
        build_missing_base(settings, base, lines)
        return base_config(images, base, building, lines)

    parsed = parse_dockerfile(
        _read(file, context),
        str(file),
        build_args=options.args,
        target=options.target,
        config_of=config_of,
    )
    lines.end_step()
    for note in parsed.notes:
        click.echo(f"note: {printable(note)}", err=True)
    return replace(parsed.recipe, source=f"Dockerfile {file.name}" if file.name != "Dockerfile" else "Dockerfile")


def _read(file: Path, context: Path) -> str:
    try:
        data = sys.stdin.buffer.read() if str(file) == "-" else file.read_bytes()
        return data.decode()
    except UnicodeDecodeError as exc:
        raise InvalidRequest(f"{file} is not text in UTF-8") from exc
    except IsADirectoryError as exc:
        raise InvalidRequest(
            f"{file} is a directory", remedy="-f takes the Dockerfile, the directory comes last"
        ) from exc
    except FileNotFoundError as exc:
        where = "" if file.is_absolute() else f" in {Path.cwd()}"
        inside = context / file
        remedy = f"there is {inside}: give -f {inside}" if where and inside.is_file() else ""
        raise InvalidRequest(f"there is no file {file}{where}", remedy=remedy) from exc


def _build_with_docker(
    settings: Settings,
    images: "ImageStore",
    name: str,
    context: Path,
    options: _DockerfileOptions,
    lines: StepLines,
    *,
    no_cache: bool,
) -> "ImageVersion":
    if options.engine != "docker":
        raise click.UsageError(f"--with takes docker, not {options.engine!r}")
    from warren.images.building.with_docker import build_with_docker

    return build_with_docker(
        images,
        name,
        context=context,
        dockerfile=_read(options.path(context), context),
        docker_url=settings.docker_url,
        progress=lines,
        build_args=options.args,
        target=options.target,
        no_cache=no_cache,
    )


# -- for a server


def _build_for_server(settings: Settings, words: tuple[str, ...], parent: int) -> int:
    _end_with(parent)
    image = words[0]
    lines = ReportLines(output=image.startswith(TENANT_IMAGES))
    try:
        if image.startswith(TENANT_IMAGES):
            _build_template(settings, image, lines)
        elif image in _PLAIN:
            _build_plain(settings, image, lines, again=False)
        elif pulled_for(image) or _is_pulled(settings, image):
            _pull(settings, image, lines)
        else:
            build_named(settings, find_recipe(settings, image), lines, again=False)
    except WarrenError as exc:
        from warren.images.building.settings import LAST_OUTPUT

        last = exc.last_lines if isinstance(exc, BuildFailed) else ()
        message, lines_of_step = exc.message.partition(LAST_OUTPUT)[0], list(last)[-_OUTPUT_LINES:]
        lines.write({"error": message, "code": exc.code, "lines": lines_of_step})
        return 1
    return 0


def _is_pulled(settings: Settings, image: str) -> bool:
    from warren.app.wiring import build_pull_rules, build_recipes

    return build_recipes(settings)(image) is None and build_pull_rules(settings).pulls_own(image)


def _build_template(settings: Settings, image: str, lines: ReportLines) -> None:
    """Builds the image of a template. The server has written down what the template is made of."""
    from warren.app.image_wiring import build_image_settings
    from warren.app.wiring import build_images
    from warren.http.e2b.template_process import in_words_of_e2b, read_template
    from warren.images.building.builder import base_config

    building, images = build_image_settings(settings, for_tenant=True), build_images(settings)

    def config_of(base: str) -> "ImageConfig":
        build_missing_base(settings, base, lines)
        return base_config(images, base, building, lines)

    max_bytes = building.limits.sandbox.disk_mb * MIB
    template = read_template(settings.state_dir, image, config_of, max_bytes)
    lines.write({"before": template.made.before, "after": template.made.after})
    named = NamedRecipe(image, template.made.recipe, template.context)
    try:
        build_named(settings, named, lines, no_cache=template.no_cache)
    except BuildFailed as exc:
        raise in_words_of_e2b(exc, template.made) from exc


def _end_with(parent: int) -> None:
    """Lets the kernel interrupt this process, as Ctrl-C does, when its parent dies."""
    ctypes.CDLL(None, use_errno=True).prctl(_SET_PDEATHSIG, signal.SIGINT, 0, 0, 0)
    if os.getppid() != parent:  # it has died before the kernel was told
        raise SystemExit(1)


def print_made(made: "ImageVersion", as_json: bool) -> None:
    if as_json:
        print_json(asdict(made))
        return
    size = f"{made.size_bytes / 2**20:.0f} MiB"
    click.echo(f"image {made.name}, version {made.version}: {made.files} files, {size}", err=True)
