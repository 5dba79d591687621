"""Reads a Dockerfile into a recipe. `warren image build -f` calls it.

Instructions without a meaning for a sandbox are ignored and listed in `notes`; those that Warren cannot follow raise
InvalidRequest. Both name the line.
"""

import difflib
import json
import platform
import posixpath
import re
from collections import ChainMap
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from warren.images.building.dockerfile_text import Expander, Instruction, Place, read_instructions
from warren.model.errors import ImageNotFound, InvalidRequest, PermissionDenied, Unavailable
from warren.model.image import NO_CONFIG, Configure, Copy, ImageConfig, Recipe, Run, Stage, Step
from warren.model.numbers import read_digits
from warren.model.suggestions import suggest

DEFAULT_PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_SHELL: Final = ("/bin/sh", "-c")
_ARCHITECTURES: Final = {"x86_64": "amd64", "aarch64": "arm64"}
_PROXIES: Final = ("http_proxy", "https_proxy", "ftp_proxy", "no_proxy", "all_proxy")
_IGNORED: Final = {
    "STOPSIGNAL": "a sandbox ends all its processes at once",
    "VOLUME": "a sandbox has one disk",
    "MAINTAINER": "use LABEL",
    "ONBUILD": "it would hold for images made from this one",
}
_FLAG: Final = re.compile(r"--([a-z][a-z0-9-]*)(?:=(\S*))?(?:\s+|$)")
_NAME: Final = re.compile(r"[a-z][a-z0-9_.-]*")
_PORT: Final = re.compile(r"\d{1,5}(-\d{1,5})?(/(tcp|udp|sctp))?", re.ASCII)
_DURATION: Final = re.compile(r"([0-9]+(?:\.[0-9]+)?)(ns|us|ms|s|m|h)")
_NANOSECONDS: Final = {"ns": 1, "us": 10**3, "ms": 10**6, "s": 10**9, "m": 60 * 10**9, "h": 3600 * 10**9}
_MAX_PORTS: Final = 1000


@dataclass(frozen=True, slots=True)
class ParsedDockerfile:
    """A recipe, and `notes` about instructions that were ignored, each with its line."""

    recipe: Recipe
    notes: tuple[str, ...] = ()


def parse_dockerfile(
    text: str,
    file: str = "Dockerfile",
    *,
    build_args: Mapping[str, str] | None = None,
    target: str = "",
    config_of: Callable[[str], ImageConfig] = lambda base: NO_CONFIG,
) -> ParsedDockerfile:
    """Reads a Dockerfile. `config_of` returns the config of the image in a FROM, whose variables may be used. `target`
    is the stage to make, by name or number; stages that it does not need are left out. Raises InvalidRequest."""
    return _DockerfileReader(file, build_args or {}, config_of).read(text, target)


@dataclass(slots=True)
class _ParsedStage:
    """The state of a stage at some line of the Dockerfile."""

    stage: Stage
    env: dict[str, str]
    workdir: str
    user: str
    ports: dict[str, None]
    args: dict[str, str] = field(default_factory=dict)
    shell: tuple[str, ...] = _SHELL
    cmd_given: bool = False
    steps: list[Step] = field(default_factory=list)

    @property
    def config(self) -> ImageConfig:
        return ImageConfig(env=self.env, workdir=self.workdir, user=self.user, exposed_ports=tuple(self.ports))


