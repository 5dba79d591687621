"""Dockerfiles are read as Docker reads them; what cannot be done is named with its line, and nothing takes long."""

import platform
import time

import pytest
from this_run import patience

from warren.images.building.dockerfile import DEFAULT_PATH, ParsedDockerfile, parse_dockerfile
from warren.model.errors import ImageNotFound, InvalidRequest
from warren.model.image import Configure, Copy, ImageConfig, Recipe, Run

HERE = {"x86_64": "linux/amd64", "aarch64": "linux/arm64"}[platform.machine()]

SERVICE = """\
# syntax=docker/dockerfile:1.7
ARG PYTHON=3.12
FROM python:${PYTHON}-slim AS build
WORKDIR /src
ENV PIP_NO_CACHE_DIR=1 \\
    # a comment between the lines
    PATH="/opt/venv/bin:$PATH"

COPY requirements.txt ./
RUN python -m venv /opt/venv \\
 && pip install -r requirements.txt
COPY --chown=1000:1000 . .

FROM python:${PYTHON}-slim
ARG PYTHON
LABEL org.example.title="A service" org.example.python=$PYTHON
COPY --from=build /opt/venv /opt/venv
ENV PATH=/opt/venv/bin:$PATH
USER 1000:1000
WORKDIR app
EXPOSE 8000 53/udp
HEALTHCHECK --interval=1m30s --retries=2 CMD curl -f http://localhost:8000/ || exit 1
ENTRYPOINT ["python", "-m", "service"]
CMD ["--port", "8000"]
"""


def parse(text: str, **options: object) -> Recipe:
    return parse_dockerfile(text, **options).recipe  # type: ignore[arg-type]


def steps(text: str, **options: object) -> tuple[object, ...]:
    return parse(f"FROM base\n{text}", **options).stages[-1].steps


def run(text: str, **options: object) -> Run:
    found = steps(text, **options)[-1]
    assert isinstance(found, Run)
    return found


def values(text: str, key: str, **options: object) -> object:
    found: dict[str, str] = {}
    for step in steps(text, **options):
        if isinstance(step, Configure) and step.key == key:
            if not isinstance(step.value, dict):
                return step.value
            found |= step.value
    return found


def refusal(text: str, **options: object) -> str:
    with pytest.raises(InvalidRequest) as caught:
        parse_dockerfile(text, **options)  # type: ignore[arg-type]
    return str(caught.value)


def test_a_service_of_two_stages() -> None:
    def config_of(base: str) -> ImageConfig:
        assert base == "python:3.12-slim"
        return ImageConfig(env={"PATH": "/usr/local/bin:/bin", "LANG": "C.UTF-8"}, workdir="/home")

    build, final = parse(SERVICE, config_of=config_of).stages
    assert (build.base, build.name, build.line) == ("python:3.12-slim", "build", 3)
    workdir, env, requirements, install, rest = build.steps
    assert workdir == Configure("workdir", "/src", "WORKDIR /src", 4)
    assert isinstance(env, Configure)
    assert env.value == {"PIP_NO_CACHE_DIR": "1", "PATH": "/opt/venv/bin:/usr/local/bin:/bin"}
    assert isinstance(requirements, Copy)
    assert (requirements.sources, requirements.target) == (("requirements.txt",), "/src/")
    assert isinstance(install, Run)
    assert install.argv[:2] == ("/bin/sh", "-c")
    assert " ".join(install.argv[2].split()) == "python -m venv /opt/venv && pip install -r requirements.txt"
    assert install.line == 10
    assert isinstance(rest, Copy)
    assert (rest.sources, rest.target, rest.owner) == ((".",), "/src/", "1000:1000")

    found = {step.key: step.value for step in final.steps if isinstance(step, Configure)}
    assert found["labels"] == {"org.example.title": "A service", "org.example.python": "3.12"}
    assert found["env"] == {"PATH": "/opt/venv/bin:/usr/local/bin:/bin"}
    assert (found["user"], found["workdir"]) == ("1000:1000", "/home/app")
    assert found["exposed_ports"] == ("8000/tcp", "53/udp")
    assert found["entrypoint"] == ("python", "-m", "service")
    assert found["cmd"] == ("--port", "8000")
    shell = "curl -f http://localhost:8000/ || exit 1"
    assert found["healthcheck"] == {"Test": ["CMD-SHELL", shell], "Interval": 90 * 10**9, "Retries": 2}
    copy = next(step for step in final.steps if isinstance(step, Copy))
    assert (copy.stage, copy.sources, copy.target) == ("build", ("/opt/venv",), "/opt/venv")


