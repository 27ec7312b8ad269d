// An attempt at a job that learns from graders: the engine samples answers with the weights of the step, graders score
// them, and the trainer updates the weights (docs/decisions/055-reinforcement.md).
import { createHash } from 'node:crypto'
import { rm } from 'node:fs/promises'
import path from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import type { ResolvedConfig } from '../../../../contract/fine-tuning.ts'
import type { Grader } from '../../../../contract/graders.ts'
import { CommandError, CommandTrainer, TrainerEnded } from '../../../platform/trainer/command-trainer.ts'
import { stoppedStatus, type TrainerEvent, type TrainerExit } from '../../../platform/trainer/trainer.ts'
import {
  DayUsedUp,
  type EvaluationItem,
  type Evaluations,
  GraderError,
  type GradingRun,
  type GradingSoFar,
  GradingStopped,
} from '../../evaluations/index.ts'
import type { EngineClient, Target } from '../../serving/index.ts'
import type { Specs } from '../spec.ts'
import { trainerLosses } from './advantages.ts'
import { Prompts } from './prompts.ts'
import {
  type Datum,
  dataOf,
  figuresOf,
  type GradedGroup,
  graderMeans,
  type Rollouts,
  removeRollouts,
  storedRollouts,
  storeRollouts,
  teachesNothing,
} from './rollouts.ts'
import { gradedValues, type SamplingOptions, sampleGroups } from './sampling.ts'
import { learningRate } from './schedule.ts'

type Spec = Awaited<ReturnType<Specs['ofJob']>>

export interface ReinforcementRun {
  job: { id: string; account_id: string; key_id: string }
  config: ResolvedConfig
  spec: Spec
  run_dir: string
  /** The weights below the adapter, as the engine loads them. */
  base: Target['base']
  engine: Pick<EngineClient, 'post' | 'unload'>
  grading: Evaluations['grading']
  python: string
  env: Record<string, string>
  log_fields: Record<string, string | number>
  /** How long a command of the trainer may take once the run is to stop. */
  grace_ms: number
  onStarted(pid: number): () => void
  signal: AbortSignal
  onEvent(event: TrainerEvent): void
}

/** What a checkpoint has beside the weights. */
interface State {
  fingerprint: string
  step: number
  /** The place in the order of prompts. */
  cursor: number
  trained_tokens: number
  generated_tokens: number
  seconds: number
  losses: number
  grading: GradingSoFar | undefined
  best: { step: number; reward: number; path: string; sha256: string } | null
  /** Evaluations since the best one. */
  without_better: number
  evaluated_step: number
}

const adapter = 'policy'
const checkpointsKept = 2
const bestsKept = 3
/** Answers that an evaluation shows. */
const samplesShown = 4
const shown_characters = 4000
const temperature = 1

/** Trains to the end, or until the signal aborts: then a checkpoint is written. Resolves with how the trainer ended. */
export async function runReinforcement(run: ReinforcementRun): Promise<TrainerExit> {
  const kill = new AbortController()
  const onAbort = () => setTimeout(() => kill.abort(), run.grace_ms).unref()
  if (run.signal.aborted) onAbort()
  else run.signal.addEventListener('abort', onAbort, { once: true })
  const { job_id, base, method, lora, threads, converters, parse_control_tokens } = run.spec
  const trainer = await CommandTrainer.start({
    run_dir: run.run_dir,
    spec: { job_id, base, method, lora, start: null, threads, converters, parse_control_tokens },
    python: run.python,
    env: run.env,
    log_fields: run.log_fields,
    onStarted: run.onStarted,
    signal: kill.signal,
  })
  const attempt = new Attempt(run, trainer)
  try {
    const finished = await attempt.train()
    await trainer.end()
    return { status: finished ? 0 : stoppedStatus, signal: null, log: '' }
  } catch (error) {
    if (error instanceof TrainerEnded) return error.exit
    const { log } = await trainer.end()
    const failure = failureOf(error)
    if (!failure) throw error
    run.onEvent({ type: 'error', message: failure.message, data: { code: failure.code, ...failure.data } })
    return { status: 1, signal: null, log }
  } finally {
    run.signal.removeEventListener('abort', onAbort)
    await attempt.close()
  }
}

