"""Shared by all tests: shapes are checked at run time, and hypothesis has no deadline.

jaxtyping annotations cost nothing in normal use. Under pytest they are checked by beartype on every
call; LMWORKS_TYPECHECK=0 switches that off (for timings, and where torch.compile traces a model).
Tiny models gain nothing from a second thread, and two test processes share the cores.
"""

import os

from hypothesis import settings

TYPECHECKED = ["lmworks.nn", "lmworks.ops", "lmworks.models", "lmworks.serve", "lmworks.eval"]

os.environ.setdefault("OMP_NUM_THREADS", "1")  # read when torch is first imported

if os.environ.get("LMWORKS_TYPECHECK", "1") != "0":
    from jaxtyping import install_import_hook

    install_import_hook(TYPECHECKED, "beartype.beartype")

# Machines that share their cores make single examples slow at random.
settings.register_profile("lmworks", deadline=None)
settings.load_profile("lmworks")
