"""The runner of JavaScript cells, without a sandbox, with the Node of this machine."""

import contextlib
import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from runners.runner_process import RUNNERS, Runner, RunnerEnded

NODE = ("node", "--no-force-async-hooks-checks", str(RUNNERS / "javascript" / "main.js"))


@pytest.fixture
def runner(tmp_path: Path) -> Iterator[Runner]:
    with Runner(NODE, tmp_path) as runner:
        yield runner


class TestCells:
    def test_a_cell_sees_what_earlier_ones_declared(self, runner: Runner) -> None:
        assert runner.hello["version"].count(".") == 2
        runner.run(
            "const a = 1; let {b, c: [d]} = {b: 2, c: [3]}; class C { x = 4 }; function f() { return a }; var v = 5"
        )
        assert runner.run("[a, b, d, new C().x, f(), v]").main == {
            "type": "result",
            "is_main_result": True,
            "text": "[ 1, 2, 3, 4, 1, 5 ]",
            "json": [1, 2, 3, 4, 1, 5],
        }
        runner.run("const a = 10; class C { x = 40 }; let b = await Promise.resolve(20)")
        assert runner.run("[a, b, new C().x]").text == "[ 10, 20, 40 ]"

    @pytest.mark.parametrize(
        ("code", "text"),
        [
            ("1 + 1", "2"),
            ("'é😀'", "'é😀'"),
            ("const x = 1", None),
            ("undefined", None),
            ("null", "null"),
            ("10n", "10n"),
            ("{a: 1}", "{ a: 1 }"),
            ("{ let a = 1; a }", "1"),
            ("await new Promise(r => setTimeout(r, 5, 7))", "7"),
            ("Promise.resolve(8)", "8"),
            ("let s = 0; for await (const x of [1, 2]) s += x; s", "3"),
            ("`a${/[/`]/.test('/')}` // await import", "'atrue'"),
            ("require.main === module && __dirname === process.cwd()", "true"),
            ("", None),
        ],
    )
    def test_the_last_value_is_shown(self, runner: Runner, code: str, text: str | None) -> None:
        cell = runner.run(code)
        assert (cell.text, cell.error, cell.end["execution_count"]) == (text, None, 1)

    def test_the_environment_holds_for_one_cell(self, runner: Runner) -> None:
        assert runner.run("console.log(process.env.A)", env={"A": "é \"'\\\n"}).stdout == "é \"'\\\n\n"
        assert runner.run("process.env.A ?? null").text == "null"

    def test_modules_are_looked_for_from_the_current_folder(self, runner: Runner, tmp_path: Path) -> None:
        package = tmp_path / "node_modules" / "only-esm"
        package.mkdir(parents=True)
        (package / "package.json").write_text('{"exports": {"import": "./main.mjs"}}')
        (package / "main.mjs").write_text("export default 1; export const two = 2;")
        (tmp_path / "plain.js").write_text("module.exports = {three: 3};")
        (tmp_path / "data.json").write_text('{"four": 4}')
        code = 'import one, {two as zwei} from "only-esm";\nimport * as all\n  from "only-esm";\n'
        code += "const {three} = (await import('./plain.js')).default\n"
        code += "const list = [one, zwei, all.two, three, require('./data.json').four]; list"
        assert runner.run(code).text == "[ 1, 2, 2, 3, 4 ]"
        assert (
            runner.run("export const five = 5; export default function six() { return 6 }\n[five, six()]").text
            == "[ 5, 6 ]"
        )
        assert runner.run('"import x from y"; const s = `import("z")`; import.meta.dirname').text == f"'{tmp_path}'"
        failed = runner.run('import x from "only-esm";\nimport y from "nowhere";').error
        assert failed is not None
        assert "Cannot find package 'nowhere'" in failed["value"]
        assert str(RUNNERS) not in failed["traceback"]

    @pytest.mark.parametrize(
        ("code", "text"),
        [
            ("import {sep as s, default as d} from 'path'\n[s, d.sep]", "[ '/', '/' ]"),
            ("import path, {sep} from 'path'; [path.sep, sep]", "[ '/', '/' ]"),
            ("import path, * as all from 'path'; all.default === path", "true"),
            ("import 'path' /* from */; 1", "1"),
            ("export {sep} from 'path'; export * as p from 'path'; export {}; 2", "2"),
            ("export default 3", "3"),
            ("export default class {}\n[4].length", "1"),
            ("export default async function () {}\n/a/.test('a')", "true"),
            ("typeof (await import('path')).sep", "'string'"),
            (
                "const o = {import() { return 5 }}; class C { import() { return 6 } }; [o.import(), new C().import()]",
                "[ 5, 6 ]",
            ),
            ("`import(${typeof import.meta.url}) ${`${{a: 1}.a}`}`", "'import(string) 1'"),
            ("if (1) /import('x')/.test(\"import('x')\")", "false"),
            ("let n = 8, g = 2; (n) / 2 / g // import('x')", "2"),
            ("({a: 6}).a / 2 /* import('x') */", "3"),
        ],
    )
    def test_module_syntax_is_told_from_text(self, runner: Runner, code: str, text: str | None) -> None:
        cell = runner.run(code)
        assert (cell.error, cell.text) == (None, text)

    def test_what_is_no_module_is_reported_by_the_engine(self, runner: Runner) -> None:
        for code in ("import {a b} from 'path'", "{ import path from 'path' }", "export default", "import('a"):
            error = runner.run(code).error
            assert error is not None
            assert error["name"] == "SyntaxError"


