"""One conversation without a board: puzzles, questions with known answers, tasks of an outside agent."""
