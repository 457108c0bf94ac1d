"""Every text that advises to do something to a table, a folder or a checkpoint is listed with the test that does it.

A remedy is code: its test makes the scene, does literally what the text says, starts again, and compares the table. A
text may not advise to remove what was not proven to hold nothing delivered and nothing staged.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PRODUCT = ROOT / "spark_purgatory"
# Words of a text that sends a person to data. Options, columns of a stream and settings of a session are others.
TO_DATA = re.compile(
    r"START_OVER|RESTORE_STATE|start over|from a copy|elsewhere|[Bb]ring (?:it|its|the|back)\b|RESTORE the"
    r"|set_current_snapshot"
    r"|SET TBLPROPERTIES|ALTER TABLE|CREATE (?:TABLE|SCHEMA)|DROP (?!COLUMNS|PARTITION)|write that id|[Rr]estore the"
    r"|remove that|[Rr]emove the (?:entr|file|folder|rule|wrong)|remove \{\}|repair CHECKPOINT"
    r"|\b[Mm]ove (?:it|them|the (?!water)|\{)|run the move again"
    r"|name (?:another folder|the new one|\{theirs)|make the table first"
)
# Files of tests, the tests that do what a text says, and a part of each such text.
REMEDIES: dict[str, dict[str, tuple[str, ...]]] = {
    "crash/test_checkpoint_damage.py": {
        "test_a_file_of_sparks_own_is_named": (
            "bring it back from a copy",
            "Bring the folder back from a copy",
            "or remove {}: Spark then runs",
        ),
        "test_a_metadata_file_that_names_another_query_is_named": ("write that id into it",),
        "test_a_checkpoint_that_lost_all_but_its_metadata_is_named": (
            "bring the whole checkpoint",
            "If {missing} back from a copy",
        ),
        "test_an_intent_that_was_removed_is_named": (
            "was removed from {names.folder}/log, bring it",
            "'staging' back from a copy",
        ),
    },
    "crash/test_neighbours.py": {
        "test_what_is_done_to_the_table_between_stage_and_drain_is_named_and_once_undone_the_rows_arrive": (
            "Bring the table back (RESTORE, or from a copy)",
            "Bring the table back, or",
            "UNSET TBLPROPERTIES ('{FORGETS}')",
        ),
        "test_a_rename_between_the_look_at_the_table_and_the_write_to_it_is_named_until_the_rows_are_put_right": (
            "'{COLUMNS_AS_OF}' = '{version}'",
        ),
        "test_rows_that_break_a_rule_of_the_table_stop_the_query_at_once_and_arrive_without_it": (
            "Remove the rule that its rows break",
            "Add them to the stream, or ALTER TABLE ... ALTER COLUMN ... DROP NOT NULL",
        ),
    },
    "crash/test_table_truth.py": {
        "test_a_copy_of_the_checkpoint_goes_on_with_the_table_restored_to_the_version_of_that_hour": (
            "bring back a copy of the checkpoint made while the table was at",
        ),
        "test_a_table_that_was_removed_under_a_drain_gets_the_rows_once_it_is_back": ("earlier table back",),
    },
    "crash/test_staged_damage.py": {
        "test_a_missing_file_of_the_state_is_named_as_that": (
            "RESTORE_STATE",
            "folder 'state' from a copy",
        ),
    },
    "iceberg/test_iceberg_sink.py": {
        "test_a_copy_of_the_checkpoint_goes_on_with_the_table_rolled_back_to_the_snapshot_of_that_hour": (
            "set_current_snapshot",
        ),
        "test_rows_that_wait_go_to_the_columns_of_their_names_in_the_order_that_the_owner_names": (
            "'{COLUMNS_AS_OF}' = '{now}'",
        ),
        "test_where_its_files_were_rewritten_as_well_the_query_stops_until_it_is_told": ("'{COMMITTED}'",),
    },
    "spark/test_accumulator_query.py": {
        "test_the_command_shows_asks_and_does_it": ("repair CHECKPOINT", "Remove the entries"),
        "test_is_active_drains_nothing_and_a_drain_that_failed_at_the_end_is_asked_for_again": (
            "ADD COLUMNS ({added})",
        ),
    },
    "spark/test_rebuild.py": {
        "test_a_rebuild_decides_nothing_that_the_query_has_not_finished": ("Bring the files back, or, if their rows",),
    },
    "spark/test_dead_letters.py": {
        "test_letters_of_a_table_that_was_restored_or_made_again_or_of_an_old_checkpoint_are_not_lost": (
            "Bring the newest checkpoint back",
            "Bring the earlier table back from a copy",
        ),
        "test_letters_are_not_written_once_more_by_a_new_checkpoint": ("Name the checkpoint that wrote them",),
        "test_letters_whose_checkpoint_was_left_without_their_table_come_again": (
            "name another folder as dead_letters.checkpoint",
        ),
    },
    "spark/test_default_sessions.py": {
        "test_an_old_checkpoint_of_many_partitions_runs_and_says_so_until_it_is_moved": (
            "spark-purgatory move --partitions",
        ),
    },
    "spark/test_delta_sink.py": {
        "test_a_table_and_its_checkpoint_through_replay_loss_and_replacement": (
            "start over",
            "START_OVER",
        ),
        "test_a_table_restored_to_before_the_last_drain_is_lost": ("RESTORE the table to version",),
    },
    "spark/test_moves.py": {
        "test_a_move_that_stops_anywhere_leaves_what_refuses_to_start_and_can_be_repeated": (
            "run the move again",
            "move this one again, to another folder",
        ),
        "test_a_moved_stream_has_the_table_of_the_oracle": (
            "Move it?",
            "or move the checkpoint (spark-purgatory move)",
            "move the checkpoint in a session on the cluster",
        ),
    },
    "spark/test_report.py": {
        "test_the_page_says_what_the_table_the_rows_and_the_checkpoint_say": ("has no rows of its query: name",),
    },
    "spark/test_staged.py": {
        "test_of_two_runs_that_staged_the_same_rows_either_folder_may_go": (
            "move {last[0]}, whose rows are the same, elsewhere",
        ),
        "test_a_staged_file_is_known_by_its_path": ("move it elsewhere",),
    },
    "spark/test_start_checks.py": {
        "test_a_claim_that_a_power_loss_has_emptied_lets_no_rows_go_to_another_table": (
            "remove that folder and start again",
        ),
        "test_what_a_first_drain_left_that_was_killed_does_not_stop_the_query": (
            "move the folder elsewhere and start again",
        ),
        "test_a_table_whose_name_the_catalog_forgot_loses_nothing_by_any_advice": (
            "or register it in this session and start again",
        ),
        "test_a_name_under_which_no_table_can_be_made_is_named": ("Run CREATE SCHEMA",),
        "test_names_that_a_table_maps_and_columns_that_it_fills_pass": ("or make the table first, with",),
    },
    "spark/test_table_place.py": {
        "test_rows_that_wait_go_to_a_column_whose_type_was_widened": ("Widen the columns of the table",),
        "test_a_column_that_was_made_anew_with_another_type_is_added_again_as_the_error_says": (
            "give such a column of the table another name",
        ),
        "test_a_table_that_was_renamed_is_known": (
            "If it was renamed, start with its new name",
            "If it was moved or renamed, start with its new path or name",
        ),
    },
    "unit/test_sink_protocol.py": {
        "test_a_micro_batch_whose_commit_spark_lost_is_skipped_if_its_rows_are_the_same_and_else_stops": (
            "or start once with the sources, settings and code of then",
        ),
    },
}
ADVISED = [part for tests in REMEDIES.values() for parts in tests.values() for part in parts]
NOT_ADVISED = ("CREATE OR REPLACE BRANCH", "UNSET TBLPROPERTIES ('{SAYS}", "{RENAME}|")  # Statements that are run.


def texts() -> Iterator[tuple[str, str]]:
    """Yield the place and the text of each string of the product, but for docstrings."""
    for file in sorted(PRODUCT.rglob("*.py")):
        yield from texts_in(ast.parse(file.read_text(encoding="utf-8")), f"{file.relative_to(PRODUCT)}")


def texts_in(node: ast.AST, place: str) -> Iterator[tuple[str, str]]:
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
        return
    if isinstance(node, ast.JoinedStr):
        parts = (
            part.value if isinstance(part, ast.Constant) else f"{{{ast.unparse(part.value)}}}" for part in node.values
        )
        yield place, "".join(map(str, parts))
    elif isinstance(node, ast.Constant):
        if isinstance(node.value, str) and " " in node.value:
            yield place, node.value
    else:
        for child in ast.iter_child_nodes(node):
            yield from texts_in(child, place)


def text_of(part: ast.expr) -> str:
    return f"{{{ast.unparse(part.value)}}}" if isinstance(part, ast.FormattedValue) else str(ast.literal_eval(part))


def test_each_text_that_sends_a_person_to_data_is_listed() -> None:
    parts = [(place, each) for place, text in texts() for each in re.split(r"(?<=[^.][.;]) ", text)]
    known_parts = (*ADVISED, *NOT_ADVISED)
    sentences = [(place, each) for place, each in parts if TO_DATA.search(each)]
    assert len(sentences) > 50
    missing = [f"{place}: {each}" for place, each in sentences if not any(known in each for known in known_parts)]
    assert not missing, "list these in REMEDIES with the test that does what they say:\n" + "\n".join(missing)


def test_each_listed_remedy_is_in_the_code() -> None:
    code = "\n".join(text for _, text in texts())
    assert [known for known in ADVISED if known not in code] == []


def test_each_listed_test_exists() -> None:
    for file, tests in REMEDIES.items():
        text = (ROOT / "tests" / file).read_text(encoding="utf-8")
        assert [name for name in tests if f"\ndef {name}(" not in text] == [], file
