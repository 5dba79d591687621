"""Builds an image from a recipe. `warren image build` calls it.

The builder makes the stages that the last one needs, in order. Each step that changes files makes a layer, unless the
cache already has it. At the end the base and the layers become one tree, a new version of the image: layers are only a
cache. The builder works in a temporary directory beside the images and holds a lock on it. If it fails, is interrupted
or is killed, the name keeps pointing to its old version, and the next process that makes or removes an image clears
away what a killed builder left.
"""

import asyncio
import contextlib
import functools
import json
import posixpath
import re
import signal
import threading
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from warren.images.building.settings import LAST_OUTPUT, BuildProgress, BuildSettings
from warren.images.store.layer_cache import CachedLayer, LayerCache, key_of
from warren.images.store.store import ImageStore
from warren.images.store.versions import BUILT, explain_errors
from warren.images.trees.layers import LayerSize, flatten
from warren.images.trees.own_images import build_plain, plain_suite
from warren.images.trees.prepare import prepare
from warren.images.trees.tree import Tree
from warren.interfaces.images import ImageVersion, RootFs
from warren.model.errors import (
    BuildFailed,
    FileExists,
    FileNotFound,
    FileProblem,
    ImageNotFound,
    InvalidRequest,
    NoSpace,
    SandboxLost,
    WarrenError,
)
from warren.model.image import NO_CONFIG, Configure, Copy, ImageConfig, Recipe, Run, Stage, Step
from warren.model.image_pulls import RESERVED
from warren.model.image_reference import has_host
from warren.model.spec import check_env, check_image_name
from warren.model.tenant_images import OWNED_IMAGES

if TYPE_CHECKING:
    from warren.images.building.context import CopySource, Digest, FileTree
    from warren.images.building.steps import StepRunner
    from warren.sandboxes.agent.sandbox import AgentSandbox

SCRATCH: Final = "scratch"
_MAX_LAYERS: Final = 16
_MIB: Final = 1024 * 1024
_LAYER: Final = "layer"

Act = Callable[["AgentSandbox"], Any]


def build_recipe(
    images: ImageStore,
    name: str,
    recipe: Recipe,
    *,
    context: Path | None,
    settings: BuildSettings,
    progress: BuildProgress,
    no_cache: bool = False,
) -> ImageVersion:
    """Makes a new version of the image `name` and returns it. Returns the current version if it has the same layers and
    config. Raises BuildFailed for a step that fails."""
    check_image_name(name)
    try:
        with images.temporary() as making, explain_errors(f"building the image {name}", making):
            build = _Build(images, making, recipe, context, settings, progress, no_cache=no_cache)
            with contextlib.closing(build.cache):
                try:
                    build.open_bases()
                    made = _run_until_signalled(build.run)
                    return _finish(images, name, recipe, made, build, progress, no_cache=no_cache)
                finally:
                    images.release(making)
                    build.trim_cache()
    except _Terminated:
        signal.raise_signal(signal.SIGTERM)
        raise SystemExit(128 + signal.SIGTERM) from None


class _Terminated(BaseException):
    """SIGTERM arrived, and the build has cleaned up after itself."""


def base_config(images: ImageStore, base: str, settings: BuildSettings, progress: BuildProgress) -> ImageConfig:
    """Returns the config of the image that a FROM names. Builds or fetches the image if it is not on this machine."""
    with images.temporary() as making, explain_errors(f"looking at the image {base}", making):
        build = _Build(images, making, Recipe(()), None, settings, progress, no_cache=False)
        with contextlib.closing(build.cache):
            try:
                return build.open_base(base).config
            finally:
                images.release(making)


def _finish(
    images: ImageStore,
    name: str,
    recipe: Recipe,
    made: "_StageState",
    build: "_Build",
    progress: BuildProgress,
    *,
    no_cache: bool,
) -> ImageVersion:
    key = key_of(made.key, config=asdict(made.config))
    if not no_cache and (existing := _up_to_date(images, name, key)) is not None:
        progress("up to date", 1.0)
        return existing

    def fill(path: Path) -> ImageConfig:
        progress("putting the layers together", 0.95)
        own = flatten(made.base.path, [layer.tree for layer in made.layers], path)
        noted = {"key": key, "layers": made.sizes, "own_bytes": own}
        (path.parent / BUILT).write_text(json.dumps(noted))
        return made.config

    source = recipe.source or "recipe"
    return images.make(name, source, fill, progress, host_usr=made.base.host_usr, shell_needed=False)


