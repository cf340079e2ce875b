# SPDX-License-Identifier: Apache-2.0
from vit_jax.checkpoints.report import Entry, Report


def test_the_summary_counts_and_names_what_was_not_taken():
    report = Report(
        (
            Entry("a", "taken"),
            Entry("b", "resized", "2x2 -> 3x3, zoom"),
            Entry("c", "taken"),
            Entry("d", "dropped"),
            Entry("e", "resized", "2x2 -> 3x3, zoom"),
        )
    )
    assert report.summary() == (
        "2 taken, 2 resized, 1 dropped\n"
        "  resized (2x2 -> 3x3, zoom): b, e\n"
        "  dropped: d"
    )
    assert report.names("taken") == ["a", "c"]
    assert report.names("folded") == []