def test_only_the_stages_that_the_target_needs() -> None:
    text = "FROM a AS one\nFROM b\nRUN x\nFROM one AS three\nCOPY --from=1 /x /x\nFROM d AS four\n"
    assert [stage.base for stage in parse(text).stages] == ["d"]
    made = parse(text, target="Three").stages
    assert [stage.base for stage in made] == ["a", "b", "one"]
    copy = made[-1].steps[0]
    assert isinstance(copy, Copy)
    assert copy.stage == made[1].name
    assert [stage.base for stage in parse(text, target="1").stages] == ["b"]
    assert "there is no stage 'thre' (did you mean three?)" in refusal(text, target="thre")
    assert "there are two stages 'a'" in refusal("FROM x AS a\nFROM y AS A\n")
    assert "no earlier stage 1" in refusal("FROM x\nCOPY --from=1 a b\n")


@pytest.mark.parametrize("number", ["²", "١", "9" * 5000, "0" * 5000, "-1"])
def test_what_only_looks_like_the_number_of_a_stage_is_refused(number: str) -> None:
    assert "there is no stage" in refusal("FROM x\nFROM y\n", target=number)
    if number != "-1":
        said = refusal(f"FROM x\nFROM y\nCOPY --from={number} a b\n")
        assert "no earlier stage" in said
        assert len(said) < 200
    assert "is not a port" in refusal(f"FROM x\nEXPOSE {number}\n")
    assert "is not a number" in refusal(f"FROM x\nHEALTHCHECK --retries={number} CMD x\n")


@pytest.mark.parametrize(
    ("line", "script"),
    [
        ("RUN echo $HOME  'a  b'", "echo $HOME  'a  b'"),
        ("run a \\\n  b \\  \n\n  # no part of it\n  c", "a   b   c"),
        ("RUN [not json]", "[not json]"),
        ("RUN <<EOF\nset -e\necho $HOME\nEOF", "set -e\necho $HOME\n"),
        ("RUN cat <<'A' > /x && cat <<-B\none\nA\n\ttwo\n\tB", "cat <<'A' > /x && cat <<-B\none\nA\ntwo\nB\n"),
        ("RUN x=$((1<<3)) true", "x=$((1<<3)) true"),
    ],
)
def test_a_command_for_the_shell(line: str, script: str) -> None:
    assert run(line).argv == ("/bin/sh", "-c", script)


def test_other_forms_of_run() -> None:
    assert run('RUN ["/bin/echo", "$HOME"]').argv == ("/bin/echo", "$HOME")
    assert run('SHELL ["/bin/bash", "-ec"]\nRUN true').argv == ("/bin/bash", "-ec", "true")
    assert run("RUN <<EOF\n#!/usr/bin/python3\nprint(1)\nEOF").argv[2].startswith("/usr/bin/python3 /dev/fd/3 3<<'")
    backtick = parse("# escape=`\nFROM base\nRUN a `\n b\nENV X=C:\\dir\n").stages[0].steps
    assert isinstance(backtick[0], Run)
    assert backtick[0].argv[2] == "a  b"
    assert isinstance(backtick[1], Configure)
    assert backtick[1].value == {"X": "C:\\dir"}


def test_arguments_reach_commands_and_not_the_image() -> None:
    text = "ARG A=1\nARG B\nARG C=$A-$B\nENV C=image\nRUN x"
    found = run(text, build_args={"B": "2", "http_proxy": "http://p"})
    assert found.env == {"A": "1", "B": "2", "http_proxy": "http://p"}
    assert values(text, "env") == {"C": "image"}
    assert run("ARG TARGETARCH\nRUN x").env == {"TARGETARCH": HERE.removeprefix("linux/")}
    assert run("RUN x", build_args={"A": "1"}).env == {}
    parsed = parse_dockerfile("ARG V=1\nFROM a:$V\nRUN x\n", build_args={"V": "2", "W": "3"})
    assert parsed.recipe.stages[0].base == "a:2"
    assert parsed.notes == ("--build-arg W: no ARG of that name",)
    assert run("RUN x").env == {}  # an ARG before FROM is not one of the stage


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("ENV X $A and 'more'", "a and more"),
        ("ENV X=\\$A", "$A"),
        ("ENV X='$A'", "$A"),
        ('ENV X="$A b\\"c\\d"', 'a b"c\\d'),
        ("ENV X=a\\ b", "a b"),
        ("ENV X=${NONE:-$A}${EMPTY-set}${EMPTY:-unset}${A:+yes}${NONE+no}", "aunsetyes"),
        ("ENV X=${NONE:-${EMPTY:-${A}}}", "a"),
        ("ENV X=$NONE.$A-$", ".a-$"),
        ("ENV A=new X=$A", "a"),
        ("ENV X=$PATH", DEFAULT_PATH),
    ],
)
def test_variables(text: str, value: str) -> None:
    found = values(f"ENV A=a EMPTY=\n{text}", "env")
    assert isinstance(found, dict)
    assert found["X"] == value


