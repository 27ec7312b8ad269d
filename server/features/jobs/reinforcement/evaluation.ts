// Evaluations on held-out prompts, which choose the state that is kept and may end the run early.
import type { EvaluationItem } from '../../evaluations/index.ts'
import type { Checkpoints } from './checkpoints.ts'
import { divergence } from './divergence.ts'
import type { GradedAnswers } from './graded-answers.ts'
import { isKept, keptOf } from './kept.ts'
import type { PolicyTrainer } from './policy-trainer.ts'
import type { Prompts } from './prompts.ts'
import { type Emit, rewardWords } from './reports.ts'
import {
  figuresOf,
  type GradedGroup,
  graderFailures,
  graderMeans,
  textOf,
  tokensOf,
  unlessEmpty,
  watchedMeans,
} from './rollouts.ts'
import type { Episode } from './sampling.ts'
import type { PolicyTarget } from './served-policy.ts'
import type { State } from './state.ts'
import type { WatchedGraders } from './watched.ts'

interface Options {
  prompts: Pick<Prompts, 'heldOut' | 'validation'>
  answers: Pick<GradedAnswers, 'of' | 'soFar' | 'requireSome'>
  watched: Pick<WatchedGraders, 'report'>
  trainer: Pick<PolicyTrainer, 'logProbabilities'>
  checkpoints: Pick<Checkpoints, 'save' | 'saveBest'>
  emit: Emit
  steps_total: number
  /** Steps from one evaluation to the next. */
  every: number
  /** Answers to each prompt. */
  samples: number
  /** Evaluations without a better one that end the run; null: none do. */
  patience: number | null
  seed: number
}

/** Prompts of an evaluation whose answers are shown. */
const samplesShown = 4
const shown_characters = 4000

export class HeldOutEvaluation {
  private readonly options: Options

  constructor(options: Options) {
    this.options = options
  }

  isDue({ step, evaluated_step }: State): boolean {
    const { every, steps_total, prompts } = this.options
    const isTurn = step % every === 0 || step === steps_total
    return isTurn && prompts.heldOut.rows.length > 0 && evaluated_step !== step
  }

  /** Evaluates and saves the state. Resolves with whether the run should end: rewards no longer improve. */
  async run(state: State, target: PolicyTarget): Promise<boolean> {
    const { prompts, answers, watched, checkpoints, emit, steps_total, samples, patience } = this.options
    const position = { step: state.step, steps_total }
    const items = await prompts.validation()
    const how = { n: samples, seed: `${this.options.seed} evaluation`, during: 'evaluation' as const }
    const batch = await answers.of(target, items, how)
    answers.requireSome(batch.groups, 'held-out prompts')
    state.watched = watched.report()
    state.generated_tokens += tokensOf(batch.groups)
    state.evaluated_step = state.step
    state.grading = answers.soFar()
    const { reward, answer_tokens, reasoning_tokens, cut_share, ...figures } = figuresOf(batch)
    const kl = await this.divergenceFromBase(batch.groups)
    const better = reward !== undefined && (state.best === null || reward > state.best.reward)
    this.showSamples(items, batch.groups, position)
    this.keepRollouts(state.step, batch.groups)
    emit(
      'metrics',
      `Step ${state.step} of ${steps_total}: ${rewardWords(reward)} on ${items.length} held-out prompts`,
      {
        ...position,
        ...(reward !== undefined && { validation_reward: reward }),
        validation_graders: graderMeans(batch.groups),
        validation_graders_failed: graderFailures(batch.groups),
        validation_answers: figures.answers,
        ...unlessEmpty('validation_watched_graders', watchedMeans(batch.groups)),
        ...(kl !== null && { validation_kl: kl }),
        validation_answer_tokens: answer_tokens,
        ...(reasoning_tokens !== undefined && { validation_reasoning_tokens: reasoning_tokens }),
        validation_cut_share: cut_share,
        best: better,
      },
    )
    if (better) await checkpoints.saveBest(state, reward)
    else if (reward !== undefined) state.without_better++
    await checkpoints.save(state)
    if (patience === null || state.without_better < patience || state.step === steps_total) return false
    const message =
      `The reward on held-out prompts has not improved for ${state.without_better} evaluations; the training ends at ` +
      `step ${state.step}.`
    emit('log', message, { ...position, best_step: state.best!.step })
    return true
  }

  private async divergenceFromBase(groups: readonly GradedGroup[]): Promise<number | null> {
    const { trainer } = this.options
    const data = groups.flatMap(({ prompt, answers }, group) =>
      answers.flatMap((answer) => (answer.logprobs.length === 0 ? [] : [{ ...textOf(prompt, answer), group }])),
    )
    if (data.length === 0) return null
    return divergence(await trainer.logProbabilities(data), await trainer.logProbabilities(data, true))
  }

  private keepRollouts(step: number, groups: readonly GradedGroup[]): void {
    const { every, steps_total, emit } = this.options
    if (isKept(Math.ceil(step / every), Math.ceil(steps_total / every)))
      emit('rollouts', '', { ...keptOf(step, 'validation', groups) })
  }

  /** Shows some of the answers, with what each grader said. */
  private showSamples(
    items: readonly EvaluationItem[],
    groups: readonly GradedGroup[],
    position: { step: number; steps_total: number },
  ): void {
    const byRow = new Map(items.map((item) => [item.row, item]))
    for (const { row, answers } of groups.slice(0, samplesShown)) {
      const { text, score, graders, watched, cut, episode } = answers[0]!
      const messages = byRow.get(row)?.item.messages
      const answer = text.slice(0, shown_characters)
      const prompt = Array.isArray(messages) ? messages : []
      const scores = Object.fromEntries(Object.entries(graders).map(([name, result]) => [name, result.score]))
      this.options.emit('sample', answer, {
        ...position,
        row,
        prompt,
        answer,
        score,
        graders: scores,
        ...unlessEmpty('watched_graders', watched),
        cut,
        ...(episode && shownEpisode(episode)),
      })
    }
  }
}

/** The messages behind the prompt, as many as an event has room for. */
function shownEpisode({ messages, turns }: Episode) {
  let left = shown_characters
  const shown = messages.filter((message) => {
    left -= JSON.stringify(message).length
    return left >= 0
  })
  return { turns, messages: shown }
}
