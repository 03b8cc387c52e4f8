"""How figures look."""

from __future__ import annotations

import io

import jinja2
import matplotlib

matplotlib.use("Agg")
from matplotlib.figure import Figure

BLUE, GREY, ORANGE = "#2563a8", "#8a8f98", "#d9822b"
STYLE = {
    "font.family": "DejaVu Sans",
    "font.size": 9,
    "axes.titlesize": 10,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": "#b8bcc4",
    "axes.grid": True,
    "grid.color": "#e6e8ec",
    "axes.axisbelow": True,
    "xtick.color": "#5b616b",
    "ytick.color": "#5b616b",
    "legend.edgecolor": "none",
    "legend.framealpha": 0.9,
    "legend.fontsize": 8,
}


def png(figure: Figure) -> bytes:
    """The same bytes for the same figure."""
    out = io.BytesIO()
    figure.savefig(out, format="png", dpi=150, metadata={"Software": None})
    return out.getvalue()


_PAGE = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<title>{{ name }}</title>
<style>
  body { font: 15px/1.5 system-ui, sans-serif; color: #22262d; max-width: WIDTH; margin: 2rem auto; padding: 0 1rem }
  h1 { font-size: 1.5rem; margin-bottom: 0 } h2 { font-size: 1.1rem; margin-top: 2rem }
  p { color: #5b616b } img { width: 100%; height: auto } table { border-collapse: collapse }
  td, th { padding: 0.2rem 1.5rem 0.2rem 0; border-bottom: 1px solid #e6e8ec; text-align: left; vertical-align: top }
CSS</style>
<h1>{{ name }}</h1>
BODY</html>
"""


def page(body: str, *, width: str, css: str) -> jinja2.Template:
    """An HTML page with `name` as its heading, which needs nothing beside itself. css: added to the common rules."""
    return jinja2.Template(_PAGE.replace("WIDTH", width).replace("CSS", css).replace("BODY", body), autoescape=True)
