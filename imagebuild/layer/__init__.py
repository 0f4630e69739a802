# SPDX-License-Identifier: Apache-2.0
"""From locked artifacts to the files of one image layer.

This package is all of our code that runs inside a build container, so it needs only the
standard library and the locked wheels of the tools context, and imports nothing else of
`imagebuild`. Both engines use it: the docker engine inside `RUN`, the base layer on the host.
"""
