"""`regard.check` as its callers meet it: options, what is assumed, errors, and the report itself."""

import json

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from regard.checker import CheckError, Report, check
from regard.checker.examples import TEMPLATES
from tests.checker.layers import FusedHeads
from tests.checker.planting import load

HEAD, LAYER = TEMPLATES["head"], TEMPLATES["layer"]


def by_name(checks):
    return {c.name: c for c in checks}


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


@pytest.mark.parametrize("rule", ["causal", "full"])
def test_without_a_word_behaviour_decides(rule):
    report = check(Projected(32, 4, rule))
    assert report.ok, str(report)
    assert any("as its output shows" in line for line in report.assumptions)


def test_what_the_caller_says_is_binding():
    assert check(Projected(32, 4, "full"), causal=True).diagnoses[0].name == "no-mask"
    assert not check(Projected(32, 4, "causal"), causal=False).ok


def test_a_class_called_causal_must_be_causal():
    report = check(CausalProjected(32, 4, "full"))
    assert report.diagnoses[0].name == "no-mask"
    assert {"output", "causality"} <= {c.name for c in report.failures}
    assert any("as its code declares" in line for line in report.assumptions)


@pytest.mark.at_length("test_the_verdict")
def test_the_inverted_mask_of_a_published_notebook_is_named_without_a_hint():
    report = check(Projected(32, 4, "inverted"))
    assert not report.ok
    assert report.diagnoses[0].name == "inverted-mask"


def test_a_constant_scale_is_read_off_the_numbers():
    report = check(lambda q, k, v: torch.softmax(q @ k.mT / 8, -1) @ v)
    assert report.diagnoses[0].name == "constant-scale"
    assert "1/√64" in report.diagnoses[0].what


def test_a_declared_scale_is_no_mistake():
    assert check(lambda q, k, v: torch.softmax(q @ k.mT, -1) @ v, scale=1.0).ok


def test_true_may_mean_hide_if_the_caller_says_so():
    def attention(q, k, v, mask=None):
        scores = q @ k.mT * q.shape[-1] ** -0.5
        return torch.softmax(scores if mask is None else scores.masked_fill(mask, -torch.inf), -1) @ v

    report = check(attention)
    assert report.verdict == "undecided"
    assert "say true_means='hide'" in report.summary
    assert check(attention, true_means="look").diagnoses[0].name == "inverted-mask"
    assert check(attention, true_means="hide").ok
    with pytest.raises(ValueError, match='"look" or "hide"'):
        check(attention, true_means="see")


class DrawnGain(FusedHeads):
    """It multiplies its output by numbers that were drawn, and that no state_dict holds."""

    def __init__(self, d_model, num_heads):
        super().__init__(d_model, num_heads)
        self.register_buffer("gain", torch.randn(d_model), persistent=False)

    def forward(self, x):
        return super().forward(x) * self.gain


@pytest.mark.at_length("test_a_wrong_table_in_a_buffer_is_found_and_a_random_one_shared")
def test_what_was_drawn_and_is_not_saved_is_another_number_in_a_loaded_copy():
    report = check(DrawnGain)
    assert report.diagnoses[0].name == "plain-attribute"
    assert "saved and loaded, it gives another output" in str(report)


def test_nothing_of_the_callers_module_is_touched():
    module = Projected(32, 4).train()
    before = {name: t.clone() for name, t in module.state_dict().items()}
    state = torch.random.get_rng_state()
    check(module)
    assert module.training
    assert all(torch.equal(t, before[name]) for name, t in module.state_dict().items())
    assert all(p.grad is None for p in module.parameters())
    assert torch.equal(state, torch.random.get_rng_state())


def test_constructor_arguments_are_guessed_or_given():
    assert "4 heads of 12" in check(Projected, gradients=False).subject
    assert "8 heads of 8" in check(Projected, d_model=64, num_heads=8, gradients=False).subject


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


def test_what_is_no_softmax_is_undecided_and_says_what_was_measured():
    report = check(lambda q, k, v: torch.softmax(q @ k.mT / q.shape[-1] ** 0.5, -1) @ v + 0.37 * v.cumsum(-2))
    assert report.verdict == "undecided"
    assert "rows of weights sum to between 1.4 and 2.9, not to 1" in report.summary
    assert "oracle=" in report.summary