class TestOutput:
    def test_printed_text_precedes_the_result_and_children_print_too(self, runner: Runner) -> None:
        cell = runner.run(
            "console.log('ü'); require('child_process').execSync('echo child; echo wrong >&2', {stdio: 'inherit'}); 3"
        )
        assert (cell.stdout, cell.stderr, cell.text) == ("ü\nchild\n", "wrong\n", "3")
        assert cell.order[-1] == "result"

    def test_all_of_a_long_output_arrives(self, runner: Runner) -> None:
        cell = runner.run(
            "for (let i = 0; i < 20000; i++) console.log('0123456789'); process.stderr.write('x'.repeat(1e6)); 1"
        )
        assert (len(cell.stdout), len(cell.stderr), cell.text) == (220_000, 1_000_000, "1")

    def test_display_shows_values_and_mime_bundles(self, runner: Runner) -> None:
        cell = runner.run(
            'display({"text/html": "<b>", "image/png": Buffer.from("png"), "x/y": 1}); display([1]);'
            'class T { [Symbol.for("Jupyter.display")]() { return {"text/markdown": "*t*"} } }; new T()'
        )
        html, array, main = cell.results
        assert html == {"type": "result", "is_main_result": False, "html": "<b>", "png": "cG5n", "extra": {"x/y": "1"}}
        assert array == {"type": "result", "is_main_result": False, "text": "[ 1 ]", "json": [1]}
        assert main == {"type": "result", "is_main_result": True, "text": "T {}", "markdown": "*t*"}

    def test_what_is_too_long_is_cut(self, runner: Runner) -> None:
        cell = runner.run('display({"text/html": "h".repeat(9e6)}); "t".repeat(2e6)')
        assert cell.results[0] == {"type": "result", "is_main_result": False, "cut": ["html"]}
        assert cell.main is not None
        assert (len(cell.main["text"]), cell.main["cut"]) == (1 << 20, ["text"])

    def test_what_looks_like_frames_is_text(self, runner: Runner) -> None:
        cell = runner.run('process.stdout.write("x\\0\\0\\0\\2{}"); process.stderr.write("r\\0\\0\\0\\2{}"); 1')
        assert (cell.stdout, cell.stderr, cell.text) == ("x\0\0\0\2{}", "r\0\0\0\2{}", "1")

    def test_children_do_not_have_the_socket(self, runner: Runner) -> None:
        cell = runner.run("require('child_process').execSync('ls -l /proc/self/fd', {stdio: 'inherit'})")
        assert ("/proc/" in cell.stdout, "socket" in cell.stdout) == (True, False)


