// The loop of an attempt: weights to the engine, graded answers, an update, and an evaluation or a checkpoint when due.
import path from 'node:path'
import type { ResolvedConfig } from '../../../../contract/fine-tuning.ts'
import type { Grader } from '../../../../contract/graders.ts'
import type { Endpoints } from '../../../platform/outbound/signed-post.ts'
import { type CommandTrainer, TrainerEnded } from '../../../platform/trainer/command-trainer.ts'
import type { TrainerEvent } from '../../../platform/trainer/trainer.ts'
import type { EvaluationItem, Evaluations, GradingRun } from '../../evaluations/index.ts'
import type { EngineClient, Target } from '../../serving/index.ts'
import { environmentsOf } from './bounds.ts'
import { Checkpoints } from './checkpoints.ts'
import { environmentOf, playEpisode } from './episodes.ts'
import { HeldOutEvaluation } from './evaluation.ts'
import { GradedAnswers } from './graded-answers.ts'
import { PolicyTrainer } from './policy-trainer.ts'
import { Prompts } from './prompts.ts'
import { type Emit, StepReports } from './reports.ts'
import { loadBest, saveResult } from './result.ts'
import { tokensOf } from './rollouts.ts'
import { type Play, PromptRefused, type SamplingOptions } from './sampling.ts'
import { learningRate, Schedule } from './schedule.ts'
import { ServedPolicy } from './served-policy.ts'
import { fingerprintOf, type Spec, type State } from './state.ts'
import { rolloutsOfStep } from './step-rollouts.ts'
import { update } from './update.ts'
import { WatchedGraders } from './watched.ts'

export interface AttemptOptions {
  job: { id: string; account_id: string; key_id: string }
  config: ResolvedConfig
  spec: Spec
  run_dir: string
  /** The weights below the adapter, as the engine loads them. */
  base: Target['base']
  engine: Pick<EngineClient, 'post' | 'unload'>
  grading: Evaluations['grading']
  endpoints: Pick<Endpoints, 'post'>
  signal: AbortSignal
  onEvent(event: TrainerEvent): void
}

/** Trains to the end. Resolves with whether it got there; false: it was stopped, and its state is saved. */
export async function attempt(run: AttemptOptions, commands: CommandTrainer): Promise<boolean> {
  const { spec, run_dir, signal } = run
  const { training_config, evaluation_config } = run.config
  const { seed, batch_size, epochs } = training_config
  const emit: Emit = (type, message, data) => run.onEvent({ type, message, data })
  const trainer = new PolicyTrainer(commands)
  const rollouts_dir = path.join(path.dirname(run_dir), 'rollouts')
  const fingerprint = fingerprintOf(spec, run.config)

  emit('status', 'Preparing the data', { phase: 'preparing' })
  const prompts = await openPrompts(run)
  const schedule = new Schedule({ prompts: prompts.learned.length, batch_size: batch_size.value, epochs: epochs.value })
  const { steps_total } = schedule
  announce(run, prompts, steps_total, emit)

  emit('status', `Loading ${spec.base.id}`, { phase: 'loading' })
  const checkpoints = new Checkpoints({
    trainer,
    run_dir,
    rollouts_dir,
    steps_total,
    spec,
    fingerprint,
    seed: seed.value,
    emit,
  })
  const state = await checkpoints.restore()
  const resumed = state.step > 0
  emit('status', resumed ? `Training resumes after step ${state.step}` : 'Training started', {
    phase: 'training',
    ...(resumed && { resumed_from_step: state.step }),
  })

  const grading = openGrading(run, state)
  const watched = openWatched(run, state, emit)
  const policy = new ServedPolicy({
    trainer,
    engine: run.engine,
    base: run.base,
    folder: path.join(run_dir, 'push'),
    id: `${run.job.id}.${spec.attempt}`,
  })
  try {
    const answers = new GradedAnswers({ ...episodesOf(run), grading, watched, emit, signal })
    const evaluation = new HeldOutEvaluation({
      prompts,
      answers,
      watched,
      trainer,
      checkpoints,
      emit,
      steps_total,
      every: evaluation_config.every_steps.value ?? schedule.steps_per_epoch,
      samples: run.config.method_options.evaluation_samples.value,
      patience: evaluation_config.early_stopping_patience.value,
      seed: seed.value,
    })
    const reports = new StepReports(emit, schedule, state.step)
    const evaluateIfDue = async () => evaluation.isDue(state) && (await evaluation.run(state, policy.target))
    const step = () => takeStep(run, state, { trainer, policy, prompts, answers, reports, schedule, rollouts_dir })
    try {
      await policy.load(state.step)
      let ended = await evaluateIfDue()
      while (state.step < steps_total && !ended) {
        signal.throwIfAborted()
        await step()
        signal.throwIfAborted()
        await policy.load(state.step)
        ended = await evaluateIfDue()
        if (checkpoints.isDue(state)) await checkpoints.save(state)
      }
      signal.throwIfAborted()
    } catch (error) {
      if (!signal.aborted || error instanceof TrainerEnded) throw error
      if (checkpoints.isNew(state)) await checkpoints.save(state)
      return false
    }
    // Nothing was learned, also where there are too few answers for a share of failures to end the job.
    grading.requireScores()
    const kept = await loadBest({ trainer, emit }, state)
    emit('status', 'Converting the result', { phase: 'converting' })
    await policy.drop()
    await saveResult({ trainer, prompts, schedule, folder: path.join(run_dir, 'out', 'result'), emit }, state, kept)
    return true
  } finally {
    await grading.close()
    await watched.close()
    await policy.drop()
  }
}

