# SPDX-License-Identifier: Apache-2.0
"""Programs are read from small texts in the form that the compiler prints."""

import pytest

from vit_jax.tpu import program

# Three turns of a loop over stacked weights, inside of it a sum over devices, and a
# fusion that only slices one of the stacked weights.
LOOP = """HloModule jit_update, is_scheduled=true

%fused_slice (param_0.1: f32[3,8,128], param_1.1: s32[]) -> f32[8,128] {
  %param_0.1 = f32[3,8,128]{2,1,0:T(8,128)} parameter(0)
  %param_1.1 = s32[]{:T(256)} parameter(1)
  %bitcast.9 = f32[3,8,128]{2,1,0:T(8,128)} bitcast(%param_0.1)
  ROOT %slice.1 = f32[1,8,128]{2,1,0:T(8,128)} dynamic-slice(%bitcast.9, %param_1.1)
}

%add (a: f32[], b: f32[]) -> f32[] {
  %a = f32[]{:T(256)} parameter(0)
  %b = f32[]{:T(256)} parameter(1)
  ROOT %sum = f32[]{:T(256)} add(%a, %b)
}

%body (state: (s32[], f32[8,128], f32[3,8,128])) -> (s32[], f32[8,128], f32[3,8,128]) {
  %state = (s32[]{:T(256)}, f32[8,128]{1,0:T(8,128)}) parameter(0)
  %i = s32[]{:T(256)} get-tuple-element(%state), index=0
  %x = f32[8,128]{1,0:T(8,128)} get-tuple-element(%state), index=1
  %w = f32[3,8,128]{2,1,0:T(8,128)} get-tuple-element(%state), index=2
  %wi = f32[8,128]{1,0:T(8,128)} fusion(%w, %i), kind=kLoop, calls=%fused_slice
  %y = f32[8,128]{1,0:T(8,128)} multiply(%x, %wi), backend_config={"estimated_cycles":"40"}
  %z = f32[8,128]{1,0:T(8,128)} all-reduce(%y), replica_groups={}, to_apply=%add
  ROOT %next = (s32[]{:T(256)}, f32[8,128]{1,0:T(8,128)}) tuple(%i, %z, %w)
}

%condition (state.1: (s32[], f32[8,128], f32[3,8,128])) -> pred[] {
  %three = s32[]{:T(256)} constant(3)
  %state.1 = (s32[]{:T(256)}, f32[8,128]{1,0:T(8,128)}) parameter(0)
  %turn = s32[]{:T(256)} get-tuple-element(%state.1), index=0
  ROOT %less = pred[]{:T(1024)} compare(%turn, %three), direction=LT
}

ENTRY %main (p0: f32[8,128], p1: f32[3,8,128]) -> f32[8,128] {
  %p0 = f32[8,128]{1,0:T(8,128)} parameter(0)
  %p1 = f32[3,8,128]{2,1,0:T(8,128)} parameter(1)
  %start = (s32[]{:T(256)}, f32[8,128]{1,0:T(8,128)}) tuple(%p0, %p1)
  %loop = (s32[]{:T(256)}, f32[8,128]{1,0:T(8,128)}) while(%start), condition=%condition, body=%body, metadata={op_name="jit(update)/while"}
  %out = f32[8,128]{1,0:T(8,128)} get-tuple-element(%loop), index=1
  ROOT %done = f32[8,128]{1,0:T(8,128)} negate(%out), backend_config={"estimated_cycles":"10"}
}
"""  # noqa: E501 - lines as the compiler prints them
TILE = 4 * 8 * 128

COLLECTIVES = """HloModule jit_step

%inside (p: bf16[4,256]) -> bf16[32,256] {
  %p = bf16[4,256]{1,0} parameter(0)
  ROOT %fused = bf16[32,256]{1,0} all-gather(%p), dimensions={0}
}

ENTRY %main (a: f32[1000], b: bf16[4,256]) -> f32[1000] {
  %a = f32[1000]{0:T(1024)} parameter(0)
  %b = bf16[4,256]{1,0} parameter(1)
  %both = (f32[1000]{0:T(1024)}, bf16[4,256]{1,0}) all-reduce(%a, %b), to_apply=%add
  %pair = (bf16[4,256]{1,0}, bf16[32,256]{1,0}) all-gather-start(%b), dimensions={0}
  %whole = bf16[32,256]{1,0} all-gather-done(%pair)
  %again = bf16[32,256]{1,0} fusion(%b), kind=kCustom, calls=%inside
  %part = f32[125]{0} reduce-scatter(%a), dimensions={0}, to_apply=%add
  ROOT %moved = f32[1000]{0} collective-permute(%a), source_target_pairs={{0,1}}
}
"""


