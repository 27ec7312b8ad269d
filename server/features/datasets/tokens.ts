// Token counts of datasets, computed by the trainer's code in a child process so that they match training. Bounded in
// time and memory, one at a time, round robin over accounts, and aborted when the client disconnects.
import path from 'node:path'
import { z } from 'zod'
import { ApiError } from '../../../contract/errors.ts'
import type { Objective } from '../../../contract/hyperparameters.ts'
import { runToEnd } from '../../../lib/child-process.ts'
import { createFairQueue } from '../../../lib/fair-queue.ts'
import { root } from '../../../lib/root.ts'
import { usableCores } from '../../../lib/usable-cores.ts'
import type { TrainingSetup } from '../../platform/setup/index.ts'

const max_ms = 600_000
/** Processes that count a large file. More would take the memory of other work. */
const workers = Math.min(4, usableCores())
/**
 * The library takes 200 MB and a large vocabulary some hundred more; the rest is for a batch and a row of 32 MiB. One
 * worker at a time has rows of many MB, the others have a library each.
 */
const max_memory_mb = 2048 + 512 * (workers - 1)

const RowPosition = z.object({ row: z.int(), line: z.int() })
const RowLength = RowPosition.extend({ tokens: z.int(), at_least: z.boolean() })

export const TokenCount = z.object({
  /** Counted rows: all except invalid and refused rows. */
  rows: z.int(),
  tokens: z.int(),
  longest: z.int(),
  max_length: z.int(),
  /** Rows with only a lower bound of their tokens, because they are far longer than `max_length`. */
  bounded_rows: z.int(),
  cut_rows: z.int(),
  cut_tokens: z.int(),
  histogram: z.array(z.object({ up_to: z.int().nullable(), rows: z.int() })),
  cut: z.array(RowLength.extend({ cut_tokens: z.int() })),
  no_learned_rows: z.int(),
  no_learned: z.array(RowLength),
  /** Rows with thoughts for which the chat template has no place. */
  lost_thoughts_rows: z.int(),
  lost_thoughts: z.array(RowPosition),
  refused_rows: z.int(),
  refused: z.array(RowPosition.extend({ message: z.string() })),
  parse_control_tokens: z.boolean(),
})
export type TokenCount = z.infer<typeof TokenCount>

/** In the place of a picture a message has what is known of it. */
export interface PictureTokens {
  type: 'image'
  width: number
  height: number
  tokens: number
}

export interface Preview {
  messages: { role: string; content: string | ({ type: 'text'; text: string } | PictureTokens)[] }[]
  sequences: { tokens: { id: number; text: string; trained: boolean }[]; cut_tokens: number }[]
}

interface BaseRequest {
  /** The checkpoint of the base; null if it is not here. */
  hf: string | null
  rows: string
  max_length: number
  objective: Objective
}

/** The account to schedule the work for, and the signal that aborts it. */
export interface Requester {
  account_id: string
  signal?: AbortSignal | undefined
}

/** Counting exceeded its time or memory limit. The message is a sentence that says which. */
export class CountStopped extends Error {}

export interface Tokens {
  parse_control_tokens: boolean
  /** Checks `known` (the cache) again before it starts to count. Throws CountStopped and training_not_ready. */
  count(asker: Requester, request: BaseRequest, findCached: () => Promise<TokenCount | undefined>): Promise<TokenCount>
  /** Undefined if there is no such row. Throws training_not_ready. */
  preview(asker: Requester, request: BaseRequest & { row: number }): Promise<Preview | undefined>
}

export function createTokens({
  python,
  trainingSetup,
  parse_control_tokens,
}: {
  python: string
  trainingSetup: TrainingSetup
  parse_control_tokens: boolean
}): Tokens {
  const serialized = createFairQueue()

  async function runCount(request: BaseRequest, signal: AbortSignal | undefined): Promise<unknown> {
    trainingSetup.requireReady()
    if (request.hf === null) throw new CountStopped('The checkpoint of the base, with its tokenizer, is not here.')
    const args = ['-m', 'trainer.cli.count', JSON.stringify({ ...request, parse_control_tokens, workers })]
    // The rows are untrusted: pass no settings or secrets of the service.
    const env = { PATH: process.env.PATH, HOME: process.env.HOME, PYTHONPATH: root }
    const { status, stdout, stderr, exceeded } = await runToEnd(python, args, {
      env,
      stdout: 'text',
      signal,
      limits: { max_ms, max_memory_mb, with_children: true },
    })
    if (exceeded === 'time') throw new CountStopped(`Counting the tokens takes longer than ${max_ms / 1000} s.`)
    if (exceeded === 'memory')
      throw new CountStopped(`Counting the tokens takes more than ${max_memory_mb} MB of memory.`)
    if (exceeded) throw new CountStopped('There are too many tokens to list.')
    if (status !== 0)
      throw new Error(`trainer.cli.count of ${path.basename(request.rows)} ended with ${status}: ${stderr}`)
    const report = JSON.parse(stdout) as { problem?: string }
    if (report.problem) throw new ApiError('dataset_invalid', report.problem)
    return report
  }
  return {
    parse_control_tokens,
    count: ({ account_id, signal }, request, findCached) =>
      serialized(
        account_id,
        async () => (await findCached()) ?? TokenCount.parse(await runCount(request, signal)),
        signal,
      ),
    async preview({ account_id, signal }, request) {
      const output = (await serialized(account_id, () => runCount(request, signal), signal).catch((error) => {
        throw error instanceof CountStopped
          ? new ApiError('dataset_invalid', `The row cannot be shown. ${error.message}`)
          : error
      })) as Preview & { missing?: true }
      return output.missing ? undefined : output
    },
  }
}
