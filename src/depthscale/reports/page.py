"""Pages: the Jinja environment, how numbers are printed, and the one file that a report is."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import jinja2
import tomli_w
from markupsafe import Markup

from depthscale.reports.charts import Chart, write_charts
from depthscale.runs.files import atomic_write_text
from depthscale.studies.paired import PairedInterval
from depthscale.studies.words import MINUS, decimal, decimals_for, ratio_words

REPORT_FILE = "report.html"
UNKNOWN = "\N{EM DASH}"


def number(value: float | None, decimals: int = 3) -> str:
    """A number with fixed decimals; a dash where it is unknown.

    Example:
        >>> number(2.0), number(None)
        ('2.000', '—')
    """
    return UNKNOWN if value is None else decimal(value, decimals)


def whole(value: float | None) -> str:
    """A whole number with thin groups of thousands.

    Example:
        >>> whole(1234567)
        '1,234,567'
    """
    return UNKNOWN if value is None else f"{round(value):,}"


def significant(value: float | None, digits: int = 3) -> str:
    """A number to that many significant digits.

    Example:
        >>> significant(0.0040000), significant(1234.0)
        ('0.004', '1.23e+03')
    """
    return UNKNOWN if value is None else f"{value:.{digits}g}".replace("e-", f"e{MINUS}").replace("-", MINUS, 1)


def with_ends(measured: Mapping[str, float | None] | None) -> str:
    """A measured value and the ends of its interval, where it has one.

    Example:
        >>> with_ends({"value": 0.5, "low": 0.4, "high": 0.61}), with_ends({"value": 0.5, "low": None, "high": None})
        ('0.5 (0.4 to 0.61)', '0.5')
    """
    if measured is None or measured["value"] is None:
        return UNKNOWN
    if measured["low"] is None:
        return significant(measured["value"])
    return f"{significant(measured['value'])} ({significant(measured['low'])} to {significant(measured['high'])})"


def scaled(value: float | None, unit: str) -> str:
    """A large number with an SI prefix.

    Example:
        >>> scaled(3.2e13, "FLOP"), scaled(164032, ""), scaled(7e8, "B")
        ('32.0 TFLOP', '164 k', '700 MB')
    """
    if value is None:
        return UNKNOWN
    for factor, prefix in ((1e18, "E"), (1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= factor:
            shown = value / factor
            decimals = 0 if shown >= 100 else 1 if shown >= 10 else 2
            return f"{shown:.{decimals}f} {prefix}{unit}"
    return f"{value:.0f} {unit}".rstrip()


def percent(value: float | None) -> str:
    """A share in percent.

    Example:
        >>> percent(0.1234)
        '12.3 %'
    """
    return UNKNOWN if value is None else f"{100 * value:.1f} %"


def times(sides: tuple[float | None, float | None]) -> str:
    """What the first side spends beside the second.

    Example:
        >>> times((300, 200)), times((200, 200)), times((None, 2))
        ('× 1.50', 'equal', '—')
    """
    a, b = sides
    return ratio_words(a, b) if a and b else UNKNOWN


def duration(seconds: float | None) -> str:
    """Seconds as people say them.

    Example:
        >>> duration(42), duration(200), duration(7350)
        ('42 s', '3 min 20 s', '2 h 2 min')
    """
    if seconds is None:
        return UNKNOWN
    whole_seconds = round(seconds)
    if whole_seconds < 60:
        return f"{whole_seconds} s"
    minutes, rest = divmod(whole_seconds, 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    return f"{minutes // 60} h {minutes % 60} min"


def difference(interval: Mapping[str, Any] | None) -> Markup:
    """Mean and ends of an interval on two lines, or a dash."""
    if interval is None:
        return Markup(UNKNOWN)
    found = PairedInterval(**interval)
    decimals = decimals_for(found)
    mean, low, high = (decimal(value, decimals, signed=True) for value in (found.mean, found.low, found.high))
    return Markup('<span class="mean">{}</span> <span class="ends">{} to {}</span>').format(mean, low, high)


def toml(tables: Mapping[str, Any]) -> str:
    """Plain data as TOML, without what is null."""
    return tomli_w.dumps(_without_none(tables))


FILTERS: Mapping[str, Callable[..., Any]] = MappingProxyType(
    {
        "number": number,
        "whole": whole,
        "significant": significant,
        "scaled": scaled,
        "percent": percent,
        "duration": duration,
        "times": times,
        "difference": difference,
        "toml": toml,
    }
)


def render_page(template: str, context: Mapping[str, Any], templates: Path | None = None) -> str:
    """A template filled in; everything that is not marked as safe is escaped."""
    own = jinja2.PackageLoader("depthscale.reports", "templates")
    environment = jinja2.Environment(
        loader=jinja2.ChoiceLoader([jinja2.FileSystemLoader(templates), own]) if templates else own,
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(FILTERS)
    return environment.get_template(template).render(context)


def write_report(
    directory: Path,
    template: str,
    title: str,
    charts: Iterable[Chart],
    context: Mapping[str, Any],
    file_name: str = REPORT_FILE,
    templates: Path | None = None,
) -> Path:
    """Write ``figures/`` and then the page, which is whole or absent; return the path of the page.

    Args:
        directory: whose results are reported; its name is the template's ``directory``.
        template: by name; it draws a chart with ``draw``.
        title: of the page.
        charts: every figure of the report.
        context: what else the template names.
        file_name: of the page.
        templates: folder of further templates, which may extend those of this package.
    """
    write_charts(directory / "figures", list(charts))
    name = directory.resolve().name
    page = render_page(template, {"title": title, "directory": name, "draw": _drawn, **context}, templates)
    path = directory / file_name
    atomic_write_text(path, page)
    return path


def _drawn(chart: Chart) -> Markup:
    """A chart's inline SVG, safe as it is: its names were escaped when it was drawn."""
    return Markup(chart.inline_svg)


def _without_none(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _without_none(item) for key, item in value.items() if item is not None}
    if isinstance(value, list | tuple):
        return [_without_none(item) for item in value if item is not None]
    return value
