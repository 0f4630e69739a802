# SPDX-License-Identifier: Apache-2.0
"""Write .gpu-carry/kernels.zip: the part of the locked sglang-kernel wheel that a Hopper GPU loads.

Its FlashAttention 3 library (1.8 GB) does not fit what can be carried and stays behind.
"""

from __future__ import annotations

import sys
import zipfile
from pathlib import Path

from imagebuild.cache import Store
from imagebuild.catalog import project_root
from imagebuild.fetch import fetch
from imagebuild.resolve import resolve
from imagebuild.settings import load_settings

LEFT = ("sgl_kernel/sm100/", "sgl_kernel/flash_ops", "triton_kernels/")


def main() -> int:
    """Write the archive and say how large it is."""
    plan = resolve(project_root() / "images", "sm_90")
    (wheel,) = (a for a in plan.artifacts if a.name == "sglang-kernel")
    settings = load_settings({})
    store: Store = fetch([wheel], settings, created=plan.created)
    out = Path(".gpu-carry") / "kernels.zip"
    out.parent.mkdir(exist_ok=True)
    with (
        zipfile.ZipFile(store.path(wheel.sha256)) as source,
        zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as target,
    ):
        for name in source.namelist():
            if not name.startswith(LEFT) and not name.endswith("/"):
                target.writestr(name, source.read(name))
    print(f"{out}: {out.stat().st_size / 1e6:.0f} MB of {wheel.file}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
