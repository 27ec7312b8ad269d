// The graded answers of a step: what is trained on, and what is reported. They are on disk before the update, so that a
// run that was killed makes the same one.
import { mkdir, open, readdir, readFile, rename, rm } from 'node:fs/promises'
import path from 'node:path'
import type { PolicyLoss } from '../../../../contract/hyperparameters.ts'
import type { Graded, GradingSoFar } from '../../evaluations/index.ts'
import { advantagesOf, deviation, isEqual, tokenWeight } from './advantages.ts'
import type { Answer } from './sampling.ts'
import type { WatchedScores } from './watched.ts'

/** An answer with its scores; `score` is null where a grader failed. */
export type GradedAnswer = Answer & Pick<Graded, 'score' | 'graders' | 'error'> & { watched: WatchedScores }

export interface GradedGroup {
  row: number
  prompt: number[]
  answers: GradedAnswer[]
}

export interface Rollouts {
  /** Hash of the run, beside that of the weights that sampled. */
  fingerprint: string
  weights_sha256: string
  step: number
  groups: GradedGroup[]
  /** The place in the order of prompts behind this step. */
  cursor: number
  seconds: { sampling: number; grading: number }
  grading: GradingSoFar
  /** Time of grading of each answer. */
  grader_ms: number[]
}

/** Tokens of which some are trained (trainer/policy/data.py). */
export interface Text {
  ids: number[]
  /** The first trained token, where all behind it are. */
  start?: number
  /** The positions of the trained tokens. */
  trained?: number[]
  group: number
}

/** A datum of the trainer. */
export interface Datum extends Text {
  advantages: number
  weights: number
  sampled: number[]
  old?: number[]
}

const fileOf = (folder: string, step: number) => path.join(folder, `step-${step}.json`)

export async function storeRollouts(folder: string, rollouts: Rollouts): Promise<void> {
  await mkdir(folder, { recursive: true, mode: 0o700 })
  const file = fileOf(folder, rollouts.step)
  const handle = await open(`${file}.tmp`, 'w', 0o600)
  try {
    await handle.writeFile(JSON.stringify(rollouts))
    await handle.sync()
  } finally {
    await handle.close()
  }
  await rename(`${file}.tmp`, file)
}

/** The stored answers of a step; undefined if there are none, or other weights sampled them. */
export async function storedRollouts(
  folder: string,
  of: Pick<Rollouts, 'step' | 'fingerprint' | 'weights_sha256'>,
): Promise<Rollouts | undefined> {
  try {
    const stored = JSON.parse(await readFile(fileOf(folder, of.step), 'utf8')) as Rollouts
    const same = stored.fingerprint === of.fingerprint && stored.weights_sha256 === of.weights_sha256
    return same ? stored : undefined
  } catch {
    return undefined
  }
}

/** Removes the answers of steps before `step`, which no attempt needs. */
export async function removeRollouts(folder: string, step: number): Promise<void> {
  for (const name of await readdir(folder).catch(() => []))
    if (Number(/^step-(\d+)\.json$/.exec(name)?.[1] ?? Number.POSITIVE_INFINITY) < step)
      await rm(path.join(folder, name), { force: true })
}

const scored = ({ answers }: GradedGroup) =>
  answers.filter((answer): answer is GradedAnswer & { score: number } => answer.score !== null)
const scoresOf = (group: GradedGroup) => scored(group).map(({ score }) => score)

/** Whether all answers to a prompt have the same score: they teach nothing. */
export const teachesNothing = (group: GradedGroup) => isEqual(scoresOf(group))

/** What the trainer learns of these groups, whose token losses add up to the batch's loss. */
export function dataOf(groups: readonly GradedGroup[], loss: PolicyLoss, max_tokens: number): Datum[] {
  const learned = groups.filter((group) => !teachesNothing(group))
  const answers = learned.flatMap(scored)
  const batch = {
    answers: answers.length,
    tokens: answers.reduce((sum, { logprobs }) => sum + logprobs.length, 0),
    max_tokens,
  }
  return learned.flatMap((group, number) => {
    const advantages = advantagesOf(scoresOf(group), loss)
    return scored(group).flatMap((answer, index): Datum[] =>
      answer.logprobs.length === 0
        ? []
        : [
            {
              ...textOf(group.prompt, answer),
              advantages: advantages[index]!,
              weights: tokenWeight(loss, answer.logprobs.length, batch),
              sampled: answer.logprobs,
              group: number,
            },
          ],
    )
  })
}

