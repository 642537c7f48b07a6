"""The smallest input that shows a mistake, as a test to paste.

A candidate is the text of a test's first lines. It is run, so that what is judged here is what the reader
pastes: the call is read as those of the suite are, and the mistake must be clearly off there.
"""

from __future__ import annotations

import itertools
import re
import textwrap
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import create_block_mask

from regard.attention.masks.named_masks import causal, padding, tensor_mask, window
from regard.checker.catalogue import CATALOGUE
from regard.checker.errors import error_line
from regard.checker.oracle.oracle import relative_error
from regard.checker.oracle.question import Answer, Question
from regard.checker.subject.call_tensors import arrange
from regard.checker.subject.kernel_recognition import prepare_interpreter
from regard.mutants.call_reader import (
    ROLES,
    CallReader,
    CallSignature,
    Convention,
    Reading,
    as_tensor,
    tensors_by_place,
)
from regard.mutants.mutant import Mutant
from regard.mutants.oracle_call import expected_options, views

CLEAR = {torch.float16: 0.2, torch.bfloat16: 0.4}  # relative differences that no tolerance would let pass
PATIENCE = 30.0  # seconds of search for each mistake
NUMBERS = ("added", "zero-one", "one-zero")  # kinds of masks that are no booleans
PLAIN = (int, float, str, bool, type(None))


class Sizes(NamedTuple):
    """The sizes of a candidate's inputs."""

    B: int
    H: int
    G: int
    T: int
    S: int
    D: int


# The second and the fourth have fewer queries than keys, and none has as many keys as a head is wide, but the
# first; the last ones are longer than a block.
SMALL = (
    Sizes(1, 1, 1, 2, 2, 2),
    Sizes(1, 1, 1, 2, 3, 2),
    Sizes(1, 1, 1, 3, 3, 2),
    Sizes(1, 2, 2, 2, 3, 2),
    Sizes(2, 1, 1, 2, 2, 2),
    Sizes(2, 2, 2, 3, 3, 2),
    Sizes(1, 4, 2, 3, 3, 2),
    Sizes(2, 4, 2, 3, 4, 2),
    Sizes(1, 1, 1, 20, 20, 2),
    Sizes(1, 1, 1, 3, 40, 2),
    Sizes(1, 4, 2, 40, 40, 4),
)
# What the texts name of Regard, which itself is above this package.
NAMES = SimpleNamespace(causal=causal, padding=padding, tensor_mask=tensor_mask, window=window)
# How an option is asked for: of a target that takes Regard's masks, and by an argument of its own.
RULES = {"causal": "regard.causal", "window": "regard.window(2)", "sides": "regard.window(2, ahead=1)"}
VALUES = {"causal": "True", "softcap": "1.5", "sinks": "sinks"}
OPTIONS = ("causal", "mask", "item mask", "padding", "window", "sides", "softcap", "sinks", "bias")


SuggestedCallKey = tuple[Sizes, int]  # its sizes, and its number among the calls of these sizes


@dataclass(frozen=True)
class SuggestedCall:
    """The first lines of a test: how its inputs are made, and the arguments of the call as expressions."""

    setup: tuple[str, ...]
    arguments: dict[str, str]