def test_what_surrounds_the_attention_is_not_compared_and_the_report_says_so():
    class Gated(Projected):
        def __init__(self):
            super().__init__(32, 4)
            self.gate = nn.Parameter(torch.ones(32))

        def forward(self, x):
            return super().forward(x) * torch.sigmoid(self.gate)

    report = check(Gated())
    assert report.ok, str(report)
    assert "compared from `qkv` to `proj`" in report.assumptions


FORWARD = "def forward(self, x, cache=None):"
CONTINUED = LAYER.replace(FORWARD, "def forward(self, x, memo=None):\n        cache = memo")


@pytest.mark.at_length("test_the_message_says_how_to_write_the_adapter")
def test_a_cache_that_cannot_be_guessed_needs_three_lines():
    layer = load(CONTINUED, "CausalAttention")
    assert "cache" not in by_name(check(layer).checks)

    def step(module, x, cache):
        y, cache = module(x, memo=cache)
        return y, cache

    assert "cache" in by_name(check(layer, cached=step).passed)
    wrong = load(CONTINUED.replace("self.mask[S - T : S, :S]", "self.mask[:T, :S]"), "CausalAttention")
    report = check(wrong, cached=step)
    assert report.diagnoses[0].name == "top-left-causal"
    assert not report.ok


def test_the_message_says_how_to_write_the_adapter():
    kept = LAYER.replace("return out, cache", "self.kept = cache\n        return out")
    report = check(load(kept, "CausalAttention"))
    assert "def step(module, x, cache)" in by_name(report.skipped)["cache"].detail


def test_a_plain_attribute_is_named_also_in_a_module_that_returns_its_weights():
    plain = HEAD.replace('self.register_buffer("mask", ', "self.mask = (").replace(", persistent=False)", ")")
    module = load(plain.replace("return out", "return out, weights"), "CausalHead")
    report = check(module)
    assert [diagnosis.name for diagnosis in report.diagnoses] == ["plain-attribute"], str(report)


def test_strict_counts_warnings():
    saved = HEAD.replace(", persistent=False", "")
    report = check(load(saved, "CausalHead"))
    assert report.ok
    assert [d.name for d in report.diagnoses] == ["persistent-mask"]
    assert "1 warning" in report.summary
    assert not check(load(saved, "CausalHead"), strict=True).ok


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


class OnlyCached(nn.Module):
    """Attention that runs only with a cache; `late` masks as if the new tokens were the first."""

    def __init__(self, d_model, num_heads, late=False):
        super().__init__()
        self.num_heads, self.late = num_heads, late
        self.q, self.k, self.v, self.o = (nn.Linear(d_model, d_model) for _ in range(4))

    def forward(self, x, kv_cache):
        q, k, v = (
            layer(x).unflatten(-1, (self.num_heads, -1)).transpose(1, 2) for layer in (self.q, self.k, self.v)
        )
        k, v = kv_cache.push(k, v)
        T, S = q.shape[2], k.shape[2]
        allowed = torch.ones(T, S, dtype=torch.bool).tril(0 if self.late else S - T)
        mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=allowed)
        return self.o(mixed.transpose(1, 2).flatten(2))


def own_step(module, x, cache):
    cache = OwnCache() if cache is None else cache
    return module(x, cache), cache


def test_a_module_whose_only_path_is_its_cache_is_undecided_until_the_caller_says_how():
    report = check(OnlyCached)
    assert report.verdict == "undecided"
    assert "runs only with a cache in `kv_cache`" in report.summary
    assert "cached=step" in report.summary
    report = check(OnlyCached, cached=own_step)
    assert report.ok, str(report)
    assert "cache" in by_name(report.passed)
    report = check(OnlyCached, cached=own_step, late=True)
    assert report.diagnoses[0].name == "top-left-causal", str(report)


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
    [("window", -1), ("heads", 0), ("softcap", -1.0), ("scale", float("nan")), ("device", "tpu")],
)
def test_a_promise_that_no_attention_can_keep_is_refused(name, value):
    with pytest.raises(ValueError, match=f"{name}: expected"):
        check(F.scaled_dot_product_attention, **{name: value})
