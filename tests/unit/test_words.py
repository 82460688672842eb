from __future__ import annotations

from moraine.words import counted


def test_words_counted_agrees_with_its_number() -> None:
    assert counted(0, "file") == "0 files"
    assert counted(1, "file") == "1 file"
    assert counted(2, "key is", "keys are") == "2 keys are"
