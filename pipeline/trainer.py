"""The training loop: measure q directions, log the step, send the update. Nothing here knows which target it trains.

All that a step depends on, besides the weights, is State; State is a fold of the run's records (advance), so a resumed
run continues exactly as if it had never stopped.
"""

from __future__ import annotations

import functools
import json
import math
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace

from converters.errors import UserError
from converters.tflite_model import read_weights
from pipeline.run import Config, Metrics, Record, Run
from pipeline.samples import Samples
from pipeline.stopwatch import Stopwatch
from pipeline.targets.target import Target, UpdateResult, board_title
from pipeline.zo import estimator, philox, schedule
from pipeline.zo.qscheduler import AdaZetaQ, FixedQ, LinearQ, QSchedule, QScheduler, QState, Window, window_length
from pipeline.zo.update import MAX_COEFFICIENT

MAX_STUCK = 8  # full steps in a row that move no weight, before training stops with an error


@dataclass(frozen=True)
class Best:
    """The steps after which the window with the lowest mean loss ended, and that loss (nats a sample)."""

    steps: int
    loss: float


@dataclass(frozen=True)
class State:
    """Where a run stands after `step` steps."""

    q: QState
    window: Window
    step: int = 0
    passes: int = 0
    ema: float = 0.0
    best: Best | None = None


def make_schedule(config: Config) -> QSchedule:
    return {
        "qscheduler": lambda: QScheduler(config.q, config.q_max),
        "fixed": lambda: FixedQ(config.q),
        "linear": lambda: LinearQ(config.q, config.q_max),
        "adazeta": lambda: AdaZetaQ(config.q_max),
    }[config.q_schedule]()


def start(config: Config) -> State:
    return State(make_schedule(config).start(), Window(config.window or window_length(config.samples, config.batch)))


def progress(config: Config, state: State) -> float:
    """The part of the budget that is used, 0 to 1."""
    used = state.passes / config.budget if config.budget is not None else state.step / config.steps
    return min(used, 1.0)


