"""Pages of HTML: whole in themselves, formulas set as they are written, the answer first."""

import re
import xml.etree.ElementTree as ET
from html.parser import HTMLParser

import pytest

from attnprof.record import Report, ReproduceRecord
from attnprof.render.html import formula_html, value_html
from attnprof.render.reproduction import reproduction_html
from attnprof.trace.solve import derive
from tests.browser import expect_accessible, needs_browser, open_page
from tests.cli.conftest import derived_once

VOID = {"meta", "img", "input", "br", "link"}


@pytest.fixture(autouse=True, scope="module")
def once():
    """A page is shown several times, and derived once."""
    with derived_once(derive):
        yield


class Outline(HTMLParser):
    """What a page holds: links, ids, headings, and whether each element is closed."""

    def __init__(self, text):
        super().__init__()
        self.links, self.ids, self.open, self.heads = [], [], [], []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        fields = dict(attributes)
        self.links += [fields[name] for name in ("src", "href", "xlink:href") if name in fields]
        self.ids += [fields["id"]] if "id" in fields else []
        self.heads += [(tag, fields)] if tag in ("th", "caption") else []
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        if tag not in VOID:
            assert self.open.pop() == tag


def plain(node):
    """The text of MathML, with a sign for what is above or below."""
    parts = [plain(part) + (part.tail or "") for part in node]
    sign = {"msup": "^", "msub": "_", "mfrac": "/"}.get(node.tag, "")
    return (node.text or "") + sign.join(parts)


@pytest.mark.parametrize(("text", "shown"), [
    ("4*B*N**2*d*h + 6*B*N**2*h", "4BN^2dh +6BN^2h"),
    ("2*8030261248", "2·8030261248"),
    ("(a + b)*c - d", "(a+b)c −d"),
    ("a - (b - c)", "a −(b−c)"),
    ("2097152*B*ceiling(N/16)", "2097152B⌈N/16⌉"),
    ("(a/b)**2", "(a/b)^2"),
    ("-a**(1/2)", "−a^1/2"),
    ("Max(8*B*N, 4*N**2)", "max(8BN, 4N^2)"),
    ("chunk*N", "chunk·N"),
    ("d_model*h", "d_modelh"),
    ("B, N, h >= 2", "B, N, h≥2"),
    ("at least 4*N", "at least 4N"),
    ("2 d^2 is no formula", "2 d^2 is no formula"),
    ("0.1 of the memory", "0.1 of the memory"),
])  # fmt: skip
def test_a_formula_is_set_as_it_is_written(text, shown):
    html = str(formula_html(text))
    assert plain(ET.fromstring(f"<r>{html.replace('&#x2062;', '')}</r>")) == shown
    assert ("<code>" in html) is ("is no formula" in text)
    assert ("<math>" in html) is (" of " not in text and "is no" not in text)


def test_a_sum_of_hundreds_of_terms_is_set_and_what_is_too_deep_stays_text():
    assert str(formula_html(" + ".join(["N*d"] * 900))).count("<math>") == 900
    deep = "(" * 5000 + "N" + ")" * 5000
    assert formula_html(deep) == deep


def test_texts_without_a_formula_s_signs_stay_texts():
    assert value_html("rows & columns") == "rows &amp; columns"
    assert "<msup>" in value_html("l^2*d")
    assert "<mfrac>" in value_html("127/512")


COMMANDS = {
    "derive": "derive linear --scope core --phase forward",
    "fit": "fit llama-3.2-1b --memory 8GB",
    "compare": "compare --attention standard,linear --seq 64",
    "reproduce": "reproduce 002 --table 5",
}


@pytest.mark.parametrize("command", COMMANDS)
def test_a_page_is_whole_in_itself_and_says_the_answer_first(answered, command):
    ended = answered(COMMANDS[command], "--format html")
    assert (ended.code, ended.out[:15]) == (0, "<!DOCTYPE html>")
    outline = Outline(ended.out)
    assert all(link.startswith("#") for link in outline.links)
    assert {link[1:] for link in outline.links} <= {*outline.ids}
    assert len(outline.ids) == len({*outline.ids})
    assert all("scope" in given for tag, given in outline.heads if tag == "th")
    assert not re.search(r"url\((?!#)|@import|<link|src=", ended.out)
    data = answered(COMMANDS[command], "--format json").json
    answer = str(data["summary"].get("answer", "")).strip()
    if command == "fit":  # a sentence that begins with no name
        answer = answer[:1].upper() + answer[1:]
    assert f'<p class="answer">{answer}' in ended.out or not answer


def test_a_page_shows_the_formulas_and_the_figure(answered):
    page = answered(COMMANDS["fit"], "--format html").out
    assert 'role="img" aria-label="What one rank holds' in page
    assert "<svg" in page
    assert 'title="2*1235814400"' in page or "<mn>2</mn><mo>·</mo>" in page