class _DockerfileReader:
    def __init__(self, file: str, build_args: Mapping[str, str], config_of: Callable[[str], ImageConfig]) -> None:
        self._file, self._build_args, self._config_of = file, build_args, config_of
        arch = _ARCHITECTURES.get(platform.machine(), platform.machine())
        self._platform = f"linux/{arch}"
        self._machine = {
            f"{side}{what}": value
            for side in ("TARGET", "BUILD")
            for what, value in (("PLATFORM", self._platform), ("OS", "linux"), ("ARCH", arch), ("VARIANT", ""))
        }
        self._global_args: dict[str, str] = {}
        self._used_args: set[str] = set()
        self._stages: list[_ParsedStage] = []
        self._by_name: dict[str, _ParsedStage] = {}
        self._notes: list[str] = []
        self._escape = "\\"

    def read(self, text: str, target: str) -> ParsedDockerfile:
        instructions, self._escape = read_instructions(text, self._file)
        for instruction in instructions:
            self._read_instruction(instruction, Place(self._file, instruction.line))
        if not self._stages:
            raise InvalidRequest(f"{self._file}: there is no FROM", remedy="such as FROM debian:bookworm")
        for name in self._build_args.keys() - self._used_args:
            if name.lower() not in _PROXIES:
                self._notes.append(f"--build-arg {name}: no ARG of that name")
        stages = [replace(each.stage, steps=tuple(each.steps)) for each in self._stages]
        return ParsedDockerfile(Recipe(needed_stages(stages, target, self._file), self._file), tuple(self._notes))

    def _read_instruction(self, instruction: Instruction, place: Place) -> None:
        word = instruction.word
        if word == "FROM":
            self._from(instruction, place)
            return
        handle = getattr(self, f"_{word.lower()}", None) if word in _INSTRUCTIONS else None
        if handle is None and word not in _IGNORED:
            close = difflib.get_close_matches(word[:32], [*_INSTRUCTIONS, "FROM", *_IGNORED], n=1, cutoff=0.6)
            place.refuse(f"there is no instruction {word[:32]!r}", f"did you mean {close[0]}?" if close else "")
        if not self._stages and word != "ARG":
            place.refuse(f"{word} comes before the first FROM", "only ARG may")
        if not instruction.rest:
            place.refuse(f"{word} needs an argument")
        if handle is None:
            self._notes.append(f"{place.file}:{place.line}: {word} is ignored: {_IGNORED[word]}")
        else:
            handle(instruction, place)

    # -- stages and arguments

    def _from(self, instruction: Instruction, place: Place) -> None:
        flags, rest = self._flags(instruction.rest, ("platform",), place)
        expander = Expander(ChainMap(self._global_args, self._machine), self._escape, place)
        wanted = expander.expand(flags.get("platform", "")) or self._platform
        if wanted not in (self._platform, self._platform.removeprefix("linux/")):
            place.refuse(f"--platform={wanted[:40]} is not this machine's", f"it is {self._platform}")
        words = rest.split()
        if len(words) not in (1, 3) or (len(words) == 3 and words[1].upper() != "AS"):
            place.refuse(f"FROM is not followed by an image: {rest[:80]!r}", "FROM image, or FROM image AS name")
        base, name = expander.expand(words[0]), words[2].lower() if len(words) == 3 else ""
        if not base:
            place.refuse(f"{words[0][:80]!r} has no value", "give it a default: ARG NAME=value before FROM")
        if name and not _NAME.fullmatch(name):
            place.refuse(f"{name[:80]!r} is not a name for a stage", "letters, digits, _ . and -, a letter first")
        earlier = self._find_stage(base)
        if earlier is not None:
            base, config = earlier.stage.name, earlier.config
        else:
            config = NO_CONFIG if base == "scratch" else self._config_at(base, place)
        name = name or self._free_name(f"stage-{len(self._stages)}")
        if name in self._by_name:
            place.refuse(f"there are two stages {name!r}")
        stage = Stage(base, name=name, line=place.line)
        workdir = config.workdir or "/"
        env = {"PATH": DEFAULT_PATH, **config.env}
        state = _ParsedStage(stage, env, workdir, config.user, dict.fromkeys(config.exposed_ports))
        self._stages.append(state)
        self._by_name[name] = state

    def _config_at(self, base: str, place: Place) -> ImageConfig:
        try:
            return self._config_of(base)
        except (ImageNotFound, PermissionDenied, Unavailable) as exc:
            # Docker Hub says of a name that it does not know that it is forbidden; mostly it is a stage, misspelled.
            names = [name for name in self._by_name if not name.startswith("stage-")]
            raise type(exc)(f"{place}: {exc.message}", remedy=suggest(base, names) + exc.remedy) from exc

    def _free_name(self, name: str) -> str:
        while name in self._by_name:
            name += "-"
        return name

    def _find_stage(self, name: str) -> _ParsedStage | None:
        return self._by_name.get(name.lower())

    def _arg(self, instruction: Instruction, place: Place) -> None:
        in_stage = bool(self._stages)
        args = self._now.args if in_stage else self._global_args
        expander = self._expander(place)
        for word in expander.words(instruction.rest):
            name, equals, default = word.partition("=")
            if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
                place.refuse(f"{name[:80]!r} is not a name for an argument")
            if name in self._build_args:
                self._used_args.add(name)
                args[name] = self._build_args[name]
            elif equals:
                args[name] = expander.expand(default)
            elif in_stage and (known := self._global_args.get(name, self._machine.get(name))) is not None:
                args[name] = known

    # -- steps

    def _run(self, instruction: Instruction, place: Place) -> None:
        flags, rest = self._flags(instruction.rest, ("mount",), place)
        if "mount" in flags:
            self._notes.append(f"{place}: --mount=type=cache is ignored: a step that has not changed is kept")
        argv = _exec_form(rest)
        if argv is None:
            if re.match(r'\[\s*"', rest):
                self._notes.append(f"{place}: this is no list in JSON, so it is a line for the shell, as everywhere")
            argv = (*self._now.shell, _script(instruction, rest))
        if not argv or not argv[0]:
            place.refuse("RUN needs a command")
        proxies = {name: value for name, value in self._build_args.items() if name.lower() in _PROXIES}
        # A variable of the image wins over an argument of the same name.
        env = {name: value for name, value in {**proxies, **self._now.args}.items() if name not in self._now.env}
        self._now.steps.append(Run(argv, instruction.text, place.line, env))

    def _copy(self, instruction: Instruction, place: Place) -> None:
        self._add_copy(instruction, place, ("from", "chown", "chmod", "link"))

    def _add(self, instruction: Instruction, place: Place) -> None:
        self._add_copy(instruction, place, ("chown", "chmod", "link"))

    def _add_copy(self, instruction: Instruction, place: Place, flags: tuple[str, ...]) -> None:
        word = instruction.word
        given, rest = self._flags(instruction.rest, flags, place)
        if instruction.heredocs:
            place.refuse(f"{word} of a text in the Dockerfile is not supported", "RUN cat > file <<EOF writes one")
        expander = self._expander(place)
        listed = _exec_form(rest)
        words = [expander.expand(each) for each in (expander.words(rest) if listed is None else listed)]
        if len(words) < 2:
            place.refuse(f"{word} needs what to copy and where to", f"{word} source target")
        *sources, target = words
        if len(sources) > 1 and not target.endswith("/"):
            place.refuse(f"{word} of several sources needs a directory, {target[:80]!r} does not end with /")
        for source in sources:
            if word == "ADD" and re.match(r"(https?|ftp|git|ssh)://|git@", source):
                place.refuse("ADD of an address is not supported", "RUN curl, with the host in image_network")
            if ".." in source.split("/"):
                place.refuse(f"{source[:80]!r} is not below the build's directory")
        stage = given.get("from", "")
        if stage:
            found, number = self._find_stage(stage), read_digits(stage, len(self._stages) - 1)
            if found is None and number is not None:
                found = self._stages[number]
            if found is self._now or (found is None and stage.isdigit()):
                place.refuse(f"there is no earlier stage {stage[:80]}")
            if found is None:
                self._config_at(stage, place)  # raises ImageNotFound if there is no such image
            stage = found.stage.name if found else stage
        elif word == "COPY" and "from" in given:
            place.refuse("--from needs a stage or an image")
        self._now.steps.append(
            Copy(
                tuple(source.lstrip("/") or "." for source in sources) if not stage else tuple(sources),
                _joined(self._now.workdir, target),
                stage,
                expander.expand(given.get("chown", "")),
                expander.expand(given.get("chmod", "")),
                word == "ADD",
                instruction.text,
                place.line,
            )
        )

    # -- what the image says about itself

    def _env(self, instruction: Instruction, place: Place) -> None:
        values = self._pairs(instruction, place)
        for name in values:
            if not re.fullmatch(r"[^=\s\0]+", name):
                place.refuse(f"{name[:80]!r} is not a name for a variable")
        self._now.env.update(values)
        self._configure("env", values, instruction)

    def _label(self, instruction: Instruction, place: Place) -> None:
        self._configure("labels", self._pairs(instruction, place), instruction)

    def _workdir(self, instruction: Instruction, place: Place) -> None:
        path = self._expander(place).expand(instruction.rest)
        if not path:
            place.refuse("WORKDIR has no value")
        self._now.workdir = posixpath.normpath(posixpath.join(self._now.workdir, path))
        self._configure("workdir", self._now.workdir, instruction)

    def _user(self, instruction: Instruction, place: Place) -> None:
        self._now.user = self._expander(place).expand(instruction.rest)
        if not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.-]*(:[A-Za-z0-9_][A-Za-z0-9_.-]*)?", self._now.user):
            place.refuse(f"{self._now.user[:80]!r} is not a user", "USER name, or USER name:group")
        self._configure("user", self._now.user, instruction)

    def _shell(self, instruction: Instruction, place: Place) -> None:
        argv = _exec_form(instruction.rest)
        if not argv:
            place.refuse("SHELL needs a list in JSON", 'such as SHELL ["/bin/bash", "-c"]')
        self._now.shell = argv

    def _cmd(self, instruction: Instruction, place: Place) -> None:
        self._now.cmd_given = True
        self._configure("cmd", self._command(instruction), instruction)

    def _entrypoint(self, instruction: Instruction, place: Place) -> None:
        self._configure("entrypoint", self._command(instruction), instruction)
        if not self._now.cmd_given:  # the base's CMD was meant for another entry point
            self._configure("cmd", (), instruction)

    def _expose(self, instruction: Instruction, place: Place) -> None:
        expander = self._expander(place)
        for word in expander.words(instruction.rest):
            for port in expander.expand(word).split():
                if not _PORT.fullmatch(port):
                    place.refuse(f"{port[:40]!r} is not a port", "such as 8080 or 53/udp")
                self._now.ports[port if "/" in port else f"{port}/tcp"] = None
        if len(self._now.ports) > _MAX_PORTS:
            place.refuse(f"{_MAX_PORTS} ports are the most")
        self._configure("exposed_ports", tuple(self._now.ports), instruction)

    def _healthcheck(self, instruction: Instruction, place: Place) -> None:
        names = ("interval", "timeout", "start-period", "start-interval", "retries")
        flags, rest = self._flags(instruction.rest, names, place)
        kind, _, command = rest.partition(" ")
        if kind.upper() == "NONE":
            self._configure("healthcheck", {"Test": ["NONE"]}, instruction)
            return
        if kind.upper() != "CMD" or not command.strip():
            place.refuse("HEALTHCHECK is followed by CMD and a command, or by NONE")
        argv = _exec_form(command.strip())
        test = ["CMD-SHELL", command.strip()] if argv is None else ["CMD", *argv]
        values: dict[str, Any] = {"Test": test}
        for name, text in flags.items():
            key = "".join(part.capitalize() for part in name.split("-"))
            values[key] = self._count(text, place) if name == "retries" else _nanoseconds(text, place)
        self._configure("healthcheck", values, instruction)

    # -- parts of instructions

    @property
    def _now(self) -> _ParsedStage:
        return self._stages[-1]

    def _expander(self, place: Place) -> Expander:
        known = (self._now.env, self._now.args) if self._stages else (self._global_args, self._machine)
        return Expander(ChainMap(*known), self._escape, place)

    def _configure(self, key: str, value: Any, instruction: Instruction) -> None:
        self._now.steps.append(Configure(key, value, instruction.text, instruction.line))

    def _command(self, instruction: Instruction) -> tuple[str, ...]:
        argv = _exec_form(instruction.rest)
        return (*self._now.shell, instruction.rest) if argv is None else argv

    def _pairs(self, instruction: Instruction, place: Place) -> dict[str, str]:
        """Reads `name=value` pairs, or one name with the rest of the line as its value."""
        expander = self._expander(place)
        words = expander.words(instruction.rest)
        if words and "=" not in words[0]:
            name, _, value = instruction.rest.partition(" ")
            if not value.strip():
                place.refuse(f"{instruction.word} {name[:80]} has no value", f"{instruction.word} name=value")
            return {expander.expand(name): expander.expand(value.strip())}
        found: dict[str, str] = {}
        for word in words:
            name, equals, value = word.partition("=")
            if not equals or not name:
                place.refuse(f"{word[:80]!r} is not name=value", "put values with blanks in quotes")
            found[expander.expand(name)] = expander.expand(value)
        return found

    def _flags(self, rest: str, known: tuple[str, ...], place: Place) -> tuple[dict[str, str], str]:
        found: dict[str, str] = {}
        position = 0
        while match := _FLAG.match(rest, position):
            name = match[1]
            if name not in known:
                places = f"it knows {', '.join(f'--{each}' for each in known)}" if known else ""
                place.refuse(f"--{name[:40]} is not supported here", places)
            if name == "mount" and "type=cache" not in (match[2] or "").split(","):
                place.refuse("--mount is not supported, but for type=cache", "COPY what the step needs before it")
            found[name] = match[2] or ""
            position = match.end()
        return found, rest[position:]

    def _count(self, text: str, place: Place) -> int:
        number = read_digits(text, 999_999)
        if number is None:
            place.refuse(f"{text[:40]!r} is not a number")
        return number


