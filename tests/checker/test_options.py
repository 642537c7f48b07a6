"""What a report says of options: the pairs that were tried, precedence, caches, dropout."""

import pytest

from regard.checker import check
from tests.checker.corpus import dropout_rates, options, usual_caches


def _detail(report, name):
    return next(c.detail for c in report.checks if c.name == name)


def test_the_report_names_the_pairs_that_were_tried_and_those_that_were_refused():
    pairs = _detail(check(options.everything), "options in pairs")
    assert {"causal with mask", "padding with softcap", "window with scale"} <= set(pairs.split(", "))
    assert "mask with padding" in _detail(check(options.TwoMasks, true_means="hide"), "options in pairs")
    assert "causal and mask" in {c.name for c in check(options.refuses_without_words).skipped}


def test_a_documented_precedence_is_an_assumption():
    assumptions = check(options.documented_precedence).assumptions
    assert "is_causal is ignored where attn_mask is given, as its text says" in assumptions
    assert "scale is not used, as its text says" in check(options.unused_scale).assumptions


def test_a_dropped_option_is_named_with_the_one_that_drops_it():
    report = check(options.fused_path_has_no_cap)
    assert _detail(report, "padding and softcap") == "`key_padding_mask` switches `softcap` off"


@pytest.mark.parametrize("cls", [usual_caches.PastKeyValue, usual_caches.Preallocated])
def test_a_usual_cache_is_tried(cls):
    report = check(cls)
    assert {"cache", "bfloat16", "float16"} <= {c.name for c in report.passed}, str(report)
    assert not report.untried


def test_rotary_tables_of_gpt_oss_under_the_name_of_transformers():
    modeling = pytest.importorskip("transformers.models.gpt_oss.modeling_gpt_oss")
    report = check(modeling.GptOssAttention)
    assert report.verdict == "right", str(report)


def test_the_dropout_of_a_function_is_tried():
    assert "dropout in training" in {c.name for c in check(dropout_rates.takes_a_layer).passed}
