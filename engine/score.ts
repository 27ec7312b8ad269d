// How likely given tokens are: what a trainer's result is compared by with what is served of it.
import type { IncomingMessage, ServerResponse } from 'node:http'
import { setImmediate as nextTurn } from 'node:timers/promises'
import { z } from 'zod'
import { ApiError } from '../contract/errors.ts'
import { ChatMessage } from '../contract/inference.ts'
import { renderChat, tokenizePrompt } from './chat-template.ts'
import { readBody, sendJson } from './http-io.ts'
import type { Context } from './llama/context.ts'
import type { Models } from './models.ts'
import type { ServedModel } from './served-model.ts'

const tokensMax = 2048
const targetsMax = 128
const ScoreRequest = z.looseObject({
  model: z.string().min(1).max(256),
  rows: z
    .array(
      z.object({
        /** The conversation before the answer, to be written and tokenized as chat would. */
        prompt: z.array(ChatMessage),
        tokens: z.array(z.int().min(0)).min(2).max(tokensMax),
        /** Which of the tokens to score, in ascending order; the first token has nothing before it. */
        targets: z.array(z.int().min(1)).min(1).max(targetsMax),
      }),
    )
    .min(1)
    .max(16),
})
type Row = z.infer<typeof ScoreRequest>['rows'][number]

/** Of one row: the tokens of its prompt as chat makes them, the natural logarithm of each target's probability, and whether the last token ends an answer. */
export type Scored = { prompt: number[]; logprobs: number[]; ends: boolean }
export type MakeScoringContext = (served: ServedModel, tokens: number, outputs: number) => Context

export async function scoreTokens(models: Models, makeContext: MakeScoringContext, request: IncomingMessage, response: ServerResponse): Promise<void> {
  const { model: name, rows } = await readBody(request, ScoreRequest)
  const served = models.get(name)
  const { vocab } = served.model
  for (const { tokens, targets } of rows) {
    if (tokens.some((token) => token >= vocab.size)) throw new ApiError('invalid_request', `The vocabulary of '${name}' has ${vocab.size} tokens.`)
    if (targets.at(-1)! >= tokens.length || targets.some((target, index) => index > 0 && target <= targets[index - 1]!))
      throw new ApiError('invalid_request', 'targets must be places of tokens, in ascending order.')
  }
  served.users++
  try {
    const longest = Math.max(...rows.map(({ tokens }) => tokens.length))
    const context = makeContext(served, longest, Math.max(...rows.map(({ targets }) => targets.length)))
    try {
      const scored: Scored[] = []
      for (const row of rows) {
        const prompt = await tokenizePrompt(served.model, renderChat(served.model, row.prompt))
        scored.push({ prompt, logprobs: score(context, row, vocab.size), ends: vocab.isEndOfGeneration(row.tokens.at(-1)!) })
        // Streams go on between two rows.
        await nextTurn()
      }
      sendJson(response, 200, { rows: scored })
    } finally {
      context.free()
    }
  } finally {
    served.users--
  }
}

function score(context: Context, { tokens, targets }: Row, vocabSize: number): number[] {
  const last = targets.at(-1)!
  const wanted = new Set(targets.map((target) => target - 1))
  for (let place = 0; place < last; place++) context.add(tokens[place]!, place, 0, wanted.has(place))
  if (context.decode() !== 0) throw new ApiError('engine_failed', 'The engine could not compute these tokens.')
  const logprobs = targets.map((target) => logProbability(context.logits(target - 1, vocabSize), tokens[target]!))
  context.truncate(0, 0)
  return logprobs
}

function logProbability(logits: Float32Array, token: number): number {
  let largest = Number.NEGATIVE_INFINITY
  for (const logit of logits) if (logit > largest) largest = logit
  let sum = 0
  for (const logit of logits) sum += Math.exp(logit - largest)
  return logits[token]! - largest - Math.log(sum)
}