_INSTRUCTIONS: Final = (
    *("ADD", "ARG", "CMD", "COPY", "ENTRYPOINT", "ENV", "EXPOSE", "HEALTHCHECK", "LABEL", "RUN", "SHELL", "USER"),
    "WORKDIR",
)


def needed_stages(stages: list[Stage], target: str, file: str) -> tuple[Stage, ...]:
    """Returns the target stage, preceded by the stages that it is made from. Raises InvalidRequest."""
    names = [stage.name for stage in stages]
    last = len(stages) - 1
    if target:
        number = read_digits(target, last)
        found = names.index(target.lower()) if target.lower() in names else number
        if found is None:
            close = difflib.get_close_matches(target[:64].lower(), names, n=1)
            remedy = f"did you mean {close[0]}?" if close else f"there are: {', '.join(names[:20])}"
            raise InvalidRequest(f"{file}: there is no stage {target[:64]!r}", remedy=remedy)
        last = found
    wanted, numbers = {last}, {name: number for number, name in enumerate(names)}
    for number in range(last, -1, -1):
        if number in wanted:
            sources = [step.stage for step in stages[number].steps if isinstance(step, Copy)]
            needed = (numbers.get(name, last + 1) for name in (stages[number].base, *sources))
            wanted.update(earlier for earlier in needed if earlier < number)
    return tuple(stages[number] for number in sorted(wanted))