class TestWriter:
    """Writes tests of one target, in the way in which the suite calls it."""

    __test__ = False  # pytest would take the class for a test by its name

    def __init__(
        self,
        target: Callable[..., Any],
        spec: str,
        signature: CallSignature,
        example: tuple[dict[str, Any], Reading],
    ) -> None:
        self.target, self.spec, self.signature = target, spec, signature
        self.example, reading = example
        self.convention: Convention = reading.convention
        self.question: Question = reading.question
        self.dtype = reading.question.dtype
        self.is_numpy = not isinstance(self.example[signature.names["query"]], Tensor)
        mask = signature.signature.parameters.get(signature.names.get("mask", ""))
        self.takes_block_masks = signature.names.get("mask") == "block_mask"  # those of FlexAttention
        # Those of Regard, by the annotation.
        self.takes_masks = not self.takes_block_masks and mask is not None and "Mask" in str(mask.annotation)
        self.reader = CallReader(signature)
        self.reader.convention = self.convention
        self.returns_dict = False  # told by its first result

    def sizes(self, *, small: bool) -> tuple[Sizes, ...]:
        """Return the sizes to try: small ones first, if wanted, and those of the suite's plainest call."""
        B, H, T, D = self.question.q.shape
        G, S = self.question.k.shape[1:3]
        own = Sizes(B, H, G, T, S, D)
        grown = [
            own,
            own._replace(S=2 * S),
            own._replace(B=2),
            own._replace(H=4, G=2),
            own._replace(H=4, G=4),
        ]
        grown += [own._replace(T=max(1, T // 2)), own._replace(B=2, H=4, G=2, S=2 * S)]
        grown += [own._replace(T=2 * T, S=2 * S)]
        blocks = (Sizes(1, h, g, n, m, 16) for h, g, n, m in ((1, 1, 16, 16), (1, 1, 16, 32), (4, 2, 32, 64)))
        return tuple(dict.fromkeys([*SMALL, *blocks, *grown] if small else grown))

    def candidates(self, sizes: Sizes) -> Iterator[SuggestedCall]:
        """Yield the calls of some sizes: without options, with one of them, and with two."""
        singles = [(option,) for option in OPTIONS]
        pairs = itertools.combinations(("causal", "mask", "padding", "window", "softcap", "sinks"), 2)
        for options in [(), *singles, *pairs]:
            for factor in (1, 40) if not options or options == ("causal",) else (1,):
                if (candidate := self._candidate(sizes, options, factor)) is not None:
                    yield candidate

    def _candidate(self, n: Sizes, options: tuple[str, ...], factor: int) -> SuggestedCall | None:
        """Return a call with some options; None if the target has no argument for one of them."""
        names = self.signature.names
        layout = self.convention.layout
        if layout in ("packed", "BTC") or (n.H > 1 and "H" not in layout) or (n.B > 1 and layout == "TD"):
            return None
        setup = ["torch.manual_seed(0)", *self._draw(n, factor)]
        arguments = self._fixed(n)
        expressions: list[str] = []  # of the mask argument
        for option in options:
            if self.takes_masks and option in RULES:
                expressions.append(RULES[option])
            elif option in VALUES and option in names:
                arguments[names[option]] = VALUES[option]
                setup += [f"sinks = torch.randn({n.H})"] if option == "sinks" else []
            elif option in ("mask", "item mask") and "mask" in names:
                rank = f"{n.B}, 1, {n.T}, {n.S}" if option == "item mask" else f"{n.T}, {n.S}"
                setup += [f"mask = torch.rand({rank}) < 0.6", "mask[..., 0] = True  # no row is empty"]
                index = "b, 0, i, j" if option == "item mask" else "i, j"
                expressions.append(self._block_mask(f"mask[{index}]", n) or self._encoded("mask"))
            elif option == "padding" and (self.takes_masks or {"padding", "mask"} & names.keys()):
                lengths = ", ".join(f"[{max(1, n.S - b - 1)}]" for b in range(n.B))
                setup.append(f"tokens = torch.arange({n.S}) < torch.tensor([{lengths}])")
                if "padding" in names:
                    by_length = "len" in names["padding"]
                    flip = "tokens" if self.convention.padding == "look" else "~tokens"
                    arguments[names["padding"]] = "tokens.sum(-1)" if by_length else flip
                else:
                    spread = "tokens[:, None, None]" if layout != "BTD" else "tokens[:, None]"
                    expressions.append(
                        "regard.padding(tokens)"
                        if self.takes_masks
                        else self._block_mask("tokens[b, j]", n)
                        or self._encoded(spread, f"({n.B}, 1, {n.T}, {n.S})")
                    )
            elif option in ("window", "sides") and "window" in names:
                pair = (
                    isinstance(self.signature.value(self.example, "window"), tuple | list)
                    or option == "sides"
                )
                arguments[names["window"]] = "(1, 1)" if option == "sides" else "(1, 0)" if pair else "2"
            elif option == "bias" and ({"bias", "mask"} & names.keys()) and not self.takes_block_masks:
                setup.append(f"bias = torch.randn({n.T}, {n.S}{self._dtype()})")
                if "bias" in names:
                    arguments[names["bias"]] = "bias"
                else:
                    expressions.append("bias")
            else:
                return None
        if len(expressions) > 1 and not self.takes_masks:
            return None
        if expressions:
            joined = [f"regard.tensor_mask({x})" if x in ("mask", "bias") else x for x in expressions]
            arguments[names["mask"]] = " & ".join(joined) if len(joined) > 1 else expressions[0]
        order = list(self.signature.signature.parameters)
        # A function by `apply` takes its arguments in their order.
        arguments = dict(sorted(arguments.items(), key=lambda item: order.index(item[0])))
        return SuggestedCall(tuple(setup), arguments)

    def _dtype(self) -> str:
        return "" if self.dtype == torch.float32 else f", dtype={self.dtype}"

    def _draw(self, n: Sizes, factor: int) -> list[str]:
        """Return the lines that draw queries, keys and values in the target's layout."""
        shapes = []
        for heads, length in ((n.H, n.T), (n.G, n.S), (n.G, n.S)):
            empty = torch.empty(n.B, heads, length, n.D, device="meta")
            shape = arrange(empty, "BHTD", self.convention.layout).shape
            shapes.append(", ".join(map(str, shape)))
        drawn = [f"torch.randn({shape}{self._dtype()})" for shape in shapes]
        drawn[0] = f"{factor} * {drawn[0]}" if factor > 1 else drawn[0]
        line = f"q, k, v = {', '.join(drawn)}"
        return [line] if len(line) < 90 else [f"{name} = {x}" for name, x in zip("qkv", drawn, strict=True)]

    def _fixed(self, n: Sizes) -> dict[str, str]:
        """Return the arguments of every call: the tensors, and what the suite passes besides options."""
        names, suffix = self.signature.names, ".numpy()" if self.is_numpy else ""
        arguments = {names[role]: f"{x}{suffix}" for role, x in zip(ROLES, "qkv", strict=True)}
        if "causal" in names:
            arguments[names["causal"]] = "False"
        if "grouped" in names and n.G < n.H:
            arguments[names["grouped"]] = "True"
        meanings = {name: meaning for meaning, name in names.items()}
        for name, parameter in self.signature.signature.parameters.items():
            if name in arguments or parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
                continue
            required, meaning = parameter.default is parameter.empty, meanings.get(name)
            if meaning == "scale" and required:
                arguments[name] = f"{n.D} ** -0.5"
            elif required and meaning in ("softcap", "window", "mask", "padding", "bias", "sinks"):
                value = self.example.get(name)
                arguments[name] = repr(value) if isinstance(value, PLAIN) else "None"
            elif name in self.example and (required or meaning is None):
                value = self.example[name]
                arguments[name] = repr(value) if isinstance(value, PLAIN) else "None"
        return arguments

    def _encoded(self, mask: str, shape: str = "") -> str:
        """Return an expression for a mask, in which True is visible, in the target's convention."""
        spread = f"{mask}.expand{shape}" if shape and self.convention.layout != "BTD" else mask
        return {
            "look": spread,
            "hide": f"~{spread}",
            "added": f"torch.zeros({spread}.shape).masked_fill(~{spread}, -torch.inf)",
            "zero-one": f"{spread}.float()",
            "one-zero": f"(~{spread}).float()",
        }[self.convention.mask]

    def _block_mask(self, rule: str, n: Sizes) -> str:
        """Return an expression for FlexAttention's mask of a rule; "" if the target does not take one."""
        sizes = f"{n.B}, None, {n.T}, {n.S}, device='cpu'"
        return f"create_block_mask(lambda b, h, i, j: {rule}, {sizes})" if self.takes_block_masks else ""

    def read(self, candidate: SuggestedCall) -> Reading | None:
        """Run the target on a candidate; return what it was asked, if its answer is right."""
        arguments = self._evaluate(candidate)
        try:
            result = self.target(**arguments) if self._by_name() else self.target(*arguments.values())
        except Exception:  # a kernel may refuse these sizes with any error
            return None
        self.returns_dict = isinstance(result, dict)
        reading = self.reader.read(arguments, result)
        return None if isinstance(reading, str) else reading

    def has_gradients(self, candidate: SuggestedCall) -> bool:
        """Return whether the target has a backward pass: on a CPU, FlexAttention has none."""
        arguments = self._evaluate(candidate)
        query = as_tensor(arguments[self.signature.names["query"]]).requires_grad_()
        try:
            result = self.target(**arguments) if self._by_name() else self.target(*arguments.values())
            outputs = [x.sum() for _, x in tensors_by_place(result) if x.requires_grad]
            return torch.autograd.grad(outputs, query)[0] is not None
        except Exception:  # the code may raise any error
            return False

    def _by_name(self) -> bool:
        return not isinstance(getattr(self.target, "__self__", None), type)  # `apply` takes no names

    def preview(self, candidate: SuggestedCall) -> tuple[Question, Any] | None:
        """Return what a candidate asks in the convention of the suite's calls, without running the target."""
        arguments = self._evaluate(candidate)
        roles = [as_tensor(arguments[self.signature.names[role]]) for role in ROLES]
        convention = self.reader.convention
        mask = arguments.get(self.signature.names.get("mask", ""))
        if isinstance(mask, Tensor) and mask.is_floating_point() != (convention.mask in NUMBERS):
            # The suite's masks are of the other kind: what True means is that of most functions.
            convention = replace(convention, mask="added" if mask.is_floating_point() else "look")
        try:
            return self.reader.ask(arguments, roles, convention)
        except (RuntimeError, ValueError, IndexError, TypeError):
            return None

    def _evaluate(self, candidate: SuggestedCall) -> dict[str, Any]:
        """Run the first lines of a test; return the arguments of its call."""
        space: dict[str, Any] = {"torch": torch, "regard": NAMES, "create_block_mask": create_block_mask}
        with torch.random.fork_rng(devices=[]):
            exec("\n".join(candidate.setup), space)
        return {name: eval(text, space) for name, text in candidate.arguments.items()}

    def write(self, candidate: SuggestedCall, reading: Reading, mutant: Mutant) -> str:
        """Return the text of a test file with one test."""
        module, _, name = self.spec.rpartition(":")
        called, (first, *attributes) = name, name.replace("()", "").split(".")
        positional = [candidate.arguments[self.signature.names[role]] for role in ROLES]
        order = list(self.signature.signature.parameters)
        tensors = [self.signature.names[role] for role in ROLES]
        rest = {n: x for n, x in candidate.arguments.items() if n not in tensors}
        if not self._by_name():
            words = list(candidate.arguments.values())
        elif order[:3] == tensors:
            words = [*positional, *(f"{n}={x}" for n, x in rest.items())]
        else:
            words = [f"{n}={x}" for n, x in candidate.arguments.items()]
        output = f"{called}({', '.join(words)}){self._access(reading)}"
        output = f"torch.from_numpy({output})" if self.is_numpy else output
        heads, back = views(self.convention.layout)
        options = "".join(f", {name}={text}" for name, text in expected_options(reading).items())
        expected = f"regard.scaled_dot_product_attention(*exact{options})[0]{back}"
        half = self.dtype in CLEAR
        tolerance = "rtol=0.05, atol=0.05" if half else "rtol=1e-3, atol=1e-3"
        docs = textwrap.shorten(f"Notices {mutant.name}: attention {CATALOGUE[mutant.mistake].what}.", 96)
        body = [f'"""{docs}"""', *candidate.setup]
        body += ["q.requires_grad_()"] if "detach" in mutant.change else []
        body += [f"output = {output}", f"exact = (x.double(){heads} for x in (q, k, v))"]
        body += [f"expected = {expected}"]
        if "detach" in mutant.change:
            body += ["(gradient,) = torch.autograd.grad(output.square().sum(), q)"]
            body += ["(right,) = torch.autograd.grad(expected.square().sum(), q)"]
            body += [f"torch.testing.assert_close(gradient, right, {tolerance})"]
        else:
            body += [f"torch.testing.assert_close(output.double(), expected, {tolerance})"]
        title = re.sub(
            r"\W+", "_", f"test_{attributes[-1] if attributes else first}_notices_{mutant.name}"
        ).strip("_")
        imports = f"import torch\n\nimport regard\nfrom {module} import {first}\n"
        if "create_block_mask" in output:
            imports += f"from {create_block_mask.__module__} import create_block_mask\n"
        imports += "\n\n"
        return f"{imports}def {title}():\n" + "".join(f"    {line}\n" for line in body)

    def _access(self, reading: Reading) -> str:
        place = reading.places["output"]
        if place is None:
            return ""
        return f"[{place!r}]" if isinstance(place, int) or self.returns_dict else f".{place}"


def suggest_tests(
    target: Callable[..., Any],
    owner: Any,
    spec: str,
    signature: CallSignature,
    example: tuple[dict[str, Any], Reading],
    mutants: list[Mutant],
    *,
    small: bool = True,
) -> dict[str, dict[str, str]]:
    """Return for each mutant the "text" of a test, the "reason" why it is none, or why it is "unwritten".

    `owner` holds the target, as its class or module; `spec` is `module:name`, by which a test imports it;
    `example` is the plainest call of the suite, its arguments and what it asked; sizes that are smaller than
    its own are tried if `small`.
    """
    if next(iter(signature.signature.parameters), "") == "self":
        try:
            instance = owner()
        except Exception as error:  # any code may run here
            why = f"{owner.__name__}() cannot be made without arguments: {error_line(error)}"
            return {mutant.name: {"unwritten": why} for mutant in mutants}
        target, spec = _of_instance(instance, target.__name__, spec)
        signature, example = signature.without_self(), (example[0] | {}, example[1])
        example[0].pop("self")
    prepare_interpreter()
    writer = TestWriter(target, spec, signature, example)
    by_sizes = {sizes: list(writer.candidates(sizes)) for sizes in writer.sizes(small=small)}
    if not any(by_sizes.values()):
        why = "none are written for packed sequences, nor for heads that share an axis with their numbers"
        return {mutant.name: {"unwritten": why} for mutant in mutants}
    readings: dict[SuggestedCallKey, Reading | None] = {}
    return {mutant.name: _suggest(writer, mutant, by_sizes, readings) for mutant in mutants}


def _of_instance(instance: Any, method: str, spec: str) -> tuple[Callable[..., Any], str]:
    """Return what a test calls of an instance that is made without arguments, and how it writes that."""
    module, _, name = spec.rpartition(":")
    if isinstance(instance, torch.nn.Module) and not name.endswith(".forward"):
        return instance, f"{module}:{name}()"
    return getattr(instance, method), f"{module}:{name.rpartition('.')[0]}().{method}"


def _suggest(
    writer: TestWriter,
    mutant: Mutant,
    by_sizes: dict[Sizes, list[SuggestedCall]],
    readings: dict[SuggestedCallKey, Reading | None],
) -> dict[str, str]:
    """Return the first call that shows a mutant, as a test; "unwritten" if time runs out.

    `readings` holds the calls that were made already. Sizes of which the target refuses the plain call are
    not tried with options: a call of a kernel in Triton's interpreter takes seconds.
    """
    end = time.monotonic() + PATIENCE

    def read(sizes: Sizes, i: int) -> Reading | None:
        if (sizes, i) not in readings:
            readings[sizes, i] = writer.read(by_sizes[sizes][i])
        return readings[sizes, i]

    same = refused = 0
    for sizes, candidates in by_sizes.items():
        for i, candidate in enumerate(candidates):
            if time.monotonic() > end:
                return {"unwritten": f"none was found within {PATIENCE:g} s"}
            asked = writer.preview(candidate)
            preview = None if asked is None else Reading(*asked, writer.convention, Answer(asked[0].q), {})
            if preview is None or not _shows(preview, mutant, writer.dtype):
                continue
            reading = None if read(sizes, 0) is None else read(sizes, i)
            if reading is None:
                refused += 1
            elif "detach" in mutant.change and not writer.has_gradients(candidate):
                return {"reason": "the target has no backward pass here"}
            elif _shows(reading, mutant, writer.dtype):
                return {"text": writer.write(candidate, reading, mutant)}
            else:
                same += 1
    by_convention = writer.convention.aligned == "top left" and mutant.change.keys() == {"causal"}
    if same or by_convention:
        return {"reason": "the target itself does so, by its convention"}
    if refused:
        return {"reason": "the target refuses the inputs that would show it, or is not attention there"}
    return {"reason": "no input was found that shows it"}


def _shows(reading: Reading, mutant: Mutant, dtype: torch.dtype) -> bool:
    if "detach" in mutant.change:
        return reading.question.k.shape[2] > 1
    question = reading.question.to(torch.promote_types(dtype, torch.float32))
    with torch.no_grad():
        right = reading.variant.answer(question.to(torch.float64), reading.wiring)
        try:
            wrong = reading.mutated(mutant.change).answer(question, reading.wiring)
        except (RuntimeError, ValueError, IndexError):
            return False  # it raises an error, which no assertion is needed for
    output = wrong.output if wrong.free is None else wrong.output.masked_fill(wrong.free, 0.0)
    return relative_error(Answer(output), right) > CLEAR.get(dtype, 0.02)