def batch_size(config: Config, step: int) -> int:
    """The last batch of an epoch holds what is left."""
    per_epoch = -(-config.samples // config.batch)
    return min(config.batch, config.samples - step % per_epoch * config.batch)


def batch_indices(config: Config, step: int) -> Sequence[int]:
    """The samples of a step: every sample once an epoch, in an order that the run's seed decides."""
    epoch, position = divmod(step, -(-config.samples // config.batch))
    first = position * config.batch
    return _order(config.seed, epoch, config.samples)[first : first + config.batch]


@functools.lru_cache(maxsize=2)
def _order(seed: int, epoch: int, samples: int) -> list[int]:
    return philox.epoch_order(seed, epoch, samples).tolist()


def losses_in(config: Config, record: Record) -> int:
    """How many samples' losses a record's sum holds: of both sides of all directions, or (one-sided) of L(w) alone."""
    sides = 2 * len(record.coefficients) if config.estimator == estimator.TWO_SIDED else 1
    return sides * batch_size(config, record.step)


def advance(config: Config, state: State, record: Record) -> State:
    """The state after a step. The record's q counts: a larger budget may have moved the schedule since."""
    q = len(record.coefficients)
    window, loss = state.window.add(record.loss, losses_in(config, record))
    after = replace(
        state,
        q=replace(state.q, q=q),
        window=window,
        step=state.step + 1,
        passes=state.passes + estimator.passes(config.estimator, q, batch_size(config, state.step)),
        ema=record.ema,
    )
    if loss is None:
        return after
    return replace(
        after,
        q=make_schedule(config).window_end(after.q, loss, progress(config, after)),
        best=Best(after.step, loss) if state.best is None or loss < state.best.loss else state.best,
    )


@dataclass(frozen=True)
class Evaluation:
    """Of the evaluation images; None where there are none, or none were asked for."""

    accuracy: float | None = None
    loss: float | None = None
    passes: int = 0


@dataclass(frozen=True)
class Summary:
    """What came out. Losses are of the on-device set in nats a sample, accuracies of the evaluation images.

    kept_step: the step whose weights are in adapted.tflite; best: of the windows of training losses.
    """

    steps: int
    forward_passes: int
    evaluation_passes: int
    accuracy_before: float | None
    accuracy_after: float | None
    loss_before: float
    loss_after: float
    kept_step: int
    best: Best | None
    weights_crc: int
    weights_changed: int
    weights: int
    seconds: dict[str, float]
    passes_per_second: float
    board: str
    runner: str
    threads: int
    memory: dict[str, int]


def is_full_step(record: Record, lr: float) -> bool:
    """Whether the RMS of a step's update is the step size or more, so that it should have moved something.

    Where the differences of a step are small beside their moving average, it is right that nothing moves: with q = 1
    and lr = 1 that is about every third step.
    """
    return 0.0 < 0.99 * lr <= math.sqrt(sum(c * c for c in record.coefficients)) / 65536.0


class Trainer:
    """One run on one target. Call prepare(), exhaust restore() and steps(), then finish()."""

    def __init__(self, run: Run, target: Target, samples: Samples, watch: Stopwatch) -> None:
        self.run, self.config = run, run.config
        self.target, self.samples, self.watch = target, samples, watch
        self.state = start(self.config)
        self.crc = run.header.weights_crc
        self.stuck = 0

    def prepare(self) -> None:
        """Upload, and measure the start unless the run has it already. The weights are the image's after this."""
        self._reset()
        if not self.run.metrics:
            loss, evaluation = self._training_loss(), self._evaluate()
            passes = self.config.samples + evaluation.passes
            self.run.add_metrics(
                Metrics(
                    step=0,
                    forward_passes=0,
                    evaluation_passes=passes,
                    q=self.state.q.q,
                    lr=self._step_size(self.state),
                    loss=loss,
                    ema=0.0,
                    gradient=None,
                    changed=None,
                    at_rail=None,
                    saturated=0,
                    weights_crc=self.crc,
                    accuracy=evaluation.accuracy,
                    evaluation_loss=evaluation.loss,
                    seconds=self.watch.take(),
                )
            )

    def restore(self) -> Iterator[State]:
        """Repeat the logged steps on the target, checked at each, and complete metrics that were cut short."""
        for record in tuple(self.run.records):
            self._take(record, self._repeat(record), gradient=None)
            yield self.state

    def steps(self) -> Iterator[Metrics]:
        """Train until the next step does not fit the budget; yields every step's line of metrics."""
        self.watch.take()  # uploading again and restoring are not part of a step
        while self._next_fits():
            record, gradient = self._measure()
            with self.watch("log"):
                self.run.log(record)  # on the disk before the update is sent: whatever happens now, it can be repeated
            with self.watch("update"):
                result = self.target.update(record.update(self.run.header))
            self._take(record, result, gradient)
            yield self.run.metrics[-1]

    def finish(self) -> Summary:
        """Go back to the best weights where that is wanted, evaluate, write adapted.tflite and summary.json."""
        kept, best, last = self.state.step, self.state.best, self.run.metrics[-1]
        evaluation = Evaluation(last.accuracy, last.evaluation_loss)
        if self.config.keep == "best" and best is not None and best.steps != kept:
            kept = best.steps
            self._reset()
            for record in self.run.records[:kept]:
                self.crc = self._repeat(record).weights_crc
            evaluation = self._evaluate()
        loss = self._training_loss()
        if evaluation.accuracy is None:
            evaluation = self._evaluate()
        model = self.target.read_tflite()
        weights = read_weights(model, self.run.image.segments)
        if not self.crc == self.target.weights_crc() == zlib.crc32(weights.tobytes()):
            raise UserError(
                f"the model that {board_title(self.target.info.board)} sent does not hold the weights {self.crc:08x} "
                "it was trained to: the link or the board's memory is faulty."
            )
        self.run.write("adapted.tflite", model)
        changed = int((weights != self.run.image.get_weights()).sum())
        summary = self._summary(kept, loss, evaluation, changed)
        self.run.write("summary.json", json.dumps(asdict(summary), indent=2).encode() + b"\n")
        return summary

    def _measure(self) -> tuple[Record, float]:
        """The record of the next step, and the RMS slope over its directions (nats a sample and LSB)."""
        config, state, target = self.config, self.state, self.target
        indices, seeds = batch_indices(config, state.step), philox.direction_seeds(config.seed, state.step, state.q.q)
        self.samples.select(indices)
        with self.watch("probe"):
            if config.estimator == estimator.TWO_SIDED:
                probes = [target.probe(seed, config.mu) for seed in seeds]
                differences = [estimator.two_sided(p.plus.loss, p.minus.loss) for p in probes]
                loss = sum(p.plus.loss + p.minus.loss for p in probes)
            else:
                loss = target.loss().loss
                differences = [estimator.one_sided(target.probe_plus(seed, config.mu).loss, loss) for seed in seeds]
        step = estimator.coefficients(differences, state.ema, self._step_size(state))
        rms = math.sqrt(sum(d * d for d in differences) / len(seeds))
        gradient = rms / (2 * config.mu * len(indices) * 65536.0)
        return Record(state.step, self.crc, loss, step.ema, step.coefficients), gradient

    def _take(self, record: Record, result: UpdateResult, gradient: float | None) -> None:
        """Account for a step whose update was applied, and write its metrics unless the run has them already."""
        before, config = self.state, self.config
        self.state = after = advance(config, before, record)
        self.crc = result.weights_crc
        if len(self.run.metrics) <= after.step:
            every = config.eval_every
            due = not self._next_fits() or (every and before.passes // every != after.passes // every)
            evaluation = self._evaluate() if due else Evaluation()
            self.run.add_metrics(
                Metrics(
                    step=after.step,
                    forward_passes=after.passes,
                    evaluation_passes=self.run.metrics[-1].evaluation_passes + evaluation.passes,
                    q=len(record.coefficients),
                    lr=self._step_size(before),
                    loss=record.loss / losses_in(config, record) / 65536.0,
                    ema=record.ema,
                    gradient=gradient,
                    changed=result.changed,
                    at_rail=result.at_rail,
                    saturated=sum(abs(c) == MAX_COEFFICIENT for c in record.coefficients),
                    weights_crc=self.crc,
                    accuracy=evaluation.accuracy,
                    evaluation_loss=evaluation.loss,
                    seconds=self.watch.take(),
                )
            )
        if result.changed:
            self.stuck = 0
        elif is_full_step(record, self._step_size(before)):
            self.stuck += 1
        if self.stuck >= MAX_STUCK:
            raise UserError(
                f"no weight changed any more up to step {after.step}: steps of {self._step_size(before):g} LSB do not "
                f"survive {config.rounding} rounding. Start a new run with a larger --lr, or --rounding stochastic."
            )

    def _reset(self) -> None:
        """The image's weights, and the samples in their places (a board that loads its image again forgets them)."""
        self.crc = self.target.weights_crc()
        if self.crc != self.run.header.weights_crc:
            self.crc = self.target.reset_weights()
        self.samples.upload()
        if self.crc != self.run.header.weights_crc:
            raise UserError(
                f"{board_title(self.target.info.board)} starts from weights {self.crc:08x}, the image holds "
                f"{self.run.header.weights_crc:08x}: the link or the board's memory is faulty; try again."
            )

    def _repeat(self, record: Record) -> UpdateResult:
        """Apply a logged step to the weights it was logged for."""
        if self.crc != record.crc:
            elsewhere = "resume on the twin (--board twin)"
            if self.run.image.npu is not None:  # where losses would be of another arithmetic
                elsewhere = f"make the weights without a board: python -m pipeline.replay {self.run.path}"
            raise UserError(
                f"before step {record.step + 1} {board_title(self.target.info.board)} has weights {self.crc:08x}, but "
                f"the run recorded {record.crc:08x}: this board computes differently from the one that trained. Check "
                f"it with --lockstep, or {elsewhere}."
            )
        return self.target.update(record.update(self.run.header))

    def _training_loss(self) -> float:
        with self.watch("evaluate"):
            return self.samples.training_loss().loss / self.config.samples / 65536.0

    def _evaluate(self) -> Evaluation:
        count = len(self.samples.test)
        if not count:
            return Evaluation()
        with self.watch("evaluate"):
            result = self.samples.test_loss()
        return Evaluation(result.correct / count, result.loss / count / 65536.0, count)

    def _step_size(self, state: State) -> float:
        config = self.config
        return schedule.step_size(config.lr, config.lr_schedule, config.coupling, progress(config, state), state.q.q)

    def _next_fits(self) -> bool:
        config, state = self.config, self.state
        if config.steps is not None:
            return state.step < config.steps
        cost = estimator.passes(config.estimator, state.q.q, batch_size(config, state.step))
        return state.passes + cost <= config.budget

    def _summary(self, kept: int, loss: float, evaluation: Evaluation, changed: int) -> Summary:
        lines, info = self.run.metrics, self.target.refresh()
        seconds: dict[str, float] = {}
        for part in (*(line.seconds for line in lines), self.watch.take()):
            for purpose, value in part.items():
                seconds[purpose] = round(seconds.get(purpose, 0.0) + value, 6)
        training = sum(value for line in lines[1:] for purpose, value in line.seconds.items() if purpose != "evaluate")
        return Summary(
            steps=self.state.step,
            forward_passes=self.state.passes,
            evaluation_passes=lines[-1].evaluation_passes + self.config.samples + evaluation.passes,
            accuracy_before=lines[0].accuracy,
            accuracy_after=evaluation.accuracy,
            loss_before=lines[0].loss,
            loss_after=loss,
            kept_step=kept,
            best=self.state.best,
            weights_crc=self.crc,
            weights_changed=changed,
            weights=info.weights,
            seconds=seconds,
            passes_per_second=self.state.passes / training if training else 0.0,
            board=info.board,
            runner=info.runner,
            threads=info.threads,
            memory=dict(info.memory),
        )
