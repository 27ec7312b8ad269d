// Graders of users behind an address: asked with the answer, they give its score.
import { z } from 'zod'
import type { SimpleGrader } from '../../../../contract/graders.ts'
import type { Score } from './local.ts'
import { GraderFailure, type Values } from './template.ts'

export type EndpointGrader = Extract<SimpleGrader, { type: 'endpoint' }>

/** Posts signed JSON; resolves with the JSON of the answer. Throws GraderFailure. */
export type AskEndpoint = (grader: EndpointGrader, body: unknown, signal: AbortSignal) => Promise<unknown>

const Answer = z.object({ score: z.number() })

export async function gradeByEndpoint(
  grader: EndpointGrader,
  { sample, item }: Values,
  ask: AskEndpoint,
  signal: AbortSignal,
): Promise<Score> {
  const answer = Answer.safeParse(await ask(grader, { grader: grader.name, sample, item }, signal))
  if (!answer.success) throw new GraderFailure('form', 'The endpoint did not answer with {"score": …}, a number.')
  const { score } = answer.data
  return { score, passed: score >= grader.pass_threshold }
}