def _up_to_date(images: ImageStore, name: str, key: str) -> ImageVersion | None:
    try:
        version = images.version(name)
    except ImageNotFound:
        return None
    if images.built(version).get("key") != key:
        return None
    return next((one for one in images.list() if one.version == version and one.current), None)


def _run_until_signalled(run: Callable[[], Any]) -> Any:
    """Runs a coroutine function in an event loop. SIGTERM cancels it, as SIGINT does, so that it can clean up."""
    ended: list[int] = []

    async def main() -> Any:
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None
        # Only the main thread can install a signal handler.
        if threading.current_thread() is not threading.main_thread():
            return await run()

        def end() -> None:
            ended.append(signal.SIGTERM)
            task.cancel()

        before = signal.getsignal(signal.SIGTERM)
        loop.add_signal_handler(signal.SIGTERM, end)
        try:
            return await run()
        finally:
            loop.remove_signal_handler(signal.SIGTERM)
            signal.signal(signal.SIGTERM, before)

    try:
        return asyncio.run(main())
    except asyncio.CancelledError:
        raise (_Terminated if ended else KeyboardInterrupt) from None


@dataclass(slots=True)
class _StageState:
    """A stage so far. `layers` lie above the base, the lowest first; `key` identifies all of its files. `sizes` has the
    bytes of each layer, those of the base included if it is a tenant's: they stay on the disk for this one."""

    base: RootFs
    key: str
    config: ImageConfig = NO_CONFIG
    layers: list[CachedLayer] = field(default_factory=list)
    sizes: dict[str, int] = field(default_factory=dict)

    @property
    def rootfs(self) -> RootFs:
        return replace(self.base, layers=tuple(layer.tree for layer in reversed(self.layers)))

    def copy(self) -> "_StageState":
        return _StageState(self.base, self.key, self.config, [*self.layers], {**self.sizes})


