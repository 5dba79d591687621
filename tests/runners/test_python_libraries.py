"""What libraries show becomes results: matplotlib with chart data, pandas, plotly, altair, IPython's display."""

import base64
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from runners.runner_process import RUNNERS, Runner

pytestmark = pytest.mark.extended

CODE_PYTHON = Path(__file__).parents[2] / "build/code-venv/bin/python"


@pytest.fixture(scope="module")
def runner() -> Iterator[Runner]:
    assert CODE_PYTHON.exists(), "`make code-venv` installs what these cells import"
    with Runner([CODE_PYTHON, RUNNERS / "python" / "main.py"]) as runner:
        cell = runner.run("import matplotlib.pyplot as plt, numpy as np, pandas as pd, datetime", patience_s=120)
        assert cell.error is None
        yield runner


def shown(runner: Runner, code: str) -> dict[str, Any]:
    cell = runner.run(code, patience_s=120)
    assert cell.error is None, cell.error
    (result,) = cell.results
    return result


class TestFigures:
    def test_a_figure_that_is_open_at_the_end_is_shown_once_and_closed(self, runner: Runner) -> None:
        result = shown(runner, "plt.plot([1, 2], [3, 4]);")
        assert base64.b64decode(result["png"]).startswith(b"\x89PNG")
        assert (result["text"], result["is_main_result"]) == ("<Figure size 640x480 with 1 Axes>", False)
        assert runner.run("plt.get_fignums()").text == "[]"
        assert shown(runner, "fig, ax = plt.subplots(); ax.plot([1]); fig")["is_main_result"]

    def test_show_shows_at_its_place(self, runner: Runner) -> None:
        code = "import time\nfor i in range(2):\n    print(i)\n    plt.plot([i])\n    plt.show()\n    time.sleep(0.3)"
        assert runner.run(code).order == ["stdout", "result", "stdout", "result"]

    def test_after_an_error_and_with_another_backend(self, runner: Runner) -> None:
        cell = runner.run("plt.plot([1])\n1/0")
        assert cell.error is not None
        assert "png" in cell.results[0]
        code = "import matplotlib; matplotlib.use('agg')\nplt.plot([1]); plt.savefig('/dev/null', format='png')"
        assert "png" in shown(runner, code)

    def test_a_figure_without_anything_has_no_picture(self, runner: Runner) -> None:
        assert shown(runner, "plt.figure()").keys() == {"type", "is_main_result", "text"}


