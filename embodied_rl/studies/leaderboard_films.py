"""The films of a leaderboard's failures, as its page links them."""

from __future__ import annotations

from embodied_rl.evaluation.benchmark import summarise
from embodied_rl.jobs.failure_videos import failures, film_index, film_path
from embodied_rl.studies.leaderboard_board import OpenBoard
from embodied_rl.studies.leaderboard_page import Film
from embodied_rl.studies.run import read_cell


def films_of(it: OpenBoard) -> list[Film]:
    """The films that are there, row by row."""
    films = []
    for cell in it.cells:
        folder = it.output / cell.folder
        done = read_cell(folder)
        wanted = failures(summarise(done))[: it.board.options.videos] if done.outcomes else []
        index = film_index(folder)
        for spec in wanted:
            path = film_path(folder, spec)
            if path.is_file():
                source = path.relative_to(it.output).as_posix()
                films.append(Film(cell.row, spec.task, spec.init_state, source, index[path.name]))
    return films