/** What the job's owner can act on; undefined for what may be tried again. */
function failureOf(error: unknown): { code: string; message: string; data?: Record<string, unknown> } | undefined {
  if (error instanceof CommandError) return error
  if (error instanceof GradingStopped) return { code: error.code, message: error.message }
  if (error instanceof GraderError) return { code: 'dataset_invalid', message: error.message }
  return undefined
}

class Attempt {
  private readonly run: ReinforcementRun
  private readonly trainer: CommandTrainer
  private readonly options: ReinforcementRun['config']['method_options']
  private readonly training: ReinforcementRun['config']['training_config']
  private readonly sampling: SamplingOptions
  private readonly rollouts_dir: string
  private readonly fingerprint: string
  private state: State
  private grading: GradingRun | undefined
  private prompts!: Prompts
  private steps_total = 0
  private steps_per_epoch = 1
  private target: (Target & { sha256: string; folder: string }) | undefined
  private refused = new Set<number>()
  private saved_at = Date.now()
  private saved_step = -1
  private readonly began_ms = performance.now()
  private began_step = 0
  private unreported: [number, number][] = []

  constructor(run: ReinforcementRun, trainer: CommandTrainer) {
    this.run = run
    this.trainer = trainer
    const { method_options, training_config } = run.config
    this.options = method_options
    this.training = training_config
    this.rollouts_dir = path.join(path.dirname(run.run_dir), 'rollouts')
    this.fingerprint = fingerprintOf(run)
    const { response_format, reasoning_effort, max_tokens } = method_options
    this.sampling = {
      engine: run.engine,
      job_id: run.job.id,
      account_id: run.job.account_id,
      max_tokens: max_tokens.value,
      fields: {
        ...(response_format.value && { response_format: response_format.value }),
        ...(reasoning_effort.value && { reasoning_effort: reasoning_effort.value }),
      },
    }
    this.state = {
      fingerprint: this.fingerprint,
      step: 0,
      cursor: 0,
      trained_tokens: 0,
      generated_tokens: 0,
      seconds: 0,
      losses: 0,
      grading: undefined,
      best: null,
      without_better: 0,
      evaluated_step: -1,
    }
  }

  async close(): Promise<void> {
    await this.grading?.close()
    await this.dropTarget()
  }

  /** Resolves with whether the job is done; false: it was stopped, and its state is saved. */
  async train(): Promise<boolean> {
    const { run } = this
    this.emit('status', 'Preparing the data', { phase: 'preparing' })
    await this.openPrompts()
    this.emit('status', `Loading ${run.spec.base.id}`, { phase: 'loading' })
    await this.restore()
    this.openGrading()
    const { step } = this.state
    if (step > 0)
      this.emit('status', `Training resumes after step ${step}`, { phase: 'training', resumed_from_step: step })
    else this.emit('status', 'Training started', { phase: 'training' })
    this.began_step = step
    try {
      await this.push()
      let ended = await this.evaluateIfDue()
      while (this.state.step < this.steps_total && !ended) {
        run.signal.throwIfAborted()
        await this.step()
        await this.push()
        ended = await this.evaluateIfDue()
        if (this.isCheckpointDue()) await this.checkpoint()
      }
      run.signal.throwIfAborted()
    } catch (error) {
      if (!run.signal.aborted || error instanceof TrainerEnded) throw error
      if (this.state.step > this.saved_step) await this.checkpoint()
      return false
    }
    await this.finish()
    return true
  }

