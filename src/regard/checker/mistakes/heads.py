"""Mistakes of shape: how heads are split, merged and shared, and how the batch is treated."""

from regard.checker.mistakes.mistake import Mistake

_SPLIT = "        {0} = {0}.view(B, T, {1}, D).transpose(1, 2)\n"
_MATMUL = "scores = q @ k.transpose(-2, -1)\n"
_GROUPS = "        k, v = k.repeat_interleave(H // G, dim=1), v.repeat_interleave(H // G, dim=1)\n"

HEAD_MISTAKES = (
    Mistake(
        "heads-split-by-view",
        "with heads split by view(B, H, T, D) without a transpose",
        "Each head gets pieces of neighbouring tokens instead of its own channels of every token, so tokens "
        "leak into one another.",
        "q = q.view(B, T, H, D).transpose(1, 2)",
        "multi-head layers in which the shapes happen to fit",
        ({"split": "view"}, {"split": "view", "merge": "view"}, {"split": "fused view"}),
        symptom="The training loss is better than it can be, and what the model writes is garbage. "
        "Shapes fit.",
        why="Memory holds a token's channels one after another: (B, T, H · D). view(B, H, T, D) cuts "
        "that row into pieces in order, so that head 0 gets all channels of the first few tokens "
        "instead of some channels of every token.",
        test="future-does-not-matter",
        plants={
            "layer": tuple(
                (_SPLIT.format(x, n), f"        {x} = {x}.view(B, {n}, T, D)\n")
                for x, n in (("q", "H"), ("k", "G"), ("v", "G"))
            )
        },
    ),
    Mistake(
        "heads-merged-by-view",
        "with heads merged without the transpose",
        "The output of one token is assembled from the heads of other tokens.",
        "out = out.transpose(1, 2).reshape(B, T, H * D)",
        "`.reshape` in place of a `.view` that complained about strides",
        ({"merge": "view"},),
        symptom="The training loss is better than it can be, and what the model writes is garbage. "
        "Shapes fit, and the maps look right, since the mistake comes after them.",
        why="After weights @ v the order is (B, H, T, D). reshape(B, T, H · D) without the transpose "
        "reads it as if tokens came first, so that the first rows hold the outputs of head 0 for "
        "several tokens, later ones included.",
        test="future-does-not-matter",
        plants={
            "layer": (
                (
                    "        out = out.transpose(1, 2).reshape(B, T, C)\n",
                    "        out = out.reshape(B, T, C)\n",
                ),
            )
        },
    ),
    Mistake(
        "heads-interleaved",
        "with heads split or merged channel by channel: the first channel of every head, then the second",
        "The output projection finds the channels in another order than it was trained with; pretrained "
        "weights give noise.",
        "out = out.transpose(1, 2).reshape(B, T, H * D)",
        "`permute(0, 2, 3, 1)`, or rearrange to `b t (d h)`",
        ({"merge": "interleave"}, {"split": "interleave"}),
        symptom="None if you train from scratch. Loaded weights give noise.",
        why="The output projection has one column for each channel of each head, in the order head by "
        "head. Any fixed order can be learned, but only the original one fits weights that were "
        "trained with it.",
        test="agrees-with-pytorch",
        plants={
            "layer": (
                (
                    "        out = out.transpose(1, 2).reshape(B, T, C)\n",
                    "        out = out.permute(0, 2, 3, 1).reshape(B, T, C)\n",
                ),
            )
        },
    ),
    Mistake(
        "one-head-for-all",
        "in which one head's output is used for all heads",
        "It has the cost of many heads and can do no more than one.",
        "torch.cat([head(x) for head in self.heads], dim=-1)",
        "`self.heads[0]` in a loop over the heads, or an index that does not change",
        ({"merge": "first head"},),
        symptom="All maps of a layer can differ, and only the first one matters: leave out any other "
        "head, and nothing changes. The loss is that of a model with one head.",
        why="The index into the heads does not change, so that one output is repeated H times.",
        test="agrees-with-pytorch",
        plants={
            "layer": (
                ("        out = weights @ v\n", "        out = (weights @ v)[:, :1].expand(-1, H, -1, -1)\n"),
            )
        },
    ),
    Mistake(
        "grouped-heads-tiled",
        "with key/value heads tiled (0 1 0 1) instead of interleaved (0 0 1 1)",
        "Query heads use the keys and values of the wrong group; pretrained weights give noise. Code that "
        "tiles everywhere is consistent with itself, and right only for weights that it trained.",
        "k = k.repeat_interleave(H // G, dim=1), and v the same",
        "`.repeat` or `.expand` where `.repeat_interleave` was meant",
        ({"groups": "tile"},),
        symptom="None if you train from scratch. Loaded weights give noise, while a model with as many "
        "key/value heads as query heads is right.",
        why="With four query and two key/value heads, heads 0 and 1 share the first pair. `repeat` "
        "gives 0 1 0 1, so that heads 1 and 2 look into the wrong one.",
        test="grouped-heads-share-in-order",
        plants={
            "function": (
                (
                    "k = k.repeat_interleave(q.shape[1] // k.shape[1], dim=1)",
                    "k = k.repeat(1, q.shape[1] // k.shape[1], 1, 1)",
                ),
                (
                    "v = v.repeat_interleave(q.shape[1] // v.shape[1], dim=1)",
                    "v = v.repeat(1, q.shape[1] // v.shape[1], 1, 1)",
                ),
            ),
            "layer": (
                ("num_kv_heads=None", "num_kv_heads=2"),
                (_GROUPS, "        k, v = k.repeat(1, H // G, 1, 1), v.repeat(1, H // G, 1, 1)\n"),
            ),
        },
    ),
    Mistake(
        "dot-t-on-a-batch",
        "that uses .T, which reverses every axis of a batch",
        "On more than two dimensions `.T` reverses the batch too: shapes clash or, worse, happen to fit.",
        "scores = q @ k.transpose(-2, -1), or k.mT",
        "code that began with one sequence (T, D) and was given a batch",
        symptom="A RuntimeError about sizes that do not match. If batch size, length and width happen "
        "to fit, there is none, and texts of a batch mix.",
        why="`.T` reverses all axes: (B, T, D) becomes (D, T, B). PyTorch warns that this will become "
        "an error.",
        test="an-item-alone-gives-the-same",
        plants={
            "function": ((_MATMUL, "scores = q @ k.T\n"),),
            "head": ((_MATMUL, "scores = q @ k.T\n"),),
            "layer": ((_MATMUL, "scores = q @ k.T\n"),),
        },
    ),
    Mistake(
        "view-of-strided",
        "that calls .view on its input, which requires a contiguous one",
        "A slice or a transpose of a batch raises an error about strides.",
        "x.reshape(…) or x.flatten(…), which copy if necessary",
        "code such as GPT-2's Conv1D in Transformers, which does the same",
        warning=True,
        symptom='"view size is not compatible with input tensor\'s size and stride", for a slice or a '
        "transpose of a batch.",
        why="view never copies: it needs the numbers to lie in memory in the order of the new shape. "
        "reshape copies if it must.",
        test="strides-do-not-matter",
        plants={
            "layer": (
                (
                    "        B, T, C = x.shape\n",
                    "        B, T, C = x.shape\n        x = x.view(B * T, C).view(B, T, C)\n",
                ),
            )
        },
    ),
    Mistake(
        "batch-items-mixed",
        "in which the items of a batch attend to each other",
        "A sequence's output depends on the other items of its batch, so it changes with the batch size.",
        "keep the batch a separate dimension through the softmax: (B, H, T, S), never (H, B·T, B·T)",
        "a batch flattened into one long sequence before the heads are split",
        ({"batch": "together"},),
        symptom="The loss of a text changes with the texts beside it and with the batch size. Texts one "
        "by one give other outputs than in a batch.",
        why="Somewhere the batch has become part of another axis, or a mean or a flip runs over it. "
        "Nothing fails, since the shape is the same.",
        test="an-item-alone-gives-the-same",
        plants={
            "head": (
                (
                    "        q, k, v = self.query(x), self.key(x), self.value(x)\n",
                    "        q, k, v = self.query(x), self.key(x).mean(0, keepdim=True), self.value(x)\n",
                ),
            ),
            "layer": (
                (
                    "        q, k, v = self.q_proj(x), self.k_proj(x), self.v_proj(x)\n",
                    "        q, k, v = self.q_proj(x), self.k_proj(x), self.v_proj(x).flip(0)\n",
                ),
            ),
        },
    ),
)
