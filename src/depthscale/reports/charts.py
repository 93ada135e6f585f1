"""A chart as text: the same SVG for the same numbers, its data as CSV, and a form to set into a page.

Drawn through matplotlib's object API, so that no global figure or backend is touched.
"""

from __future__ import annotations

import csv
import html
import io
import math
import re
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, MaxNLocator, NullLocator

from depthscale.runs.files import atomic_write_bytes, atomic_write_text

INK = "#23272f"
GRID = "#d9dce1"
BAND = "#e9ebef"

#: Distinct for all common forms of color blindness on white, each at a contrast of 3:1 or more; the first, for
#: the baseline, is neutral. Line style and marker repeat the distinction.
SERIES_COLORS = ("#5d6673", "#0072b2", "#c44e00", "#007a5a", "#a03376", "#806600")
SERIES_MARKERS = ("o", "s", "^", "D", "v", "P", "X")
SERIES_DASHES = ("--", "-", "-", "-.", ":", "-")

OUTCOME_COLORS = {"finished": "#2f7fb8", "stuck": "#d99a00", "diverged": "#b83a1b", "missing": "#b4bac3"}
OUTCOME_HATCHES = {"finished": "", "stuck": "////", "diverged": "xxxx", "missing": "...."}

#: Colors that a page may restate, by the name of its CSS variable.
_CSS_VARIABLES = {
    INK: "--chart-ink",
    GRID: "--chart-grid",
    BAND: "--chart-band",
    **{color: f"--series-{index}" for index, color in enumerate(SERIES_COLORS)},
    **{color: f"--outcome-{name}" for name, color in OUTCOME_COLORS.items()},
}

PNG_DOTS_PER_INCH = 160

#: Rows of a legend that a figure of the usual height has room for, and what each further one needs.
_LEGEND_ROWS = 3
_LEGEND_ROW_INCHES = 0.19

#: Numbers from here on are written as powers of ten, which need the room of two.
_LONGEST_PLAIN = 1e5

_SETTINGS = {
    "svg.fonttype": "none",
    "svg.hashsalt": "depthscale",
    "font.family": ["DejaVu Sans", "sans-serif"],
    "font.size": 9.5,
    # A name that holds a dollar sign is a name, not a formula.
    "text.parse_math": False,
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.7,
    "axes.unicode_minus": True,
    "grid.color": GRID,
    "grid.linewidth": 0.7,
    "hatch.color": INK,
    "hatch.linewidth": 0.5,
    "legend.frameon": False,
    "lines.linewidth": 1.7,
    "text.color": INK,
    "xtick.color": INK,
    "ytick.color": INK,
}


@dataclass(frozen=True)
class Chart:
    """One figure with everything that goes beside it.

    Attributes:
        name: file name without ending; unique within a report.
        title: what the figure shows, a few words.
        caption: how to read it, and what it leaves out.
        alternative: the figure in words, for those who do not see it.
        svg: a whole SVG document.
        columns, rows: the drawn numbers.
        png: the same figure as an image, where one is written beside the drawing.
    """

    name: str
    title: str
    caption: str
    alternative: str
    svg: str
    columns: tuple[str, ...]
    rows: tuple[tuple[object, ...], ...]
    png: bytes | None = None

    @property
    def csv(self) -> str:
        """The drawn numbers at full precision; an unknown one is empty."""
        buffer = io.StringIO()
        writer = csv.writer(buffer, lineterminator="\n")
        writer.writerow(self.columns)
        writer.writerows(self.rows)
        return buffer.getvalue()

    @property
    def inline_svg(self) -> str:
        """The ``svg`` element alone, for a page: unique ids, scalable, named, colors as CSS variables."""
        body = self.svg[self.svg.index("<svg") :]
        body = re.sub(r"<metadata>.*?</metadata>", "", body, flags=re.DOTALL)
        prefix = f"chart-{self.name}"
        # References within the drawing only: an embedded image is a data URL under the same attribute.
        body = re.sub(r"""(\bid="|xlink:href="#)""", rf"\g<1>{prefix}-", body)
        body = body.replace("url(#", f"url(#{prefix}-")
        for color, variable in _CSS_VARIABLES.items():
            body = body.replace(color, f"var({variable}, {color})")
        head, rest = body.split(">", 1)
        view_box = re.search(r'viewBox="[^"]*"', head)
        assert view_box is not None, "matplotlib writes a viewBox"
        return (
            f'<svg {view_box[0]} role="img" aria-labelledby="{prefix}-title {prefix}-desc"'
            ' xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink">'
            f'<title id="{prefix}-title">{html.escape(self.title)}</title>'
            f'<desc id="{prefix}-desc">{html.escape(self.alternative)}</desc>{rest}'
        )