def _exec_form(text: str) -> tuple[str, ...] | None:
    """Returns the list; None if the text is no JSON list of strings, but a line for the shell, as in Docker."""
    if not text.startswith("["):
        return None
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return tuple(found) if isinstance(found, list) and all(isinstance(each, str) for each in found) else None


def _script(instruction: Instruction, rest: str) -> str:
    """Returns the script of a RUN: a heredoc that is the whole command, or the line with its heredocs for the shell."""
    if not instruction.heredocs:
        return rest
    if len(instruction.heredocs) == 1 and rest.strip() == instruction.heredocs[0].head:
        body = instruction.heredocs[0].body
        if not body.startswith("#!"):
            return body
        interpreter = body[2:].split("\n", 1)[0].strip()
        end = "WARREN_END"
        while end in body:
            end += "_"
        return f"{interpreter} /dev/fd/3 3<<'{end}'\n{body}{end}\n"
    return rest + "\n" + "".join(f"{each.body}{each.name}\n" for each in instruction.heredocs)


def _joined(workdir: str, target: str) -> str:
    """Returns an absolute path. A slash at the end, which marks a directory, is kept."""
    path = posixpath.normpath(posixpath.join(workdir, target))
    is_directory = target.endswith(("/", "/.")) or target == "."
    return path if path == "/" or not is_directory else path + "/"


def _nanoseconds(text: str, place: Place) -> int:
    if not re.fullmatch(rf"({_DURATION.pattern})+", text[:40]) or len(text) > 40:
        place.refuse(f"{text[:40]!r} is not a time", "such as 30s or 1m30s")
    return int(sum(float(number) * _NANOSECONDS[unit] for number, unit in _DURATION.findall(text)))
