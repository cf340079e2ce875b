# SPDX-License-Identifier: Apache-2.0
"""Where the faults that users of other systems reported are tested here.

Fifteen cases, each a kind of fault, with the tests that would fail if it happened. A
test that is renamed or moved must be renamed or moved here too.
"""

import ast
import functools
import pathlib

import pytest

ROOT = pathlib.Path(__file__).parents[2]

# Case -> file below tests/ -> tests in it.
CASES: dict[str, dict[str, list[str]]] = {
    "1 rows of a position table with and without a class token": {
        "checkpoints/test_class_rows.py": [
            "test_the_count_tells_rows_and_grid",
            "test_rows_that_cannot_be_settled_are_refused",
        ],
        "checkpoints/test_adapt.py": [
            "test_tables_of_any_count_go_into_a_model_of_24_x_24"
        ],
    },
    "2 a table is resized by the method that is named": {
        "test_resample.py": [
            "test_growing_axis_has_the_values_of_its_method",
            "test_shrinking_axis_has_the_values_of_its_method",
            "test_grid_that_is_not_square_is_resized_by_rows_and_columns",
        ],
        "checkpoints/test_fit.py": [
            "test_positions_are_resized_by_the_method_of_their_origin"
        ],
    },
    "3 the same grid is a no-op": {
        "test_resample.py": [
            "test_same_grid_is_a_no_op",
            "test_equal_counts_are_not_equal_grids",
        ],
        "checkpoints/test_adapt.py": [
            "test_positions_of_a_model_that_is_not_square_are_taken_bit_for_bit"
        ],
    },
    "4 the last batch is whole and counted": {
        "evaluators/test_classification.py": [
            "test_eight_of_ten_right_is_four_fifths",
            "test_the_loss_is_a_mean_over_examples_not_batches",
        ],
        "evaluators/test_report.py": ["test_one_label_an_example"],
        "evaluators/test_subject.py": ["test_every_example_is_gathered_once_in_order"],
        "data/test_pipeline.py": ["test_evaluation_counts_each_example_once"],
    },
    "5 an empty class folder shifts no label": {
        "cases/test_classes.py": [
            "test_an_empty_validation_class_costs_no_accuracy",
            "test_predict_names_the_class_that_val_did_not_show",
        ],
        "data/forms/test_folders.py": [
            "test_an_empty_validation_class_does_not_shift_ids",
            "test_a_class_that_training_lacks_is_refused_by_name",
            "test_other_folders_and_files_are_passed_over",
        ],
    },
    "6 pictures of every kind, and broken ones": {
        "cases/test_decoding.py": [
            "test_a_scan_lists_the_three_broken_ones_and_no_other",
            "test_training_refuses_them_by_name",
            "test_told_to_skip_it_counts_them_and_sees_all_others_in_colour",
        ],
        "data/test_pixels.py": ["test_every_kind_becomes_rgb_of_the_right_size"],
        "data/ops/test_image.py": [
            "test_odd_images_decode_as_in_pillow_or_are_refused"
        ],
    },
    "7 a resumed run is the run that was never stopped": {
        "train/test_resume.py": [
            "test_a_run_killed_seven_times_equals_the_straight_one"
        ],
        "data/test_pipeline.py": [
            "test_a_resumed_run_sees_the_same_batches_bit_for_bit"
        ],
    },
    "8 killed while saving": {
        "checkpoints/test_train_state.py": [
            "test_leftovers_of_a_killed_process_are_named_and_ignored",
            "test_the_newest_checkpoint_comes_back_bit_for_bit",
        ],
        "train/test_resume.py": [
            "test_a_run_killed_seven_times_equals_the_straight_one"
        ],
    },
    "9 the learning rate at its edges": {
        "optim/test_schedules.py": [
            "test_cosine_gives_the_literal_values",
            "test_edges_are_finite_and_never_above_the_peak",
        ],
        "cases/test_schedules.py": [
            "test_the_log_has_the_literal_rates_also_after_a_restart",
            "test_the_logged_rate_is_the_one_that_moves_the_weights",
        ],
    },
    "10 accumulated gradients are those of the large batch": {
        "cases/test_accumulation.py": [
            "test_parts_move_a_vit_as_the_whole_batch_does",
            "test_parts_take_less_memory",
        ],
        "train/test_step.py": [
            "test_accumulated_gradients_are_those_of_the_large_batch",
            "test_the_loss_of_unequal_parts_is_the_mean_over_examples",
        ],
    },
    "11 the normalisation is that of the weights": {
        "cases/test_normalisation.py": [
            "test_white_and_black_arrive_as_the_weights_expect"
        ],
        "test_finetune.py": [
            "test_a_config_that_contradicts_the_checkpoint_is_told_both_values"
        ],
    },
    "12 attention maps": {
        "cases/test_attention_maps.py": [
            "test_maps_of_the_first_and_the_last_layer",
            "test_rollout_of_identities_is_the_identity",
            "test_rollout_multiplies_layers_and_puts_the_residual_in",
        ],
        "models/test_zoo.py": [
            "test_asking_for_attention_does_not_change_the_logits",
            "test_attention_is_refused_where_there_is_none",
        ],
    },
    "13 conversion there and back, and the same logits": {
        "convert/test_main.py": [
            "test_there_and_back_is_bit_equal_and_twice_changes_nothing",
            "test_swin_goes_there_and_back_too",
        ],
        "convert/test_timm.py": ["test_what_is_written_is_read_back_bit_for_bit"],
        "convert/test_huggingface.py": ["test_what_is_written_reads_back_bit_for_bit"],
        "convert/test_google.py": [
            "test_what_is_written_is_read_again_bit_by_bit",
            "test_two_opaque_bytes_are_bfloat16",
        ],
        "convert/test_swin.py": ["test_what_is_written_is_read_back_bit_for_bit"],
        "reference/test_timm_files.py": ["test_timm_reads_and_writes_the_same_model"],
        "reference/test_huggingface_files.py": [
            "test_models_of_ours_run_in_transformers_as_here"
        ],
        "reference/test_vit.py": [
            "test_another_epsilon_does_not_pass_on_a_nearly_constant_image"
        ],
    },
    "14 the first day": {
        "cases/test_day_one.py": [
            "test_a_folder_of_pictures_becomes_a_model_that_names_them"
        ],
        "data/test_pixels.py": ["test_all_exif_orientations_give_the_same_picture"],
        "test_main.py": ["test_train_and_predict_from_another_folder"],
    },
    "15 few-shot evaluation": {
        "cases/test_few_shot.py": [
            "test_every_regulariser_is_printed_and_no_class_is_forgotten"
        ],
        "evaluators/test_fewshot.py": [
            "test_every_accuracy_is_that_of_a_plain_ridge",
            "test_support_sets_do_not_depend_on_devices",
            "test_an_absent_class_counts_as_wrong",
            "test_the_regulariser_is_chosen_without_the_test_set",
        ],
        "evaluators/test_support.py": ["test_another_process_draws_the_same_rows"],
    },
}


@functools.cache
def functions_of(file: str) -> frozenset[str]:
    tree = ast.parse((ROOT / "tests" / file).read_text())
    return frozenset(
        node.name for node in tree.body if isinstance(node, ast.FunctionDef)
    )


@pytest.mark.parametrize("case", CASES)
def test_the_tests_of_a_case_are_there(case: str):
    for file, names in CASES[case].items():
        missing = set(names) - functions_of(file)
        assert not missing, f"{file} lacks {sorted(missing)}"


def test_no_case_is_left_out():
    assert [int(case.split()[0]) for case in CASES] == list(range(1, 16))
    assert all(CASES.values())


def test_the_tests_of_this_folder_are_named_by_a_case_or_stand_for_themselves():
    # What no case asks for: peers' faults that are told in one sentence.
    alone = {"test_starting.py", "test_entry_points.py", pathlib.Path(__file__).name}
    here = {path.name for path in pathlib.Path(__file__).parent.glob("test_*.py")}
    named = {file.rpartition("/")[2] for files in CASES.values() for file in files}
    assert here - alone <= named
