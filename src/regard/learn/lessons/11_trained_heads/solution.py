"""Lesson 11, what trained heads do: find three heads of a trained model by scores of your own, and cut one.

The text is 25 random tokens, said twice after a start token. Nothing in it can be predicted, except that the
second half repeats the first. A head that helps there has to look for the earlier copy.

Replace every `...` below: the three scores first. Then run the file: it prints the scores of all heads. Name
the heads, write the cut, and check.

    python lesson11.py           prints your scores of every head
    regard learn 11 --check      judges this file, and names your mistake
    regard learn 11 --watch      does so whenever you save it
    regard learn 11 --hint       says how to fix it
"""

import torch


def previous_token_score(A):
    """How much a head attends to the token before: the mean of A[q, q - 1] over q, for a map A (T, T)."""
    return A.diagonal(-1).mean()  #: the mean of the weights just below the diagonal


def sink_score(A):
    """How much the first token receives: the mean of A[q, 0] over all queries q, for a map A (T, T)."""
    return A[:, 0].mean()  #: the mean of the first column


def induction_score(A, ids):
    """How much a head attends to what followed earlier copies of the query's token.

    A is a map (T, T) over the tokens ids (T,). A key k counts for a query q if it stands before q and the
    token before k equals the token at q. The score is the mean of the weight on such keys over the queries
    that have one.
    """
    T = len(ids)
    q, k = torch.arange(T)[:, None], torch.arange(T)[None, :]  # (T, 1), (1, T)
    before = ids.roll(1)  # the token before each place; that of place 0 does not count
    follows_a_copy = (before[None, :] == ids[:, None]) & (k < q) & (k > 0)  #: which keys count for q, (T, T)
    mass = (A * follows_a_copy).sum(dim=-1)  #: the weight of each query on those keys, (T,)
    return mass[follows_a_copy.any(dim=-1)].mean()


# What you found: (layer, head), both counted from 0.
previous_token_head = (3, 3)  #: a head that reads the token before
sink_head = (4, 2)  #: a head that gives most of its attention to the first token
induction_head = (4, 0)  #: a head that finds what followed the earlier copy


def cut_head(model, layer, head):
    """Cut a head out of the model: what it hands to the output projection becomes 0.

    `attention.out` gets the outputs of all heads side by side, (B, T, H * D); head h is at h * D to
    (h + 1) * D. Returns the hook; hook.remove() puts the head back.
    """
    attention = model.blocks[layer].attention
    D = attention.head_dim

    def zero(module, inputs):
        merged = inputs[0].clone()  # (B, T, H * D)
        merged[..., head * D : (head + 1) * D] = 0  #: this head's numbers
        return (merged,)  #: what the module gets instead of its inputs, as a tuple

    return attention.out.register_forward_pre_hook(zero)


# Predict, then look: the loss on the second half is about 5 nats a token. By how much does it rise if you
# cut the clearest induction head?
rise_of_the_loss = 2.5  #: your guess, before you look


if __name__ == "__main__":
    from regard.gpt import GPT
    from regard.heads import repeated

    model = GPT.from_pretrained("default")
    ids = repeated(model.config.vocab_size, start=0, times=2, draws=1)  # (1, 51)
    print("layer, head   previous token   sink   induction")
    for layer, attention_map in enumerate(model.maps(ids)):
        for head, A in enumerate(attention_map.to_dense()[0]):
            scores = previous_token_score(A), sink_score(A), induction_score(A, ids[0])
            print(f"{layer:5}, {head:<4} {scores[0]:13.2f} {scores[1]:9.2f} {scores[2]:9.2f}")