def test_which_instructions_put_in_variables() -> None:
    text = "ENV D=/data U=me P=80\nWORKDIR $D\nWORKDIR ../x\nUSER ${U}\nEXPOSE $P\nLABEL a=$U\nCOPY --chown=$U $D/a $D/"
    assert values(text, "workdir") == "/data"
    assert [step.value for step in steps(text) if isinstance(step, Configure) and step.key == "workdir"] == [
        "/data",
        "/x",
    ]
    assert (values(text, "user"), values(text, "exposed_ports"), values(text, "labels")) == (
        "me",
        ("80/tcp",),
        {"a": "me"},
    )
    copy = steps(text)[-1]
    assert isinstance(copy, Copy)
    assert (copy.sources, copy.target, copy.owner) == (("data/a",), "/data/", "me")
    assert values('ENV A=1\nCMD ["$A"]', "cmd") == ("$A",)
    assert values("ENV A=1\nCMD echo $A", "cmd") == ("/bin/sh", "-c", "echo $A")


def test_copies() -> None:
    first, second, third = steps('COPY ["a b", "c", "/d/"]\nADD --chmod=755 x.tar.gz /opt\nCOPY --link / .')
    assert isinstance(first, Copy)
    assert (first.sources, first.target) == (("a b", "c"), "/d/")
    assert isinstance(second, Copy)
    assert (second.unpack, second.mode, second.target) == (True, "755", "/opt")
    assert isinstance(third, Copy)
    assert (third.sources, third.target) == ((".",), "/")


def test_what_has_no_meaning_is_named() -> None:
    text = "FROM base\nVOLUME /data\nMAINTAINER me\nSTOPSIGNAL TERM\nONBUILD RUN x\n"
    parsed: ParsedDockerfile = parse_dockerfile(text, "my/Dockerfile")
    assert [note.split(" is ignored")[0] for note in parsed.notes] == [
        "my/Dockerfile:2: VOLUME",
        "my/Dockerfile:3: MAINTAINER",
        "my/Dockerfile:4: STOPSIGNAL",
        "my/Dockerfile:5: ONBUILD",
    ]
    assert parsed.recipe.stages[0].steps == ()


def test_what_docker_takes_otherwise_than_written_is_named() -> None:
    text = (
        'FROM base\nRUN --mount=type=cache,target=/root/.cache pip install x\nRUN ["echo" "x"]\nRUN [ -e /x ] || true\n'
    )
    parsed: ParsedDockerfile = parse_dockerfile(text)
    assert [note.split(", so")[0] for note in parsed.notes] == [
        "Dockerfile:2: --mount=type=cache is ignored: a step that has not changed is kept",
        "Dockerfile:3: this is no list in JSON",
    ]
    assert [step.argv[-1] for step in parsed.recipe.stages[0].steps if isinstance(step, Run)] == [
        *("pip install x", '["echo" "x"]', "[ -e /x ] || true"),
    ]


def test_an_image_that_is_not_there_is_named_with_its_line() -> None:
    def config_of(base: str) -> ImageConfig:
        raise ImageNotFound(f"there is no image {base!r}", remedy="import it")

    with pytest.raises(ImageNotFound) as caught:
        parse_dockerfile("FROM scratch AS build\nFROM biuld\n", config_of=config_of)
    assert str(caught.value.message) == "Dockerfile:2: there is no image 'biuld'"
    assert caught.value.remedy == "did you mean build? import it"


