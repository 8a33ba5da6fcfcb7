"""Our encode nodes begin with the inputs and outputs of the host's own, so that changing the type is the migration."""

from __future__ import annotations

import pytest
from h3te_tests.demo_host import text_encoders  # noqa: F401 (fixture)
from h3te_tests.test_nodes_schema import inputs_of, nodes  # noqa: F401 (fixture)

PAIRS = {"MiniMaxH3ReferenceToVideo": "H3TEEncodeReferences", "MiniMaxH3ImageToVideo": "H3TEEncodeKeyframes"}


@pytest.mark.parametrize("theirs", PAIRS)
def test_host_node_is_the_start_of_ours(h3, nodes, theirs):  # noqa: F811
    host, ours = getattr(h3, theirs), nodes[PAIRS[theirs]]
    expected = [name for name, _, _ in inputs_of(host)]
    assert [name for name, _, _ in inputs_of(ours)][: len(expected)] == expected
    outputs = [output.get_io_type() for output in host.GET_SCHEMA().outputs]
    assert [output.get_io_type() for output in ours.GET_SCHEMA().outputs][: len(outputs)] == outputs


@pytest.mark.parametrize("theirs", PAIRS)
def test_inputs_of_ours_alone_are_optional(h3, nodes, theirs):  # noqa: F811
    known = {name for name, _, _ in inputs_of(getattr(h3, theirs))}
    added = [(name, optional) for name, optional, _ in inputs_of(nodes[PAIRS[theirs]]) if name not in known]
    assert added
    assert all(optional for _, optional in added)
