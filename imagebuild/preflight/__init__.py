# SPDX-License-Identifier: Apache-2.0
"""What an image does before it serves: look at the host, the weights and SGLang's arguments, then exec.

    words ─flags→ Flags;  NVML, /dev/shm, limits ─host→ Host;  model folders ─weights→ shapes
    all of them ─checks_*→ Findings ─report→ lines or JSON, exit code;  `start` execs sglang serve

This package and what it imports is baked into the image (`imagebuild.toolbox.image_code`), which has
pydantic, PyYAML and rich, but neither click nor our other libraries.
"""