/** The tokens of an answer with its prompt, and which of them were sampled. */
export function textOf(prompt: number[], { tokens, episode }: Answer): Omit<Text, 'group'> {
  const ids = [...prompt, ...tokens]
  const { length: start } = prompt
  if (!episode || episode.context.length === 0) return { ids, start }
  const isContext = (place: number) => episode.context.some(([from, to]) => place >= from && place < to)
  return { ids, trained: tokens.flatMap((_, place) => (isContext(place) ? [] : [start + place])) }
}

const mean = (values: readonly number[]) =>
  values.length === 0 ? 0 : values.reduce((sum, value) => sum + value, 0) / values.length

/** What tells an answer from others. */
const identityOf = ({ text, tokens, episode }: Answer) => (episode ? tokens.join() : text)

/** What is reported of a step's answers. */
export function figuresOf({ groups, grader_ms }: Pick<Rollouts, 'groups' | 'grader_ms'>) {
  const answers = groups.flatMap((group) => group.answers)
  const episodes = answers.flatMap(({ episode }) => episode ?? [])
  const scores = groups.flatMap(scoresOf)
  const sorted = grader_ms.toSorted((a, b) => a - b)
  const p95 = sorted[Math.min(sorted.length - 1, Math.floor(sorted.length * 0.95))] ?? 0
  return {
    // None where graders failed on all answers: that is no reward of 0.
    ...(scores.length > 0 && { reward: mean(scores), reward_deviation: deviation(scores) }),
    answers: answers.length,
    answer_tokens: mean(answers.map(({ logprobs }) => logprobs.length)),
    ...(answers.some(({ thought_tokens }) => thought_tokens > 0) && {
      reasoning_tokens: mean(answers.map(({ thought_tokens }) => thought_tokens)),
    }),
    ...(episodes.length > 0 && {
      turns: mean(episodes.map(({ turns }) => turns)),
      environment_seconds: mean(episodes.map(({ environment_ms }) => environment_ms)) / 1000,
    }),
    cut_share: mean(answers.map(({ cut }) => Number(cut))),
    equal_share: mean(groups.map((group) => Number(teachesNothing(group)))),
    distinct_share: mean(groups.map(({ answers }) => new Set(answers.map(identityOf)).size / answers.length)),
    grader_seconds: mean(grader_ms) / 1000,
    grader_seconds_p95: p95 / 1000,
    grader_failures: answers.filter(({ score }) => score === null).length,
  }
}

/** Tokens of all answers. */
export const tokensOf = (groups: readonly GradedGroup[]): number =>
  groups.reduce((sum, { answers }) => sum + answers.reduce((all, { logprobs }) => all + logprobs.length, 0), 0)

/** How many answers each grader failed on. */
export function graderFailures(groups: readonly GradedGroup[]): Record<string, number> {
  const failures: Record<string, number> = {}
  for (const { graders } of groups.flatMap((group) => group.answers))
    for (const [name, { score }] of Object.entries(graders))
      failures[name] = (failures[name] ?? 0) + Number(score === null)
  return failures
}

/** The mean score of each grader. */
export function graderMeans(groups: readonly GradedGroup[]): Record<string, number> {
  return meansOf(
    groups.flatMap(({ answers }) =>
      answers.map(({ graders }) => Object.entries(graders).map(([name, { score }]) => [name, score] as const)),
    ),
  )
}

/** A field with these values, if there are any. */
export const unlessEmpty = (name: string, values: object) => (Object.keys(values).length > 0 ? { [name]: values } : {})

/** The mean score of each watched grader. */
export const watchedMeans = (groups: readonly GradedGroup[]): Record<string, number> =>
  meansOf(groups.flatMap(({ answers }) => answers.map(({ watched }) => Object.entries(watched))))

function meansOf(answers: readonly (readonly (readonly [string, number | null])[])[]): Record<string, number> {
  const scores = new Map<string, number[]>()
  for (const [name, score] of answers.flat()) if (score !== null) scores.set(name, [...(scores.get(name) ?? []), score])
  return Object.fromEntries([...scores].map(([name, values]) => [name, mean(values)]))
}
