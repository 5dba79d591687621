"""Lets figures of plotly become results: their JSON in `extra`, and a page that loads the library in `html`."""

from . import display

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def extend(module: "Any") -> None:
    """Registers a renderer and makes it the default. `module` is `plotly.io._renderers`."""

    class Results(module.ExternalRenderer):  # type: ignore[misc]
        """The renderer that `show` calls, and what shows the value of an expression."""

        def render(self, fig_dict: "dict[str, Any]") -> None:
            from plotly.io import to_html

            page = to_html(fig_dict, include_plotlyjs="cdn", full_html=False, validate=False)
            display.publish({"application/vnd.plotly.v1+json": _plain(fig_dict), "text/html": page})

    module.renderers["warren"] = Results()
    module.renderers.default = "warren"


def _plain(figure: "dict[str, Any]") -> "Any":
    import json

    from plotly.io.json import to_json_plotly

    return json.loads(to_json_plotly(figure))
