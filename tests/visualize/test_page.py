"""The page of attention: its content, and its use in Chromium with a mouse or with keys."""

import base64
import html
import json
import os
import pathlib
import re

import chromium
import numpy as np
import pytest

from keras_txf.visualize.page import AttentionPage, view_attention

SOURCE = ["[CLS]", "Ġa", "▁small", "dog", "[SEP]"]
TARGET = ["<s>", "</script><b>x", "  ", "ein", "Hund", "ein", "\n"]


def weights(heads, queries, keys, batch=1, seed=0):
    scores = np.exp(2 * np.random.default_rng(seed).normal(size=(batch, heads, queries, keys)))
    return scores / scores.sum(-1, keepdims=True)


def of_pair():
    """Scores of an encoder (2 layers, 3 heads) and a decoder (3 layers, 4 heads), not in the page's order."""
    scores = {f"encoder_{i}/attention": weights(3, 5, 5, seed=i) for i in range(2)}
    for i in range(3):
        scores[f"decoder_{i}/attention"] = np.tril(weights(4, 7, 7, seed=10 + i))
        scores[f"decoder_{i}/cross_attention"] = weights(4, 7, 5, seed=20 + i)
    return scores


def data_of(page):
    (text,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', page.html, re.DOTALL)
    return json.loads(text)


def layers_of(page):
    return {layer["name"]: layer for kind in data_of(page)["kinds"] for layer in kind["layers"]}


def decoded(layer, queries, keys):
    """The weights that the page shows."""
    array = np.frombuffer(base64.b64decode(layer["weights"]), "uint8")
    return (array.reshape(layer["heads"], queries, keys) / 255.0) ** 2


# --- what the page holds ---------------------------------------------------------------------------------------------


def test_layers_are_grouped_by_their_type_of_attention():
    data = data_of(view_attention(of_pair(), TARGET, SOURCE))
    assert (data["tokens"], data["source_tokens"]) == (TARGET, SOURCE)
    found = [(x["title"], x["queries"], x["keys"], [layer["name"] for layer in x["layers"]]) for x in data["kinds"]]
    assert found == [
        ("Encoder self-attention", "source_tokens", "source_tokens", [f"encoder_{i}/attention" for i in range(2)]),
        ("Decoder self-attention", "tokens", "tokens", [f"decoder_{i}/attention" for i in range(3)]),
        ("Cross-attention", "tokens", "source_tokens", [f"decoder_{i}/cross_attention" for i in range(3)]),
    ]
    scores = {"cross_attention_1": weights(2, 7, 5), "multi_head_self_attention": weights(2, 7, 7)}  # Keras' names
    titles = [kind["title"] for kind in data_of(view_attention(scores, TARGET, SOURCE))["kinds"]]
    assert titles == ["Decoder self-attention", "Cross-attention"]
    for name in ("encoder_0/attention", "decoder_0/attention", "mine", "cross_attention_lookalike/attention"):
        (kind,) = data_of(view_attention({name: weights(2, 3, 3)}, ["a", "b", "c"]))["kinds"]
        assert kind["title"] == "Self-attention" and kind["layers"][0]["name"] == name


def test_weights_are_within_a_two_hundredth():
    every = np.stack([np.linspace(0, 1, 1001), np.zeros(1001)])
    page = view_attention({"cross_attention": every[None, None]}, ["x", "y"], ["z"] * 1001)
    shown = decoded(layers_of(page)["cross_attention"], 2, 1001)[0]
    assert np.abs(shown - every).max() < 0.0045  # the three digits that are written add 0.0005
    assert not shown[1].any()


def test_the_example_is_chosen_and_padding_on_the_right_is_left_out():
    array = weights(2, 7, 5, batch=3)
    page = view_attention({"decoder_0/cross_attention": array}, TARGET[:4], SOURCE[:3], example=2)
    shown = decoded(layers_of(page)["decoder_0/cross_attention"], 4, 3)
    np.testing.assert_allclose(shown, array[2, :, :4, :3], atol=0.005)


@pytest.mark.parametrize("changed, message", [
    ({"scores": {}}, "`scores` must be a dict"), ({"scores": [weights(2, 3, 3)]}, "`scores` must be a dict"),
    ({"scores": {"a": "nonsense"}}, "`scores` must hold weights .* received 'nonsense' for 'a'"),
    ({"scores": {"a": weights(2, 3, 3)[0]}}, r"`scores` must hold weights .* received shape \(2, 3, 3\) for 'a'"),
    ({"scores": {"a": weights(2, 3, 3) - 1}}, "`scores` must be from 0 to 1; .* for 'a'"),
    ({"scores": {"a": weights(2, 3, 3) * np.nan}}, "`scores` must be from 0 to 1; received nan"),
    ({"tokens": ["x"] * 4}, r"`tokens` must have .* 'a' has queries, 3 in .*\(1, 2, 3, 3\); received 4 tokens"),
    ({"tokens": "abc"}, "`tokens` must be a list of strings"), ({"path": 3}, "`path` must be a path"),
    ({"tokens": []}, "`tokens` must hold a string for each token"), ({"source_tokens": []}, "`source_tokens` must h"),
    ({"scores": {"b/cross_attention": weights(2, 3, 3)}}, "`source_tokens` must be given for 'b/cross_attention'"),
    ({"scores": {"b/cross_attention": weights(2, 3, 2)}, "source_tokens": ["x"] * 3},
     "`source_tokens` must have at most as many items as 'b/cross_attention' has keys, 2 in .*; received 3 tokens"),
    ({"example": 1}, "`example` must be an integer from 0 to 0; received 1"),
])  # fmt: skip
def test_bad_arguments_raise_value_errors(changed, message):
    with pytest.raises(ValueError, match=message):
        view_attention(**{"scores": {"a": weights(2, 3, 3)}, "tokens": ["x", "y", "z"], **changed})


def test_the_page_names_nothing_outside_of_it_and_no_token_ends_the_script():
    text = view_attention(of_pair(), TARGET, SOURCE).html
    assert not re.findall(r"https?:|//[a-z]+\.|@import|url\(|\bfetch\(|XMLHttp|\bimport\b", text)
    assert set(re.findall(r"(?:src|href)\s*=\s*\S+", text)) == {'href="data:,">'}
    assert "default-src 'none'" in text
    page = view_attention({"a": weights(2, 3, 3)}, ["</script><b>", "<!--", "\ud800{{data}}"])
    assert "</script><b>" not in page.html and page.html.count("<!--") == 1  # the template's own
    assert data_of(page)["tokens"] == ["</script><b>", "<!--", "\ud800{{data}}"]


def test_twelve_layers_of_twelve_heads_over_128_tokens_are_below_5_megabytes(tmp_path):
    scores = {f"encoder_{i}/attention": weights(12, 128, 128) for i in range(12)}
    view_attention(scores, ["Ġtoken"] * 128, path=tmp_path / "page.html")
    assert 2e6 < os.path.getsize(tmp_path / "page.html") < 5e6


def test_the_page_is_written_whole_or_not_at_all(tmp_path, monkeypatch):
    path = tmp_path / "new" / "page.html"
    page = view_attention({"a": weights(2, 3, 3)}, ["x", "ÿ", "z"], path=str(path))
    assert isinstance(page, AttentionPage) and path.read_text(encoding="utf-8") == page.html

    def full(self, text, **options):
        self.write_bytes(text[:100].encode())
        raise OSError("No space left on device")

    monkeypatch.setattr(pathlib.Path, "write_text", full)
    with pytest.raises(ValueError, match="`path` must be a writable path; .*No space left"):
        view_attention({"a": weights(2, 2, 2)}, ["x", "y"], path=path)
    assert path.read_bytes().decode() == page.html and os.listdir(path.parent) == ["page.html"]


def test_a_notebook_shows_the_page_in_a_frame():
    page = view_attention(of_pair(), TARGET, SOURCE)
    (content,) = re.fullmatch(r'<iframe [^<>]*srcdoc="([^"<>]*)"></iframe>', page._repr_html_()).groups()
    assert html.unescape(content) == page.html


# --- what a reader meets ---------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def browser():
    with chromium.started() as driver:
        yield driver


class Reader:
    """Opens a page and uses it, as a person does."""

    def __init__(self, driver, folder):
        self.driver = driver
        self.file = folder / "page.html"

    def open(self, content, size=(1280, 800), dark=False):
        self.file.write_text(content, encoding="utf-8")
        chromium.set_screen(self.driver, size, dark)
        self.driver.get(self.file.as_uri())
        self.settle()

    def settle(self):
        """Waits until what was chosen is drawn: the page draws before each frame of the screen."""
        self.driver.execute_async_script("requestAnimationFrame(() => requestAnimationFrame(arguments[0]))")

    def all(self, selector):
        return self.driver.find_elements("css selector", selector)

    def one(self, selector):
        (found,) = self.all(selector)
        return found

    def select(self, selector, index):
        from selenium.webdriver.support.select import Select

        Select(self.one(selector)).select_by_index(index)
        self.settle()

    def hover(self, element):
        from selenium.webdriver import ActionChains

        self.driver.execute_script("arguments[0].scrollIntoView({block: 'nearest'})", element)
        ActionChains(self.driver, duration=0).move_to_element(element).perform()
        self.settle()

    def press(self, *names):
        from selenium.webdriver import ActionChains, Keys

        for name in names:
            ActionChains(self.driver).send_keys(getattr(Keys, name)).perform()
        self.settle()

    def token(self, side, index):
        return self.all(f"#{side} [role=option]")[index]

    def weights(self, side):
        """The numbers next to the tokens of a side; None if a token has no number."""
        texts = [found.text for found in self.all(f"#{side} .weight")]
        return [float(text) for text in texts] if any(texts) else None

    def focused(self):
        return self.driver.switch_to.active_element

    def script(self, code):
        return self.driver.execute_script(f"return {code}")

    def requests(self):
        """What was loaded or tried since this was last asked, without the page itself and what lies in it."""
        return [url for url in chromium.requests(self.driver) if url != self.file.as_uri()]


@pytest.fixture
def reader(browser, tmp_path):
    """A reader whose pages load nothing and log nothing."""
    reader = Reader(browser, tmp_path)
    reader.requests(), browser.get_log("browser")
    yield reader
    assert reader.requests() == [] and browser.get_log("browser") == []


SIZES = pytest.mark.parametrize("size", [(1280, 800), (420, 800)], ids=["wide", "narrow"])


@pytest.mark.drawn(4)
@SIZES
def test_a_layer_a_head_and_a_token_are_chosen_with_the_mouse(reader, size):
    scores = of_pair()
    reader.open(view_attention(scores, TARGET, SOURCE).html, size)
    assert reader.one("#one").text == "Layer 0, head 0" and reader.weights("keys") is None
    assert reader.script("document.documentElement.scrollWidth <= innerWidth")  # nothing is cut off on the right
    reader.all("#kinds input")[2].click()
    reader.select("#layer", 1)
    reader.select("#head", 3)
    assert reader.one("#one").text == "Layer 1, head 3"
    shown = scores["decoder_1/cross_attention"][0, 3]
    reader.hover(reader.token("queries", 4))
    np.testing.assert_allclose(reader.weights("keys"), shown[4], atol=0.005)
    top = SOURCE[shown[4].argmax()]
    weight = reader.weights("keys")[shown[4].argmax()]
    assert reader.one("#readout").text.startswith(f"“Hund” attends to “{top}”: {weight:.3f}")
    reader.hover(reader.token("keys", 2))
    np.testing.assert_allclose(reader.weights("queries"), shown[:, 2], atol=0.005)
    assert reader.weights("keys") is None
    reader.hover(reader.one("h1"))
    assert reader.weights("queries") is None
    reader.one("[aria-label='Layer 2, head 1']").click()  # of the model view
    reader.token("queries", 0).click()
    reader.hover(reader.one("h1"))
    stays = scores["decoder_2/cross_attention"][0, 1, 0]
    np.testing.assert_allclose(reader.weights("keys"), stays, atol=0.005)
    reader.one("#clear").click()
    reader.settle()
    assert reader.weights("keys") is None


@pytest.mark.drawn(4)
@SIZES
def test_a_layer_a_head_and_a_token_are_chosen_with_keys(reader, size):
    scores = of_pair()
    reader.open(view_attention(scores, TARGET, SOURCE).html, size)
    for name in ("RIGHT", "DOWN", "RIGHT", "RIGHT", "DOWN", "LEFT"):  # some lead nowhere
        reader.press(f"ARROW_{name}")
    assert reader.one("#one").text == "Layer 1, head 1"
    reader.press("TAB")
    reader.press("ARROW_RIGHT")  # among the kinds, where arrows choose as in every group of radio buttons
    assert reader.one("#kinds input:checked + span").text == "Decoder self-attention"
    reader.press("TAB", "TAB", "TAB", "ARROW_DOWN", "ARROW_DOWN", "ARROW_DOWN", "ARROW_UP", "ARROW_RIGHT")
    assert reader.focused() == reader.token("queries", 2) and reader.one("#one").text == "Layer 1, head 2"
    np.testing.assert_allclose(reader.weights("keys"), scores["decoder_1/attention"][0, 2, 2], atol=0.005)
    assert reader.script("getComputedStyle(document.activeElement).outlineStyle") == "solid"
    reader.press("TAB", "END")
    assert reader.focused() == reader.token("keys", 6)
    np.testing.assert_allclose(reader.weights("queries"), scores["decoder_1/attention"][0, 2, :, 6], atol=0.005)
    reader.press("TAB", "ARROW_DOWN", "ARROW_LEFT")  # in the model view
    assert reader.focused().get_attribute("aria-label") == "Layer 2, head 1"
    assert reader.focused().get_attribute("aria-pressed") == "true" and reader.one("#one").text == "Layer 2, head 1"
    np.testing.assert_allclose(reader.weights("queries"), scores["decoder_2/attention"][0, 1, :, 6], atol=0.005)
    reader.press("ESCAPE")
    assert reader.weights("queries") is None


def test_tokens_are_text(reader):
    reader.open(view_attention(of_pair(), TARGET, SOURCE).html)
    assert [found.text for found in reader.all("#keys bdi")] == SOURCE
    reader.all("#kinds input")[1].click()
    reader.settle()
    shown = ["<s>", "</script><b>x", "␣␣", "ein", "Hund", "ein", "↵"]
    assert [found.text for found in reader.all("#keys bdi")] == shown
    assert not reader.all("b")
    reader.hover(reader.token("queries", 5))
    assert reader.one("#readout").text.startswith("“ein” at 5 attends to ")  # there are two


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_lines_and_maps_are_drawn_in_the_scheme_of_the_reader(reader, dark):
    scores = {"a": weights(2, 3, 3), "b": weights(4, 3, 3, seed=1)}  # of unlike numbers of heads
    reader.open(view_attention(scores, ["x", "y", "z"]).html, dark=dark)
    pixels = "getContext('2d').getImageData(0, 0, {0}.width, {0}.height).data"
    canvas = "document.querySelector(\"[aria-label='Layer 1, head 3'] canvas\")"
    drawn = np.array(reader.script(f"[...{canvas}.{pixels.format(canvas)}]")).reshape(3, 3, 4)
    np.testing.assert_array_equal(drawn[..., 3], np.rint(255 * np.sqrt(scores["b"][0, 3])))
    lines = "document.querySelector('#lines')"
    ink = reader.script(f"[...{lines}.{pixels.format(lines)}].filter((_, i) => i % 4 == 3 && _ > 0).length")
    assert ink > 100
    background = reader.script("getComputedStyle(document.body).backgroundColor")
    assert (max(map(int, re.findall(r"\d+", background))) < 60) == dark
    assert len(reader.all("#grid button")) == 6


@pytest.mark.long
def test_long_texts_scroll_and_a_row_may_be_empty(reader):
    scores = {"a": weights(2, 90, 90)}
    scores["a"][0, 0, 81] = 0
    reader.open(view_attention(scores, [f"t{i}" for i in range(90)]).html)
    reader.hover(reader.token("queries", 81))
    assert reader.one("#readout").text == "“t81” attends to nothing." and set(reader.weights("keys")) == {0}
    reader.hover(reader.token("queries", 80))
    assert reader.script("document.querySelector('#panel').scrollTop") > 0
    np.testing.assert_allclose(reader.weights("keys"), scores["a"][0, 0, 80], atol=0.005)


def test_a_notebook_shows_the_frame(reader):
    scores = of_pair()
    reader.open("<!doctype html>" + view_attention(scores, TARGET, SOURCE)._repr_html_())
    reader.driver.switch_to.frame(0)
    reader.hover(reader.token("queries", 3))
    np.testing.assert_allclose(reader.weights("keys"), scores["encoder_0/attention"][0, 0, 3], atol=0.005)
    reader.driver.switch_to.default_content()


def test_the_reader_notices_requests_and_logs_of_a_page(reader):
    reader.open("<!doctype html><img src='http://127.0.0.1:9/x.png'><script>nonsense()</script>")
    assert reader.requests() == ["http://127.0.0.1:9/x.png"]
    assert any("nonsense" in entry["message"] for entry in reader.driver.get_log("browser"))