  private async openPrompts(): Promise<void> {
    const { spec } = this.run
    const { validation_split } = this.run.config.evaluation_config
    this.prompts = await Prompts.open({
      path: spec.dataset.path,
      validation: spec.evaluation.dataset ? spec.evaluation.dataset.path : undefined,
      split: validation_split.value,
      seed: this.training.seed.value,
    })
    const { learned, heldOut } = this.prompts
    this.steps_per_epoch = Math.ceil(learned.length / this.training.batch_size.value)
    this.steps_total = this.steps_per_epoch * this.training.epochs.value
    if (validation_split.value && heldOut.rows.length > 0)
      this.emit('held_out', `${heldOut.rows.length} rows are held out`, { rows: heldOut.rows })
    const answers = this.training.batch_size.value * this.options.group_size.value
    this.emit('log', `${learned.length} prompts in ${this.steps_total} steps, ${answers} answers in each`, {
      rows: learned.length,
      steps_total: this.steps_total,
      seed: this.training.seed.value,
    })
  }

  /** Continues from the newest checkpoint that is whole and of this run, or begins. */
  private async restore(): Promise<void> {
    const { spec } = this.run
    for (const { path: folder, sha256, step } of spec.resume_from) {
      const { fields } = await this.command<{ fields: State | null }>('load_state', { path: folder, sha256 })
      if (fields?.fingerprint === this.fingerprint) {
        this.state = fields
        this.saved_step = step
        return
      }
      const why = fields ? 'it was made with another configuration' : 'its files are missing or damaged'
      this.emit('warning', `The checkpoint of step ${step} is not used: ${why}.`, {})
    }
    if (spec.resume_from.length > 0)
      this.emit('warning', 'None of the checkpoints can be used; the training starts from the beginning.', {})
    if (spec.resume_from.length > 0) await this.command('drop', {}).catch(() => {})
    await this.command('create', { start: spec.start, seed: this.training.seed.value })
  }

  private openGrading(): void {
    const { run, options, state } = this
    const { id, account_id, key_id } = run.job
    this.grading = run.grading.open({
      account_id,
      key_id: key_id === '' ? null : key_id,
      id: `${id}.${state.step}`,
      graders: options.graders.value as unknown as Grader[],
      limits: options.grading.value,
      soFar: state.grading,
    })
  }

  /** Has the engine load the weights of this step, and drop those of the step before. */
  private async push(): Promise<void> {
    const { run, state } = this
    const folder = path.join(run.run_dir, 'push', `step-${state.step}`)
    const { gguf, sha256 } = await this.command<{ gguf: string; sha256: string }>('save_weights', { path: folder })
    await this.dropTarget()
    const { spec } = run
    const id = `${run.job.id}.${spec.attempt}.${state.step}`
    this.target = { base: run.base, adapter: { id, gguf }, sha256, folder }
  }

  private async dropTarget(): Promise<void> {
    const { target } = this
    this.target = undefined
    if (!target) return
    await this.run.engine.unload(target).catch(() => {})
    await rm(target.folder, { recursive: true, force: true })
  }

