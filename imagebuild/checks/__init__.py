# SPDX-License-Identifier: Apache-2.0
"""What is checked of a built image: names, the tree that a Plan means, and what differs from it.

    Plan + fetched files ─expected_tree→ Wanted by path ─judge(found, receipts)→ Findings by check

tests/image runs the checks in an image; the receipt keeps their results.
"""
