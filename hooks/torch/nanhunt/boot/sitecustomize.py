# SPDX-License-Identifier: Apache-2.0
"""Runs at the start of every Python below `nanhunt run`, which puts this folder first on PYTHONPATH.

Attaches nanhunt once torch has been imported; where torch never is, nothing happens. It imports nothing that has not
been imported before it, for every Python that a run starts pays for it, and keeps to old syntax, for those may be old.
"""

import os
import sys

_BOOT = os.path.dirname(os.path.abspath(__file__))
_PACKAGE = os.path.dirname(_BOOT)
_MAX_LOG_BYTES = 65536


def _say(line):
    """One line to `nanhunt run`, which says with it why nothing was recorded. It may not be there any more."""
    try:
        log = os.open(os.environ["NANHUNT_BOOT_LOG"], os.O_WRONLY | os.O_APPEND)
        try:
            if os.fstat(log).st_size < _MAX_LOG_BYTES:
                os.write(log, (line.replace("\n", " ")[:1000] + "\n").encode("utf-8", "replace"))
        finally:
            os.close(log)
    except (KeyError, OSError):
        pass


def _own_package():
    """The package around this folder, also where it is not installed for this Python: the rest of the environment
    that it lives in must not become visible to the run."""
    if "nanhunt" in sys.modules:
        return
    import importlib.util  # torch has imported it long before

    init = os.path.join(_PACKAGE, "__init__.py")
    spec = importlib.util.spec_from_file_location("nanhunt", init, submodule_search_locations=[_PACKAGE])
    package = importlib.util.module_from_spec(spec)
    sys.modules["nanhunt"] = package
    try:
        spec.loader.exec_module(package)
    except BaseException:
        sys.modules.pop("nanhunt", None)
        raise


def _attach():
    if _finder in sys.meta_path:
        sys.meta_path.remove(_finder)
    _say("torch")
    try:
        _own_package()
        import nanhunt._attach

        nanhunt._attach.attach_from_environment()
        _say("attached")
    except Exception as error:  # the run must not notice
        kind = type(error).__name__
        _say("failed " + ("{}" if kind == "UnsupportedPyTorch" else kind + ": {}").format(error))


class _TorchFinder:
    """Lets the other finders find torch, and attaches when it has been executed."""

    def find_spec(self, name, path=None, target=None):
        if name != "torch":
            return None
        for finder in list(sys.meta_path):
            if finder is self or not hasattr(finder, "find_spec"):
                continue
            spec = finder.find_spec(name, path, target)
            if spec is not None:
                _attach_after(spec.loader)
                return spec
        return None


def _attach_after(loader):
    """A loader of another class would show in `torch.__loader__`: this one is told to do more, once. A spec that is
    only looked up (`importlib.util.find_spec`) is never executed, and the finder stays for the next one."""
    if not hasattr(loader, "exec_module") or isinstance(loader, type):
        return
    original = loader.exec_module

    def exec_module(module):
        del loader.exec_module
        original(module)
        _attach()

    try:
        loader.exec_module = exec_module
    except AttributeError:
        _say("failed the loader of torch, {}, cannot be watched".format(type(loader).__name__))


def _run_hidden():
    """The sitecustomize that would have run without this one; what it raises goes where it would have gone."""
    ours = sys.modules.pop("sitecustomize", None)
    try:
        import sitecustomize  # noqa: F401
    except ImportError as error:
        if error.name != "sitecustomize":
            raise
        if ours is not None:
            sys.modules["sitecustomize"] = ours


_finder = _TorchFinder()
# What is left of PYTHONPATH is what the user made it.
sys.path[:] = [folder for folder in sys.path if os.path.abspath(folder) != _BOOT]
if os.environ.get("NANHUNT_RUN_DIR"):
    _say("started")
    sys.meta_path.insert(0, _finder)
    if "torch" in sys.modules:  # a .pth file imported it
        _attach()
try:
    _run_hidden()
finally:
    if _finder in sys.meta_path:  # first again, if what was hidden has finders of its own
        sys.meta_path.remove(_finder)
        sys.meta_path.insert(0, _finder)
