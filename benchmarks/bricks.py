"""A small Breakout in 20 × 20 colour images, after MinAtar (Young and Tian 2019): `benchmarks.bricks:Bricks-v0`.

A ball moves by one cell per step, diagonally. The paddle below turns it back, each brick above that it hits disappears
and pays 1, and a wall without bricks is built again. An episode ends where the paddle misses the ball, or after 500
steps. An image shows the ball's last cell, too, so that one suffices to know where it goes.
"""

from typing import Any

import gymnasium as gym
import numpy as np

CELLS = 10  # a side
PIXELS = 2  # the side of a cell
BRICKS = slice(1, 4)  # rows
PADDLE = CELLS - 1  # its row
COLOURS = {"paddle": (0, 255, 0), "bricks": (90, 90, 255), "trail": (110, 0, 0), "ball": (255, 0, 0)}
STAY, LEFT, RIGHT = range(3)


class Bricks(gym.Env[np.ndarray, np.int64]):
    """Actions: stay, left, right."""

    observation_space = gym.spaces.Box(0, 255, (CELLS * PIXELS, CELLS * PIXELS, 3), np.uint8)
    action_space = gym.spaces.Discrete(3)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        self.bricks = np.ones((CELLS, CELLS), np.bool_)
        self.bricks[: BRICKS.start] = self.bricks[BRICKS.stop :] = False
        self.paddle = CELLS // 2
        self.ball = self.last = (BRICKS.stop, int(self.np_random.integers(CELLS)))
        self.direction = (1, int(self.np_random.choice((-1, 1))))
        return self._image(), {}

    def step(self, action: np.int64) -> tuple[np.ndarray, float, bool, bool, dict]:
        if action != STAY:
            self.paddle = min(max(self.paddle + (1 if action == RIGHT else -1), 0), CELLS - 1)
        (row, column), (down, right) = self.ball, self.direction
        if not 0 <= column + right < CELLS:
            right = -right
        if row + down < 0:
            down = -down
        reward, missed = 0.0, False
        target = row + down, column + right
        if self.bricks[target]:
            self.bricks[target] = False
            reward, down, target = 1.0, -down, self.ball
        elif target[0] == PADDLE:
            # the paddle is three cells wide; the ball leaves towards the side that it touches
            offset = target[1] - self.paddle
            missed = abs(offset) > 1
            if not missed:
                down, target = -1, (row, target[1])
                right = right if offset == 0 else offset
                if not self.bricks.any():
                    self.bricks[BRICKS] = True
        self.last, self.ball, self.direction = self.ball, target, (down, right)
        return self._image(), reward, missed, False, {}

    def _image(self) -> np.ndarray:
        cells = np.zeros((CELLS, CELLS, 3), np.uint8)
        cells[self.bricks] = COLOURS["bricks"]
        cells[PADDLE, max(self.paddle - 1, 0) : self.paddle + 2] = COLOURS["paddle"]
        cells[self.last] = COLOURS["trail"]
        cells[self.ball] = COLOURS["ball"]
        return cells.repeat(PIXELS, 0).repeat(PIXELS, 1)


gym.register("Bricks-v0", "benchmarks.bricks:Bricks", max_episode_steps=500)
