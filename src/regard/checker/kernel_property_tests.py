"""Tests of properties of kernels, and of attention on several processes, as source text by template."""

from __future__ import annotations

import textwrap


def _code(name: str, subject: str, body: str, imports: str = "") -> str:
    """Return a test file that imports its subject from the reader's module."""
    body = textwrap.indent(textwrap.dedent(body).strip("\n") + "\n", "    ")
    function = f"def test_{name.replace('-', '_')}():\n"
    return f"{imports}import torch\nfrom my_attention import {subject}  # your own\n\n\n{function}{body}"


_SINKS = "expected = 6 / (6 + sinks.exp())  # (4,): six keys with a score of 0, and the sink"
_WINDOW = "a-window-of-one-is-the-token-itself"
_RANKS = """\
import torch
import torch.distributed as dist
import torch.nn.functional as F
from my_attention import {subject}  # your own


def test_ranks_agree_with_one_process():
    rank, n = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)  # the same on every rank
    q, k, v = torch.randn(3, 1, 4, 8, 16)
    for causal in (False, True):
        whole = F.scaled_dot_product_attention(q, k, v, is_causal=causal)
        mine = {subject}(*(t.chunk(n, dim=2)[rank] for t in (q, k, v)), causal=causal)
        torch.testing.assert_close(mine, whole.chunk(n, dim=2)[rank])


if __name__ == "__main__":  # torchrun --nproc-per-node 2 test_ranks.py
    dist.init_process_group("gloo")
    test_ranks_agree_with_one_process()
"""


def _sinks(kind_call: str) -> str:
    return f"""
        sinks = torch.tensor([-2.0, 0.0, 1.0, 3.0])
        q, k, v = torch.zeros(2, 6, 4, 16), torch.randn(2, 6, 4, 16), torch.ones(2, 6, 4, 16)
        {_SINKS}
        {kind_call}
        torch.testing.assert_close(out, expected[:, None].expand_as(out))
    """