SWEEP = "sweep --attention linear --seq 8,16 --d-model 16 --heads 2 --in-process --samples 3"


def test_a_sweep_has_its_curves(answered):
    page = answered(SWEEP, "--format html").out
    Outline(page)
    assert page.count("<figure>") == 1
    assert "Median time and peak memory over sequence length" in page


def test_a_derivation_has_curves_where_it_has_formulas_in_the_length(attnprof):
    page = attnprof(COMMANDS["derive"], "--at B=1,N=512,h=4,d=64 --format html").out
    (alt,) = re.findall(r'role="img" aria-label="([^"]+)"', page)
    assert alt.startswith("FLOPs, bytes moved and peak memory over sequence length")
    assert "FLOPs grow" in alt
    assert "B = 2, h = 8, d = 64" in page  # one of a batch is another case
    assert "<figure>" not in attnprof("derive torch:lgamma --input", ("input: 3, d",),
                                      "--format html --phase forward").out  # fmt: skip


def claim(name, published, ours, verdict="erratum"):
    return ReproduceRecord(
        claim=name, document="002", place="Sec 1", says=f"what {name} says", published=published,
        ours=ours, verdict=verdict, basis="computed", how="by hand", why="it is so",
    )  # fmt: skip


def page_of(*records):
    counts = {"title": "A document", "claims": len(records), "readings": 0}
    verdicts = ("match", "erratum", "not-reproducible", "error")
    counts |= {verdict: sum(r.verdict == verdict for r in records) for verdict in verdicts}
    summary = {"answer": "some claims", "documents": {"002": counts}}
    return reproduction_html(Report("reproduce", records, summary), {})


def test_claims_are_sentences_by_how_far_they_are_off_and_matches_are_folded():
    near = [claim(f"near{n}", 100, 100.5) for n in range(5)]
    page = page_of(
        *near, claim("far", 1, 4), claim("no", True, False), claim("right", 1, 1, "match")
    )
    Outline(page)
    first = re.findall(r'id="(\w+)-first"', page)
    assert first == ["far", "no", "near0", "near1", "near2"]
    assert re.findall(r'<details class="fold"( open)?>', page) == [" open", "", ""]
    entry = page.split('id="far"')[1].split("</details>")[0]
    assert re.match(r".*<summary>what far says <span", entry, re.DOTALL)
    for words in ('class="badge erratum red">erratum', 'class="badge full">major', "1 → 4"):
        assert words in entry
    assert "does not hold" in page.split('id="no"')[1].split("</details>")[0]


def test_what_somebody_named_is_text_on_a_page():
    page = page_of(claim("hostile", "<script>alert(1)</script>", '"><b>'))
    Outline(page)
    assert page.count("<script>") == 1


# -- in a real browser: nothing serious by axe-core, no wider than a telephone, searchable ---
PAGES = {
    **COMMANDS,
    "model": "model 001-lm-dot --seq 64 --phase forward",
    "claims": "reproduce --claim 002-INF-self_attention-add,002-TR-me-mult",
    "sweep": SWEEP,
}
VIEWS = ({"width": 1280}, {"width": 390, "dark": True})
#: Unfolds everything; by how much the page is wider than its window.
WIDE = """document.querySelectorAll("details").forEach(fold => { fold.open = true; });
document.documentElement.scrollWidth - document.documentElement.clientWidth"""
#: What is left after a search for nothing that is there; whether one finds the last item.
SEARCH = r"""(() => {
  const field = document.querySelector("input[type=search]");
  const type = text => { field.value = text; field.dispatchEvent(new Event("input")); };
  type("zzz");
  const left = document.querySelectorAll("[data-find]:not([hidden])").length;
  const last = [...document.querySelectorAll("[data-find]")].at(-1);
  type(last.textContent.trim().split(/\s+/)[0]);
  const found = last.checkVisibility();
  type("");
  return [left, found];
})()"""


@needs_browser
@pytest.mark.parametrize("name", PAGES)
def test_a_page_has_no_serious_finding_and_fits_its_window(answered, tmp_path, name):
    path = tmp_path / "page.html"
    path.write_text(answered(PAGES[name], "--format html").out, encoding="utf-8")
    assert '<p class="answer">' in path.read_text(encoding="utf-8")
    views = [open_page(path, scripts=(WIDE, SEARCH), audit=True, **how) for how in VIEWS]
    for seen in views:
        assert seen.requests == [path.as_uri()]
        assert seen.values == [0, [0, True]]
    expect_accessible(*views)


@needs_browser
def test_the_explorer_has_no_serious_finding(attnprof, tmp_path):
    path = tmp_path / "page.html"
    assert attnprof(f"explore standard linear -o {path}").code == 0
    views = [open_page(path, scripts=(WIDE,), audit=True, **how) for how in VIEWS]
    assert [(seen.requests, seen.values) for seen in views] == [([path.as_uri()], [0])] * 2
    expect_accessible(*views)