class _Build:
    def __init__(
        self,
        images: ImageStore,
        making: Path,
        recipe: Recipe,
        context: Path | None,
        settings: BuildSettings,
        progress: BuildProgress,
        *,
        no_cache: bool,
    ) -> None:
        self._images, self.making, self._recipe, self._context = images, making, recipe, context
        self.settings, self._progress, self._no_cache = settings, progress, no_cache
        self.cache = LayerCache(images.folder)
        self._made: dict[int, _StageState] = {}  # by number of the stage
        self._bases: dict[str, _StageState] = {}
        self._runner: StepRunner | None = None
        self._files: FileTree | None = None
        self._count = 0
        self._shown = ""  # the label of the last step that runs
        self._has_new_layers = False

    def open_bases(self) -> None:
        """Finds, builds or fetches the recipe's images. No event loop runs yet, so an interrupt ends it at once."""
        stages = self._recipe.stages
        if not stages:
            raise InvalidRequest("the recipe has no stage: it does not say what the image is made from")
        for number in _needed_stages(stages):
            for name in _names_in(stages[number]):
                if _stage_of(name, stages[:number]) is None and name not in self._bases:
                    self._bases[name] = self.open_base(name)

    def trim_cache(self) -> None:
        """Trims the cache if this build added layers, even if it failed afterwards."""
        self.cache.close()
        if self._has_new_layers:
            self.cache.trim(self.making, max_bytes=self.settings.cache_mb * _MIB)

    async def run(self) -> _StageState:
        stages = self._recipe.stages
        needed = _needed_stages(stages)
        total = sum(len(stages[number].steps) for number in needed)
        try:
            for number in needed:
                self._made[number] = await self._make_stage(number, stages[number], total)
            return self._made[len(stages) - 1]
        finally:
            if self._files is not None:
                self._files.__exit__()
            if self._runner is not None:
                await self._runner.close()

    async def _make_stage(self, number: int, stage: Stage, total: int) -> _StageState:
        state = self._find(stage.base, before=number).copy()
        for step in stage.steps:
            self._count += 1
            label = f"step {self._count} of {total}: {step.text or type(step).__name__.lower()}"
            fraction = (self._count - 1) / (total + 1)
            try:
                await self._take(step, state, number, label, fraction)
            except (InvalidRequest, FileProblem, FileNotFound, FileExists, SandboxLost) as exc:
                if self._shown != label:  # it failed before it was shown, and the step before it would be blamed
                    self._progress(label, fraction)
                raise _with_step(exc, label, step.line) from exc
            if len(state.layers) > _MAX_LAYERS:
                await self._collapse(state)
        return state

    async def _take(self, step: Step, state: _StageState, number: int, label: str, fraction: float) -> None:
        config = state.config
        if isinstance(step, Configure):
            state.config = _configured(config, step)
            if step.key != "workdir":
                return self._progress(label, fraction)
            path = state.config.workdir
            from warren.images.building.steps import find_owner, make_directory

            async def make(sandbox: "AgentSandbox") -> tuple[int, int] | None:
                await make_directory(sandbox, path)
                return await find_owner(sandbox, config.user)

            key = key_of(state.key, workdir=path, **({"user": config.user} if config.user else {}))
            await self._layer(key, state, make, label, fraction)
        elif isinstance(step, Run):
            about: dict[str, Any] = {"argv": step.argv, "own": dict(step.env), "env": dict(config.env)}
            user = step.user or config.user
            if ":" in user:
                about["group"] = True
            key = key_of(state.key, **about, workdir=config.workdir, user=user)
            await self._layer(key, state, lambda sandbox: self._steps().run(sandbox, step, config), label, fraction)
        elif step.stage:
            await self._copy_from_stage(step, state, number, label, fraction)
        else:
            await self._copy_from_context(step, state, label, fraction)

    async def _layer(self, key: str, state: _StageState, act: Act, label: str, fraction: float) -> None:
        found = None if self._no_cache else self.cache.find(key)
        self._progress(f"{label} (cached)" if found else label, fraction)
        self._shown = label
        if found is None:
            place = self.making / f"{_LAYER}-{self._count}"
            place.mkdir(mode=0o700)
            size: LayerSize = await self._steps().layer(state.rootfs, act, place / "tree")
            keep = self.cache.replace if self._no_cache else self.cache.add
            found = await asyncio.to_thread(keep, key, place, size)
            self._has_new_layers = True
        state.key = key
        state.layers.append(found)
        state.sizes[found.name] = found.size.bytes

    async def _collapse(self, state: _StageState) -> None:
        """Merges the layers into one tree for the following steps: overlayfs mounts only a limited number of layers."""
        place = self.making / f"tree-{self._count}"
        await asyncio.to_thread(flatten, state.base.path, [layer.tree for layer in state.layers], place)
        state.base, state.layers = replace(state.base, path=place), []

    def _steps(self) -> "StepRunner":
        if self._runner is None:
            from warren.images.building.steps import StepRunner

            settings = self.settings
            self._runner = StepRunner(
                self.making, settings.new_provider, settings.find_network, settings.limits, self._progress
            )
        return self._runner

    # -- copying

    async def _copy_from_stage(self, step: Copy, state: _StageState, number: int, label: str, fraction: float) -> None:
        from warren.images.building.steps import copy_between, find_owner

        source = self._find(step.stage, before=number)
        target, into = _target(step.target, state.config)
        mode = _mode(step.mode)
        key = key_of(
            *(state.key,),
            source=source.key,
            sources=step.sources,
            target=target,
            into=into,
            owner=step.owner,
            mode=mode,
            keeps_owners=True,
        )

        async def act(sandbox: "AgentSandbox") -> tuple[int, int] | None:
            async with self._steps().sandbox(source.rootfs) as (_, other):
                await copy_between(other, step.sources, sandbox, target, into, mode)
            return await find_owner(sandbox, step.owner)

        await self._layer(key, state, act, label, fraction)

    async def _copy_from_context(self, step: Copy, state: _StageState, label: str, fraction: float) -> None:
        from warren.images.building.context import Digest
        from warren.images.building.steps import find_owner

        files = self._open_context()
        sources = await asyncio.to_thread(files.find, step.sources)
        target, into = _target(step.target, state.config)
        mode = _mode(step.mode)
        digest = await asyncio.to_thread(_digest, files, sources)
        about: dict[str, Any] = {
            "target": target,
            "into": into,
            "owner": step.owner,
            "mode": mode,
            "unpack": step.unpack,
        }
        if step.unpack:
            about["keeps_owners"] = True
        key = key_of(state.key, content=digest, **about)

        async def act(sandbox: "AgentSandbox") -> tuple[int, int] | None:
            sent = Digest()
            for source in sources:
                into_it = into or len(sources) > 1
                await self._copy_source(files, source, sandbox, target, into=into_it, step=step, sent=sent)
            # The key was computed from an earlier reading: a layer of changed files must not be cached under it.
            if sent.text() != digest:
                raise InvalidRequest(
                    "files of the build's directory changed while they were copied", remedy="run it again"
                )
            return await find_owner(sandbox, step.owner)

        await self._layer(key, state, act, label, fraction)

    async def _copy_source(
        self,
        files: "FileTree",
        source: "CopySource",
        sandbox: "AgentSandbox",
        target: str,
        into: bool,
        step: Copy,
        sent: Any,
    ) -> None:
        from warren.images.building.context import as_root, in_steps
        from warren.images.building.steps import ROOT, place_file

        mode = _mode(step.mode)
        _add_name(sent, source)
        if source.is_directory:
            await sandbox.place(target, in_steps(as_root(sent.passing(files.content(source)), mode)), user=ROOT)
        elif step.unpack and await asyncio.to_thread(_is_archive, files, source):
            await self._unpack(files, source, sandbox, target, sent)
        else:
            await place_file(
                *(sandbox, target, into, source.name),
                lambda name: in_steps(as_root(sent.passing(files.content(source)), mode, name)),
            )

    async def _unpack(
        self, files: "FileTree", source: "CopySource", sandbox: "AgentSandbox", target: str, sent: "Digest"
    ) -> None:
        """Unpacks an archive into a directory of its own first, because a tar may contain hard links."""
        from warren.images.building.context import NOTHING_IGNORED, CopySource, FileTree, in_steps
        from warren.images.building.steps import ROOT

        place = self.making / f"archive-{self._count}"
        most = self.settings.limits.sandbox.disk_mb * _MIB
        await asyncio.to_thread(_unpack_archive, files, source, place, most)
        for part in files.content(source):
            sent.add(part)
        with FileTree(place, NOTHING_IGNORED) as unpacked:
            await sandbox.place(target, in_steps(unpacked.content(CopySource("", True))), user=ROOT)

    def _open_context(self) -> "FileTree":
        if self._context is None:
            raise InvalidRequest("the recipe copies files, and the build has no directory to copy them from")
        if self._files is None:
            from warren.images.building.context import FileTree

            self._files = FileTree(self._context)
        return self._files

    # -- bases

    def _find(self, name: str, before: int) -> _StageState:
        """Returns the earlier stage or the image that a FROM or --from names."""
        number = _stage_of(name, self._recipe.stages[:before])
        return self._bases[name] if number is None else self._made[number]

    def open_base(self, base: str) -> _StageState:
        if base == SCRATCH:
            return self._scratch()
        check_image_name(base)
        if not self._is_here(base):
            self._fetch(base)
        rootfs = self._images.hold(base, self.making)
        info = self._images.info(rootfs.version)
        content = info.content if info is not None else ""
        parts = self._images.parts(rootfs.version) if base.startswith(OWNED_IMAGES) else {}
        parts.pop(rootfs.version, None)
        return _StageState(rootfs, key_of("", base=content or rootfs.version), rootfs.config, sizes=parts)

    def _is_here(self, name: str) -> bool:
        """Returns whether this machine has the image; one from a Docker engine must be the engine's current one."""
        try:
            config = self._images.rootfs(name).config
        except ImageNotFound:
            return False
        kind, _, reference = name.partition(":")
        if kind != "docker":
            return True
        from warren.images.transfer.from_docker import docker_image_id

        return asyncio.run(docker_image_id(self.settings.docker_url, reference)) in ("", config.digest)

    def _fetch(self, base: str) -> None:
        """Imports, builds or pulls the image `base`, by its name. Raises ImageNotFound if there is no way to get it."""
        settings, progress = self.settings, self._progress
        kind, _, reference = base.partition(":")
        if kind == "docker" and reference:
            self._images.import_docker(base, reference, settings.docker_url, progress, shell_needed=False)
        elif kind == "oci" and reference:
            self._pull(base, reference)
        elif not settings.registry and not has_host(base) and (suite := plain_suite(base)):
            fill = functools.partial(_fill_plain, suite=suite, progress=progress)
            self._images.make(base, f"{suite}, built on this machine", fill, progress)
        else:
            self._pull(base, base)

    def _pull(self, name: str, reference: str) -> None:
        if self.settings.pull is None or name.startswith(RESERVED):  # a registry may have such a name, too
            raise ImageNotFound(f"there is no image {name!r} on this machine, and it cannot be pulled here")
        self.settings.pull(self._images, reference, name, self._progress)

    def _scratch(self) -> _StageState:
        place = self.making / SCRATCH
        place.mkdir(mode=0o755)
        with Tree(place) as tree:
            prepare(tree)
        return _StageState(RootFs(place, host_usr=False), key_of("", base=SCRATCH))