KERNEL_CODES: dict[str, dict[str, str]] = {
    _WINDOW: {
        "flash": _code(
            _WINDOW,
            "flash_attention",
            """
            q, k, v = torch.randn(3, 2, 6, 4, 16)
            torch.testing.assert_close(flash_attention(q, k, v, window_size=(0, 0)), v)
            """,
        ),
        "packed": _code(
            _WINDOW,
            "varlen",
            """
            q, k, v = torch.randn(3, 10, 4, 16)
            starts = torch.tensor([0, 6, 10])  # two sequences, of 6 and of 4 tokens
            out, _ = varlen(q, k, v, starts, starts, window_size=(0, 0))
            torch.testing.assert_close(out, v)
            """,
        ),
        "kv cache": _code(
            _WINDOW,
            "cached",
            """
            q, k, v = torch.randn(3, 2, 6, 4, 16)
            out = cached(q, k, v, torch.tensor([6, 6]), causal=True, window=(0, 0))
            torch.testing.assert_close(out, v)
            """,
        ),
    },
    "sinks-take-their-share": {
        "flash": _code(
            "sinks-take-their-share",
            "flash_attention",
            _sinks("out = flash_attention(q, k, v, sinks=sinks)"),
        ),
        "interface": _code(
            "sinks-take-their-share",
            "interface_attention",
            _sinks(
                "module = SimpleNamespace(num_key_value_groups=1, training=False)\n"
                "        q, k, v = (t.transpose(1, 2) for t in (q, k, v))\n"
                "        out, _ = interface_attention(module, q, k, v, None, s_aux=sinks)"
            ),
            "from types import SimpleNamespace\n\n",
        ),
    },
    "pages-do-not-matter": {
        "kv cache": _code(
            "pages-do-not-matter",
            "cached",
            """
            q = torch.randn(1, 1, 4, 16)
            k, v = torch.randn(2, 1, 6, 4, 16)  # six keys in a row
            pages_k, pages_v = (t.view(3, 2, 4, 16) for t in (k, v))  # or three pages of two
            length, table = torch.tensor([6]), torch.tensor([[0, 1, 2]])
            in_a_row = cached(q, k, v, length, softcap=2.0)
            in_pages = cached(q, pages_k, pages_v, length, block_table=table, softcap=2.0)
            torch.testing.assert_close(in_pages, in_a_row)
            """,
        )
    },
    "unwritten-slots-do-not-matter": {
        "paged": _code(
            "unwritten-slots-do-not-matter",
            "paged_attention",
            """
            q = torch.randn(1, 4, 16)
            k, v = torch.randn(2, 2, 4, 4, 16)  # two pages of four slots
            table, lengths = torch.tensor([[0, 1]]), torch.tensor([6])
            before = paged_attention(q, k, v, table, lengths)
            k[1, 2:] = v[1, 2:] = 100.0  # the two slots after the sixth token
            assert torch.equal(paged_attention(q, k, v, table, lengths), before)
            """,
        ),
        "kv cache": _code(
            "unwritten-slots-do-not-matter",
            "cached",
            """
            q = torch.randn(1, 1, 4, 16)
            k, v = torch.randn(2, 2, 4, 4, 16)  # two pages of four slots
            table, lengths = torch.tensor([[0, 1]]), torch.tensor([6])
            before = cached(q, k, v, lengths, block_table=table)
            k[1, 2:] = v[1, 2:] = 100.0  # the two slots after the sixth token
            assert torch.equal(cached(q, k, v, lengths, block_table=table), before)
            """,
        ),
        "split": _code(
            "unwritten-slots-do-not-matter",
            "split_decode",
            """
            q = torch.randn(1, 4, 16)
            k, v = torch.randn(2, 1, 8, 4, 16)  # eight slots
            lengths = torch.tensor([6])
            before = split_decode(q, k, v, lengths)
            k[:, 6:] = v[:, 6:] = 100.0  # the two slots after the sixth token
            assert torch.equal(split_decode(q, k, v, lengths), before)
            """,
        ),
    },
    "a-packed-sequence-is-like-one-alone": {
        "packed": _code(
            "a-packed-sequence-is-like-one-alone",
            "varlen",
            """
            q, k, v = torch.randn(3, 10, 4, 16)
            starts = torch.tensor([0, 6, 10])  # two sequences, of 6 and of 4 tokens
            both, _ = varlen(q, k, v, starts, starts)
            for start, end in ((0, 6), (6, 10)):
                alone = torch.tensor([0, end - start])
                out, _ = varlen(q[start:end], k[start:end], v[start:end], alone, alone)
                torch.testing.assert_close(both[start:end], out)
            """,
        )
    },
    "the-number-of-splits-does-not-matter": {
        "split": _code(
            "the-number-of-splits-does-not-matter",
            "split_decode",
            """
            q = torch.randn(2, 4, 16)
            k, v = torch.randn(2, 2, 8, 4, 16)
            lengths = torch.tensor([8, 5])
            whole = split_decode(q, k, v, lengths, num_splits=1)
            torch.testing.assert_close(split_decode(q, k, v, lengths, num_splits=3), whole)
            """,
        )
    },
    "hidden-keys-do-not-matter": {
        "interface": _code(
            "hidden-keys-do-not-matter",
            "interface_attention",
            """
            module = SimpleNamespace(num_key_value_groups=1, training=False)
            q, k, v = torch.randn(3, 2, 4, 6, 16)
            mask = torch.zeros(2, 1, 6, 6)
            mask[..., 4:] = float("-inf")  # two padded keys
            before, _ = interface_attention(module, q, k, v, mask)
            v[:, :, 4:] = torch.randn(2, 4, 2, 16)
            after, _ = interface_attention(module, q, k, v, mask)
            assert torch.equal(after, before)
            """,
            "from types import SimpleNamespace\n\n",
        )
    },
    "ranks-agree-with-one-process": {
        "ring": _RANKS.format(subject="ring_attention"),
        "ulysses": _RANKS.format(subject="ulysses_attention"),
    },
}
