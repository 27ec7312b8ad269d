// What a dataset is in tokens: counted by the trainer's own code, in a process of its own, so that the figures are the
// trainer's. It is bounded in time and memory, runs once at a time and by turns of the accounts, and ends with the
// client who asked.
import path from 'node:path'
import { z } from 'zod'
import { ApiError } from '../../contract/errors.ts'
import { createFairMutex } from '../../lib/mutex.ts'
import { root } from '../../lib/root.ts'
import { runBounded } from '../storage/untrusted-files.ts'

const max_ms = 600_000
/**
 * The library takes 200 MB and a large vocabulary some hundred more; a batch of texts and a row of 16 MiB have their
 * room in the rest.
 */
const max_memory_mb = 2048

const Place = z.object({ row: z.int(), line: z.int() })
const Length = Place.extend({ tokens: z.int(), at_least: z.boolean() })

export const TokenCount = z.object({
  /** Counted rows: all but those that are wrong or refused. */
  rows: z.int(),
  tokens: z.int(),
  longest: z.int(),
  max_length: z.int(),
  /** Rows of which only a lower bound was counted, since they are far longer than can be learned. */
  bounded_rows: z.int(),
  cut_rows: z.int(),
  cut_tokens: z.int(),
  histogram: z.array(z.object({ up_to: z.int().nullable(), rows: z.int() })),
  cut: z.array(Length.extend({ cut_tokens: z.int() })),
  no_learned_rows: z.int(),
  no_learned: z.array(Length),
  refused_rows: z.int(),
  refused: z.array(Place.extend({ message: z.string() })),
  parse_control_tokens: z.boolean(),
})
export type TokenCount = z.infer<typeof TokenCount>

export interface Preview {
  messages: { role: string; content: string }[]
  sequences: { tokens: { id: number; text: string; trained: boolean }[]; cut_tokens: number }[]
}

interface Request {
  hf: string
  rows: string
  max_length: number
}

/** Whose turn it is, and what ends the work. */
export interface Asker {
  account_id: string
  signal?: AbortSignal | undefined
}

/** The counting came to a bound; the message says which, as a sentence. */
export class CountStopped extends Error {}

export interface Tokens {
  parse_control_tokens: boolean
  /** Looks in `known` once more when its turn has come. Throws CountStopped. */
  count(
    asker: Asker,
    request: Request & { source_lines: boolean },
    known: () => Promise<TokenCount | undefined>,
  ): Promise<TokenCount>
  /** Undefined where there is no such row. */
  preview(asker: Asker, request: Request & { row: number }): Promise<Preview | undefined>
}

export function createTokens({
  python,
  parse_control_tokens,
}: {
  python: string
  parse_control_tokens: boolean
}): Tokens {
  const inTurn = createFairMutex()

  async function ask(request: Request, signal: AbortSignal | undefined): Promise<unknown> {
    const args = ['-m', 'trainer.cli.count', JSON.stringify({ ...request, parse_control_tokens })]
    // What the trainer reads is a stranger's: it is given no setting and no secret of the service.
    const env = { PATH: process.env.PATH, HOME: process.env.HOME, PYTHONPATH: root }
    const { status, printed, problem, stopped } = await runBounded({
      command: python,
      args,
      env,
      max_ms,
      max_memory_mb,
      ...(signal && { signal }),
    })
    if (stopped === 'time') throw new CountStopped(`Counting the tokens takes longer than ${max_ms / 1000} s.`)
    if (stopped === 'memory')
      throw new CountStopped(`Counting the tokens takes more than ${max_memory_mb} MB of memory.`)
    if (status !== 0)
      throw new Error(`trainer.cli.count of ${path.basename(request.rows)} ended with ${status}: ${problem}`)
    const found = JSON.parse(printed) as { problem?: string }
    if (found.problem) throw new ApiError('dataset_invalid', found.problem)
    return found
  }
  return {
    parse_control_tokens,
    count: ({ account_id, signal }, request, known) =>
      inTurn(account_id, async () => (await known()) ?? TokenCount.parse(await ask(request, signal)), signal),
    async preview({ account_id, signal }, request) {
      const found = (await inTurn(account_id, () => ask(request, signal), signal).catch((error) => {
        throw error instanceof CountStopped
          ? new ApiError('dataset_invalid', `The row cannot be shown. ${error.message}`)
          : error
      })) as Preview & { missing?: true }
      return found.missing ? undefined : found
    },
  }
}