def _fill_plain(path: Path, *, suite: str, progress: BuildProgress) -> None:
    build_plain(suite, path, path.parents[1], progress)


def _with_step(exc: WarrenError, label: str, line: int) -> WarrenError:
    where = f" (line {line})" if line else ""
    message = f"{label}{where}: {exc.message}"
    if not isinstance(exc, BuildFailed):
        kind = type(exc) if isinstance(exc, InvalidRequest | NoSpace) else BuildFailed
        return kind(message, remedy=exc.remedy)
    output = "".join(f"\n    {text}" for text in exc.last_lines)
    message += f"{LAST_OUTPUT}{output}" if output else ""
    if "No space left on device" in output:
        return NoSpace(message, remedy="free space on this machine's disk, or raise image_build_disk_mb")
    return BuildFailed(message, remedy=exc.remedy, last_lines=exc.last_lines)


def _needed_stages(stages: tuple[Stage, ...]) -> list[int]:
    """Returns the numbers of the last stage and of all stages that it is made from, in order."""
    needed, ahead = set[int](), [len(stages) - 1]
    while ahead:
        number = ahead.pop()
        if number not in needed:
            needed.add(number)
            found = (_stage_of(name, stages[:number]) for name in _names_in(stages[number]))
            ahead += [one for one in found if one is not None]
    return sorted(needed)


