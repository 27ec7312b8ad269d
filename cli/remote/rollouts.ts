// `jobs rollouts`: what a job that learns from graders answered, and what each grader gave.
import type { StepRollouts } from '../../sdk/index.ts'
import { typed } from '../support/invocation.ts'
import type { GlobalOptions } from '../support/options.ts'
import { show, showList } from '../support/output.ts'
import { connect } from '../support/service.ts'
import { clean, cut, number, oneLine, paint, precise } from '../support/text.ts'
import { first, type ListOptions, pageOf } from './lists.ts'
import { idOf } from './named.ts'

export type RolloutOptions = GlobalOptions & ListOptions & { step?: number }

/** Lists the steps whose answers are kept, or shows the answers of one. */
export async function rollouts(job: string, options: RolloutOptions): Promise<void> {
  const { tunery } = connect(options)
  const id = await idOf(tunery, 'job', job)
  const { step } = options
  if (step !== undefined) {
    const kept = await tunery.jobs.rollouts.get(id, String(step))
    return show(options, kept, () => describe(kept))
  }
  const { items, more } = await first(tunery.jobs.rollouts.list(id, { limit: pageOf(options) }), options)
  showList(
    options,
    items,
    [
      { head: 'step', value: ({ step }) => number(step), right: true },
      { head: 'reward', value: ({ training }) => rewardOf(training), right: true },
      { head: 'held-out reward', value: ({ validation }) => rewardOf(validation), right: true },
      { head: 'answers', value: ({ training, validation }) => number((training ?? validation)!.answers), right: true },
      { head: 'without score', value: (each) => number(failuresOf(each)), right: true },
    ],
    {
      empty: 'No answers are kept. Jobs that learn from graders keep some of each step.',
      more: more ?? (items[0] && `Answers of a step: ${typed(`jobs rollouts ${id} --step ${items[0].step}`)}`),
    },
  )
}

type Split = NonNullable<StepRollouts['training']>
type Figures = Omit<Split, 'groups'>

const rewardOf = (split: Figures | null) => (!split || split.reward === null ? '' : precise(split.reward))
const failuresOf = (splits: { training: Figures | null; validation: Figures | null }) =>
  (splits.training?.failures ?? 0) + (splits.validation?.failures ?? 0)

function describe({ step, training, validation }: StepRollouts): string {
  const parts: [title: string, split: Split | null][] = [
    [`Step ${step}`, training],
    [`Held-out prompts after step ${step}`, validation],
  ]
  return parts.flatMap(([title, split]) => (split ? [describeSplit(title, split)] : [])).join('\n\n')
}

function describeSplit(title: string, split: Split): string {
  const { reward, prompts, answers, failures, groups } = split
  const failed = failures > 0 ? `, ${number(failures)} without a score` : ''
  const mean = reward === null ? 'no reward' : `reward ${precise(reward)}`
  const head = `${title}: ${mean}, ${number(answers)} answers to ${number(prompts)} prompts${failed}`
  return [paint('bold', head), ...groups.map(describeGroup)].join('\n\n')
}

function describeGroup({ row, messages, answers, answer_count }: Split['groups'][number]): string {
  const more = answer_count - answers.length
  return [
    `Row ${number(row)}: ${promptText(messages)}`,
    ...answers.map(describeAnswer),
    ...(more > 0 ? [`  ${number(more)} more answers are not kept.`] : []),
  ].join('\n')
}

/** The last message of the user, on one line. */
function promptText(messages: unknown[] | null): string {
  const all = (messages ?? []) as { role?: unknown; content?: unknown }[]
  const content = all.findLast(({ role }) => role === 'user')?.content
  if (messages === null) return 'its dataset was deleted'
  return cut(oneLine(typeof content === 'string' ? content : JSON.stringify(content ?? '')), 300)
}

function describeAnswer(answer: Split['groups'][number]['answers'][number]): string {
  const { score, text, tool_calls, episode, cut: isCut, graders, watched_graders = {}, error } = answer
  const given = Object.entries(graders).map(
    ([name, each]) => `${clean(name)} ${each.score === null ? 'failed' : precise(each.score)}`,
  )
  const watched = Object.entries(watched_graders).map(
    ([name, score]) => `${clean(name)} (watched) ${score === null ? 'failed' : precise(score)}`,
  )
  const turns = episode ? [`${number(episode.turns)} turns`] : []
  const notes = [...given, ...watched, ...turns, ...(isCut ? ['cut at max_tokens'] : [])].join(', ')
  const written = episode ? episode.messages : [text, tool_calls].filter(Boolean).join(' ')
  const shown = cut(oneLine(written), 500) || '(empty)'
  const lines = [`  ${(score === null ? '–' : precise(score)).padEnd(6)} ${shown}`, `         ${paint('dim', notes)}`]
  if (error) lines.push(`         ${paint('red', cut(oneLine(error), 300))}`)
  return lines.join('\n')
}