class TestCharts:
    """The shape is that of E2B's code interpreter."""

    def test_line(self, runner: Runner) -> None:
        code = "plt.plot([1, 2, 3], [2, 4, np.nan], label='a'); plt.plot([5, 6]); plt.title('T')"
        chart = shown(runner, code + "\nplt.xlabel('time (s)'); plt.ylabel('force [N]'); plt.yscale('log');")["chart"]
        points = [[1, 2.0], [2, 4.0], [3, None]]
        assert chart["elements"][0] == {"label": "a", "points": points}
        assert chart["elements"][1]["label"] == "Line 1"
        expected = {
            **{"type": "line", "title": "T", "x_label": "time (s)", "y_label": "force [N]", "x_unit": "s"},
            **{"y_unit": "N", "x_scale": "linear", "y_scale": "log"},
        }
        assert {name: chart[name] for name in expected} == expected
        assert len(chart["x_ticks"]) == len(chart["x_tick_labels"]) > 2
        assert len(chart["y_ticks"]) == len(chart["y_tick_labels"]) > 1

    def test_scales(self, runner: Runner) -> None:
        chart = shown(runner, "plt.plot([datetime.date(2024, 1, d) for d in (1, 2)], [1, 2]);")["chart"]
        assert chart["x_scale"] == "datetime"
        assert chart["elements"][0]["points"] == [["2024-01-01", 1], ["2024-01-02", 2]]
        assert chart["x_ticks"][0].startswith("2024-01-01T00:00:00")
        chart = shown(runner, "plt.plot(['a', 'b'], [1, 2]);")["chart"]
        assert (chart["x_scale"], chart["x_tick_labels"]) == ("categorical", ["a", "b"])

    def test_scatter(self, runner: Runner) -> None:
        chart = shown(runner, "plt.scatter([1, 2], [3, 4], label='s'); plt.axhline(3);")["chart"]
        assert chart["type"] == "scatter"
        assert chart["elements"] == [{"label": "s", "points": [[1.0, 3.0], [2.0, 4.0]]}]
        assert "x_ticks" in chart

    def test_bar(self, runner: Runner) -> None:
        chart = shown(runner, "plt.bar(['a', 'b'], [1, 1], label='g'); plt.xlabel('n (m)');")["chart"]
        assert chart["elements"] == [
            {"label": "a", "value": 1, "group": "g"},
            {"label": "b", "value": 1, "group": "g"},
        ]
        assert (chart["type"], chart["x_label"], chart["x_unit"]) == ("bar", "n (m)", "m")
        sideways = shown(runner, "plt.barh(['a', 'b'], [1, 2]); plt.xlabel('n (m)');")["chart"]
        assert [bar["value"] for bar in sideways["elements"]] == [1, 2]
        assert (sideways["y_label"], sideways["elements"][0]["group"]) == ("n (m)", "Group 0")

    def test_pie(self, runner: Runner) -> None:
        chart = shown(runner, "plt.pie([1, 3], labels=['x', 'y'], autopct='%d'); plt.title('P');")["chart"]
        slices = [{"label": "x", "angle": 90.0, "radius": 1.0}, {"label": "y", "angle": 270.0, "radius": 1.0}]
        assert chart == {"type": "pie", "title": "P", "elements": slices}

    @pytest.mark.parametrize(
        "options", ["", ", patch_artist=True", ", orientation='horizontal'", ", notch=False, showcaps=False"]
    )
    def test_box_and_whisker(self, runner: Runner, options: str) -> None:
        code = f"plt.boxplot([[1, 2, 3, 4, 50], [2, 3, 4]], tick_labels=['A', 'B']{options});"
        chart = shown(runner, code)["chart"]
        assert chart["type"] == "box_and_whisker"
        assert chart["elements"] == [
            {
                **{"label": "A", "min": 1.0, "first_quartile": 2.0, "median": 3.0},
                **{"third_quartile": 4.0, "max": 4.0, "outliers": [50.0]},
            },
            {
                **{"label": "B", "min": 2.0, "first_quartile": 2.5, "median": 3.0},
                **{"third_quartile": 3.5, "max": 4.0, "outliers": []},
            },
        ]

    def test_superchart(self, runner: Runner) -> None:
        code = "fig, a = plt.subplots(1, 2); fig.suptitle('S'); a[0].plot([1, 2]); a[1].scatter([1], [2]);"
        chart = shown(runner, code)["chart"]
        assert (chart["type"], chart["title"]) == ("superchart", "S")
        assert [element["type"] for element in chart["elements"]] == ["line", "scatter"]

    def test_what_is_not_known_has_a_type(self, runner: Runner) -> None:
        empty = {"type": "unknown", "title": None, "elements": []}
        assert shown(runner, "plt.subplots(1, 2);")["chart"] == {**empty, "type": "superchart", "elements": [empty] * 2}
        assert shown(runner, "plt.imshow([[1, 2]]); plt.colorbar();")["chart"] == empty


class TestImages:
    """Of PIL, shown as E2B's code interpreter shows them."""

    NEW = "from PIL import Image\nimage = Image.new('RGBA', (16, 16), 'red')\n"

    def test_show_is_a_result_although_a_program_to_show_it_is_there(self, runner: Runner, tmp_path: Path) -> None:
        viewer = tmp_path / "xdg-open"
        viewer.write_text("#!/bin/sh\necho viewer")
        viewer.chmod(0o755)
        runner.run(f"import os; os.environ['PATH'] += ':{tmp_path}'")
        cell = runner.run(self.NEW + "image.show()\nprint('after')")
        assert (len(cell.results), cell.stdout) == (1, "after\n")
        assert base64.b64decode(cell.results[0]["png"]).startswith(b"\x89PNG")
        assert "png" in shown(runner, self.NEW + "image")

    def test_what_cells_of_e2b_save_under_a_name_is_a_result(self, runner: Runner, tmp_path: Path) -> None:
        name = str(tmp_path / "made.png")
        code = self.NEW + f"import io\nimage.save(io.BytesIO(), 'PNG')\nimage.save({name!r})"
        assert runner.run(code).results == []
        (result,) = runner.run(code, env={"E2B_SANDBOX": "true"}).results
        assert base64.b64decode(result["png"]).startswith(b"\x89PNG")
        assert (result["is_main_result"], Path(name).stat().st_size > 0) == (False, True)
        bad = runner.run(self.NEW + "image.save('/nowhere/x.png')", env={"E2B_SANDBOX": "true"})
        assert (bad.results, bad.error and bad.error["name"]) == ([], "FileNotFoundError")
        many = runner.run(self.NEW + f"for _ in range(400): image.save({name!r})", env={"E2B_SANDBOX": "true"})
        assert len(many.results) == 201
        assert many.results[-1]["cut"] == ["results"]


