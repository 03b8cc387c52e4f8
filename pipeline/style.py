"""How figures look."""

from __future__ import annotations

import io

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
