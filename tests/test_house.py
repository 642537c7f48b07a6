"""The house: imports point down and never run in a circle, one name means one thing, and files are nouns."""

import ast
import graphlib
import importlib
import pkgutil
import re
from collections import Counter, defaultdict
from functools import cache
from pathlib import Path
from types import ModuleType

import pytest

import regard
from tests import source_trees

SOURCE = Path(regard.__file__).parent
README = SOURCE.parents[1].joinpath("README.md").read_text(encoding="utf-8")
TREE = re.findall(r"^[├└]── (\w+)/ ", README, re.MULTILINE)
"""The packages from the top down, as the README draws them."""
ORDER = ["__main__", "testing", *TREE, "version"]
UPWARD = {
    # `seen.show()`, `.figure()` and `.to_html()` import what draws them when they are called, and not before.
    ("regard.recorder.capture_result", "regard.show"),
    # A retrieval score runs a model itself: it is given one as `regard.gpt` loads it, and captures it.
    ("regard.heads.retrieval", "regard.recorder"),
    ("regard.heads.retrieval", "regard.gpt"),
}
"""Imports that point up, by module and package: inside functions only, each with its reason."""
OPENERS = {"safe_open", "load_file"}  # the functions of the safetensors library that open a file
FILES = [path for path in source_trees.FILES if path != SOURCE / "__init__.py"]
MODULES = {
    ".".join(("regard", *path.relative_to(SOURCE).with_suffix("").parts)).removesuffix(".__init__"): path
    for path in FILES
} | {"regard": SOURCE / "__init__.py"}

MAX_LINES, MAX_MODULES = 450, 18
FULLER = {"cli", "learn/judges"}  # one file a command, and one a lesson

PARTICIPLE = re.compile(r"[a-z]+(ing|ed)$")
NOUNS = {
    "recording",  # the noun: a recording of the attention calls of a forward pass
    "testing",  # regard.testing, named like torch.testing and numpy.testing
    "packing",  # the field's noun for several documents in one sequence, as in docs/packing.md
    "training",  # the field's noun for the activity, as a folder
    "wiring",  # the noun: how the weights of a module are wired
    "ring",  # ring attention
    "distributed",  # the field's word for several processes, as in torch.distributed
    "saved",  # show/saved, the saved page, as a folder
    "simplified",  # stages are named by the tutorials' words for them
    "projected",
    "scaled",
    "cached",
    "masking",
}


@cache
def trees():
    """The syntax tree of every file."""
    return {path: source_trees.trees()[path] for path in FILES}


def is_type_checking(node):
    """Whether a node is `if TYPE_CHECKING:`, whose body never runs."""
    return isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"


@cache
def imports(path, running=False):
    """The modules of regard that a file imports, at its top or inside functions, in every form of import.

    With `running`, only those outside of `if TYPE_CHECKING:`.
    """
    every = source_trees.nodes()[path]
    never = {id(x) for node in every if running and is_type_checking(node) for x in ast.walk(node)}
    return modules_imported(node for node in every if id(node) not in never)


def modules_imported(nodes):
    """The modules of regard that some nodes import.

    `from regard.maps import data` is an import of `regard.maps.data`; `from regard.maps import load`, where
    `load` is no module, is one of `regard.maps`.
    """
    names = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                names.add(inner if inner in MODULES else str(node.module))
        elif isinstance(node, ast.Call) and _name_of(node.func) in ("import_module", "__import__"):
            first = node.args[0] if node.args else None
            if isinstance(first, ast.Constant) and isinstance(first.value, str):
                names.add(first.value)
    return {name for name in names if name == "regard" or name.startswith("regard.")}


def _name_of(function):
    """The last part of the name by which a function is called. `ast.unparse` takes seconds for all calls."""
    return getattr(function, "attr", getattr(function, "id", ""))


def part(path):
    """The package or top-level file that a path belongs to."""
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


def is_excepted(module, imported):
    """Whether an import of a module may point up."""
    return any(module == lower and f"{imported}.".startswith(f"{upper}.") for lower, upper in UPWARD)


def test_imports_point_down():
    """In the order of the README, where no package is beside another."""
    for module, path in MODULES.items():
        for name in imports(path, running=True) if path in trees() else ():
            assert name != "regard", f"{path} imports the package itself, which is above everything"
            if not is_excepted(module, name):
                assert ORDER.index(part(path)) <= ORDER.index(name.split(".")[1]), f"{path} is below {name}"


def test_excepted_imports_are_inside_functions():
    """Importing the lower module alone does not import the upper one."""
    for module, package in UPWARD:
        path = MODULES[module]
        outside = [x for x in trees()[path].body if not isinstance(x, ast.ClassDef | ast.FunctionDef)]
        top = {x for node in outside if not is_type_checking(node) for x in ast.walk(node)}
        assert not any(is_excepted(module, name) for name in modules_imported(top))
        assert any(name.startswith(package) for name in imports(path)), f"{module} needs no exception"