def test_cells_give_what_they_give_in_jupyter() -> None:
    script = Path(__file__).parents[2] / "bench/conformance.py"
    argv = ["env", "-u", "PYTEST_CURRENT_TEST", CODE_PYTHON, script]  # with it ipykernel loses what children print
    done = subprocess.run(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert done.returncode == 0, done.stdout


class TestOthers:
    def test_a_data_frame(self, runner: Runner) -> None:
        code = "df = pd.DataFrame({'a': [1, np.nan], 'b': pd.to_datetime(['2024-01-01', None]), 3: ['x', None]})\ndf"
        result = shown(runner, code)
        assert result["data"] == {"a": [1.0, None], "b": ["2024-01-01T00:00:00", None], "3": ["x", None]}
        assert result["html"].startswith("<div>")
        assert result["text"].startswith("     a ")
        assert shown(runner, "pd.DataFrame({'a': range(2_000_000)})")["cut"] == ["data"]
        wide = shown(runner, "pd.DataFrame(np.zeros((2, 30)))")["text"]
        assert wide.count("...") == 3

    def test_plotly(self, runner: Runner) -> None:
        runner.run("import plotly.graph_objects as go\nfig = go.Figure(go.Bar(y=[1, 2]))", patience_s=120)
        for code in ("fig", "fig.show()", "display(fig)"):
            result = shown(runner, code)
            assert result["extra"]["application/vnd.plotly.v1+json"]["data"][0]["type"] == "bar"
            assert len(result["html"]) < 20_000
            assert result["is_main_result"] == (code == "fig")

    def test_altair(self, runner: Runner) -> None:
        result = shown(runner, "import altair\naltair.Chart(pd.DataFrame({'a': [1]})).mark_bar().encode(x='a')")
        assert "vega" in result["html"]

    def test_display_of_ipython(self, runner: Runner) -> None:
        code = (
            "import IPython.display as d\nd.display(d.HTML('<b>'), d.JSON({'a': 1}), d.Image(data=b'\\x89PNG\\r\\n'))"
        )
        formats = [set(result) - {"type", "is_main_result", "text"} for result in runner.run(code).results]
        assert formats == [{"html"}, {"json"}, {"png"}]
        assert runner.run("d.clear_output()").events == [{"type": "clear_output", "wait": False}]
        assert shown(runner, "d.Math('x')")["latex"] == "$\\displaystyle x$"

    def test_matplotlib_after_an_import_of_ipython_that_is_not_installed(self) -> None:
        hide = (
            "import importlib.machinery as m\nfound = m.PathFinder.find_spec\n"
            "m.PathFinder.find_spec = lambda name, *rest: None if name[:7] == 'IPython' else found(name, *rest)"
        )
        with Runner([CODE_PYTHON, RUNNERS / "python" / "main.py"]) as runner:
            runner.run(hide)
            code = "from IPython.core.display import HTML, display\nfrom IPython.display import Markdown\nHTML('<b>')"
            assert shown(runner, code)["html"] == "<b>"
            code = "import matplotlib.pyplot as plt\nplt.plot([1, 2])\nplt.show()"
            assert shown(runner, code)["chart"]["type"] == "line"
            runner.run("get_ipython().events.register('post_execute', lambda: print('after'))")
            assert runner.run("plt.ioff()\nprint('cell')").stdout == "cell\nafter\n"
