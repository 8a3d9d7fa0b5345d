"""The page as a parser sees it."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest

from retexo_fl.errors import CheckpointError
from retexo_fl.ledger import Volume
from retexo_fl.report import write_report
from tests.unit.report.runs import Recipe, events, ledger, write_events, write_run, write_unfinished

_VOID = {"meta", "br", "hr", "img", "link", "input"}


class Page(HTMLParser):
    """Collects what a page says; fails on tags that are not closed in order."""

    def __init__(self, path: Path) -> None:
        super().__init__(convert_charrefs=True)
        self.source = path.read_text(encoding="utf-8")
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[tuple[str, str]] = []
        self.feed(self.source)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in _VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] not in {"style", "script"}:
            self.texts.append((self.open[-1], data))

    def said(self, *tags: str) -> list[str]:
        return [text for tag, text in self.texts if not tags or tag in tags]

    def text(self) -> str:
        return "\n".join(text for _, text in self.texts)

    def having(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.tags if name == tag]


def _page(folder: Path, recipe: Recipe) -> Page:
    return Page(write_report(write_run(folder, recipe)))


def test_report_loads_nothing(tmp_path: Path) -> None:
    page = _page(tmp_path, Recipe())
    loading = {"src", "href", "srcset", "data", "poster", "action", "xlink:href"}
    assert not [item for item in page.tags if loading & item[1].keys()]
    assert not {"link", "iframe", "img", "object", "embed", "base"} & {tag for tag, _ in page.tags}
    for reference in ("http://", "https://", "url(", "@import", "fetch(", "@font-face"):
        assert reference not in page.source
    policies = [item.get("content") or "" for item in page.having("meta")]
    assert any("default-src 'none'" in policy for policy in policies)


def test_report_states_headline_figures(tmp_path: Path) -> None:
    page = _page(tmp_path, Recipe())
    # 2 * 50 rounds of 33,300 + 140, and exchanges of 190,000 and 95,000: 3,629,000 bytes.
    assert page.said("b") == ["91.4 %", "93.0 %", "3.6 MB", "285 kB", "4.83 s", "5"]
    assert "7.9 % of all" in page.text()
    assert "payload; raw 8.9 MB" in page.text()
    assert page.said("h1") == ["digits"]
    assert "sage · lazy · 5 clients · engine inline · seed 7" in page.text()


def test_report_states_every_table_figure(tmp_path: Path) -> None:
    text = _page(tmp_path, Recipe()).text().split("\n")
    bytes_by_kind = ["285 kB", "7.85 %", "570 kB", "1.7 MB", "45.88 %", "6.7 MB", "14.0 kB"]
    predicted = ["559 kB", "+2.00 %", "+0.13 %"]
    versions = ["retexo-fl 0.1.0 · torch 2.13.0 · flwr 1.41.0 · python 3.11.9 · numpy 2.4.1"]
    machine = ["AMD EPYC 7B13 · 2 cores · 7.8 GiB", "job 5f0c2a9e41d7"]
    config = ["hidden-width", "64", "partitioner", "metis", "learning-rate", "0.01"]
    for expected in [*bytes_by_kind, *predicted, *versions, *machine, *config]:
        assert expected in text
    assert any("70.0 MB: 7.87 times what" in line for line in text)


def test_report_marks_best_rounds_and_stages(tmp_path: Path) -> None:
    page = _page(tmp_path, Recipe())
    labels = page.said("text")
    assert labels.count("stage 0") == labels.count("stage 1") == 2  # wide and narrow drawing
    assert labels.count("93.0 %, round 37") == 2
    # Two exchanges, on both drawings.
    assert len([rect for rect in page.having("rect") if rect.get("class") == "band"]) == 4


def test_report_has_one_axis_of_bytes_though_a_stage_is_narrow(tmp_path: Path) -> None:
    # 1.86 MB for the first stage, 0.1 MB for an exchange and one round of the second.
    run = write_unfinished(tmp_path, Recipe(), rounds=1, state="failed")
    page = Page(write_report(run))
    assert page.said("text").count("stage 0") == page.said("text").count("stage 1") == 2
    for size in ("wide", "narrow"):
        (drawing,) = re.findall(rf'accuracy-chart-{size}-title">.*?</svg>', page.source)
        ticks = re.findall(r'x="([\d.]+)" y="[\d.]+" text-anchor="middle">([\d.]+)( MB)?<', drawing)
        places = [float(x) for x, _, _ in ticks]
        values = [float(value) for _, value, _ in ticks]
        assert values[0] == 0
        assert len(values) >= 2
        scale = (places[-1] - places[0]) / values[-1]
        assert places == pytest.approx([places[0] + scale * value for value in values], abs=0.2)
        # The second stage begins where its bytes do.
        starts = re.findall(r'class="divide" x1="([\d.]+)"', drawing)
        assert float(starts[1]) == pytest.approx(places[0] + scale * 1.862, abs=0.2)


def test_report_shows_where_a_table_goes_on(tmp_path: Path) -> None:
    page = _page(tmp_path, Recipe())
    regions = [item for item in page.having("div") if item.get("class") == "scroll"]
    assert len(regions) == len(page.having("table"))
    assert all(item["tabindex"] == "0" and item["aria-label"] for item in regions)
    # Covers that scroll with the table, and shadows that stay.
    (style,) = re.findall(r"\n\.scroll \{(.*?)\}", page.source, re.S)
    assert style.count(" local") == style.count(" scroll,") == 2


def test_report_drawings_name_and_describe_themselves(tmp_path: Path) -> None:
    page = _page(tmp_path, Recipe())
    identifiers = [item["id"] for _, item in page.tags if item.get("id")]
    assert len(identifiers) == len(set(identifiers))
    drawings = page.having("svg")
    assert len(drawings) == 12  # accuracy, 2 stages of 2, kinds; each wide and narrow
    for drawing in drawings:
        assert drawing["role"] == "img"
        assert set((drawing["aria-labelledby"] or "").split()) <= set(identifiers)
    assert any("Stage 1 was best in round 37" in text for text in page.said("desc"))


def test_report_points_answer_with_values(tmp_path: Path) -> None:
    tips = _page(tmp_path, Recipe()).said("title")
    assert "stage 1, round 37: 93.00 % at 3.2 MB" in tips
    assert "updates up: payload 1.7 MB, raw 6.7 MB" in tips


def test_report_escapes_every_text(tmp_path: Path) -> None:
    hostile = "<script>alert('x')</script>&\"'"
    page = _page(tmp_path, Recipe(dataset=hostile, config={"note": hostile}))
    assert page.said("h1") == [hostile]
    assert hostile in page.said("td")
    assert len(page.having("script")) == 1
    assert "<script>alert" not in page.source


def test_report_of_unfinished_run_says_so(tmp_path: Path) -> None:
    page = Page(write_report(write_unfinished(tmp_path, Recipe(), rounds=21, state="failed")))
    assert any(
        "Run not finished: state failed (ExchangeIncomplete: client 3" in text
        for text in page.said("p")
    )
    assert "failed" in page.said("span")
    assert "21 of 50 rounds, best in round 21, 1,234 vectors exchanged." in page.said("p")
    assert "stage 1, round 21" in page.said("span")


def test_report_of_unfinished_run_counts_bytes(tmp_path: Path) -> None:
    recipe = Recipe()
    page = Page(write_report(write_unfinished(tmp_path, recipe, rounds=21, state="running")))
    # Stage 0 moved 1,862,000 bytes, then an exchange of 95,000 and 21 rounds of 33,440.
    assert page.said("b") == ["90.8 %", "2.7 MB", "3.60 s", "5"]
    assert "Bytes by kind" not in page.said("h2")
    (tmp_path / "ledger.csv").write_text(ledger(recipe).to_csv(), encoding="utf-8")
    page = Page(write_report(tmp_path))
    assert page.said("b") == ["90.8 %", "3.6 MB", "285 kB", "3.60 s", "5"]
    assert "Bytes by kind" in page.said("h2")


def test_report_without_rounds_is_written(tmp_path: Path) -> None:
    write_run(tmp_path, Recipe())
    (tmp_path / "result.json").unlink()
    (tmp_path / "ledger.csv").unlink()
    write_events(tmp_path, events(Recipe())[:2])
    page = Page(write_report(tmp_path))
    assert any(text.endswith("No round was finished.") for text in page.said("p"))
    write_events(tmp_path, [])
    assert Page(write_report(tmp_path)).having("svg") == []


def test_report_says_what_a_stages_mini_batches_read(tmp_path: Path) -> None:
    recipe = Recipe()
    write_run(tmp_path, recipe)
    counts = {"batches": 2, "rows": 10, "hits": 4, "misses": 6, "gpu_bytes": 240, "cpu_bytes": 0}
    read = {"event": "cached_rows", "stage": 1, "cached": counts, "bytes_payload": 3_600_000}
    *before, end = events(recipe)
    write_events(tmp_path, [*before, read, end])
    said = [text for text in Page(write_report(tmp_path)).said("p") if "in mini-batches" in text]
    assert [text.partition("exchanged, ")[2] for text in said] == [
        "10 rows read in mini-batches, 4 cached (40.0 %), 6 not, 240 B copied to GPUs."
    ]


def test_report_of_many_clients_is_cut_and_summarised(tmp_path: Path) -> None:
    recipe = Recipe(clients=1000)
    path = write_report(write_run(tmp_path, recipe))
    page = Page(path)
    heads = page.said("th")
    assert "199" in heads
    assert "200" not in heads
    assert {"least", "10 %", "median", "90 %", "most"} <= set(heads)
    assert "The first 200 of 1,000 clients:" in page.said("p")
    assert path.stat().st_size < 400_000


def test_report_of_many_rounds_stays_small(tmp_path: Path) -> None:
    path = write_report(write_run(tmp_path, Recipe(rounds=5000)))
    assert path.stat().st_size < 400_000
    page = Page(path)
    assert "Rounds as a table (every 84th, the best and the last)" in page.said("summary")
    assert {"3,750", "5,000"} <= set(page.said("th"))


def test_report_of_single_round_has_its_row(tmp_path: Path) -> None:
    page = _page(tmp_path, Recipe(rounds=1, stages=1, plan=False))
    assert "1 round, best in round 1, 1,234 vectors exchanged." in page.said("p")
    assert "88.00 %" in page.said("td")
    assert "Predicted and measured" not in page.said("h2")


def test_report_without_scored_nodes_shows_losses_only(tmp_path: Path) -> None:
    page = _page(tmp_path, Recipe(accuracies=False))
    assert page.said("b") == ["3.6 MB", "285 kB", "4.83 s", "5"]
    assert page.said("span")[1:3] == ["\u2013", "not evaluated"]
    assert page.said("figcaption") == ["Loss", "Loss"]
    assert page.said("text").count("training") == 4
    assert "nan" not in page.source.lower().replace("pointerleave", "")
    assert "None" not in page.text()


def test_report_counts_one_as_one(tmp_path: Path) -> None:
    page = _page(tmp_path, Recipe(clients=1, rounds=1, missing=1))
    said = page.text()
    assert "sage · lazy · 1 client · engine" in said
    assert "1 round, best in round 1" in said
    assert "without 1 boundary row, missing" in said
    assert not re.search(r"(?<![\d.,])1 (clients|nodes|rounds|vectors|boundary rows)", page.source)


def test_report_notes_missing_rows(tmp_path: Path) -> None:
    page = _page(tmp_path, Recipe(missing=1037))
    told = "The stages were trained without 1,037 boundary rows, missing when "
    assert any(text.startswith(told) for text in page.said("p"))
    complete = _page(tmp_path / "complete", Recipe())
    assert not any("missing" in text for text in complete.said("p"))


def test_report_notes_rounds_without_some_clients(tmp_path: Path) -> None:
    run = write_run(tmp_path, Recipe())
    result = json.loads((run / "result.json").read_text())
    (run / "result.json").write_text(json.dumps(result | {"absences": {"2": 3, "10": 1}}))
    page = Page(write_report(run))
    assert "Rounds were closed without some clients (client 2: 3, client 10: 1)." in page.said("p")
    (run / "result.json").write_text(json.dumps(result | {"absences": {}}))
    assert not any("without some" in text for text in Page(write_report(run)).said("p"))


def test_report_of_masked_run_says_whose_sums_the_server_saw(tmp_path: Path) -> None:
    recipe = Recipe(config={"secure-aggregation": "masked"}, rounds=90)
    plain = _page(tmp_path / "plain", Recipe(rounds=90))
    for text in ("masks", "clients in the sum", "values cut", "without clients"):
        assert text not in plain.said("th", "td"), text
    run = write_run(tmp_path / "run", recipe)
    found = events(recipe)
    for event in (one for one in found if one["event"] == "round"):
        is_short = (event["stage"], event["round"]) == (0, 12)
        event.update({"summed": 4, "absent": [777]} if is_short else {"summed": 5})
        event["cut"] = event["round"] * (1 - event["stage"])
    write_events(run, found)
    book = ledger(recipe)
    account, _ = book.lines()[0]
    book.add(replace(account, kind="masks"), Volume(messages=1, payload=4321, wire=None))
    (run / "ledger.csv").write_text(book.to_csv())
    result = json.loads((run / "result.json").read_text())
    (run / "result.json").write_text(json.dumps(result | {"bytes": book.totals()}))
    page = Page(write_report(run))
    assert (
        "Sums were masked: the server saw those over whole cohorts, and of no client its own. The "
        "cohorts of a round's updates had 4 to 5 clients in all. 4,095 values exceeded their steps "
        "and were cut."
    ) in page.said("p")
    assert any("Masks: their keys." in text for text in page.said("p"))
    assert page.said("td").count("4.3 kB") == 2
    # Of stages with more rounds than are shown, each that lacks a client is.
    assert page.said("td").count("777") == 1
    assert page.said("th").count("clients in the sum") == 2
    assert page.said("th").count("values cut") == 1


def test_report_sorts_by_plain_values(tmp_path: Path) -> None:
    page = _page(tmp_path, Recipe())
    tables = [item for item in page.having("table") if "sortable" in (item.get("class") or "")]
    assert len(tables) == 3  # rounds of two stages, clients
    values = [item["data-value"] for item in page.having("td") if "data-value" in item]
    assert all(float(value or "x") is not None for value in values)


def test_report_is_replaced_whole(tmp_path: Path) -> None:
    path = write_report(write_run(tmp_path, Recipe()))
    first = path.read_bytes()
    assert write_report(tmp_path) == path
    assert path.read_bytes() == first
    assert [item.name for item in tmp_path.glob("report*")] == ["report.html"]


def test_report_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    write_run(tmp_path, Recipe())
    (tmp_path / "report.html").mkdir()  # where the file should stand
    with pytest.raises(CheckpointError, match=r"report\.html: could not be written"):
        write_report(tmp_path)
    assert not list(tmp_path.glob("*.part"))