def test_an_entry_point_drops_the_command_of_the_base() -> None:
    assert [step.key for step in steps("ENTRYPOINT x") if isinstance(step, Configure)] == ["entrypoint", "cmd"]
    assert [step.key for step in steps("CMD y\nENTRYPOINT x") if isinstance(step, Configure)] == ["cmd", "entrypoint"]


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("", "there is no FROM"),
        ("RUN x", "Dockerfile:1: RUN comes before the first FROM"),
        ("FROM base\n\nRUNN x", "Dockerfile:3: there is no instruction 'RUNN' (did you mean RUN?)"),
        ("FROM base\nCOYP a b", "did you mean COPY?"),
        (
            "FROM base\nRUN \\\n  --mount=type=bind,target=/x y",
            "Dockerfile:2: --mount is not supported, but for type=cache",
        ),
        ("FROM base\nRUN --network=none x", "--network is not supported"),
        ("FROM base\nADD https://example.com/x /x", "Dockerfile:2: ADD of an address is not supported"),
        ("FROM base\nADD git@example.com:x.git /x", "ADD of an address"),
        ("FROM base\nCOPY --parents a b", "--parents is not supported"),
        ("FROM base\nCOPY ../x /x", "'../x' is not below the build's directory"),
        ("FROM base\nCOPY a", "needs what to copy and where to"),
        ("FROM base\nCOPY a b c", "does not end with /"),
        ("FROM base\nCOPY <<EOF /x\ny\nEOF", "of a text in the Dockerfile"),
        ("FROM base\nRUN <<EOF\nx", "Dockerfile:2: the text that ends with 'EOF' has no end"),
        ("FROM base\nENV A='b", "a ' has no end"),
        ("FROM base\nENV A=${B", "a } is missing"),
        ("FROM base\nENV A=${B#c}", "${B#c…} is not supported"),
        ('FROM base\nENV A="${B:?must be set}"', "the variable B has no value: must be set"),
        ("FROM base\nENV A", "ENV A has no value"),
        ("FROM base\nENV A=b c", "'c' is not name=value"),
        ("FROM base\nSHELL bash", "SHELL needs a list in JSON"),
        ("FROM base\nEXPOSE http", "'http' is not a port"),
        ("FROM base\nUSER -x", "'-x' is not a user"),
        ("FROM base AS", "FROM is not followed by an image"),
        ("FROM $NONE", "'$NONE' has no value"),
        ("FROM --platform=windows/arm base", "--platform=windows/arm is not this machine's"),
        ("FROM base\nHEALTHCHECK --interval=soon CMD x", "'soon' is not a time"),
        ("# escape=x\nFROM base", "Dockerfile:1: escape is 'x'"),
    ],
)
def test_refusals_name_the_line(text: str, what: str) -> None:
    assert what in refusal(text)


def test_the_platform_of_this_machine_is_accepted() -> None:
    text = f"FROM --platform={HERE} a AS x\nFROM --platform=$BUILDPLATFORM x\n"
    assert [stage.base for stage in parse(text).stages] == ["a", "x"]


LONG = (
    "ENV A=" + "''" * 4_000_000,
    "EXPOSE " + "1 " * 4_000_000,
    "ARG " + "a=$a " * 1_600_000,
    "USER " + "$a" * 4_000_000,
    "RUN x " + "\\\n" * 4_000_000,
    ("EXPOSE " + "1 " * 30_000 + "\n") * 130,
)


@pytest.mark.parametrize(
    "text",
    [
        "FROM base\nRUN " + "x" * 1_000_000,
        "FROM base\nRUN " + "<<" * 500_000,
        "FROM base\nENV " + "A" * 1_000_000,
        "FROM base\nENV A=" + "$A" * 500_000,
        "FROM base\nENV A=" + "${A:-" * 100_000,
        "FROM base\nENV A=" + "\\" * 1_000_000,
        "FROM base\nENV " + "A='b' " * 160_000,
        "FROM base\nEXPOSE " + "80 " * 300_000,
        "FROM base\nEXPOSE " + "1" * 1_000_000,
        "FROM base\nCOPY " + "a " * 500_000 + "b/",
        "FROM base\nCOPY " + "[" * 500_000,
        "FROM base\nARG " + "a$b " * 250_000,
        "FROM base\nHEALTHCHECK --interval=" + "1" * 1_000_000,
        "FROM base\n" + "RUN x\n" * 100_000,
        "FROM base\n" + "# comment\n" * 100_000,
        "FROM base\nRUN x \\\n" + "  y \\\n" * 100_000,
        "FROM base\nRUN x \\\n" + "\n# z\n" * 50_000,
        "FROM base\n" + "FROM base\n" * 4000,
        "FROM a AS a\n" + "".join(f"FROM a AS a{n}\nCOPY --from=a x y\n" for n in range(2400)),
        "FROM base\nENV A=xx\n" + "ENV A=$A$A\n" * 4000,
        "FROM base\n" + "".join(f"ARG A{n}=1\nRUN x\n" for n in range(2400)),
        "#" * 1_000_000 + "=",
        "# a" + " " * 1_000_000 + "\nFROM base",
        "FROM base\nRUN x" + " " * 1_000_000 + "\\",
        "FROM " + "$A" * 500_000,
        "A" * 1_000_000,
        *(f"FROM base\n{each}" for each in LONG),
    ],
    ids=range(26 + len(LONG)),
)
def test_hostile_files_take_no_time(text: str) -> None:
    began = time.process_time()
    said = ""
    try:
        parse_dockerfile(text)
    except InvalidRequest as exc:
        said = str(exc)
    assert len(said) < 1000
    assert time.process_time() - began < patience(4.0)


def test_a_long_here_document_is_taken() -> None:
    body = "x" * 99 + "\n"
    [stage] = parse("FROM base\nRUN <<EOF\n" + body * 50_000 + "EOF\n").stages
    [step] = stage.steps
    assert isinstance(step, Run)
    assert step.argv[-1] == body * 50_000
