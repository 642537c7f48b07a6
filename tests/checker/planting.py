"""Source text made into things that can be checked, with their source at hand as if it were a file."""

import linecache
import sys
import types
from itertools import count

_number = count()
_planted = []


def load(source, name):
    """The thing called `name` in a program."""
    file = f"<planted {next(_number)}>"
    linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
    module = types.ModuleType(file)
    module.__file__ = file
    sys.modules[file] = module
    _planted.append(file)
    exec(compile(source, file, "exec"), module.__dict__)
    return getattr(module, name)


def uproot():
    """Forget all programs that were loaded."""
    while _planted:
        file = _planted.pop()
        del sys.modules[file], linecache.cache[file]
