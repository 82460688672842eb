"""Which phases share a Spark job."""

from hypothesis import given
from hypothesis import strategies as st

from moraine.operations.purge import deletion
from moraine.operations.purge.order import ROOT, Phase


@given(st.dictionaries(st.sampled_from(list(Phase)), st.integers(0, 30_000)))
def test_stages_keep_every_phase_once_and_in_order(files: dict[str, int]) -> None:
    stages = list(deletion.stages(files))

    assert [phase for stage in stages for phase in stage] == [
        phase for phase in Phase if files.get(phase) and phase is not ROOT
    ]
    for stage in stages:
        assert len(stage) == 1 or sum(files[phase] for phase in stage) <= 10_000


def test_a_small_table_is_one_stage() -> None:
    assert len(list(deletion.stages(dict.fromkeys(Phase, 100)))) == 1
