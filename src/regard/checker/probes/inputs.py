"""What an output depends on: its inputs and positions, no later token, no other item.

These are properties, which are tested by changing one thing and leaving the others: no oracle is needed. Keys
decide the weights, values are averaged, a context replaces the sequence, and a call does not overwrite its
inputs. A rotation by one angle for all queries and keys of a head
cancels in their products, so the output alone is that of attention without positions. Cosines that are a
little wrong do not cancel: that shows their use.
"""

from __future__ import annotations

import re
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from regard.attention.masks.named_masks import alibi_slopes
from regard.checker.interpretation.cases import described_causality
from regard.checker.oracle.oracle import (
    TOLERANCE,
    relative_difference,
)
from regard.checker.oracle.question import Question
from regard.checker.probes.behaviour import change_part, name_visibility
from regard.checker.session import CheckSession
from regard.checker.subject.call_tensors import SEQUENCES, copy_module
from regard.checker.subject.inside import InsideWiring
from regard.checker.subject.source import source_of
from regard.checker.subject.subject import CallHook, Subject


def probe_inputs_kept(session: CheckSession) -> None:
    """Check that a call leaves the tensors that it is given as they were."""
    arguments, cases = session.subject.arguments, session.cases
    questions = [cases.plain("inputs are kept", seed=94)]
    if "causal" in arguments and session.options.get("causal") is not False:
        questions.append(replace(questions[0], flag=True))
    if "mask" in arguments and session.subject.mask_form.rank != 1:
        questions.append(session.with_explicit_mask(cases.masked("inputs are kept", seed=94)))
    if "padding" in arguments or ("mask" in arguments and session.subject.layout not in ("TD", "TC")):
        questions.append(session.with_explicit_mask(cases.padded("inputs are kept", seed=94)))
    replies = [session.subject.run(question.to(session.dtype), watched=True) for question in questions]
    overwritten = next((reply.overwritten for reply in replies if reply.overwritten), ())
    if overwritten:
        names = " and ".join(f"`{name}`" for name in overwritten)
        have, were = ("have", "were") if len(overwritten) > 1 else ("has", "was")
        session.find("input-overwritten", "inputs are kept", names=names, have=have, were=were)
    elif any(reply.answer is not None for reply in replies):
        session.add_pass("inputs are kept")


def probe_inputs(session: CheckSession) -> None:
    """Check that a module's inputs act in the roles that their names promise."""
    # A reference need not be linear in its values.
    if session.subject.layout not in SEQUENCES or session.reference is not None:
        return
    if session.subject.inputs == "qkv":
        _check_keys_and_values(session)
    elif session.subject.inputs == "x" and "context" in session.subject.arguments:
        _check_context(session)


def _check_keys_and_values(session: CheckSession) -> None:
    """Check that the output is an average of the values: linear in them, and not in the keys."""
    question = session.cases.plain("inputs", seed=45).to(session.dtype)
    is_affine: dict[str, bool] = {}
    for name, first in (("v", question.v), ("k", question.k)):
        draw = torch.Generator().manual_seed(46)
        second = torch.randn(first.shape, generator=draw, dtype=torch.float64).to(first.dtype)
        inputs: list[dict[str, Any]] = [{name: x} for x in (first, second, (first + second) / 2)]
        answers = [session.subject.run(replace(question, **changed)).answer for changed in inputs]
        outputs = [answer.output.detach() for answer in answers if answer is not None]
        if len(outputs) < 3 or not all(bool(output.isfinite().all()) for output in outputs):
            return
        mean = (outputs[0] + outputs[1]) / 2
        atol = 1e-6 * float(mean.abs().max())
        is_affine[name] = torch.allclose(outputs[2], mean, rtol=1e-5, atol=atol)
    if is_affine["v"]:
        session.add_pass("inputs", "the output is an average of the values")
    elif is_affine["k"]:
        session.find("key-value-swapped", "inputs")


