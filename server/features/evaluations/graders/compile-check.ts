// Compiles the patterns and schemas of new graders before they are stored, outside of the main thread.
import { ApiError } from '../../../../contract/errors.ts'
import { createFairQueue } from '../../../../lib/fair-queue.ts'
import type { Compilable } from './local.ts'
import { GraderError } from './template.ts'
import { createGradingThread } from './thread.ts'

/** CPU time of all patterns and schemas of one request. */
const total_ms = 2000
/** Requests of an account that may wait for their check. */
const waiting_max = 8
/** The thread takes 80 ms to start, and 20 MB: it stays while checks follow each other. */
const idle_ms = 10_000

interface FieldProblem {
  field: string
  message: string
}

/** Resolves with what is wrong with the first one that cannot be used. Rejects with overloaded. */
export type CompileCheck = (
  account_id: string,
  fields: readonly { field: string; compilable: Compilable }[],
) => Promise<FieldProblem | undefined>

/** Checks of different accounts run in turn, one at a time. */
export function createCompileCheck(): CompileCheck {
  const thread = createGradingThread()
  const inTurn = createFairQueue({
    waiting_max,
    tooMany: () =>
      new ApiError('overloaded', `${waiting_max} other requests of this account wait for the check of their graders.`),
  })
  let idle: NodeJS.Timeout | undefined

  return async (account_id, fields) => {
    if (fields.length === 0) return undefined
    return inTurn(account_id, async () => {
      clearTimeout(idle)
      const bounds = { left_ms: total_ms }
      try {
        for (const { field, compilable } of fields) {
          try {
            await thread.compile(compilable, bounds)
          } catch (error) {
            if (!(error instanceof GraderError)) throw error
            return { field, message: error.message }
          }
        }
        return undefined
      } finally {
        idle = setTimeout(() => void thread.close(), idle_ms).unref()
      }
    })
  }
}
