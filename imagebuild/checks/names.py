# SPDX-License-Identifier: Apache-2.0
"""The checks of an image by name. A test of tests/image belongs to exactly one of them.

A receipt has a result for each; `imagebuild.receipt` refuses one that lacks a check.
"""

from __future__ import annotations

from dataclasses import dataclass

from imagebuild.plan import Plan


@dataclass(frozen=True)
class Check:
    """One check. `needs` names the package without which an image has nothing to check here."""

    name: str
    title: str
    needs: str = ""

    def applies(self, plan: Plan) -> bool:
        """Whether an image of this Plan has what is checked."""
        return not self.needs or self.needs in plan.packages


ALL = (
    Check("plan", "the image carries the Plan that its label names"),
    Check("configuration", "user, environment, entry point, folders and ports are the Plan's"),
    Check("labels", "labels are the Plan's"),
    Check("python-packages", "Python distributions are exactly the locked ones"),
    Check("debian-packages", "Debian packages are exactly the locked ones, all installed"),
    Check("files", "every file is as its package ships it, or as the Plan makes it; no other file is there"),
    Check("permissions", "owners and modes are the Plan's"),
    Check("times", "files have the Plan's time"),
    Check("setuid", "no set-uid or set-gid file but Debian's own"),
    Check("world-writable", "nothing is writable by everyone but Debian's sticky folders"),
    Check("secrets", "no token, password or key in files, environment, labels or history"),
    Check("traces", "no proxy, certificate, cache or configuration of the build host"),
    Check("licences", "every licence file and Debian copyright file is there"),
    Check("proprietary", "no file is changed whose licence does not allow it"),
    Check("patches", "every patch of the Plan is in, its probe passes, and it is in the edit receipt"),
    Check("edit-receipt", "the edit receipt is true, complete and a chain from the wheel's file"),
    Check("records", "every wheel's RECORD tells the truth"),
    Check("bytecode", "byte-code is that of the source beside it"),
    Check("layers", "no large file is in two layers"),
    Check("libraries", "every library that a file needs is there, or listed with a reason"),
    Check("gpu-code", "the GPU code that is really in the image fits the arch's policy"),
    Check("imports", "packages and plugins can be imported"),
    Check("toolchain", "nvcc compiles and links for the arch", needs="nvidia-cuda-nvcc"),
    Check("jit", "SGLang's and FlashInfer's kernels compile and link for the arch", needs="sglang"),
    Check("server-arguments", "SGLang's own argument resolution for the arch", needs="sglang"),
    Check("metrics", "SGLang registers every metric that dashboards and rules ask for", needs="sglang"),
    Check("preflight", "the preflight answers, with and without GPUs", needs="sglang"),
    Check("any-uid", "starts as its user, as another uid with group 0, and as root"),
    Check("read-only", "starts on a read-only root"),
    Check("entry-point", "says what it is; a wrong command fails"),
    Check("offline", "starting without a network makes no attempt to reach one"),
    Check("gpu", "torch computes on a GPU of the arch", needs="torch"),
)
BY_NAME = {check.name: check for check in ALL}
