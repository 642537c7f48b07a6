"""`regard.check` as its callers meet it: options, what is assumed, errors, and the report itself."""

import json

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from regard.checker import CheckError, Report, check
from regard.checker.examples import TEMPLATES
from tests.checker.corpus import Entry, Program, right, undecided, wrong
from tests.checker.layers import FourLayers, FusedHeads
from tests.checker.planting import load

HEAD, LAYER = TEMPLATES["head"], TEMPLATES["layer"]


class Projected(FusedHeads):
    """Right, and silent about what it is."""

    def __init__(self, d_model, num_heads, rule="causal"):
        super().__init__(d_model, num_heads)
        self.rule = rule

    def attend(self, q, k, v):
        future = torch.ones(q.shape[-2], q.shape[-2], dtype=torch.bool).triu(1)
        mask = {"causal": ~future, "full": None, "inverted": future}[self.rule]
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)


class CausalProjected(Projected):
    pass


class DrawnGain(FusedHeads):
    """It multiplies its output by numbers that were drawn, and that no state_dict holds."""

    def __init__(self, d_model, num_heads):
        super().__init__(d_model, num_heads)
        self.register_buffer("gain", torch.randn(d_model), persistent=False)

    def forward(self, x):
        return super().forward(x) * self.gain


def test_nothing_of_the_callers_module_is_touched():
    module = Projected(32, 4).train()
    before = {name: t.clone() for name, t in module.state_dict().items()}
    state = torch.random.get_rng_state()
    check(module)
    assert module.training
    assert all(torch.equal(t, before[name]) for name, t in module.state_dict().items())
    assert all(p.grad is None for p in module.parameters())
    assert torch.equal(state, torch.random.get_rng_state())


class Odd(nn.Module):
    def __init__(self, wibble):
        super().__init__()

    def forward(self, x):
        return x


class Failing(nn.Module):
    def __init__(self, d_model):
        super().__init__()
        raise RuntimeError("no such model\nand more")

    def forward(self, x):
        return x


def needs_more(q, k, v, cu_seqlens_q, cu_seqlens_k, frobnication):
    raise AssertionError


class NeedsMore(nn.Module):
    def forward(self, x, zork):
        return x


@pytest.mark.parametrize(
    ("thing", "options", "says"),
    [
        (Odd, {}, "Odd needs `wibble`.*--with wibble="),
        (Odd, {"wobble": 3, "wibble": 1}, "Odd takes no `wobble`; it takes wibble"),
        (Failing, {}, "RuntimeError: no such model;"),
        (NeedsMore(), {}, "needs `zork`"),
        (needs_more, {}, "frobnication"),
        (Projected(32, 4), {"d_model": 4}, "built already"),
        (3, {}, "expected a function, an nn.Module"),
        (nn.Linear(3, 3), {}, "not an attention"),
        (lambda q, k, v: "text", {}, "returned a str; expected a tensor"),
        (lambda q, k, v: None, {}, "returned nothing"),
        (lambda q, k, v: q.nope, {}, "could not be run.*AttributeError"),
        (lambda: 0, {}, "takes no arguments"),
    ],
)
def test_what_cannot_be_checked_is_answered_in_a_line(thing, options, says):
    with pytest.raises(CheckError, match=says) as caught:
        check(thing, **options)
    assert "\n" not in str(caught.value)


def test_an_unknown_mistake_shows_the_smallest_failing_case():
    def odd(q, k, v):
        """Scaled dot-product attention."""
        return torch.softmax(q @ k.mT / q.shape[-1] ** 0.5 + 0.37 * torch.arange(k.shape[-2]) ** 2, -1) @ v

    report = check(odd)
    assert report.verdict == "wrong"
    assert report.diagnoses == []
    assert "smallest failing case" in report.example
    assert "q (1, 1, 2, 10)" in report.example
    assert "expected" in report.example


FORWARD = "def forward(self, x, cache=None):"
CONTINUED = LAYER.replace(FORWARD, "def forward(self, x, memo=None):\n        cache = memo")


def test_the_report_as_text_json_and_table():
    report = check(lambda q, k, v: torch.softmax(q @ k.mT, -1) @ v)
    assert "WRONG" in report.summary
    assert "no-scale" in str(report)
    assert report.diagnoses[0].fix in str(report)
    assert repr(report) == f"Report({report.summary})"
    assert "\n" not in repr(report)
    data = json.loads(report.to_json())
    assert data["ok"] is False
    assert data["diagnoses"][0]["name"] == "no-scale"
    assert data["diagnoses"][0]["error"] < 1e-12
    again = Report.from_dict(data)
    assert str(again) == str(report)
    assert "no-scale" in report._repr_html_()


class OwnCache:
    """A cache with a method of its own, which nobody can guess."""

    def __init__(self):
        self.pairs = []

    def push(self, k, v):
        self.pairs.append((k, v))
        return (torch.cat(parts, 2) for parts in zip(*self.pairs, strict=True))