def test_safetensors_files_are_opened_in_one_place():
    """Their errors and the check of their format are in `safetensor_files`, for everyone."""
    assert files_that_mention(OPENERS) == ["support/safetensor_files.py"]


@cache
def names():
    """The names in the code, not in the text, of every file."""
    return {
        path: {
            getattr(x, "id", getattr(x, "attr", getattr(x, "name", ""))) for x in source_trees.nodes()[path]
        }
        for path in FILES
    }


def files_that_mention(words):
    return [str(path.relative_to(SOURCE)) for path, found in names().items() if found & words]


def test_one_file_intercepts_scaled_dot_product_attention():
    """Two mechanisms would wrap each other, and the outermost would win."""
    modes = files_that_mention({"TorchFunctionMode"})  # the checker observes and repairs what it runs by one
    checker = ["checker/subject/subject.py"]
    # A model that is loaded is made by one that leaves out the initialisation of its weights.
    loading = ["gpt/files/meta_device.py"]
    assert modes == [*checker, *loading, "recorder/sources/sdpa.py"]
    replaced = [
        str(path.relative_to(SOURCE))
        for path, tree in trees().items()
        if "scaled_dot_product_attention" in path.read_text(encoding="utf-8")
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and _name_of(node.func) in ("replace", "override_attribute", "setattr")
        and "scaled_dot_product_attention" in ast.unparse(node)
    ]
    assert set(replaced) <= {"recorder/sources/sdpa.py"}


def test_every_part_stands_in_the_tree():
    assert sorted({part(path) for path in FILES}) == sorted(ORDER)


def test_no_import_runs_in_a_circle():
    """Not even a lazy import inside a function. A package is what its `__init__` imports."""
    graph = {
        name: {x for x in imports(path, running=True) & MODULES.keys() if not is_excepted(name, x)}
        for name, path in MODULES.items()
        if path in trees()
    }
    try:
        graphlib.TopologicalSorter(graph).prepare()
    except graphlib.CycleError as error:
        pytest.fail(" → ".join(error.args[1]))


def test_files_and_folders_are_of_a_readable_size():
    lines = {str(p.relative_to(SOURCE)): len(p.read_text(encoding="utf-8").splitlines()) for p in FILES}
    assert not {name for name, count in lines.items() if count > MAX_LINES}
    modules = Counter(str(p.parent.relative_to(SOURCE)) for p in FILES if p.name != "__init__.py")
    assert {folder for folder, count in modules.items() if count > MAX_MODULES} == FULLER


def test_class_names_are_unique():
    places = defaultdict(list)
    for path in FILES:
        for node in source_trees.nodes()[path]:
            if isinstance(node, ast.ClassDef):
                places[node.name].append(str(path.relative_to(SOURCE)))
    assert {name: paths for name, paths in places.items() if len(paths) > 1} == {}


def test_no_module_is_hidden_by_a_name_of_its_package():
    hidden = []
    for module in pkgutil.walk_packages([str(SOURCE)], "regard."):
        package, _, name = module.name.rpartition(".")
        if name != "__main__" and "triton" not in module.name:
            found = getattr(importlib.import_module(package), name, None)
            if found is not None and not isinstance(found, ModuleType):
                hidden.append(module.name)
    assert hidden == []


def test_files_are_nouns():
    """No file or folder is named by a bare participle."""
    names = {name.removesuffix(".py") for path in FILES for name in path.relative_to(SOURCE).parts}
    assert {name for name in names if PARTICIPLE.fullmatch(name)} - NOUNS == set()


FACTORIES = {
    *("arange", "as_tensor", "empty", "eye", "full", "linspace", "ones", "rand", "randint", "randn"),
    *("randperm", "scalar_tensor", "tensor", "tril_indices", "triu_indices", "zeros"),
}
FOLLOW = {"checker", "layers", "learn", "stages", "__main__.py"}
"""What has a process of its own or is a lesson; and layers, whose parameters follow as PyTorch's do."""


def test_tensors_do_not_follow_the_default_device():
    """Every tensor that is made names its device: a default device is the user's, for the user's tensors."""
    found = []
    for path in FILES:
        place = path.relative_to(SOURCE)
        for node in source_trees.nodes()[path] if not FOLLOW & {place.parts[0], place.name} else ():
            match node:
                case ast.Call(ast.Attribute(ast.Name("torch"), name), keywords=named) if name in FACTORIES:
                    if not {"device", None} & {keyword.arg for keyword in named}:
                        found.append(f"{place}:{node.lineno}")
    assert found == []