interface StepParts {
  trainer: PolicyTrainer
  policy: ServedPolicy
  prompts: Prompts
  answers: GradedAnswers
  reports: StepReports
  schedule: Schedule
  rollouts_dir: string
}

/** Graded answers and the update by them; the state is then that of the next step. */
async function takeStep(run: AttemptOptions, state: State, parts: StepParts): Promise<void> {
  const { trainer, policy, prompts, answers, reports, schedule, rollouts_dir } = parts
  const { method_options, training_config } = run.config
  const { batch_size, learning_rate, warmup_ratio, seed } = training_config
  const began = performance.now()
  const sources = {
    folder: rollouts_dir,
    fingerprint: state.fingerprint,
    prompts,
    answers,
    batch_size: batch_size.value,
    group_size: method_options.group_size.value,
    refill_rounds: method_options.refill_rounds.value,
    seed: seed.value,
  }
  const { step, cursor } = state
  const rollouts = await rolloutsOfStep(sources, { step: step + 1, cursor, target: policy.target })
  const sampled = (performance.now() - began) / 1000
  const rate = learningRate(step, schedule.steps_total, learning_rate.value, warmup_ratio.value)
  const updated = await update(trainer, rollouts.groups, method_options, rate)
  const whole = (performance.now() - began) / 1000
  state.step++
  state.cursor = rollouts.cursor
  state.grading = rollouts.grading
  state.generated_tokens += tokensOf(rollouts.groups)
  state.trained_tokens += updated.tokens
  state.seconds += whole
  state.losses += updated.loss
  reports.step(state, rollouts, updated, { sampled, whole, push: policy.load_seconds })
}

function openPrompts({ spec, config }: AttemptOptions): Promise<Prompts> {
  return Prompts.open({
    path: spec.dataset.path,
    validation: spec.evaluation.dataset ? spec.evaluation.dataset.path : undefined,
    split: config.evaluation_config.validation_split.value,
    seed: config.training_config.seed.value,
  })
}

function announce({ config }: AttemptOptions, { learned, heldOut }: Prompts, steps_total: number, emit: Emit): void {
  const { batch_size, seed } = config.training_config
  if (config.evaluation_config.validation_split.value && heldOut.rows.length > 0)
    emit('held_out', `${heldOut.rows.length} rows are held out`, { rows: heldOut.rows })
  const answers = batch_size.value * config.method_options.group_size.value
  emit('log', `${learned.length} prompts in ${steps_total} steps, ${answers} answers in each`, {
    rows: learned.length,
    steps_total,
    seed: seed.value,
  })
}

/** Who grades, and up to where. */
const gradingOf = ({ job: { account_id, key_id }, config }: AttemptOptions) => ({
  account_id,
  key_id: key_id === '' ? null : key_id,
  limits: config.method_options.grading.value,
})

const gradersOf = ({ value }: { value: unknown }) => value as Grader[]

function openGrading(run: AttemptOptions, state: State): GradingRun {
  return run.grading.open({
    ...gradingOf(run),
    id: `${run.job.id}.${state.step}`,
    graders: gradersOf(run.config.method_options.graders),
    soFar: state.grading,
  })
}

function openWatched(run: AttemptOptions, state: State, emit: Emit): WatchedGraders {
  return new WatchedGraders({
    ...gradingOf(run),
    grading: run.grading,
    id: `${run.job.id}.w${state.step}`,
    graders: gradersOf(run.config.method_options.watched_graders),
    soFar: state.watched,
    onWarning: (message) => emit('warning', message, { code: 'watched_graders_failed' }),
  })
}

/** How answers are sampled, and become episodes of the environments of their rows. */
function episodesOf(run: AttemptOptions) {
  const { config, endpoints } = run
  const environments = environmentsOf(config.method_options)
  const has_graders = config.method_options.graders.value.length > 0
  const sampling = samplingOf(run)
  return {
    sampling,
    requireScore(item: EvaluationItem) {
      if (!environmentOf(environments, item)?.rewards && !has_graders)
        throw new PromptRefused('it has no environment, and the job has no grader.')
    },
    play:
      (target: Target): Play =>
      (beginning, signal) =>
        playEpisode({ endpoints, environments, sampling }, target, beginning, signal),
  }
}

function samplingOf({ job, engine, config }: AttemptOptions): SamplingOptions {
  const { response_format, reasoning_effort, max_tokens, tool_choice } = config.method_options
  return {
    engine,
    job_id: job.id,
    account_id: job.account_id,
    max_tokens: max_tokens.value,
    tool_choice: tool_choice.value,
    fields: {
      ...(response_format.value && { response_format: response_format.value }),
      ...(reasoning_effort.value && { reasoning_effort: reasoning_effort.value }),
    },
  }
}
