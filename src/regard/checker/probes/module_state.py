"""The state of a module: whether all of it is used, moves and is saved, and which lengths it takes."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from typing import Any

import torch

from regard.checker.errors import CheckError
from regard.checker.interpretation.cases import max_length, plain_tensors
from regard.checker.oracle.oracle import TOLERANCE, describe_difference, relative_error
from regard.checker.session import CheckSession
from regard.checker.subject import vocabulary
from regard.checker.subject.call_tensors import copy_module, in_dtype
from regard.checker.subject.construct import build


def probe_module_state(session: CheckSession) -> None:
    """Check registered parameters, `.to()`, state_dict, and lengths around the maximum."""
    if session.subject.plain_lists:
        session.find("plain-list", "parameters are registered", place=session.subject.plain_lists[0])
    else:
        session.add_pass("parameters are registered")
    _check_unused(session)
    _check_move(session)
    _check_state_dict(session)
    _check_lengths(session)
    _check_other_length(session)


def _check_unused(session: CheckSession) -> None:
    """Find a projection, a norm of queries or keys, or sink logits that the output does not depend on.

    Code with an optional context may need them for that, and is left alone.
    """
    if session.module is None or "context" in session.subject.arguments:
        return
    question = session.cases.plain("parameters are used", seed=73).to(session.dtype)
    before, runnable = session.subject.run(question).answer, session.subject.runnable(session.dtype)
    if before is None or runnable is None:
        return
    module, unused = copy_module(runnable), []
    for path, parameter in module.named_parameters():
        kept = parameter.detach().clone()
        with torch.no_grad():
            # A factor alone would leave a bias of zeros as it is.
            parameter.mul_(-0.7).add_(0.3)
        after = session.subject.run(question, module=module).answer
        with torch.no_grad():
            parameter.copy_(kept)
        if after is not None and torch.equal(before.output.nan_to_num(), after.output.nan_to_num()):
            unused.append(path)
    parameters = [path for path, _ in session.module.named_parameters()]
    for path in unused:
        used = [other for other in parameters if other not in unused]
        if (name := _mistake_of_unused(path, used)) is not None:
            evidence = f"The output does not depend on `{path}`: it is created, and not used."
            session.add_mistake("parameters are used", f"`{path}` is not", name, evidence)
            return
    weights = [path for path in unused if not path.endswith("bias")]  # softmax cancels the bias of the keys
    if weights:
        session.notes.append(f"no output depends on {', '.join(f'`{path}`' for path in weights[:3])}")


def _mistake_of_unused(path: str, used: list[str]) -> str | None:
    """Return the mistake of leaving a parameter unused while the others are used; None if it may be meant."""
    # Softmax cancels a bias of the keys, so that right code does not depend on it.
    if path.endswith("bias"):
        return None
    if re.search(r"(^|[._])sinks?($|[._])", path):
        return "sink-dropped"
    if (norm := re.search(r"(^|\.)(q|k|query|key)_?(norm|ln|layernorm|layer_norm)\b", path)) is not None:
        letter = {"q": "k", "k": "q", "query": "key", "key": "query"}[norm.group(2)]
        partner = path.replace(norm.group(2) + "_", letter + "_", 1)
        return "one-side-normalised" if partner in used else None
    # The same parameter of another of several heads.
    if re.search(r"\.\d+\.", path) and re.sub(r"\d+", "*", path) in {re.sub(r"\d+", "*", p) for p in used}:
        return "one-head-for-all"
    if any(twin in used for twin in _twins(path)):  # another role's layer was used in its place
        return "one-projection"
    role = vocabulary.projection(path)
    roles = {vocabulary.projection(other) for other in used}
    if role in ("query", "key", "value") and role not in roles and roles & {"query", "key", "value"}:
        return "one-projection"
    return "output-projection-skipped" if role == "out" and "out" not in roles else None


def _twins(path: str) -> list[str]:
    """Return the names that a parameter of another role would have: `k_up` and `q_up` for `v_up`."""
    parts = re.split(r"([._])", path)
    letters, words = ("q", "k", "v"), ("query", "key", "value")
    return [
        "".join([*parts[:i], other, *parts[i + 1 :]])
        for i, part in enumerate(parts)
        for family in (letters, words)
        for other in family
        if part.lower() in family and other != part.lower()
    ]


def _check_move(session: CheckSession) -> None:
    """Move the module to another device and run it there.

    The meta device always exists, and plain tensors stay behind as with any other device.
    """
    module = session.subject.module_as(torch.float32)
    assert module is not None
    question = session.cases.plain(".to()", seed=70).to(torch.float32)
    fresh = copy_module(module)
    reply = session.subject.run(question, module=fresh)
    plain = list(plain_tensors(fresh))
    if reply.answer is None:
        return
    if not plain:
        session.add_pass(".to()", "every tensor is a parameter or a buffer")
        return
    moved = copy_module(fresh).to("meta")
    meta_question = question.map_inputs(lambda x: x.to("meta"))
    meta_reply = session.subject.run(meta_question, module=moved)
    if meta_reply.error is None:
        session.add_pass(".to()", "everything moves")
        return
    # If it runs once the plain tensors are moved by hand, these are the reason.
    for place, tensor in plain:
        owner, _, name = place.rpartition(".")
        setattr(dict(moved.named_modules())[owner], name, tensor.to("meta"))
    if session.subject.run(meta_question, module=moved).error is None:
        # A tensor that an earlier call left behind harms only those who move the module after a call.
        assert session.module is not None
        unused = copy_module(session.module).to(torch.float32).to("meta").eval()
        only_used = session.subject.run(meta_question, module=unused).error is None
        words: dict[str, Any] = {"place": plain[0][0], "error_line": meta_reply.error_line[:120]}
        session.find("plain-attribute", ".to()", distance=math.inf, warning=only_used, **words)


def _check_state_dict(session: CheckSession) -> None:
    """Save the module, load it into a new instance, and compare their outputs."""
    cls = session.subject.cls
    if cls is None:
        return
    try:
        # With other weights: what the state_dict leaves out must not be equal by chance.
        fresh = build(cls, session.subject.init, seed=9)
        double = session.subject.module_as(session.dtype)
        assert double is not None
        fresh = in_dtype(fresh, session.dtype).eval()
        fresh.load_state_dict(double.state_dict())
    except (CheckError, RuntimeError) as error:
        session.add_failure(
            "state_dict", f"its own state_dict does not load: {str(error).splitlines()[0][:160]}"
        )
        return
    question = session.cases.plain("state_dict", seed=71).to(session.dtype)
    saved, loaded = session.subject.run(question), session.subject.run(question, module=fresh)
    if saved.answer is None or loaded.answer is None:
        return
    same = torch.allclose(saved.answer.output, loaded.answer.output, rtol=1e-5, atol=1e-6, equal_nan=True)
    if same:
        session.add_pass("state_dict", "saved and loaded, it gives the same output")
    # What is missing for this reason has been reported as a plain list.
    elif not session.subject.plain_lists:
        plain = plain_tensors(fresh)
        missing = f"`{plain[0][0]}`" if plain else "everything that the output depends on"
        distance = relative_error(loaded.answer, saved.answer) / TOLERANCE
        session.find("plain-attribute", "state_dict", distance=distance, missing=missing)


def _check_lengths(session: CheckSession) -> None:
    """Check the maximum length and one token more: it must be right, or refuse with a clear message."""
    limit = max_length(session.subject)
    # A module for a real context, of thousands of tokens, would take too long.
    if limit is None or limit > 512 or session.subject.inputs == "context":
        return
    # The questions of the session never exceed the maximum; these must.
    cases = replace(session.cases, max_length=None, fixed_length=None)
    for T, name in ((limit, "longest sequence"), (limit + 1, "longer than the maximum")):
        question = cases.plain(name, B=1, T=T, seed=72)
        reply = session.subject.run(question.to(session.dtype))
        if reply.answer is not None and session.compared is not session.subject:
            reply = session.compared.run(question.to(session.dtype))
        if reply.answer is not None:
            right = session.right_intent
            error = 0.0 if right is None else right.error(question, reply.answer)
            if error < TOLERANCE:
                session.add_pass(name, f"{T} tokens")
            else:
                session.add_failure(name, f"with {T} tokens it {describe_difference(error)}")
        elif limit == T:
            session.add_failure(name, f"{T} tokens raised {reply.error_line}")
        # A RuntimeError about shapes is PyTorch's, whatever words it has.
        elif isinstance(reply.error, ValueError | AssertionError | IndexError) and re.search(
            f"length|token|long|max|block|context|seq|{limit}", str(reply.error).lower()
        ):
            session.add_pass(name, "refused with a clear message")
        else:
            words: dict[str, Any] = {"T": T, "error_line": reply.error_line, "start": reply.error_line[:140]}
            session.find("obscure-length-error", name, **words)


def _check_other_length(session: CheckSession) -> None:
    """Check that weights saved at one maximum length load at another."""
    cls = session.subject.cls
    if cls is None or max_length(session.subject) is None:
        return
    # Any length but the guessed one, 16.
    sizes: dict[str, Any] = {"length": 24}
    init = {k: 24 if vocabulary.size(k) == "length" else v for k, v in session.subject.init.items()}
    try:
        longer = build(cls, init, sizes)
        state = session.module.state_dict() if session.module is not None else {}
        shapes = {name: tuple(t.shape) for name, t in longer.state_dict().items()}
    except (CheckError, RuntimeError):  # RuntimeError: lazy layers have no shape yet
        return
    # A table of learned positions is a parameter, in which the maximum length belongs.
    parameters = {name for name, _ in longer.named_parameters()}
    blocking = [
        n for n, t in state.items() if shapes.get(n) not in (None, tuple(t.shape)) and n not in parameters
    ]
    if blocking:
        words: dict[str, Any] = {"path": blocking[0], "shape": tuple(state[blocking[0]].shape)}
        session.find("persistent-mask", "weights load at another length", distance=math.inf, **words)
    else:
        session.add_pass("weights load at another length")