def _check_context(session: CheckSession) -> None:
    """Check attention to an optional context: which tokens ask, which are matched, and which are read."""
    name, intent = session.subject.arguments["context"], session.right_intent
    question = session.cases.plain("context", T=6, seed=47).to(session.dtype)
    x, context = question.q, session.cases.plain("context", T=6, seed=48).to(session.dtype).q
    positional = [*session.subject.positional, name]
    both = session.subject.replaced(inputs="context", positional=positional, by_name=True)
    answer = both.run(replace(question, k=context, v=context)).answer
    how = f"with `{name}` the output could not be compared: pass a function of both"
    if intent is None or answer is None:
        session.add_untried("cross-attention", how)
        return
    # (B, S, C) from which keys and values may rightly come, in words
    texts = {f"`{name}`": context}
    texts |= {f"`{name}` and the sequence": torch.cat([context, x], 1)}
    texts |= {f"the sequence and `{name}`": torch.cat([x, context], 1)}
    exchanged = {"roles-shuffled": [(context, x, x)], "context-ignored": [(x, context, x), (x, x, context)]}

    def error(q: Tensor, k: Tensor, v: Tensor) -> float:
        asked = replace(question, q=q, k=k, v=v)
        return min(replace(intent, causal=c).error(asked, answer) for c in {False, intent.causal})

    for words, keys in texts.items():
        if error(x, keys, keys) < TOLERANCE:
            session.add_pass("cross-attention", f"with `{name}`, it equals attention to {words}")
            return
    for mistake, roles in exchanged.items():
        if any(error(*inputs) < TOLERANCE for inputs in roles):
            distance = error(x, context, context) / TOLERANCE
            session.find(mistake, "cross-attention", distance=distance, argument=name)
            return
    if session.compared is not session.subject:
        session.add_untried("cross-attention", how)
        return
    session.leave_open("other-context", argument=name)


_TABLE = re.compile(r"(^|_)(cos|cosine|freqs?|freqs_cis|rope|rotary|pos_cis)(_|$)", re.I)

_SLOPE_TOLERANCE = 1e-3  # relative


def probe_positions(session: CheckSession) -> None:
    """Check that rotary positions have an effect, and that a bias by distance has the slopes of ALiBi."""
    intent = session.right_intent
    if intent is None:
        return
    if (bias := intent.wiring.bias) is None:
        # Observed queries and keys have their positions already.
        if intent.wiring.rotate is None and not isinstance(intent.wiring, InsideWiring):
            _check_effect(session)
        return
    # Slopes that the module holds, unless they are learned.
    assert session.module is not None
    learned = [path for path, _ in session.module.named_parameters()]
    if any(f"`{path}`" in feature for path in learned for feature in intent.features):
        return
    if not re.search("alibi|slope", " ".join([session.source, *intent.features]), re.I):
        return  # a bias by distance that does not claim to be ALiBi
    H = intent.wiring.heads
    slopes = -bias(H, 2, 2)[:, 1, 0].double()
    usual = torch.tensor(alibi_slopes(H), dtype=torch.float64)
    # Where H is no power of two, ALiBi takes some slopes of the next one; much code does without that.
    geometric = 2.0 ** (-8.0 * torch.arange(1, H + 1, dtype=torch.float64) / H)
    # Which head has which slope is free.
    differences = [
        relative_difference(slopes.sort().values, right.sort().values) for right in (usual, geometric)
    ]
    if min(differences) < _SLOPE_TOLERANCE:
        return
    shown, expected = (", ".join(f"{slope:.3g}" for slope in some[:4]) for some in (slopes, usual))
    distance = min(differences) / _SLOPE_TOLERANCE
    session.find("alibi-slopes", "slopes", distance=distance, shown=shown, usual=expected, H=H)