class OnlyCached(FourLayers):
    """Attention that runs only with a cache; `late` masks as if the new tokens were the first."""

    def __init__(self, d_model, num_heads, late=False):
        super().__init__(d_model, num_heads)
        self.late = late

    def forward(self, x, kv_cache):
        q, k, v = self.project(x, x, x)
        k, v = kv_cache.push(k, v)
        T, S = q.shape[2], k.shape[2]
        allowed = torch.ones(T, S, dtype=torch.bool).tril(0 if self.late else S - T)
        return self.finish(F.scaled_dot_product_attention(q, k, v, attn_mask=allowed))


def own_step(module, x, cache):
    cache = OwnCache() if cache is None else cache
    return module(x, cache), cache


@pytest.mark.parametrize("only_cached", [False, True])
def test_an_adapter_that_raises_leaves_the_verdict_of_right_code_open(only_cached):
    layer = OnlyCached if only_cached else load(CONTINUED, "CausalAttention")

    def step(module, x, cache):
        raise KeyError("no such layer")

    report = check(layer, cached=step)
    assert report.verdict == "undecided"
    line = step.__code__.co_firstlineno + 1
    assert f"cached= raised KeyError: 'no such layer' (test_check.py, line {line})" in report.undecided


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("window", -1), ("heads", 0), ("softcap", -1.0), ("scale", float("nan")), ("device", "tpu")),
        ("true_means", "see"),
    ],
)
def test_a_promise_that_no_attention_can_keep_is_refused(name, value):
    with pytest.raises(ValueError, match=f"{name}: expected"):
        check(F.scaled_dot_product_attention, **{name: value})


def true_means_hide(q, k, v, mask=None):
    scores = q @ k.mT * q.shape[-1] ** -0.5
    return torch.softmax(scores if mask is None else scores.masked_fill(mask, -torch.inf), -1) @ v


class Gated(Projected):
    def __init__(self):
        super().__init__(32, 4)
        self.gate = nn.Parameter(torch.ones(32))

    def forward(self, x):
        return super().forward(x) * torch.sigmoid(self.gate)


def unscaled(q, k, v):
    return torch.softmax(q @ k.mT, -1) @ v


def divided_by_eight(q, k, v):
    return torch.softmax(q @ k.mT / 8, -1) @ v


def no_softmax(q, k, v):
    return torch.softmax(q @ k.mT / q.shape[-1] ** 0.5, -1) @ v + 0.37 * v.cumsum(-2)


KEPT = LAYER.replace("return out, cache", "self.kept = cache\n        return out")
PLAIN = HEAD.replace('self.register_buffer("mask", ', "self.mask = (").replace(", persistent=False)", ")")
PLAIN = PLAIN.replace("return out", "return out, weights")
SAVED = Program(HEAD.replace(", persistent=False", ""), "CausalHead")


@pytest.mark.parametrize(
    "entry",
    [
        # Without a word behaviour decides; what the caller or the class says is binding.
        right(Projected(32, 4, "causal"), "as its output shows"),
        right(Projected(32, 4, "full"), "as its output shows"),
        wrong(Projected(32, 4, "full"), "no-mask", causal=True),
        undecided(Projected(32, 4, "causal"), "a mask that the check does not know", causal=False),
        wrong(
            CausalProjected(32, 4, "full"),
            "no-mask",
            says=["failed output", "failed causality", "as its code declares"],
        ),
        pytest.param(  # as in a published notebook
            wrong(Projected(32, 4, "inverted"), "inverted-mask"),
            marks=pytest.mark.at_length("test_the_verdict"),
        ),
        undecided(true_means_hide, "say true_means='hide'"),
        wrong(true_means_hide, "inverted-mask", true_means="look"),
        right(true_means_hide, true_means="hide"),
        wrong(divided_by_eight, "constant-scale", says=["1/√64"]),
        right(unscaled, scale=1.0),
        undecided(no_softmax, "rows of weights sum to between 1.4 and 2.9, not to 1", "oracle="),
        # Arguments of a constructor are guessed or given.
        right(Projected, "4 heads of 12", gradients=False),
        right(Projected, "8 heads of 8", d_model=64, num_heads=8, gradients=False),
        right(Gated(), "assumed compared from `qkv` to `proj`"),
        pytest.param(
            wrong(DrawnGain, "plain-attribute", says=["saved and loaded, it gives another output"]),
            marks=pytest.mark.at_length("test_a_wrong_table_in_a_buffer_is_found_and_a_random_one_shared"),
        ),
        Entry("plain attribute", Program(PLAIN, "CausalHead"), {}, "wrong", ("plain-attribute",)),
        Entry("saved mask", SAVED, says=("warned of persistent-mask", "1 warning")),
        Entry("saved mask, strict", SAVED, {"strict": True}, "wrong"),
        # A cache that nobody can guess.
        Entry("kept", Program(KEPT, "CausalAttention"), says=("def step(module, x, cache)",)),
        undecided(OnlyCached, "runs only with a cache in `kv_cache`", "cached=step"),
        right(OnlyCached, "passed cache", cached=own_step),
        wrong(OnlyCached, "top-left-causal", cached=own_step, late=True),
    ],
    ids=str,
)
def test_the_report(entry):
    entry.judge()