class TestErrors:
    def test_an_error_names_lines_and_has_no_frame_of_ours(self, runner: Runner) -> None:
        error = runner.run("\nfunction f() {\n  throw new TypeError('bad', {cause: new Error('why')})\n}\nf()").error
        assert error is not None
        assert (error["name"], error["value"]) == ("TypeError", "bad")
        first, *frames = error["traceback"].split("\n")
        assert first == "TypeError: bad"
        assert frames[0].endswith("f (cell_1.js:3:9)")
        assert frames[1].endswith("at cell_1.js:5:1")
        assert "why" in error["traceback"]
        assert str(RUNNERS) not in error["traceback"]
        assert "node:inspector" not in error["traceback"]

    @pytest.mark.parametrize("thrown", ["new TypeError(text)", "Object.assign(new Error(text), {code: 1})"])
    def test_a_long_message_is_cut(self, runner: Runner, thrown: str) -> None:
        error = runner.run(f"const text = 'é' + '😀'.repeat(1_000_000)\nthrow {thrown}").error
        assert error is not None
        lengths = [len(error[part].encode("utf-16-le")) // 2000 for part in ("value", "traceback")]
        assert lengths == [16, 131]  # and no half of a character is left
        assert "characters are left out here" in error["traceback"]

    def test_properties_of_an_error_are_shown(self, runner: Runner) -> None:
        error = runner.run("await require('fs').promises.readFile('missing')").error
        assert error is not None
        assert (error["name"], error["value"][:6]) == ("Error", "ENOENT")
        assert error["traceback"].endswith("}")
        assert "code: 'ENOENT'" in error["traceback"]

    def test_a_syntax_error_shows_its_place(self, runner: Runner) -> None:
        error = runner.run("let a = 1;\nlet b = ;").error
        assert error == {
            "name": "SyntaxError",
            "value": "Unexpected token ';'",
            "traceback": "cell_1.js:2\nlet b = ;\n        ^\nSyntaxError: Unexpected token ';'",
        }
        assert runner.run("let b = 1; b").text == "1"

    def test_anything_can_be_thrown(self, runner: Runner) -> None:
        assert runner.run("throw 'text'").error == {"name": "Error", "value": "text", "traceback": "Uncaught 'text'"}
        assert runner.run("throw undefined").error == {
            "name": "Error",
            "value": "undefined",
            "traceback": "Uncaught undefined",
        }
        error = runner.run("Promise.reject(new RangeError('later'))").error
        assert error is not None
        assert (error["name"], error["value"]) == ("RangeError", "later")

    def test_errors_outside_of_cells_are_printed(self, runner: Runner) -> None:
        cell = runner.run(
            "setTimeout(() => { throw new Error('timer') }, 1); Promise.reject(new Error('nobody'));"
            "await new Promise(r => setTimeout(r, 50)); 1"
        )
        assert cell.text == "1"
        assert "Error: timer\n    at Timeout._onTimeout (cell_1.js:1:" in cell.stderr
        assert "Error: nobody\n    at cell_1.js:1:" in cell.stderr

    def test_exit_ends_the_context(self, runner: Runner) -> None:
        with pytest.raises(RunnerEnded) as ended:
            runner.run("console.log('bye'); process.exit(3)")
        assert (ended.value.code, ended.value.cell.stdout, ended.value.cell.stderr) == (3, "bye\n", "")


class TestInterrupts:
    @pytest.mark.parametrize(
        "code",
        [
            "console.log('go'); while (true) {}",
            "console.log('go'); for (;;) console.log('more')",
            "console.log('go'); for (;;) display(1)",
            "console.log('go'); await new Promise(() => {})",
            "console.log('go'); require('child_process').execSync('sleep 60')",
            "await new Promise(r => setTimeout(r, 1)); console.log('go'); while (true) {}",
            "setTimeout(() => { console.log('go'); while (true) {} }, 1); await new Promise(() => {})",
            "process.nextTick(() => { console.log('go'); while (true) {} }); await new Promise(() => {})",
            "console.log('go'); try { for (;;); } finally { for (;;); }",
        ],
    )
    def test_an_interrupt_ends_the_cell_and_keeps_the_state(self, runner: Runner, code: str) -> None:
        runner.run("let kept = 1")
        for number in (2, 3):
            error = runner.run(code, interrupt_at="go", again_s=1).error
            assert error is not None
            assert error["name"] in ("Interrupted", "Error")  # the error of a child that was interrupted may be first
            cell = runner.run("kept += 1; console.log(kept); kept")
            assert (cell.stdout, cell.text) == (f"{number}\n", str(number))

    def test_an_interrupt_between_cells_does_nothing(self, runner: Runner) -> None:
        runner.run("let kept = 1")
        runner.interrupt()
        time.sleep(0.3)
        assert runner.run("kept").text == "1"

    def test_an_interrupt_that_comes_with_the_next_cell_loses_no_cell(self, tmp_path: Path) -> None:
        answered = 0
        while answered < 40:  # two interrupts within a millisecond may end Node
            with Runner(NODE, tmp_path) as runner, contextlib.suppress(RunnerEnded, BrokenPipeError):
                runner.run("let kept = 1")
                for number in range(2, 42 - answered):
                    runner.send("kept")
                    time.sleep(number % 10 / 5000)
                    runner.interrupt()
                    assert runner.finish().end["execution_count"] == number
                    answered += 1

    def test_a_callback_that_never_returns_can_be_interrupted_between_cells(self, runner: Runner) -> None:
        runner.run("setTimeout(() => { console.log('go'); while (true) {} }, 1)")
        time.sleep(0.2)
        runner.interrupt()
        assert runner.run("1").text == "1"


def test_two_hundred_cells(runner: Runner) -> None:
    for number in range(200):
        assert runner.run(f"const v{number} = {number}; v{number} + 1").text == str(number + 1)
    assert runner.memory_mb() < 160
    assert len(os.listdir(f"/proc/{runner.process.pid}/fd")) < 60


def test_typescript_is_what_node_can_make_of_it(tmp_path: Path) -> None:
    version = subprocess.run(["node", "-p", "process.versions.node"], capture_output=True, text=True, check=True).stdout
    if tuple(map(int, version.split("."))) < (22, 13):
        assert subprocess.run([*NODE, "typescript"], check=False).returncode == 127
        return
    with Runner((*NODE, "typescript"), tmp_path) as runner:
        cell = runner.run("interface P { n: number }\nconst p: P = await Promise.resolve({ n: 42 });\np.n as number")
        assert (cell.text, cell.stderr, cell.error) == ("42", "", None)
        assert runner.run("enum A { X = 5 }\nA.X").text == "5"
        assert runner.run("A.X + (<number>p.n)").text == "47"
        assert runner.run("{ a: 1 as number, b: 2 }").text == "{ a: 1, b: 2 }"
        assert runner.run("import { sep } from 'node:path'; import type { P } from './p'; sep").text == "'/'"
        assert runner.run("const a: = 1").error["name"] == "SyntaxError"
        assert runner.run("\n\nnull!.x").error["name"] == "TypeError"
        assert "cell_8.js:2" in runner.run("const q: number = 1;\nthrow new Error('here')").error["traceback"]