def _check_effect(session: CheckSession) -> None:
    """Check that rotary positions change the output, if the module computes or holds cosines."""
    question = session.cases.plain("positions", seed=85).to(session.dtype)
    module = session.subject.module_as(session.dtype)
    assert module is not None
    plain = session.subject.run(question).answer
    spoiled = copy_module(module)
    with torch.no_grad():
        for path, tensor in spoiled.named_buffers():
            if _TABLE.search(path.rpartition(".")[2]) and (tensor.is_floating_point() or tensor.is_complex()):
                tensor.mul_(1.1)

    def spoil(name: str, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """Make every cosine a tenth too large."""
        result = func(*args, **kwargs)
        # Llama makes its `freqs_cis` by torch.polar.
        if name in ("cos", "polar") and isinstance(result, Tensor):
            return torch.complex(1.1 * result.real, result.imag) if result.is_complex() else 1.1 * result
        return result

    with CallHook(spoil):
        changed = session.subject.run(question, module=spoiled).answer
    if plain is None or changed is None:
        return
    distance = relative_difference(changed.output, plain.output) / (100 * TOLERANCE)
    if distance > 1:
        session.find("positions-cancel", "positions", distance=distance)


def probe_causality(session: CheckSession) -> None:
    """Check that no output depends on a later token, by changing tokens and by gradients.

    A docstring that says otherwise than the output leaves the verdict to the caller.
    """
    subject, understanding = session.subject, session.understanding
    stated = session.options.get("causal") is not None or understanding.declared_causal is not None
    described = None if stated else described_causality(subject)
    if described is not None and session.right_intent is not None and understanding.causal != described:
        says, shows = ("causal", "not causal") if described else ("not causal", "causal")
        session.leave_open("docstring-of-another-causality", says=says, shows=shows)
        return
    flagged = "causal" in subject.arguments and session.options.get("causal") is None
    expected = flagged or session.options.get("causal") or session.understanding.causal
    one_query = subject.kernel_layout is not None and subject.kernel_layout.one_query
    question = session.cases.plain("causality", seed=40)
    question = replace(question, flag=True) if flagged else question
    reference = session.reference
    if reference is not None and subject.inputs != "context":
        expected = find_leak(reference.session, question) == ()
        if expected:
            understanding.declared_causal = question.flag is None or bool(session.options.get("causal"))
    if not expected or subject.inputs == "context" or one_query:
        return
    leak = find_leak(session, question)
    if leak is None:
        session.add_skip("causality", "it did not run, or its output is not finite")
    elif leak and described and not flagged:
        session.add_untried(
            "causality",
            f"its docstring says causal, and output {leak[0]} depends on token {leak[1]}: pass causal=True "
            "or --causal if it should not",
        )
    elif leak:
        session.add_failure("causality", f"output {leak[0]} depends on token {leak[1]} ({leak[2]})")
        if reference is not None and not session.mixed:
            name_visibility(session, reference, question)
    else:
        session.add_pass("causality", "no output depends on a later token")


def find_leak(session: CheckSession, question: Question) -> tuple[int, int, str] | tuple[()] | None:
    """Find the first output that depends on a later token.

    Returns its position, the token's and how the dependence shows; () if there is none; None if the code
    failed or its output is not finite.
    """
    question = question.to(session.dtype)
    T = question.q.shape[-2]
    if T < 2:
        return None
    tracked = question.map_inputs(lambda x: x.clone().requires_grad_())
    reply = session.subject.run(tracked)
    if reply.answer is None:  # it has no backward pass
        reply = session.subject.run(question)
    if reply.answer is None or not bool(reply.answer.output.isfinite().all()):
        return None
    output = reply.answer.output
    differentiable = output.requires_grad
    for row in range(T - 1):
        # Change all later tokens: no row up to this one may change.
        later = partial(change_part, axis=-2, part=slice(row + 1, None))
        changed = session.subject.run(question.map_inputs(later))
        if changed.answer is None:
            return None
        before, after = output[..., : row + 1, :], changed.answer.output[..., : row + 1, :]
        if not torch.allclose(before, after, rtol=1e-6, atol=1e-7):
            rows = (before - after).abs().amax(-1).flatten(0, -2).amax(0) > 1e-7
            return int(rows.nonzero()[0]), row + 1, "its value changes"
        # The gradient of these rows by all later tokens must be 0.
        if differentiable:
            inputs = tracked.leaves()
            try:
                gradients = torch.autograd.grad(before.sum(), inputs, retain_graph=True, allow_unused=True)
            # It runs once for each forward pass, or fails: that is for the probe of gradients to report.
            except Exception:
                differentiable = False
                continue
            if any(g is not None and float(g[..., row + 1 :, :].abs().max()) > 1e-12 for g in gradients):
                return row, row + 1, "a gradient flows"
    return ()


# A batch that comes first by its name: `B, T, C = x.shape`.
_BATCH_FIRST = re.compile(
    r"\b(B|b|bs|bsz|bz|batch|batch_size)\s*(,\s*\*?\w+\s*){1,3}=\s*\w+\.(shape|size\(\))"
)


def has_another_batch_axis(subject: Subject, width: int, dtype: torch.dtype) -> bool:
    """Return whether another axis than the first, and not the last, holds independent items.

    fair-esm's RowSelfAttention takes (rows, columns, batch, C) and shares weights between rows.
    """
    if subject.inputs != "x" or subject.layout not in ("BTC", "BHWC") or subject.module is None:
        return False
    if _BATCH_FIRST.search(source_of(subject)):
        return False
    module = subject.module_as(dtype)
    assert module is not None
    draw = torch.Generator().manual_seed(42)
    sizes = (5, 4, 3, width) if subject.layout == "BHWC" else (5, 3, width)
    x = torch.randn(sizes, generator=draw, dtype=torch.float64).to(dtype)

    def run(x: Tensor) -> Tensor | None:
        try:
            with torch.no_grad():
                result = module(x, **subject.extra)
        except Exception:  # it does not take these sizes
            return None
        output = result[0] if isinstance(result, tuple | list) else result
        return output if isinstance(output, Tensor) and output.shape == x.shape else None

    together = run(x)
    if together is None:
        return False
    for axis in range(1, x.ndim - 1):
        alone = [run(x.narrow(axis, i, 1)) for i in range(x.shape[axis])]
        parts = [part for part in alone if part is not None]
        if len(parts) == len(alone) and torch.allclose(
            torch.cat(parts, axis), together, rtol=1e-6, atol=1e-7
        ):
            return True
    return False


_TOKENS = r"(?:T|L|S|t|l|s|seq\w*|tgt_len|src_len|time\w*|tokens?|length)"
_ITEMS = r"(?:B|N|b|n|bsz?|batch\w*)"
_TOKENS_FIRST = re.compile(rf"[(\[]\s*{_TOKENS}\s*[,x×]\s*{_ITEMS}\s*[,x×][^)\]]*[)\]]")
_ITEMS_FIRST = re.compile(rf"[(\[]\s*{_ITEMS}\s*[,x×]\s*{_TOKENS}\s*[,x×][^)\]]*[)\]]")


def _contradicting_shape(subject: Subject) -> str:
    """Return a shape in the docstrings with another order than the code's, "(seq_len, batch, dim)", or "".

    Those of PyTorch's `nn.MultiheadAttention` have both orders, for both values of `batch_first`.
    """
    kind: Any = type(subject.module)
    words = " ".join(thing.__doc__ or "" for thing in (kind, kind.__init__, kind.forward))
    tokens, items = _TOKENS_FIRST.search(words), _ITEMS_FIRST.search(words)
    found = tokens if subject.layout == "BTC" else items
    return found.group() if found and not (tokens and items) else ""


def probe_batch(session: CheckSession) -> None:
    """Check that an item's output does not depend on the other items of the batch.

    A docstring that names another axis as the batch leaves the verdict to the caller.
    """
    is_sequence = session.subject.layout in ("BTC", "TBC") and session.module is not None
    if is_sequence and (shape := _contradicting_shape(session.subject)):
        axis = "second" if session.subject.layout == "BTC" else "first"
        session.leave_open("docstring-of-another-shape", shape=shape, axis=axis)
        return
    if session.subject.layout in ("TD", "TC"):
        session.add_skip("batch", "it takes one sequence at a time")
        return
    if (reference := session.reference) is not None:
        probe_batch(reference.session)
        if reference.session.mixed:
            session.add_skip("batch", f"the items of a batch depend on each other in {reference.name} too")
            return
    question = session.cases.plain("batch", B=3, seed=41).to(session.dtype)
    together = session.subject.run(question)
    if together.answer is None:
        record = session.add_skip if together.is_refusal else session.add_failure
        record("batch", f"a batch of 3 raised {together.error_line}")
        return
    worst = 0.0
    for item, sequence in enumerate(question.items()):
        alone = session.subject.run(sequence)
        if alone.answer is None:
            session.add_failure("batch", f"one item alone raised {alone.error_line}")
            return
        batched, single = together.answer.output[item], alone.answer.output[0]
        if bool((batched.isfinite() != single.isfinite()).any()):
            worst = float("inf")
        else:
            worst = max(worst, float((batched - single).nan_to_num().abs().max()))
    # BLAS may sum in another order for another batch size, which shows where the code needs float32.
    if worst < 1e-4:
        session.add_pass("batch", "items do not depend on each other")
    elif has_another_batch_axis(session.subject, session.cases.width, session.dtype):
        session.leave_open("another-batch-axis")
    else:
        change = "becomes NaN" if worst == float("inf") else f"changes by {worst:.2g}"
        session.mixed = f"The output of one sequence {change} when others join its batch."
        session.add_failure("batch", session.mixed)
