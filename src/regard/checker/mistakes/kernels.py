"""Mistakes of kernels: packed and paged keys, split keys, sink logits, windows to both sides, interfaces."""

from __future__ import annotations

import math

from regard.checker.mistakes.mistake import Mistake, Swap

_BOUND = "        allowed = allowed & (keys <= at + right)\n"
_JOIN = "        scores = torch.cat([scores, sink], dim=-1)\n"
_SINK_KINDS = ("flash", "packed", "paged")
_CHUNKS = (None, 16, 32, 64, 128)


def _planted(old: str, new: str, kinds: tuple[str, ...]) -> dict[str, tuple[Swap, ...]]:
    return {kind: ((old, new),) for kind in kinds}


KERNEL_MISTAKES = (
    Mistake(
        "right-window-ignored",
        "with the right side of the window ignored",
        "A window to both sides shows the whole future, or none of it.",
        "keys <= at + right, beside keys >= at - left; −1 means without a bound",
        "kernels that know only causal windows and drop the second number of window_size=(left, right)",
        ({"ahead": "ignored"}, {"ahead": "zero"}),
        symptom="Causal models are right. An encoder with local attention sees the whole future, or "
        "none of it.",
        why="window_size has two numbers, left and right. Kernels that grew up with causal windows look "
        "at the first one.",
        test="a-window-of-one-is-the-token-itself",
        plants=_planted(_BOUND, "        pass\n", ("flash", "packed")),
    ),
    Mistake(
        "sink-dropped",
        "without the sink logit",
        "Weights sum to 1 where the model learnt to put most of them on nothing, so every head is too loud.",
        "let one more logit per head join the softmax, and drop its column afterwards",
        "gpt-oss on a backend whose kernel takes the argument and does not use it",
        ({"sinks": "dropped"},),
        symptom="Outputs of attention are too large in every layer, and the model writes garbage "
        "although the maps have the right pattern.",
        why="The sink logit takes its share of every row and gives no value back. Without it the rest "
        "is stretched to sum to 1.",
        test="sinks-take-their-share",
        plants=_planted(_JOIN, "        pass\n", (*_SINK_KINDS, "interface")),
    ),
    Mistake(
        "sink-added-twice",
        "with the sink logit added twice",
        "The sink takes up to twice its share, and the output is too small.",
        "add exp(sink − max) to the denominator once: after the loop over keys, not in each part of it",
        "a sink in the first block and again in the merge, or in each of two splits",
        ({"sinks": "twice"},),
        symptom="Outputs of attention are too small, most in heads that lean on their sink.",
        why="The sink belongs into the denominator once. A kernel that works in blocks or splits has "
        "several places that add to it.",
        test="sinks-take-their-share",
        plants=_planted(_JOIN, _JOIN.replace("sink]", "sink, sink]"), (*_SINK_KINDS, "interface")),
    ),
    Mistake(
        "sink-of-another-head",
        "with the sink logit of another head",
        "Heads that need a strong sink get a weak one, and the reverse.",
        "sinks[h] of the query head h, also where heads share keys",
        "a kernel indexed by key/value heads, or a shard that does not offset its heads",
        (
            {"sinks": "of the group"},
            {"sinks": "of the group, tiled"},
            {"sinks": "of the next head"},
            {"sinks": "of the previous head"},
            {"sinks": "of the first head"},
        ),
        symptom="Some heads are too loud and others too quiet; with one value for all heads in a test, "
        "nothing shows.",
        why="There is one sink logit for each query head. An index over key/value heads, or one that "
        "starts at 0 in every shard, takes another head's.",
        test="sinks-take-their-share",
        plants=_planted("sinks.view", "sinks.roll(1).view", (*_SINK_KINDS, "interface")),
    ),
    Mistake(
        "softcap-dropped-in-pages",
        "with the soft cap lost where the keys are in pages",
        "Training and prefill are right; generation with a paged cache is not.",
        "pass softcap in both arms, and test them with the same cap",
        "two arms of one function, of which only one got the new argument",
        ({"softcap": "dropped in pages"},),
        layouts=("paged or not",),
        symptom="Training, evaluation and the prompt are right. Generation with a paged cache drifts away.",
        why="The function has two arms, with and without pages, and the cap was added to one.",
        test="pages-do-not-matter",
        plants={
            "kv cache": (
                ("causal, window, softcap)", "causal, window, softcap if block_table is None else None)"),
            )
        },
    ),
    Mistake(
        "page-tail-read",
        "that reads to the end of the last page",
        "Tokens of earlier texts, left over in the page, get weight; it changes with what was there.",
        "hide positions >= seq_len in the last page",
        "a loop over whole pages without a mask for the last one",
        ({"reach": "page"},),
        layouts=("paged", "paged or not"),
        symptom="Answers depend on what the server did before. The first requests, in pages of zeros, "
        "are only a little wrong.",
        why="The last page is rarely full. Its remaining slots hold whatever was there before.",
        test="unwritten-slots-do-not-matter",
        plants={
            "paged": (
                ("key_cache[pages].flatten(0, 1)[:length]", "key_cache[pages].flatten(0, 1)"),
                ("value_cache[pages].flatten(0, 1)[:length]", "value_cache[pages].flatten(0, 1)"),
            ),
            "kv cache": (
                (
                    "        k, v = k[:length], v[:length]\n",
                    "        if block_table is None:\n            k, v = k[:length], v[:length]\n",
                ),
            ),
        },
    ),
    Mistake(
        "cache-lengths-ignored",
        "that reads the whole cache, not only the keys that were written",
        "Places of the cache that hold nothing yet, or another text, get weight.",
        "hide positions >= cache_seqlens[b] of item b",
        "a cache of the maximum length passed to attention without a mask",
        ({"reach": "all"},),
        layouts=("cache",),
        symptom="Short texts in a batch with longer ones come out wrong, and answers depend on what was "
        "in the cache before.",
        why="Every item of the batch has its own length. The buffer is as long as the longest text can be.",
        test="unwritten-slots-do-not-matter",
        plants={
            "split": (
                ("enumerate(cache_seqlens.tolist())", "enumerate([k_cache.shape[1]] * len(cache_seqlens))"),
            )
        },
    ),
    Mistake(
        "cu-seqlens-off-by-one",
        "with a boundary between packed sequences off by one",
        "A sequence sees the first token of the next one, or the last of the previous one, or misses its own "
        "last.",
        "sequence b is cu_seqlens[b] up to, but not including, cu_seqlens[b + 1]",
        "`<=` where `<` was meant, or cu_seqlens built without its leading 0",
        ({"reach": "next"}, {"reach": "next, beside the mask"}, {"reach": "previous"}, {"reach": "short"}),
        layouts=("packed",),
        symptom="The loss hardly tells: one token in a sequence is a stranger, or missing.",
        why="cu_seqlens has one more entry than there are sequences, and each end is exclusive: it is "
        "the next one's start.",
        test="a-packed-sequence-is-like-one-alone",
        plants={
            "packed": (("cu_seqlens_k[b], cu_seqlens_k[b + 1]", "cu_seqlens_k[b], cu_seqlens_k[b + 1] + 1"),),
        },
    ),
    Mistake(
        "sequences-attend-to-each-other",
        "in which packed sequences attend to each other",
        "A sequence's output depends on what was packed before it.",
        "use cu_seqlens: a query sees only keys of its own sequence",
        "cu_seqlens accepted and not used, or dropped on one path",
        ({"batch": "together"},),
        layouts=("packed",),
        symptom="The output of a text changes with what it is packed with, and with the order of packing.",
        why="Packed sequences lie in one tensor, and only cu_seqlens tells where one ends. Without it "
        "they are one long text.",
        test="a-packed-sequence-is-like-one-alone",
        plants={
            "packed": (
                (
                    "    for b in range(len(cu_seqlens_q) - 1):\n",
                    "    cu_seqlens_q, cu_seqlens_k = cu_seqlens_q[[0, -1]], cu_seqlens_k[[0, -1]]\n"
                    "    for b in range(len(cu_seqlens_q) - 1):\n",
                ),
            )
        },
    ),
    Mistake(
        "splits-merged-in-wrong-base",
        "whose parts are merged by an lse in the wrong base",
        "The parts of the keys get wrong shares: right for one part, and wrong from two on.",
        "exp(lse_i − lse) with the natural lse, or exp2 with the one in base 2",
        "kernels that use exp2 internally and hand the lse to a merge that uses exp",
        tuple(
            {"merge_base": base, "chunk": chunk}
            for base in (math.log(2), 1 / math.log(2))
            for chunk in _CHUNKS
        ),
        symptom="Right for short texts, which are not split. Long ones lean too much towards the part "
        "with the largest scores, or too little.",
        why="The share of a part is exp(lse of the part − lse of all). With an lse in base 2 and exp, "
        "the exponent is wrong by a factor of 1.44.",
        test="the-number-of-splits-does-not-matter",
        plants={
            "split": (
                (
                    "torch.softmax(torch.stack(lses), dim=0)",
                    "torch.softmax(torch.stack(lses) / math.log(2), dim=0)",
                ),
            )
        },
    ),
    Mistake(
        "stale-keys",
        "that works on keys or values of the previous step",
        "The last block (or ring step) is never seen, and another one is counted twice.",
        "wait for the copy before the scores, and swap the buffers after them",
        "double buffering and ring attention that send and compute at once",
        tuple({"stale": what, "chunk": chunk} for what in ("kv", "k", "v") for chunk in _CHUNKS),
        symptom="Outputs are wrong, often on a GPU only, and not always the same from run to run.",
        why="While one block is computed the next is copied. Without a wait, or with the buffers "
        "swapped too late, the scores are those of the block before.",
        test="the-number-of-splits-does-not-matter",
        plants={
            "split": (
                (
                    "k, v = k_cache[b, start:at], v_cache[b, start:at]",
                    "k, v = k_cache[b, max(0, start - chunk):][: at - start], v_cache[b, start:at]",
                ),
            )
        },
    ),
    Mistake(
        "mask-dropped-by-interface",
        "without the mask that the interface passed",
        "Padding is visible, and without is_causal the future too: batches of different lengths go wrong.",
        "use attention_mask, which holds everything that Transformers wants hidden",
        "attention functions registered with Transformers that count on is_causal alone",
        ({"mask_argument": "ignored"}, {"mask_argument": "ignored", "padding": "ignored"}),
        layouts=("interface", "mask interface"),
        symptom="A single text is right. Batches with padding give other outputs than the texts alone.",
        why="Transformers puts all that it wants hidden into attention_mask. is_causal says nothing of "
        "padding.",
        test="hidden-keys-do-not-matter",
        plants={
            "interface": (("        scores = scores + attention_mask\n", "        pass\n"),),
        },
    ),
)
