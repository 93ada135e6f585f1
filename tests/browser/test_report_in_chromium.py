"""The report as a browser shows it, with the network off."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from synthetic_study import write_synthetic_study

from depthscale.reports.comparison_report import build_report

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no chromium on this machine")

PROBE = """<!DOCTYPE html><title>probe</title>
<iframe style="width:{width}px;height:900px;border:0" src="report.html"></iframe>
<script>
document.querySelector("iframe").onload = (event) => {{
  const page = event.target.contentDocument, root = page.documentElement;
  const wide = [...page.querySelectorAll("body *")].filter(
    (e) => !e.closest(".scroll, pre, svg") && e.getBoundingClientRect().right > {width} + 0.5);
  const charts = [...page.querySelectorAll("figure svg")];
  document.title = JSON.stringify({{
    overflow: root.scrollWidth - root.clientWidth,
    wide: wide.map((e) => e.tagName).join(" "),
    charts: charts.length,
    flat: charts.filter((e) => e.getBoundingClientRect().height < 80).length,
    verdict: page.querySelector(".verdict").innerText.replace(/\\s+/g, " ").length,
  }});
}};
</script>"""


def browse(profile: Path, *arguments: str) -> str:
    assert CHROMIUM is not None
    done = subprocess.run(
        [
            CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run",
            "--disable-background-networking", "--disable-component-update", "--disable-sync",
            "--allow-file-access-from-files", "--host-resolver-rules=MAP * ~NOTFOUND",
            f"--user-data-dir={profile}", *arguments,
        ],
        capture_output=True, text=True, timeout=120, check=True,
    )  # fmt: skip
    return done.stdout


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = write_synthetic_study(tmp_path_factory.mktemp("study"), outcomes={("deepnorm", 4, 2): "stuck"})
    return build_report(directory)


def test_the_page_shows_its_verdict_and_figures(report: Path, tmp_path: Path) -> None:
    document = browse(tmp_path, "--dump-dom", report.as_uri())
    assert "Lower loss with pre" in document
    assert len(re.findall(r"<figure>.*?<svg ", document, flags=re.DOTALL)) == len(
        list((report.parent / "figures").glob("*.svg"))
    )


@pytest.mark.parametrize("width", [390, 1280])
def test_nothing_overflows_sideways(report: Path, tmp_path: Path, width: int) -> None:
    probe = report.parent / f"probe-{width}.html"
    probe.write_text(PROBE.format(width=width), encoding="utf-8")
    document = browse(tmp_path, "--window-size=1600,1000", "--virtual-time-budget=5000", "--dump-dom", probe.as_uri())
    title = re.search(r"<title>(\{.*?\})</title>", document)
    assert title is not None, "the probe did not finish"
    assert '"overflow":0' in title[1]
    assert '"wide":""' in title[1]
    assert '"flat":0' in title[1]
    assert '"charts":0' not in title[1]
    assert '"verdict":0' not in title[1]


def test_the_screenshot_is_not_blank(report: Path, tmp_path: Path) -> None:
    picture = tmp_path / "report.png"
    browse(tmp_path / "profile", f"--screenshot={picture}", "--window-size=390,1200", report.as_uri())
    # A blank page of that size compresses to about 5 kB, the report to over 50.
    assert picture.stat().st_size > 20_000