  private async step(): Promise<void> {
    const began = performance.now()
    const rollouts = await this.rolloutsOfStep()
    const sampled_ms = performance.now() - began
    const update = await this.update(rollouts.groups)
    const { state } = this
    state.step++
    state.cursor = rollouts.cursor
    state.grading = rollouts.grading
    state.generated_tokens += tokensOf(rollouts.groups)
    state.trained_tokens += update.tokens
    state.seconds += (performance.now() - began) / 1000
    state.losses += update.loss
    this.unreported.push([state.step, update.loss])
    const epoch = Math.min(Math.floor((state.step - 1) / this.steps_per_epoch) + 1, this.training.epochs.value)
    const figures = figuresOf(rollouts)
    const seconds = (performance.now() - began) / 1000
    const { tokens: _, ...measured } = update
    this.emit(
      'metrics',
      `Step ${state.step} of ${this.steps_total}: reward ${figures.reward.toFixed(3)}, loss ${update.loss.toFixed(4)}`,
      {
        ...this.position(),
        epoch,
        ...measured,
        ...figures,
        graders: graderMeans(rollouts.groups),
        generated_tokens: state.generated_tokens,
        tokens: state.trained_tokens,
        tokens_per_second: round((update.tokens + tokensOf(rollouts.groups)) / Math.max(seconds, 1e-3), 1),
        sampling_seconds: round(rollouts.seconds.sampling, 3),
        grading_seconds: round(rollouts.seconds.grading, 3),
        update_seconds: round(seconds - sampled_ms / 1000, 3),
        losses: this.takeUnreported(),
      },
    )
    const left = this.secondsLeft()
    const progress = state.step / (this.steps_total + 1)
    this.emit('progress', `${Math.round(100 * progress)}% done${left === null ? '' : `, about ${left} s left`}`, {
      ...this.position(),
      progress,
      current_epoch: epoch,
      seconds_left: left,
    })
  }

  /** The graded answers of the next step: those on disk, if an attempt before this one was killed in the update. */
  private async rolloutsOfStep(): Promise<Rollouts> {
    const { state, target, fingerprint } = this
    const of = { step: state.step + 1, fingerprint, weights_sha256: target!.sha256 }
    const stored = await storedRollouts(this.rollouts_dir, of)
    if (stored) return stored
    const { batch_size } = this.training
    const rollouts: Rollouts = {
      ...of,
      groups: [],
      cursor: state.cursor,
      seconds: { sampling: 0, grading: 0 },
      grading: this.soFar(),
      grader_ms: [],
    }
    let wanted = batch_size.value
    for (let round = 0; round <= this.options.refill_rounds.value && wanted > 0; round++) {
      const items = await this.prompts.take(rollouts.cursor, wanted)
      rollouts.cursor += wanted
      const seed = `${this.training.seed.value} ${of.step} ${round}`
      const groups = await this.sampleAndGrade(items, this.options.group_size.value, seed, rollouts)
      rollouts.groups.push(...groups)
      wanted = batch_size.value - rollouts.groups.filter((group) => !teachesNothing(group)).length
    }
    rollouts.grading = this.soFar()
    await storeRollouts(this.rollouts_dir, rollouts)
    return rollouts
  }

  private soFar(): GradingSoFar {
    const { answers, failed, judges } = this.grading!.report()
    return { answers, failed, judges }
  }

  private async sampleAndGrade(
    items: readonly EvaluationItem[],
    n: number,
    seed: string,
    times: Pick<Rollouts, 'seconds' | 'grader_ms'>,
  ): Promise<GradedGroup[]> {
    const { signal } = this.run
    const began = performance.now()
    const refuse = (row: number, why: string) => {
      if (this.refused.has(row)) return
      this.refused.add(row)
      this.emit('warning', `Row ${row} is left out: ${why}`, { row })
    }
    const groups = await sampleGroups(this.sampling, this.target!, items, { n, seed, temperature }, signal, refuse)
    if (groups.length === 0)
      throw new CommandError('dataset_invalid', 'The model can be asked none of the prompts of a step.', {})
    const sampled = performance.now()
    const samples = groups.flatMap(({ item, answers }) => answers.map((answer) => gradedValues(item, answer)))
    const graded = await this.gradeAll(samples)
    times.seconds.sampling += (sampled - began) / 1000
    times.seconds.grading += (performance.now() - sampled) / 1000
    let next = 0
    return groups.map(({ row, prompt, answers }) => ({
      row,
      prompt,
      answers: answers.map((answer) => {
        const { score, graders, error } = graded[next++]!
        times.grader_ms.push(Math.max(0, ...Object.values(graders).map(({ latency_ms = 0 }) => latency_ms)))
        return { ...answer, score, graders, error }
      }),
    }))
  }

