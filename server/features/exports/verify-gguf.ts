// Gets the answers of an exported GGUF file from a separate engine process that serves only that file, as its users
// will run it.

import type { Logger } from 'pino'
import { z } from 'zod'
import { ApiError } from '../../../contract/errors.ts'
import type { Projector } from '../hub/index.ts'
import type { ExportSource } from '../models/index.ts'
import {
  createEngineProcess,
  createScoring,
  EngineClient,
  engineError,
  readAll,
  type Target,
} from '../serving/index.ts'
import { type Answers, answerTokens } from './verdict.ts'

/** The most tokens of a row that can be scored. */
const scoredTokensMax = 2048
const rowsAtOnce = 16
const answerTimeout_ms = 300_000

const Reply = z.object({
  choices: z
    .array(
      z.object({
        message: z.object({ content: z.string().nullable() }),
        finish_reason: z.string().nullable(),
        logprobs: z.object({ content: z.array(z.object({ bytes: z.array(z.int()).nullable() })) }).nullable(),
      }),
    )
    .length(1),
})

interface VerifyGgufOptions {
  /** The exported GGUF. For an adapter, `base` is what it applies to. */
  file: string
  base: Pick<ExportSource['base'], 'gguf' | 'projector'> | undefined
  /** With which the exported file reads pictures: it must have the hash that it had in training. */
  projector: Projector | null
  /** Determines the engine's socket. All exports of a service can share one, as they are verified one at a time. */
  dataDir: string
  reference: Answers
  /** The setting that the reference answers were made with. */
  parse_control_tokens: boolean
  threads: number
  log: Logger
  signal: AbortSignal
  onProgress(done: number): void
}

/** Answers the reference prompts with the file. Rejects with an ApiError if it cannot be loaded or run. */
export async function verifyGguf({
  file,
  base,
  projector,
  dataDir,
  reference,
  parse_control_tokens,
  threads,
  log,
  signal,
  onProgress,
}: VerifyGgufOptions): Promise<Answers> {
  // Serve the file as it is (no int8 copy), without speculative decoding, one request at a time.
  const options = [
    '--no-eight-bits',
    '--no-speculation',
    '--slots',
    '1',
    ...(parse_control_tokens ? ['--parse-control-tokens'] : []),
  ]
  // Half of the threads: the library's threads spin while they wait, and the service still serves requests.
  const engine = createEngineProcess({ dataDir, threads: Math.max(1, Math.floor(threads / 2)), options, log })
  const client = new EngineClient(engine, log)
  const exported = { id: 'exported', gguf: file, projector }
  const target: Target = base
    ? { base: { id: 'base', gguf: base.gguf, projector: base.projector }, adapter: exported }
    : { base: exported }
  try {
    const generated: GeneratedAnswer[] = []
    for (const row of reference.rows) {
      generated.push(await generate(client, target, row.messages, signal))
      onProgress((0.8 * generated.length) / reference.rows.length)
    }
    const scored = await score(client, target, reference, signal)
    onProgress(1)
    return { version: 2, rows: reference.rows.map((row, index) => toAnswerRow(row, generated[index]!, scored[index]!)) }
  } finally {
    await engine.stop()
  }
}

interface GeneratedAnswer {
  text: string
  /** The bytes of each token, base64. */
  bytes: string[]
  ended: boolean
}

async function generate(
  client: EngineClient,
  target: Target,
  messages: Answers['rows'][number]['messages'],
  signal: AbortSignal,
): Promise<GeneratedAnswer> {
  const ended = AbortSignal.any([signal, AbortSignal.timeout(answerTimeout_ms)])
  const body = { messages, temperature: 0, max_tokens: answerTokens, logprobs: true }
  const { response } = await client.post(
    target,
    '/v1/chat/completions',
    (model) => JSON.stringify({ ...body, model }),
    {},
    ended,
  )
  const text = (await readAll(response)).toString('utf8')
  if (response.status !== 200) throw engineError(response.status, text)
  const [choice] = Reply.parse(JSON.parse(text)).choices
  return {
    text: choice!.message.content ?? '',
    bytes: (choice!.logprobs?.content ?? []).map(({ bytes }) => Buffer.from(bytes ?? []).toString('base64')),
    ended: choice!.finish_reason === 'stop',
  }
}

async function score(client: EngineClient, target: Target, reference: Answers, signal: AbortSignal) {
  const scores = createScoring(client)
  const rows = reference.rows.map(({ messages, prompt_tokens, answer_tokens }) => {
    const tokens = [...(prompt_tokens ?? []), ...answer_tokens]
    if (tokens.length > scoredTokensMax)
      throw new ApiError(
        'context_length_exceeded',
        `A prompt of the check has ${tokens.length} tokens with its answer; ${scoredTokensMax} at most ` +
          'can be compared.',
      )
    return {
      prompt: messages,
      tokens,
      targets: answer_tokens.map((_, position) => tokens.length - answer_tokens.length + position),
    }
  })
  const scored = []
  for (let from = 0; from < rows.length; from += rowsAtOnce)
    scored.push(...(await scores(target, rows.slice(from, from + rowsAtOnce), { signal })).rows)
  return scored
}

/** Converts a generated answer to a row, with the trainer's token ids where the token bytes are equal, else -1. */
function toAnswerRow(
  row: Answers['rows'][number],
  generated: GeneratedAnswer,
  scored: Awaited<ReturnType<typeof score>>[number],
): Answers['rows'][number] {
  const { messages, answer_tokens } = row
  const tokens = generated.bytes.map((bytes, position) =>
    bytes === scored.bytes?.[position] ? answer_tokens[position]! : -1,
  )
  // The end token has no text: use the trainer's if both answers end after the same number of tokens.
  if (generated.ended && tokens.length < answerTokens)
    tokens.push(tokens.length === answer_tokens.length - 1 && scored.ends ? answer_tokens.at(-1)! : -1)
  return {
    messages,
    prompt_tokens: scored.prompt,
    answer_tokens: tokens,
    answer: generated.text,
    log_probabilities: scored.logprobs,
  }
}
