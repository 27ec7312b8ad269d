// What an exported GGUF file answers: by an engine process of its own that knows nothing but that file, as whoever
// takes it will run it.
import type { Logger } from 'pino'
import { z } from 'zod'
import { ApiError } from '../../contract/errors.ts'
import { createEngineClient, type EngineClient, engineError } from '../inference/engine/client.ts'
import { createEngineProcess } from '../inference/engine/process.ts'
import { createScoring } from '../inference/fidelity/adapter-verification.ts'
import { readAll } from '../inference/replicas/http-client/client.ts'
import type { Target } from '../inference/replicas/replica.ts'
import { type Answers, answerTokens } from './verdict.ts'

/** What the engine scores at once: more would be another question than the one that training asked. */
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

export interface Asking {
  /** The exported file; with what it stands on where it is an adapter alone. */
  file: string
  base_gguf: string | undefined
  /**
   * Tells its engine's socket from those of other data folders; the same for all exports of one, which are asked one
   * after the other.
   */
  place: string
  reference: Answers
  /** As the reference was made. */
  parse_control_tokens: boolean
  threads: number
  log: Logger
  signal: AbortSignal
  onProgress(done: number): void
}

/** Asks the file what the trainer was asked. Rejects with an ApiError where it cannot be loaded or computes nothing. */
export async function askGguf({
  file,
  base_gguf,
  place,
  reference,
  parse_control_tokens,
  threads,
  log,
  signal,
  onProgress,
}: Asking): Promise<Answers> {
  // The file as it is, not a copy of it in eight bits; and what one request gets alone.
  const options = [
    '--no-eight-bits',
    '--no-speculation',
    '--slots',
    '1',
    ...(parse_control_tokens ? ['--parse-control-tokens'] : []),
  ]
  // Half of the threads: those of the library wait for each other at full speed, and answers are served meanwhile.
  const engine = createEngineProcess({ dataDir: place, threads: Math.max(1, Math.floor(threads / 2)), options, log })
  const client = createEngineClient(engine, log)
  const own = { id: 'exported', gguf: file }
  const target: Target = base_gguf ? { base: { id: 'base', gguf: base_gguf }, adapter: own } : { base: own }
  try {
    const said: Said[] = []
    for (const row of reference.rows) {
      said.push(await answer(client, target, row.messages, signal))
      onProgress((0.8 * said.length) / reference.rows.length)
    }
    const scored = await score(client, target, reference, signal)
    onProgress(1)
    return { version: 1, rows: reference.rows.map((row, index) => asRow(row, said[index]!, scored[index]!)) }
  } finally {
    await engine.stop()
  }
}

interface Said {
  text: string
  /** Of each token. */
  bytes: string[]
  ended: boolean
}

async function answer(
  client: EngineClient,
  target: Target,
  messages: Answers['rows'][number]['messages'],
  signal: AbortSignal,
): Promise<Said> {
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
        `A prompt of the check has ${tokens.length} tokens with its answer; ${scoredTokensMax} at most can be compared.`,
      )
    return {
      prompt: messages,
      tokens,
      targets: answer_tokens.map((_, place) => tokens.length - answer_tokens.length + place),
    }
  })
  const scored = []
  for (let from = 0; from < rows.length; from += rowsAtOnce)
    scored.push(...(await scores(target, rows.slice(from, from + rowsAtOnce), { signal })).rows)
  return scored
}

/** The file's answer, in the tokens of the trainer's as far as they have the same bytes. */
function asRow(
  row: Answers['rows'][number],
  said: Said,
  scored: Awaited<ReturnType<typeof score>>[number],
): Answers['rows'][number] {
  const { messages, answer_tokens } = row
  const tokens = said.bytes.map((bytes, place) => (bytes === scored.bytes?.[place] ? answer_tokens[place]! : -1))
  // The end is no part of the text: it is the trainer's where both ends come after the same number of tokens.
  if (said.ended && tokens.length < answerTokens)
    tokens.push(tokens.length === answer_tokens.length - 1 && scored.ends ? answer_tokens.at(-1)! : -1)
  return {
    messages,
    prompt_tokens: scored.prompt,
    answer_tokens: tokens,
    answer: said.text,
    log_probabilities: scored.logprobs,
  }
}