  private async gradeAll(samples: Parameters<GradingRun['gradeSamples']>[0]) {
    for (;;) {
      try {
        return await this.grading!.gradeSamples(samples, { signal: this.run.signal })
      } catch (error) {
        if (!(error instanceof DayUsedUp)) throw error
        const until = new Date(error.run_at).toISOString()
        this.emit(
          'warning',
          `The requests of today are used up, which judges take too: the job waits until ${until}.`,
          { code: 'daily_limit_reached' },
        )
        await sleep(Math.max(0, error.run_at - Date.now()), undefined, { signal: this.run.signal })
      }
    }
  }

  /** The optimizer steps of a step, one or several. */
  private async update(groups: readonly GradedGroup[]) {
    const { options, training, state } = this
    const { policy_loss, max_tokens, clip_low, clip_high, importance_cap, updates_per_step } = options
    const rate = learningRate(state.step, this.steps_total, training.learning_rate.value, training.warmup_ratio.value)
    const learned = groups.filter((group) => !teachesNothing(group))
    const parts = divided(learned, updates_per_step.value).map((part) =>
      dataOf(part, policy_loss.value, max_tokens.value),
    )
    const all = parts.flat()
    const old = parts.length > 1 ? await this.logProbabilities(all) : undefined
    const { loss: name, low, high } = trainerLosses[policy_loss.value]
    const sums = { loss: 0, clipped_share: 0, correction: 0, grad_norm: 0 }
    const gaps: number[] = []
    const entropies: number[] = []
    let place = 0
    for (const data of parts) {
      const given = data.map((datum, index) => ({ ...datum, ...(old && { old: old[place + index]! }) }))
      const computed = await this.command<{
        loss: number
        log_probabilities: number[][]
        clipped_share: number
        correction: number
      }>('forward_backward', {
        data: given,
        loss: name,
        low: clip_low.value ?? low,
        high: clip_high.value ?? high,
        truncation: importance_cap.value,
      })
      const { grad_norm } = await this.command<{ grad_norm: number }>('optim_step', {
        learning_rate: rate,
        max_grad_norm: 1,
      })
      sums.loss += computed.loss / parts.length
      sums.clipped_share += computed.clipped_share / parts.length
      sums.correction += computed.correction / parts.length
      sums.grad_norm += grad_norm / parts.length
      for (const [index, { sampled }] of data.entries()) {
        const before = old?.[place + index] ?? computed.log_probabilities[index]!
        for (const [at, value] of before.entries()) {
          gaps.push(Math.abs(value - sampled[at]!))
          entropies.push(-value)
        }
      }
      place += data.length
    }
    const average = (values: number[]) => values.reduce((sum, value) => sum + value, 0) / Math.max(1, values.length)
    return {
      ...sums,
      learning_rate: rate,
      ...(gaps.length > 0 && { probability_gap: average(gaps), entropy: average(entropies) }),
      tokens: all.reduce((sum, { ids }) => sum + ids.length, 0),
    }
  }

  private async logProbabilities(data: Datum[]): Promise<number[][]> {
    return (await this.command<{ log_probabilities: number[][] }>('forward', { data })).log_probabilities
  }

