"""Private names of PyTorch: all of them are there, in one module, each with what replaces it."""

import ast
import importlib
import itertools
import tomllib

import pytest
import torch
from torch.autograd import forward_ad

from tests.source_trees import SOURCE, nodes, trees

TABLE = SOURCE / "support" / "torch_internals.py"
ATTRIBUTES = tomllib.loads(TABLE.with_name("torch_attributes.toml").read_text(encoding="utf-8"))
MODULES = {  # how the module's own imports name parts of PyTorch
    "overrides": "torch.overrides",
    "batchnorm": "torch.nn.modules.batchnorm",
    "_python_dispatch": "torch.utils._python_dispatch",
    "_pytree": "torch.utils._pytree",
}


def entries():
    """Each name of the table as PyTorch's own path, and what is said of it."""
    body = trees()[TABLE].body
    for node, after in itertools.pairwise(body):
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Attribute):
            head, _, rest = ast.unparse(node.value).partition(".")
            text = after.value.value if isinstance(after, ast.Expr) else ""
            yield f"{MODULES.get(head, head)}.{rest}", " ".join(str(text).split())
    for function in (node for node in body if isinstance(node, ast.FunctionDef)):
        text = " ".join((ast.get_docstring(function) or "").split())
        for node in ast.walk(function):
            if isinstance(node, ast.ImportFrom):
                yield from ((f"{node.module}.{name.name}", text) for name in node.names)
    yield "torch._dynamo.eval_frame.OptimizedModule", "If gone: `type(torch.compile(nn.Identity()))`."


def is_there(path):
    """Whether PyTorch has a name, in a module that may have to be imported first."""
    module = path.rpartition(".")[0]
    for parent in (module, module.rpartition(".")[0]):
        try:
            found = importlib.import_module(parent)
        except ImportError:
            continue
        for step in path.removeprefix(f"{parent}.").split("."):
            found = getattr(found, step, None)
        return found is not None
    owner = torch  # `torch.ops.aten` is no module
    for step in path.split(".")[1:]:
        owner = getattr(owner, step, None)
    return owner is not None


def owners():
    """Objects of PyTorch that have the private attributes of the table."""
    module = torch.nn.Linear(1, 1)

    def identity(x: torch.Tensor) -> torch.Tensor:  # the operator's schema
        return x.clone()

    operator = torch.library.custom_op("regard_tests::identity", mutates_args=())(identity)
    constant = torch.compiler.assume_constant_result(lambda: 1)
    compiled = [torch.compile(module), torch.compile(identity)]
    overload = torch.ops.aten.add.Tensor
    storage = torch.empty(0).untyped_storage()
    return [module, torch.empty(0), storage, overload, operator, constant, forward_ad, torch, *compiled]


def test_every_name_is_there():
    missing = [f"{path}: {text}" for path, text in entries() if not is_there(path)]
    assert missing == [], f"PyTorch {torch.__version__} lacks " + "\n".join(missing)


@pytest.mark.at_length("test_every_name_is_there")
def test_every_attribute_is_there():
    things = owners()
    missing = [
        f"{name}: {text}" for name, text in ATTRIBUTES.items() if not any(hasattr(x, name) for x in things)
    ]
    assert missing == [], f"PyTorch {torch.__version__} lacks " + "\n".join(missing)


def test_every_entry_says_what_replaces_it():
    table = dict(entries())
    assert len(table) > 30
    assert [name for name, text in (table | ATTRIBUTES).items() if "If gone: " not in text] == []


def is_private(path):
    first, *rest = path.split(".")
    return first == "torch" and any(x.startswith("_") and not x.startswith("__") for x in rest)


def private_names(nodes):
    """The private names of PyTorch that a file mentions: as an attribute, or by an import."""
    for node in nodes:
        match node:
            case ast.Attribute() if _is_private_somewhere(node):
                path = ast.unparse(node).replace("aten._", "torch.ops.aten._")
                path = path.replace("torch.ops.torch.ops", "torch.ops")
                if is_private(path):
                    yield path
            case ast.ImportFrom(module=module, names=names):
                yield from filter(is_private, (f"{module}.{name.name}" for name in names))
            case ast.Import(names=names):
                yield from filter(is_private, (name.name for name in names))


def _is_private_somewhere(node):
    """Whether a part of a dotted name is private. `ast.unparse` takes seconds for all of them."""
    while isinstance(node, ast.Attribute):
        if node.attr.startswith("_"):
            return True
        node = node.value
    return False


def test_no_private_name_is_elsewhere():
    found = {
        f"{path.relative_to(SOURCE)}: {name}"
        for path, found_in in nodes().items()
        if path != TABLE
        for name in private_names(found_in)
    }
    assert found == set(), "name it in support/torch_internals.py"


def test_no_private_attribute_is_missing_from_the_table():
    """Those that some object of PyTorch has, read from something that is not `self`."""
    things = [*owners()[:4], forward_ad]
    found = set()
    for path, found_in in nodes().items():
        for node in found_in:
            match node:
                case (
                    ast.Attribute(value=ast.Name("self" | "cls"))
                    | ast.Attribute(value=ast.Call(ast.Name("super")))
                ):
                    continue
                case ast.Attribute(attr=name) if name.startswith("_") and not name.startswith("__"):
                    if any(hasattr(x, name) for x in things):
                        found.add((name, str(path.relative_to(SOURCE))))
    assert {(name, path) for name, path in found if name not in ATTRIBUTES} == set()
