// How likely given tokens are: what a trainer's result is compared by with what is served of it.
import type { IncomingMessage, ServerResponse } from 'node:http'
import { setImmediate as nextTurn } from 'node:timers/promises'
import { z } from 'zod'
import { ChatMessage } from '../contract/chat.ts'
import { ApiError } from '../contract/errors.ts'
import { renderChat } from './chat/conversation.ts'
import { tokenizePrompt } from './chat/template.ts'
import { readBody, sendJson } from './http-io.ts'
import type { Context } from './llama/context.ts'
import type { Models } from './models.ts'
import type { ServedModel } from './served-model.ts'

const tokensMax = 2048
const targetsMax = 128
// A piece of a prompt that is computed in one go.
const tokensAtOnce = 64
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

/** Of one row: the tokens of its prompt as chat makes them (null where the template writes the time, which moves on), the natural logarithm of each target's probability, and whether the last token ends an answer. */
export type Scored = { prompt: number[] | null; logprobs: number[]; ends: boolean }
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
  let gone = false
  response.on('close', () => {
    gone = true
  })
  served.users++
  try {
    const longest = Math.max(...rows.map(({ tokens }) => tokens.length))
    const context = makeContext(served, longest, tokensAtOnce)
    try {
      const scored: Scored[] = []
      for (const row of rows) {
        const timeless = !/strftime_now/.test(served.model.chat_template ?? '')
        const prompt = timeless ? await tokenizePrompt(served.model, renderChat(served.model, row.prompt)) : null
        scored.push({ prompt, logprobs: await score(context, row, vocab.size, () => gone), ends: vocab.isEndOfGeneration(row.tokens.at(-1)!) })
      }
      sendJson(response, 200, { rows: scored })
    } finally {
      context.free()
    }
  } finally {
    served.users--
  }
}

async function score(context: Context, { tokens, targets }: Row, vocabSize: number, gone: () => boolean): Promise<number[]> {
  const last = targets.at(-1)!
  const wanted = new Set(targets)
  const logprobs: number[] = []
  for (let from = 0; from < last; from += tokensAtOnce) {
    const to = Math.min(last, from + tokensAtOnce)
    for (let place = from; place < to; place++) context.add(tokens[place]!, place, 0, wanted.has(place + 1))
    if (context.decode() !== 0) throw new ApiError('engine_failed', 'The engine could not compute these tokens.')
    for (let place = from; place < to; place++)
      if (wanted.has(place + 1)) logprobs.push(logProbability(context.logits(place - from, vocabSize), tokens[place + 1]!))
    // Streams go on in between, and a caller who has left wants no more.
    await nextTurn()
    if (gone()) throw new ApiError('engine_unavailable', 'The caller has left.')
  }
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
