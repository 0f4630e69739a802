# SPDX-License-Identifier: Apache-2.0
"""The licence that a wheel states, and what a list of ids allows."""

from __future__ import annotations

import pytest

from imagebuild.layer.licence import allowed, licence_of

APACHE = "License: Apache License\n         Version 2.0, January 2004\n"


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ("License-Expression: Apache-2.0 AND MIT\n", "Apache-2.0 AND MIT"),
        ("License-Expression: LicenseRef-NVIDIA-P\nLicense: MIT\n", "LicenseRef-NVIDIA-P"),
        ("License: BSD-3-Clause\n", "BSD-3-Clause"),
        ("License: MIT License\n        \n        Copyright\n", "MIT"),
        (APACHE, "Apache-2.0"),
        (APACHE + "Classifier: License :: OSI Approved :: Apache Software License\n", "Apache-2.0"),
        ("Classifier: License :: OSI Approved :: MIT License\n", "MIT"),
        ("License: LicenseRef-NVIDIA-Proprietary\nClassifier: License :: Other/Proprietary License\n",
         "LicenseRef-NVIDIA-Proprietary"),
        # says nothing exact, or contradicts itself
        ("", ""),
        ("License: BSD\n", ""),
        ("License: NVIDIA Proprietary Software\n", ""),
        ("Classifier: License :: OSI Approved :: BSD License\n", ""),
        ("Classifier: License :: Other/Proprietary License\n", ""),
        ("License: Apache 2.0\nClassifier: License :: Other/Proprietary License\n", ""),
        ("License: MIT\nClassifier: License :: OSI Approved :: Apache Software License\n", ""),
        ("License: Custom\nClassifier: License :: OSI Approved :: MIT License\n", ""),
        ("Classifier: License :: OSI Approved :: MIT License\n"
         "Classifier: License :: OSI Approved :: Apache Software License\n", ""),
    ],
)  # fmt: skip
def test_stated_licence(fields, expected):
    assert licence_of(f"Metadata-Version: 2.4\nName: x\n{fields}\nLicense-Expression: MIT\n") == expected


@pytest.mark.parametrize(
    ("expression", "answer"),
    [
        ("MIT", True),
        ("Apache-2.0 AND MIT", True),
        ("GPL-3.0-only OR MIT", True),
        ("GPL-3.0-only AND MIT", False),
        ("(GPL-3.0-only OR MIT) AND Apache-2.0", True),
        ("MIT AND (GPL-3.0-only OR MPL-2.0)", False),
        ("MIT WITH GCC-exception", False),
        ("LicenseRef-NVIDIA-Proprietary", False),
        ("", False),
        ("MIT MIT", False),
        ("(MIT", False),
        ("MIT AND", False),
        ("MIT)", False),
    ],
)
def test_allowed(expression, answer):
    assert allowed(expression, {"MIT", "Apache-2.0"}) is answer
