// The graded answers that a step learns from: groups that teach nothing are replaced by those of other prompts.
import type { GradedAnswers } from './graded-answers.ts'
import type { Prompts } from './prompts.ts'
import { type Rollouts, storedRollouts, storeRollouts, teachesNothing } from './rollouts.ts'
import type { PolicyTarget } from './served-policy.ts'

interface Options {
  /** Where they are stored. */
  folder: string
  /** Hash of the run: answers of another one are not used. */
  fingerprint: string
  prompts: Pick<Prompts, 'take'>
  answers: Pick<GradedAnswers, 'of' | 'soFar' | 'requireSome' | 'continueFrom'>
  /** Groups that a step should have. */
  batch_size: number
  group_size: number
  /** How often groups that teach nothing are replaced. */
  refill_rounds: number
  seed: number
}

/** Those on disk, if an attempt before this one was killed in the update; else new ones, which are stored. */
export async function rolloutsOfStep(
  options: Options,
  { step, cursor, target }: { step: number; cursor: number; target: PolicyTarget },
): Promise<Rollouts> {
  const { folder, fingerprint, prompts, answers, batch_size, refill_rounds } = options
  const of = { step, fingerprint, weights_sha256: target.sha256 }
  const stored = await storedRollouts(folder, of)
  if (stored) {
    answers.continueFrom(stored.grading)
    return stored
  }
  const rollouts: Rollouts = {
    ...of,
    groups: [],
    cursor,
    seconds: { sampling: 0, grading: 0 },
    grading: answers.soFar(),
    grader_ms: [],
  }
  let wanted = batch_size
  for (let round = 0; round <= refill_rounds && wanted > 0; round++) {
    const items = await prompts.take(rollouts.cursor, wanted)
    rollouts.cursor += wanted
    const seed = `${options.seed} ${step} ${round}`
    const { groups, seconds, grader_ms } = await answers.of(target, items, {
      n: options.group_size,
      seed,
      during: 'step',
    })
    rollouts.groups.push(...groups)
    rollouts.grader_ms.push(...grader_ms)
    rollouts.seconds.sampling += seconds.sampling
    rollouts.seconds.grading += seconds.grading
    wanted = batch_size - rollouts.groups.filter((group) => !teachesNothing(group)).length
  }
  answers.requireSome(rollouts.groups, 'prompts of a step')
  rollouts.grading = answers.soFar()
  await storeRollouts(folder, rollouts)
  return rollouts
}
