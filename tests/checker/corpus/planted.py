"""The mistakes of the catalogue, planted in right functions, heads, layers and kernels, and named first."""

from regard.checker.catalogue import CATALOGUE
from regard.checker.examples import CORE, KERNEL_TEMPLATES, NAMES, TEMPLATES, plant_mistake
from tests.checker.corpus import Entry, Program

# A function cannot know whether a batch is meant: what it does there is a warning.
ONLY_WARNINGS = {("dot-t-on-a-batch", "function")}
# One query sees every key, and cannot be taken for one: these change nothing, or do not run.
ONE_QUERY = {
    *("no-mask", "one-token-ahead", "mask-after-softmax", "masked-with-zero", "weak-mask-value"),
    *("finite-mask-value", "softcap-after-mask", "one-projection", "query-key-swapped", "roles-shuffled"),
    *("softmax-over-batch", "always-causal"),
}
# A part of the keys has a length, a softmax and gradients of its own, and no mask or cap. These mistakes
# are the same in parts as in the whole.
IN_PARTS = {
    *("no-scale", "scaled-twice", "scaled-by-width", "scale-from-model-width", "scale-multiplied"),
    *("grouped-heads-tiled", "key-value-swapped", "zero-times-infinity", "softmax-overflow"),
    "precision-lost",
}
# The first program of a mistake is checked in every run. In a function these take five times as long.
IN_A_HEAD_FIRST = {"no-mask", "mask-added-as-zero-one", "mask-after-softmax", "masked-with-zero"}


def planted(name, kind, source):
    """Return the entry of a program with a mistake; one that is only warned of leaves it right."""
    warning = CATALOGUE[name].warning or (name, kind) in ONLY_WARNINGS
    # A softmax over the batch mixes its items: either name says it.
    names = (name, "batch-items-mixed") if name == "softmax-over-batch" else (name,)
    return Entry(
        f"{name} in {kind}", Program(source, NAMES[kind]), {}, "right" if warning else "wrong", names
    )


def planted_in_core(name, kind):
    """Return the entry of a kernel with a mistake in its core, where it can be made and seen."""
    swaps, source = CATALOGUE[name].plants.get("function", ()), KERNEL_TEMPLATES[kind]
    applies = name in IN_PARTS if kind == "split" else kind != "paged" or name not in ONE_QUERY
    if not swaps or not applies or not source.startswith(CORE) or any(old not in CORE for old, _ in swaps):
        return None
    for old, new in swaps:
        source = source.replace(old, new)
    return planted(name, kind, source)


# Into programs of several processes, `test_distributed` plants them.
ENTRIES = [
    planted(name, kind, plant_mistake(mistake, kind))
    for name, mistake in CATALOGUE.items()
    for kind in sorted(mistake.plants, key=lambda kind: kind != "head" and name in IN_A_HEAD_FIRST)
    if kind in TEMPLATES
]
ENTRIES += [
    entry for name in CATALOGUE for kind in KERNEL_TEMPLATES if (entry := planted_in_core(name, kind))
]