def style_of(index: int) -> dict[str, Any]:
    """Color, marker and line style of the series at ``index``; the three repeat with different periods."""
    return {
        "color": SERIES_COLORS[index % len(SERIES_COLORS)],
        "marker": SERIES_MARKERS[index % len(SERIES_MARKERS)],
        "linestyle": SERIES_DASHES[index % len(SERIES_DASHES)],
    }


def drawing_settings() -> AbstractContextManager[None]:
    """Context manager under which every chart is drawn and rendered."""
    return mpl.rc_context(_SETTINGS)


def new_axes(width: float = 4.7, height: float = 3.3) -> tuple[Figure, Axes]:
    """A figure of that many inches with one pair of axes. Small, as a phone shows it at full width."""
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasSVG(figure)
    axes = figure.add_subplot()
    axes.set_axisbelow(True)
    return figure, axes


def plain_log_ticks(axis: Axis, ticks: Sequence[float] | None = None) -> None:
    """Label a logarithmic axis with plain numbers of three digits: at ``ticks``, or at 1, 2 and 5 of each decade."""
    axis.set_major_locator(FixedLocator(ticks) if ticks else LogLocator(subs=(1.0, 2.0, 5.0)))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.3g}"))
    axis.set_minor_locator(NullLocator())


def few_log_ticks(axis: Axis, low: float, high: float, most: int = 6) -> None:
    """Label a logarithmic axis from ``low`` to ``high`` with at most that many numbers, at 1, 2 and 5 or at decades."""
    if high >= _LONGEST_PLAIN or low < 1 / _LONGEST_PLAIN:
        most = min(most, 3)
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    for subs in ((1, 1.5, 2, 3, 4, 5, 6, 8), (1, 2, 3, 5), (1, 2, 5), (1, 3), (1,)):
        ticks = [sub * 10.0**power for power in range(first, last + 1) for sub in subs]
        ticks = [tick for tick in ticks if low <= tick <= high]
        if len(ticks) <= most:
            break
    if len(ticks) < 2:  # a range so narrow that even steps serve it best
        ticks = [float(tick) for tick in MaxNLocator(most - 1).tick_values(low, high) if low <= tick <= high]
    axis.set_major_locator(FixedLocator(ticks[:: math.ceil(len(ticks) / most)]))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.3g}"))
    axis.set_minor_locator(NullLocator())


def legend_below(figure: Figure, columns: int = 3) -> None:
    """One legend under the axes, where it hides no data; none for a single series.

    It has fewer columns where so many would not fit, and a long one makes the figure longer, not the axes shorter.
    """
    handles, labels = figure.axes[0].get_legend_handles_labels()
    unique = dict(zip(labels, handles, strict=True))
    if len(unique) < 2:
        return
    for width in range(columns, 0, -1):
        legend = figure.legend(
            unique.values(), unique.keys(), loc="outside lower center", ncols=width, handlelength=2.6, fontsize=9
        )
        if width == 1 or legend.get_window_extent().width <= figure.bbox.width:
            break
        legend.remove()
    more_rows = math.ceil(len(unique) / width) - _LEGEND_ROWS
    figure.set_figheight(figure.get_figheight() + _LEGEND_ROW_INCHES * max(more_rows, 0))


def render(figure: Figure) -> str:
    """The figure as an SVG document: the same text on every call, without date or creator."""
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None}, transparent=True)
    return re.sub(r"[ \t]+\n", "\n", buffer.getvalue())


def render_png(figure: Figure) -> bytes:
    """The figure as an image on white: the same bytes on every call, without the name of what made it."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=PNG_DOTS_PER_INCH, metadata={"Software": None}, facecolor="white")
    return buffer.getvalue()


def write_charts(directory: Path, charts: Sequence[Chart]) -> None:
    """``<name>.svg`` and ``<name>.csv`` of every chart, and ``<name>.png`` where it holds one."""
    for chart in charts:
        atomic_write_text(directory / f"{chart.name}.svg", chart.svg)
        atomic_write_text(directory / f"{chart.name}.csv", chart.csv)
        if chart.png is not None:
            atomic_write_bytes(directory / f"{chart.name}.png", chart.png)