def test_a_loop_counts_as_often_as_it_runs():
    loop = program.parse(LOOP)
    assert loop.collectives() == {"all-reduce": (3, 3 * TILE)}
    assert loop.cycles(loops=False) == 50
    assert loop.cycles() == 3 * 40 + 10


def test_bytes_are_operands_and_results_and_slices_count_as_slices():
    loop = program.parse(LOOP)
    entry = 2 * TILE  # negate
    # The fusion reads a slice and writes it, beside a scalar; multiply has two operands
    # and a result, the sum one and one.
    body = (2 * TILE + 4) + 3 * TILE + 2 * TILE
    condition = 4 + 4 + 1
    assert loop.hbm_bytes(loops=False) == entry + body + condition
    assert loop.hbm_bytes() == entry + 3 * (body + condition)


def test_a_slice_within_a_fusion_within_a_fusion_is_a_slice():
    outer = """%outer (q.0: f32[3,8,128], q.1: s32[]) -> f32[8,128] {
  %q.0 = f32[3,8,128]{2,1,0:T(8,128)} parameter(0)
  %q.1 = s32[]{:T(256)} parameter(1)
  ROOT %nested = f32[8,128]{1,0:T(8,128)} fusion(%q.0, %q.1), calls=%fused_slice
}

%add (a"""
    text = LOOP.replace("%add (a", outer).replace(
        "kind=kLoop, calls=%fused_slice", "kind=kLoop, calls=%outer"
    )
    assert program.parse(text).hbm_bytes() == program.parse(LOOP).hbm_bytes()


def test_a_written_number_of_turns_wins():
    text = LOOP.replace(
        'metadata={op_name="jit(update)/while"}',
        'backend_config={"known_trip_count":{"n":"7"}}',
    )
    assert program.parse(text).collectives()["all-reduce"][0] == 7


def test_a_loop_whose_turns_are_not_known_counts_once():
    text = LOOP.replace("direction=LT", "direction=NE")
    assert program.parse(text).collectives()["all-reduce"][0] == 1


def test_lines_that_a_kernel_brings_along_do_not_end_the_program():
    """Its metadata are printed as they are, in several lines."""
    kernel = """  %mha.1 = f32[8,128]{1,0:T(8,128)} custom-call(%p0), custom_call_target="tpu_custom_call", metadata={
"xprof_metadata":"{\\"block_q\\": 128}"
}}, backend_config={"custom_call_config":{}}
"""  # noqa: E501 - lines as the compiler prints them
    text = LOOP.replace("  %start =", kernel + "  %start =")
    found = program.parse(text)
    assert found.collectives() == {"all-reduce": (3, 3 * TILE)}
    more = found.hbm_bytes() - program.parse(LOOP).hbm_bytes()
    assert more == 2 * TILE  # what goes into the kernel and comes out


def test_an_update_in_place_moves_the_update_alone():
    text = """ENTRY %main (p: f32[3,8,128], q: f32[1,8,128]) -> f32[3,8,128] {
  %p = f32[3,8,128]{2,1,0:T(8,128)} parameter(0)
  %q = f32[1,8,128]{2,1,0:T(8,128)} parameter(1)
  %zero = s32[]{:T(256)} constant(0)
  ROOT %u = f32[3,8,128]{2,1,0:T(8,128)} dynamic-update-slice(%p, %q, %zero)
}
"""
    read_and_written = 2 * TILE + 4
    assert program.parse(text).hbm_bytes() == read_and_written


def test_collectives_are_counted_by_kind_within_fusions_too():
    found = program.parse(COLLECTIVES).collectives()
    small, large = 2 * 4 * 256, 2 * 32 * 256
    assert found == {
        "all-gather": (2, 2 * large),
        "all-reduce": (1, 4000 + small),
        "collective-permute": (1, 4000),
        "reduce-scatter": (1, 4000),
    }


@pytest.mark.parametrize(
    ("shape", "plain", "padded"),
    [
        ("f32[2,3]{1,0}", 24, 24),
        # Rows are filled up to 8 and columns to 128.
        ("f32[197,64]{1,0:T(8,128)}", 4 * 197 * 64, 4 * 200 * 128),
        # The first axis runs fastest here.
        ("bf16[197,64]{0,1:T(8,128)(2,1)}", 2 * 197 * 64, 2 * 256 * 64),
        ("(pred[8]{0}, s32[]{:T(256)}, token[])", 8 + 4, 8 + 4),
        ("f32[8,128]{1,0:T(8,128)S(1)}", 4096, 0),
        ("f8e4m3fn[16]{0}", 16, 16),
    ],
)
def test_arrays_are_measured_with_and_without_padding(
    shape: str, plain: int, padded: int
):
    assert program.array_bytes(shape) == plain
    assert program.array_bytes(shape, padded=True) == padded


def test_a_text_without_a_program_is_refused():
    with pytest.raises(ValueError, match="no ENTRY"):
        program.parse("HloModule nothing")