  /** Resolves with whether the run should end: the reward has not improved for so many evaluations. */
  private async evaluateIfDue(): Promise<boolean> {
    const { state, steps_total, steps_per_epoch, prompts } = this
    const { every_steps, early_stopping_patience } = this.run.config.evaluation_config
    const every = every_steps.value ?? steps_per_epoch
    const isDue = state.step % every === 0 || state.step === steps_total
    if (!isDue || prompts.heldOut.rows.length === 0 || state.evaluated_step === state.step) return false
    const times = { seconds: { sampling: 0, grading: 0 }, grader_ms: [] }
    const seed = `${this.training.seed.value} evaluation`
    const items = await prompts.validation()
    const groups = await this.sampleAndGrade(items, this.options.evaluation_samples.value, seed, times)
    state.generated_tokens += tokensOf(groups)
    state.evaluated_step = state.step
    const { reward, answer_tokens, cut_share } = figuresOf({ groups, grader_ms: times.grader_ms })
    const better = state.best === null || reward > state.best.reward
    await this.report(items, groups)
    const means = graderMeans(groups)
    this.emit(
      'metrics',
      `Step ${state.step} of ${steps_total}: reward ${reward.toFixed(3)} on ${items.length} held-out prompts`,
      {
        ...this.position(),
        validation_reward: reward,
        validation_graders: means,
        validation_answer_tokens: answer_tokens,
        validation_cut_share: cut_share,
        best: better,
      },
    )
    if (better) await this.keepBest(reward)
    else state.without_better++
    await this.checkpoint()
    const patience = early_stopping_patience.value
    if (patience === null || state.without_better < patience || state.step === steps_total) return false
    const message =
      `The reward on held-out prompts has not improved for ${state.without_better} evaluations; the training ends at ` +
      `step ${state.step}.`
    this.emit('log', message, { ...this.position(), best_step: state.best!.step })
    return true
  }

  /** Shows some of the answers, with what each grader said. */
  private async report(items: readonly EvaluationItem[], groups: readonly GradedGroup[]): Promise<void> {
    const byRow = new Map(items.map((item) => [item.row, item]))
    for (const { row, answers } of groups.slice(0, samplesShown)) {
      const { text, score, graders, cut } = answers[0]!
      const messages = byRow.get(row)?.item.messages
      const answer = text.slice(0, shown_characters)
      const prompt = Array.isArray(messages) ? messages : []
      const scores = Object.fromEntries(Object.entries(graders).map(([name, result]) => [name, result.score]))
      this.emit('sample', answer, { ...this.position(), row, prompt, answer, score, graders: scores, cut })
    }
  }

  private async keepBest(reward: number): Promise<void> {
    const { state } = this
    const folder = path.join(this.run.run_dir, 'best', `step-${state.step}`)
    const { sha256 } = await this.command<{ sha256: string }>('save_state', { path: folder, fields: {} })
    state.best = { step: state.step, reward, path: folder, sha256 }
    state.without_better = 0
    await keepNewest(folder, bestsKept, this.kept.best)
  }

  private isCheckpointDue(): boolean {
    const { every_seconds } = this.run.spec.checkpoint
    const isNew = this.state.step > this.saved_step
    return isNew && (every_seconds === null || Date.now() - this.saved_at >= every_seconds * 1000)
  }

  private readonly kept: Record<'best' | 'checkpoints', string[]> = { best: [], checkpoints: [] }

  private async checkpoint(): Promise<void> {
    const { state, run } = this
    const folder = path.join(run.run_dir, 'checkpoints', `step-${state.step}`)
    const { sha256, size_mb } = await this.command<{ sha256: string; size_mb: number }>('save_state', {
      path: folder,
      fields: state,
    })
    this.saved_at = Date.now()
    this.saved_step = state.step
    this.emit('checkpoint', `Checkpoint at step ${state.step} of ${this.steps_total}`, {
      step: state.step,
      path: folder,
      sha256,
      size_mb,
      losses: this.takeUnreported(),
    })
    await keepNewest(folder, checkpointsKept, this.kept.checkpoints)
    await removeRollouts(this.rollouts_dir, state.step)
  }

