# SPDX-License-Identifier: Apache-2.0
"""DDTREE in the image: SGLang loads the plugin, knows the algorithm and finds its own sources as expected.

Prints {"algorithm", "hook", "different", "worker"}.
"""

import json

from sglang.srt.plugins import load_plugins

load_plugins()

from sglang.srt.speculative.spec_info import SpeculativeAlgorithm  # noqa: E402
from sglang_ddtree import guard, hook  # noqa: E402

algorithm = SpeculativeAlgorithm.from_string("DDTREE")
worker = algorithm.factory(None)
print(
    json.dumps(
        {
            "algorithm": type(algorithm).__name__,
            "hook": hook.is_applied(),
            "different": guard.differences(guard.site_of_sglang()),
            "worker": [base.__name__ for base in worker.__mro__][:2],
        }
    )
)
