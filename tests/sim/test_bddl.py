"""The BDDL reader: our files, LIBERO's way of writing, and errors with file and line."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from embodied_rl.errors import UserError
from embodied_rl.sim.bddl import Fact, Region, parse_bddl

# Written for this test in the style of LIBERO's files: tabs of odd depth, several names before a dash, a comment,
# capitals, a region without ranges, numbers of every form.
SAMPLE = """
(define (problem LIBERO_Kitchen_Tabletop_Manipulation)
  (:domain robosuite)
  (:language put the red mug in the top drawer)   ; free words
    (:regions
      (drawer_init_region
          (:target kitchen_table)
          (:ranges (
              (-0.01 -0.31 1e-2 -0.29)
              (0 .1 .2 .3)
            )
          )
          (:yaw_rotation (
              (3.141592653589793 3.141592653589793)
            )
          )
      )
      (top_region
          (:target white_cabinet_1)
      )
    )

  (:fixtures
    kitchen_table - kitchen_table
    white_cabinet_1 - white_cabinet
  )

  (:objects
    red_mug_1 red_mug_2 - red_mug
    plate_1 - plate
  )

  (:obj_of_interest
    red_mug_1
    white_cabinet_1
  )

  (:init
    (On white_cabinet_1 kitchen_table_drawer_init_region)
    (Open white_cabinet_1_top_region)
  )

  (:goal
    (And (In red_mug_1 white_cabinet_1_top_region) (Close white_cabinet_1_top_region) (Turnon plate_1))
  )

)
"""


def test_official_style_file() -> None:
    problem = parse_bddl(SAMPLE)
    assert problem.name == "LIBERO_Kitchen_Tabletop_Manipulation"
    assert problem.domain == "robosuite"
    assert problem.language == "put the red mug in the top drawer"
    assert list(problem.objects.items()) == [("red_mug_1", "red_mug"), ("red_mug_2", "red_mug"), ("plate_1", "plate")]
    assert problem.fixtures == {"kitchen_table": "kitchen_table", "white_cabinet_1": "white_cabinet"}
    assert problem.regions == {
        "kitchen_table_drawer_init_region": Region(
            "drawer_init_region",
            "kitchen_table",
            ((-0.01, -0.31, 0.01, -0.29), (0.0, 0.1, 0.2, 0.3)),
            ((3.141592653589793, 3.141592653589793),),
        ),
        "white_cabinet_1_top_region": Region("top_region", "white_cabinet_1"),
    }
    assert problem.obj_of_interest == ("red_mug_1", "white_cabinet_1")
    assert problem.init[1] == Fact("open", ("white_cabinet_1_top_region",))
    assert problem.goal == (
        Fact("in", ("red_mug_1", "white_cabinet_1_top_region")),
        Fact("close", ("white_cabinet_1_top_region",)),
        Fact("turnon", ("plate_1",)),
    )


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("    plate_1 - plate\n", "    plate_1\n", "f:30: 'plate_1' has no type"),
        ("(0 .1 .2 .3)", "(0 .1 .2)", "f:10: expected 4 numbers, found 3"),
        ("(0 .1 .2 .3)", "(0 .1 .2 x)", "f:10: expected 4 numbers"),
        ("(:target white_cabinet_1)", "(:aim white_cabinet_1)", "f:19: region 'top_region': unknown part :aim"),
        ("    (Open white_cabinet_1_top_region)\n", "    (Open cupboard)\n", "f:38: :init uses 'cupboard'"),
        ("(:objects", "(:things", "f:2: section (:objects ...) is missing"),
        ("(Turnon plate_1))", "(Turnon plate_1)", "f:2: this parenthesis is never closed"),
        ("(:domain robosuite)", "(:domain robosuite))", "f:47: closing parenthesis without an opening one"),
        ("plate_1 - plate", "red_mug_1 - plate", "f:30: 'red_mug_1' is declared twice"),
        ("(define", "(defin", "expected one (define"),
    ],
)
def test_errors_name_file_and_line(old: str, new: str, message: str) -> None:
    assert old in SAMPLE
    with pytest.raises(UserError) as error:
        parse_bddl(SAMPLE.replace(old, new, 1), "f")
    assert message in str(error.value)


@given(st.lists(st.tuples(*[st.floats(-2, 2)] * 4), min_size=1, max_size=4))
def test_numbers_survive(rows: list[tuple[float, float, float, float]]) -> None:
    text = (
        "(define (problem p) (:language w) (:regions (r (:target t) (:ranges ({})))) (:objects a - b) (:goal (On a a)))"
    )
    body = " ".join("({})".format(" ".join(repr(v) for v in row)) for row in rows)
    assert parse_bddl(text.format(body)).regions["t_r"].ranges == tuple(rows)


@given(st.text(alphabet="()define :goal;-ab1.\n ", max_size=60))
def test_garbage_is_a_user_error_or_a_problem(text: str) -> None:
    with contextlib.suppress(UserError):
        parse_bddl(text)
