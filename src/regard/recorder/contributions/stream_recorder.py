"""`StreamRecorder`: records the residual stream while the model computes it, bit for bit as without.

Branches (attention, MLPs) run without gradients, and what they return becomes a term of the stream. The
stream itself, a few sums and norms, runs with gradients, so that autograd knows the way from each term to the
logits. Modules are wrapped, not hooked, and only in the context of the capture.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

from regard.gpt import GPT
from regard.recorder.attention_call import AttentionCall
from regard.recorder.contributions.frozen_modules import (
    FrozenMap,
    frozen_activation,
    gradient_variable,
    recognise_norm,
    tracked,
)
from regard.recorder.contributions.module_roles import ModuleRole, module_roles
from regard.recorder.contributions.output_projection import (
    LinearWeights,
    OutputProjection,
    certified_projection,
    has_same_rows,
    linear_weights,
)
from regard.recorder.contributions.residual_stream import ResidualStream, StreamPass, StreamTerm
from regard.recorder.layer import LayerId
from regard.recorder.map_preparation import own_memory
from regard.recorder.sources.structure_of_models.model_parts import look_at
from regard.support.override import MethodWrappers

FUSED = (nn.TransformerEncoderLayer, nn.TransformerDecoderLayer, nn.MultiheadAttention)
"""PyTorch's own layers, which leave their fused kernels if gradients are on."""
FROZEN = ("norm", "activation")
"""The roles of modules that are held fixed on the residual path, and run as they are beside it."""


class HeardCall(NamedTuple):
    """An attention call whose output projection has not run yet."""

    layer_id: LayerId
    output: Tensor  # (B, H, T, E) with which the model goes on
    is_edited: bool
    """Whether an intervention has changed it."""