def _names_in(stage: Stage) -> list[str]:
    return [stage.base, *(step.stage for step in stage.steps if isinstance(step, Copy) and step.stage)]


def _stage_of(name: str, stages: tuple[Stage, ...]) -> int | None:
    """Returns the number of the last stage that has this name or number; None if there is none."""
    found = [number for number, stage in enumerate(stages) if name and name in (stage.name, str(number))]
    return found[-1] if found else None


def _configured(config: ImageConfig, step: Configure) -> ImageConfig:
    value: Any = step.value
    if step.key in ("env", "labels"):
        value = {**getattr(config, step.key), **value}
    if step.key == "env":
        for name, text in value.items():
            check_env(name, text)
    if step.key == "workdir":
        value = f"/{posixpath.normpath(posixpath.join(config.workdir or '/', value)).lstrip('/')}"
    changes: dict[str, Any] = {step.key: tuple(value) if isinstance(value, list) else value}
    return replace(config, **changes)


def _target(target: str, config: ImageConfig) -> tuple[str, bool]:
    """Returns the absolute path, and whether the text says that it is a directory."""
    path = posixpath.normpath(posixpath.join(config.workdir or "/", target))
    return f"/{path.lstrip('/')}", target.endswith("/") or posixpath.basename(target) in (".", "..")


def _mode(text: str) -> int | None:
    if not text:
        return None
    if not re.fullmatch(r"0?[0-7]{3,4}", text):
        raise InvalidRequest(f"the mode {text!r} cannot be used", remedy="write it as digits, such as 755")
    return int(text, 8) & 0o777


def _digest(files: "FileTree", sources: "list[CopySource]") -> str:
    from warren.images.building.context import Digest

    digest = Digest()
    for source in sources:
        _add_name(digest, source)
        for part in files.content(source):
            digest.add(part)
    return digest.text()


def _add_name(digest: "Digest", source: "CopySource") -> None:
    """Adds only the kind of the source: a directory's contents are copied, so its name does not matter."""
    digest.add(b"directory" if source.is_directory else b"file")


@contextlib.contextmanager
def _opened_file(files: "FileTree", source: "CopySource") -> Iterator[Any]:
    with open(files.open(source), "rb") as file:
        yield file


def _is_archive(files: "FileTree", source: "CopySource") -> bool:
    from warren.images.transfer.import_tree import is_tar

    with _opened_file(files, source) as file:
        return is_tar(file)


def _unpack_archive(files: "FileTree", source: "CopySource", place: Path, max_bytes: int) -> None:
    from warren.images.transfer.import_tree import ImportCaps, unpack_tar

    place.mkdir(mode=0o700)
    with _opened_file(files, source) as file, Tree(place) as tree:
        unpack_tar(file, tree, ImportCaps(size=max_bytes))