  /** Saves the result: the state of the best reward on held-out prompts, or the last one. */
  private async finish(): Promise<void> {
    const { state, run } = this
    const { best } = state
    let result = state.step
    if (best && best.step !== state.step) {
      const { fields } = await this.command<{ fields: object | null }>('load_state', best)
      if (fields) result = best.step
      else this.emit('warning', `The weights of the best step, ${best.step}, are damaged; the last ones are used.`, {})
    }
    this.emit('status', 'Converting the result', { phase: 'converting' })
    await this.dropTarget()
    const prompts = await this.systemPrompts()
    const { peak_memory_mb, ...saved } = await this.command<{ peak_memory_mb: number }>('save_result', {
      path: path.join(run.run_dir, 'out', 'result'),
      prompts,
    })
    const steps = Math.max(1, state.step)
    this.emit('progress', '100% done', { ...this.position(), progress: 1, seconds_left: 0 })
    this.emit('result', `Trained ${state.step} steps`, {
      ...saved,
      step: result,
      validation_loss: null,
      validation_exact: null,
      kept: [],
      rows: null,
      drafts: null,
      drafts_sha256: null,
      epochs: Math.ceil(state.step / this.steps_per_epoch),
      steps_total: this.steps_total,
      train_loss: state.losses / steps,
      trained_tokens: state.trained_tokens,
      train_seconds: round(state.seconds, 3),
      tokens_per_second: round((state.trained_tokens + state.generated_tokens) / Math.max(state.seconds, 1e-3), 1),
      steps: state.step,
      peak_memory_mb,
      predicted_memory_mb: peak_memory_mb,
      predicted_seconds: null,
    })
  }

  /** Some prompts, from which the trainer tells what they have in common. */
  private async systemPrompts(): Promise<object[][]> {
    const items = await this.prompts.take(0, Math.min(64, this.prompts.learned.length))
    return items.flatMap(({ item: { messages } }) =>
      Array.isArray(messages) ? [messages.filter((message) => typeof message?.content === 'string')] : [],
    )
  }

  private position() {
    return { step: this.state.step, steps_total: this.steps_total }
  }

  private secondsLeft(): number | null {
    const steps = this.state.step - this.began_step
    if (steps < 2) return null
    const seconds = (performance.now() - this.began_ms) / 1000
    return Math.round((seconds / steps) * (this.steps_total - this.state.step))
  }

  private takeUnreported(): [number, number][] {
    const losses = this.unreported
    this.unreported = []
    return losses
  }

  private async command<T = object>(command: string, fields: object): Promise<T> {
    return (await this.trainer.call(command, { adapter, ...fields })) as T
  }

  private emit(type: TrainerEvent['type'], message: string, data: Record<string, unknown>): void {
    this.run.onEvent({ type, message, data })
  }
}

const round = (value: number, digits: number) => Number(value.toFixed(digits))
const tokensOf = (groups: readonly GradedGroup[]) =>
  groups.reduce((sum, { answers }) => sum + answers.reduce((all, { tokens }) => all + tokens.length, 0), 0)

/** In at most so many parts of about the same number; one where there is nothing. */
function divided<T>(values: readonly T[], parts: number): T[][] {
  const count = Math.max(1, Math.min(parts, values.length))
  return Array.from({ length: count }, (_, part) =>
    values.slice(Math.floor((part * values.length) / count), Math.floor(((part + 1) * values.length) / count)),
  )
}

/** Remembers a folder of this attempt, and removes all but the newest. */
async function keepNewest(folder: string, count: number, kept: string[]): Promise<void> {
  if (!kept.includes(folder)) kept.push(folder)
  for (const old of kept.splice(0, Math.max(0, kept.length - count))) await rm(old, { recursive: true, force: true })
}

/** What decides the weights: a checkpoint with another fingerprint belongs to another run. */
function fingerprintOf({ spec, config }: ReinforcementRun): string {
  const { base, dataset, method, lora, start, evaluation } = spec
  const deciding = [
    base.id,
    dataset.sha256,
    method,
    lora,
    start?.sha256 ?? null,
    evaluation.dataset ? evaluation.dataset.sha256 : null,
    config.method_options,
    config.training_config,
    config.evaluation_config,
  ]
  return createHash('sha256').update(JSON.stringify(deciding)).digest('hex')
}