class StreamRecorder:
    """Records the residual stream of one model for one capture.

    - `attention_names`: finds the names of its attention modules.
    - `token_id`: returns the id of a text that is one token, if the tokenizer is known.
    """

    def __init__(
        self,
        model: nn.Module,
        attention_names: Callable[[], Collection[str]],
        token_id: Callable[[str], int] | None = None,
    ) -> None:
        self.model, self.attention_names, self.token_id = model, attention_names, token_id
        self.unembedding: LinearWeights | None = None
        self.problem: str | None = None
        self._depth = 0  # calls of the model that have begun and not ended
        self._pass = StreamPass()
        self._entered: set[str] = set()  # the stacks whose first block has run in this pass
        self._heard: list[HeardCall] = []
        self._found: HeardCall | None = None  # the last call whose output projection has run
        self._logits: Tensor | None = None  # the unembedding's output for the last token, (B, V)
        self._state: Tensor | None = None  # the last hidden states that `GPT.states` returned
        self._projections: dict[int | str, OutputProjection] = {}
        self._not_found: dict[int | str, str] = {}

    @contextmanager
    def attached(self) -> Iterator[None]:
        """Inside the block, the model's modules are wrapped."""
        mixers = look_at(self.model).parts.mixing.mixing
        roles = module_roles(self.model, self.attention_names(), mixers)
        self.unembedding, self.problem = find_unembedding(self.model, roles), _problem(self.model, roles)
        wrappers = MethodWrappers()
        take: Mapping[str, Callable[..., Any]] = {
            "branch": self._take_branch,
            "mixer": self._take_branch,
            "linear": self._take_linear,
            "attention linear": self._take_linear,
            "norm": self._take_norm,
            "head linear": self._take_head_linear,
            "activation": self._take_activation,
        }
        run: dict[str, Callable[..., Any]] = {"block": self._run_block, "attention": self._run_attention}
        run |= {name: functools.partial(self._run_plain, function) for name, function in take.items()}
        for role in roles if self.problem is None else ():
            wrappers.add(role.module, "forward", functools.partial(self._run_role, run[role.role], role))
        for module in self.model.modules() if self.problem is None else ():
            if isinstance(module, GPT):
                wrappers.add(module, "states", self._run_model)
                wrappers.add(module, "logits", self._run_logits)
            if module is self.model or hasattr(module, "get_output_embeddings"):
                wrappers.add(module, "forward", self._run_model)
        with wrappers.active():
            yield

    # What the recording tells.

    def hear(self, layer_id: LayerId, call: AttentionCall) -> None:
        """Take an attention call, whose output projection comes next."""
        if self.problem is None and self._depth:
            self._heard.append(HeardCall(layer_id, call.used.detach(), call.edited is not None))
        elif self.problem is not None:
            self._not_found[layer_id.key] = self.problem

    def finish(self, stream: ResidualStream, is_reordered: bool) -> None:
        """Finish a forward pass, and add it to those of `stream` that it continues."""
        self._lose_heard_calls()
        stream.projections |= self._projections
        stream.not_found = {
            key: reason
            for key, reason in (stream.not_found | self._not_found).items()
            if key not in stream.projections
        }
        stream.unembedding, stream.problem, stream.token_id = self.unembedding, self.problem, self.token_id
        stream.is_reordered |= is_reordered
        if self._pass.state is not None:
            self._pass.drop_unreachable_terms()
            stream.passes.append(self._pass)
        self._pass, self._logits, self._state = StreamPass(), None, None
        self._projections, self._not_found = {}, {}
        self._entered.clear()

    # How modules run.

    def _run_model(self, forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Run the whole model without gradients, except for the residual path, and return plain tensors."""
        if self._depth:
            return forward(*args, **kwargs)
        self._depth += 1
        try:
            # A tensor that is made in inference mode can never be part of a graph.
            with torch.inference_mode(False), torch.no_grad():
                result = forward(*args, **kwargs)
                self._compare_logits(result)
                if isinstance(result, Tensor):
                    self._state = result
                return _detached(result)
        finally:
            self._depth -= 1

    def _run_role(
        self, run: Callable[..., Any], role: ModuleRole, forward: Any, *args: Any, **kwargs: Any
    ) -> Any:
        """Run a module as `run` does while the model runs, and as it is when it is called by itself."""
        return run(role, forward, *args, **kwargs) if self._depth else forward(*args, **kwargs)

    def _run_block(self, role: ModuleRole, forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Run a block with gradients on. What enters the first block of a stack is the embedding."""
        stack = role.name.rpartition(".")[0]
        index, state = _first_state(args, kwargs)
        torch.set_grad_enabled(True)  # until the model ends: the path goes on after the block
        # A second list of blocks in one module may continue the first; in another module it is another stack.
        parents = {name.rpartition(".")[0] for name in self._entered}
        is_first = stack not in self._entered and not (
            stack.rpartition(".")[0] in parents and state is not None and self._pass.leads_to(state)
        )
        if state is not None and (is_first or not state.requires_grad):
            if not is_first:
                self._note(f"what enters {role.name} could not be followed back, and is in .rest")
            started = self._add_term("embedding" if is_first else "other", role, state)
            if isinstance(index, int):
                args = (*args[:index], started, *args[index + 1 :])
            else:
                kwargs = kwargs | {index: started}
        self._entered.add(stack)
        result = forward(*args, **kwargs)
        self._lose_heard_calls()
        self._found = None
        return result

    def _run_attention(self, role: ModuleRole, forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Run an attention module without gradients up to its output projection, where the path goes on.

        With gradients on, attention may choose other kernels.
        """
        terms = len(self._pass.terms)
        # Not a block: the output projection inside switches gradients on for all that follows it.
        torch.set_grad_enabled(False)
        result = forward(*args, **kwargs)
        torch.set_grad_enabled(True)
        self._found = None
        if self._heard or len(self._pass.terms) > terms:
            return result
        # No call was heard inside: an adapter describes it afterwards, or it could not be read.
        self._note(f"what the heads of {role.name} add was not told apart, and is in .rest")
        return _replaced(result, lambda x: self._add_term("other", role, x) if x.is_floating_point() else x)

    def _run_plain(
        self, take: Callable[..., Any], role: ModuleRole, forward: Any, *args: Any, **kwargs: Any
    ) -> Any:
        """Run a module without gradients, and return what `take` makes of its input and output."""
        is_frozen, (_, x) = role.role in FROZEN, _first_state(args, kwargs)
        if take != self._take_branch and (x is None or (is_frozen and not x.requires_grad)):
            return forward(*args, **kwargs)
        with torch.no_grad():
            # A kernel may be chosen by whether its inputs require gradients.
            output = forward(*_detached(args), **_detached(kwargs))
        result = take(role, x, output)
        # What cannot be frozen runs once more, with gradients: autograd follows it as it is.
        return forward(*args, **kwargs) if is_frozen and result is None else result

    def _take_branch(self, role: ModuleRole, x: Tensor | None, output: Any) -> Any:
        """Take what a branch has returned: every tensor of it is a term."""
        kind: Literal["mlp", "other"] = "mlp"
        if role.role == "mixer":
            kind = "other"
            self._note(f"{role.name} is no softmax attention: what it adds is in .rest")
        return _replaced(output, lambda x: self._add_term(kind, role, x) if x.is_floating_point() else x)

    def _take_linear(self, role: ModuleRole, x: Tensor, output: Tensor) -> Tensor:
        """Take a linear layer of a block: an output projection, a part of an MLP, or of attention."""
        with torch.no_grad():
            merged = x.detach()
            found = self._find_projection(role, merged, output)
        if found is not None:
            call, projection = found
            self._projections[call.layer_id.key], self._found = projection, call
            # The model may write to the projection's input later.
            term = {"projection": projection, "layer": call.layer_id.key, "is_edited": call.is_edited}
            return self._add_term("heads", role, output, own_memory(merged), **term)
        if self._found is not None and has_same_rows(merged, self._found.output):
            key = self._found.layer_id.key
            self._projections.pop(key, None)
            self._not_found[key] = "several linear layers read its output, as adapters of a fine-tuning do"
            return self._add_term("other", role, output)
        if role.role == "linear":
            return self._add_term("mlp", role, output)
        # Inside attention: queries, keys and values come before the call, and are no terms of the stream.
        # The second call of a module is called by its name and "#attention2".
        if any(call.layer_id.name.partition("#")[0] == role.attention for call in self._heard):
            return self._add_term("other", role, output)
        return output

    def _find_projection(
        self, role: ModuleRole, merged: Tensor, output: Tensor
    ) -> tuple[HeardCall, OutputProjection] | None:
        """Return the call whose heads a linear layer reads, and the layer as their output projection."""
        for i, call in enumerate(self._heard):
            B, H, T, E = call.output.shape
            is_same = has_same_rows(merged, call.output)
            # Inside the attention's own module, the first layer that fits reads its gated output.
            is_gated = (
                not is_same
                and role.attention == call.layer_id.name
                and merged.shape[-1] == H * E
                and merged.numel() == B * T * H * E
            )
            if is_same or is_gated:
                projection = certified_projection(role.name, role.module, merged, output, H, is_gated)
                if projection is not None:
                    del self._heard[i]
                    return call, projection
        return None

    def _take_norm(self, role: ModuleRole, x: Tensor, output: Any) -> Tensor | None:
        """Take a norm on the residual path as the linear map that it is with its scale held fixed."""
        with torch.no_grad():
            frozen = recognise_norm(role.module, x.detach(), output) if isinstance(output, Tensor) else None
        if frozen is None:
            self._note(f"{role.name} is neither an RMSNorm nor a LayerNorm, and was not frozen")
            self._pass.is_linear = False
            return None
        self._pass.rounding = max(self._pass.rounding, frozen.eps)
        return self._through(role, frozen, x, output)

    def _take_head_linear(self, role: ModuleRole, x: Tensor, output: Tensor) -> Tensor:
        """Take a linear layer outside the blocks: the unembedding, or a map before it."""
        weights = linear_weights(role.module)
        if self.unembedding is not None and weights is not None and _is_same(weights, self.unembedding):
            self._take_state(x, output)
            return output
        return self._through(role, weights, x, output) if weights is not None and x.requires_grad else output

    def _take_activation(self, role: ModuleRole, x: Tensor, output: Any) -> Tensor | None:
        """Take an elementwise function on the path to the logits as a multiplication by its ratio."""
        if not isinstance(output, Tensor) or output.shape != x.shape:
            return None
        self._note(
            f"the activation {role.name} after the last block is frozen: its ratio f(x) / x is held fixed"
        )
        return self._through(role, frozen_activation(x.detach(), output), x, output)

    def _run_logits(self, logits: Callable[..., Tensor], states: Tensor) -> Tensor:
        """Run `GPT.logits`. In generation it is called outside the model's forward, on the last states."""
        state = states
        if not states.requires_grad and self._state is not None:
            # A view that is made without gradients has no way back to the terms.
            with torch.inference_mode(False), torch.enable_grad():
                last = self._state[:, -1] if states.ndim == 2 else self._state[:, -states.shape[1] :]
            state = last if torch.equal(last.detach(), states) else states
        if not state.requires_grad:
            return logits(states)
        with torch.no_grad():
            output = logits(states.detach())
        self._take_state(state, output)
        return output

    # What is kept.

    def _add_term(
        self,
        kind: Literal["embedding", "heads", "mlp", "other"],
        role: ModuleRole,
        output: Tensor,
        value: Tensor | None = None,
        **term: Any,
    ) -> Tensor:
        """Add a module's output to the terms, and return it as the start of a path."""
        torch.set_grad_enabled(True)  # from here on, if the module is inside attention
        variable = gradient_variable(output)
        # The model may write to this tensor in place.
        value = output.detach().clone() if value is None else value
        self._pass.terms.append(StreamTerm(kind, role.name, role.block, variable, value, **term))
        return tracked(output, variable)

    def _through(
        self, role: ModuleRole, frozen: FrozenMap | LinearWeights, x: Tensor, output: Tensor
    ) -> Tensor:
        """Return a module's output as that of a frozen map, whose bias is a term."""
        bias = gradient_variable(output)
        if frozen.bias is not None:
            self._pass.terms.append(StreamTerm("bias", role.name, role.block, bias, frozen.bias))
        return tracked(output, bias, x, frozen)

    def _take_state(self, state: Tensor, output: Tensor) -> None:
        """Keep the input of the unembedding, (B, n, d) or (B, d)."""
        if state.requires_grad and state.ndim in (2, 3):
            # As above: the view needs its way back.
            with torch.inference_mode(False), torch.enable_grad():
                self._pass.state = state.unsqueeze(1) if state.ndim == 2 else state
            last = output if output.ndim == 2 else output[:, -1]
            self._logits = last.detach()

    def _compare_logits(self, result: Any) -> None:
        """Note whether the model returns its unembedding's output, or another function of it."""
        logits = getattr(result, "logits", result)
        if self._logits is not None and isinstance(logits, Tensor) and logits.ndim == 3:
            last = logits[:, -1]
            # Gemma 2 caps its logits, and Cohere scales them.
            self._pass.is_transformed = last.shape == self._logits.shape and not torch.allclose(
                last.to(self._logits.dtype), self._logits, equal_nan=True
            )

    def _lose_heard_calls(self) -> None:
        """Name the attention calls whose output projection did not run in their block."""
        for call in self._heard:
            self._not_found[call.layer_id.key] = (
                "no linear layer was found that reads its output and to whose output its heads add up"
            )
            self._note(f"the output projection of layer {call.layer_id.key} was not found")
        self._heard.clear()

    def _note(self, sentence: str) -> None:
        self._pass.notes[sentence] = None


def find_unembedding(model: nn.Module, roles: tuple[ModuleRole, ...]) -> LinearWeights | None:
    """Return the layer that computes the logits: by its own word, or by the vocabulary's size."""
    for module in model.modules():
        if isinstance(module, GPT):
            return LinearWeights.of(
                module.token_embedding.weight if module.head is None else module.head.weight, None
            )
        if callable(own := getattr(module, "get_output_embeddings", None)):
            unembedding = own()
            if isinstance(unembedding, nn.Module) and (weights := linear_weights(unembedding)) is not None:
                return weights
    vocabularies = {x.num_embeddings for x in model.modules() if isinstance(x, nn.Embedding)}
    for role in reversed(roles):
        weights = linear_weights(role.module) if role.role == "head linear" else None
        if weights is not None and len(weights.weight) in vocabularies:
            return weights
    return None


def _problem(model: nn.Module, roles: tuple[ModuleRole, ...]) -> str | None:
    """Return why the residual stream of a model cannot be recorded, or None."""
    if any(isinstance(module, FUSED) for module in model.modules()):
        return (
            "PyTorch's own encoder and decoder layers run in one piece, and what their heads add is not seen"
        )
    if not any(role.role == "block" for role in roles):
        return f"{type(model).__name__} has no list of blocks with attention inside"
    return None


def _is_same(weights: LinearWeights, other: LinearWeights) -> bool:
    """Whether two layers are one: the same weight in memory."""
    # A tied weight is one tensor under two names.
    return weights.weight.data_ptr() == other.weight.data_ptr() and weights.weight.shape == other.weight.shape


def _first_state(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[int | str, Tensor | None]:
    """Return where among a module's arguments the hidden state is, and the state (B, T, d)."""
    every: list[tuple[int | str, Any]] = [*enumerate(args), *kwargs.items()]
    for index, x in every:
        if isinstance(x, Tensor) and x.is_floating_point() and x.ndim >= 2:
            return index, x
    return 0, None


def _replaced(x: Any, replace: Callable[[Tensor], Any]) -> Any:
    """Apply a function to the tensors of a result: a tensor, or a tuple, list or dict of results."""
    if isinstance(x, Tensor):
        return replace(x)
    if isinstance(x, tuple):
        parts = [_replaced(y, replace) for y in x]
        # A NamedTuple takes its fields one by one, a tuple takes them together.
        return type(x)(*parts) if hasattr(x, "_fields") else type(x)(parts)
    if type(x) is list:
        return [_replaced(y, replace) for y in x]
    if type(x) is dict:
        return {key: _replaced(y, replace) for key, y in x.items()}
    if isinstance(x, dict):  # the output of a Transformers model, which stays the same object
        for key, y in list(x.items()):
            replaced = _replaced(y, replace)
            if replaced is not y:
                x[key] = replaced
    return x


def _detached(x: Any) -> Any:
    """Return arguments or a result with plain tensors; those that are plain stay the same objects."""
    return _replaced(x, lambda tensor: tensor.detach() if tensor.requires_grad else tensor)
