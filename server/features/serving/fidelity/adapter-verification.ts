// Verifies tuned models: scores probe rows in the engine and compares them with the trainer's scores (compare.ts).
import { ApiError } from '../../../../contract/errors.ts'
import type { Comparison } from '../../../../contract/models.ts'
import { createFairQueue } from '../../../../lib/fair-queue.ts'
import { createMutex } from '../../../../lib/mutex.ts'
import type { ServableModel, ServedBase } from '../../models/index.ts'
import { type EngineClient, engineError } from '../engine/client.ts'
import { readAll } from '../http-client/client.ts'
import type { Target } from '../requests/replica.ts'
import { compare, type Probe, parseScores, readProbe, type Scores } from './compare.ts'

const scoreTimeout_ms = 300_000

/** The rows of a probe in the form that the engine's score route takes. */
export const rowsToScore = (probe: Probe) =>
  probe.rows.map(({ prompt, tokens, targets }) => ({ prompt, tokens, targets }))

/** Scores rows in this machine's engine. `at_once`: tokens computed per batch; by default the engine chooses. */
export type ScoreRows = (
  target: Target,
  rows: ReturnType<typeof rowsToScore>,
  options?: { at_once?: number; signal?: AbortSignal },
) => Promise<Scores>

export function createScoring(engine: EngineClient): ScoreRows {
  // One at a time: each call allocates its own context in the engine.
  const serialize = createMutex()
  return (target, rows, { at_once, signal } = {}) =>
    serialize(async () => {
      const timeout = AbortSignal.timeout(scoreTimeout_ms)
      const ended = signal ? AbortSignal.any([timeout, signal]) : timeout
      try {
        const { response } = await engine.post(
          target,
          '/internal/score',
          (model) => JSON.stringify({ at_once, rows, model }),
          {},
          ended,
        )
        const text = (await readAll(response)).toString('utf8')
        if (response.status !== 200) throw engineError(response.status, text)
        return parseScores(text)
      } catch (error) {
        if (timeout.aborted)
          throw new ApiError(
            'engine_unavailable',
            'Comparing the model with its training takes too long just now. Try again in a moment.',
          )
        throw error
      }
    })
}

/** Compares tuned models with their training. Uses this machine's engine, never an upstream. */
export function createComparison(
  engine: EngineClient,
  scoreRows: ScoreRows,
): (tuned: ServableModel, origin: ServedBase, account_id: string) => Promise<Comparison | undefined> {
  async function compareModel(tuned: ServableModel, origin: ServedBase): Promise<Comparison | undefined> {
    const probe = await readProbe(tuned.probe)
    if (probe.rows.length === 0) return undefined
    const rows = rowsToScore(probe)
    const weights = { id: tuned.id, gguf: tuned.gguf, projector: tuned.projector ?? null }
    const target = tuned.kind === 'model' ? { base: weights } : { base: origin.base, adapter: weights }
    const score = async () => [await scoreRows(target, rows), await scoreRows(origin, rows)] as const
    let [after, before] = await score()
    // The base got its eight-bit form in between.
    if (tuned.kind === 'adapter' && after.eight_bits !== before.eight_bits) [after, before] = await score()
    const comparison = compare(probe, after, before)
    // An adapter stays loaded for its first request; full weights are too large to keep for a model that may get none.
    if (tuned.kind === 'model') await engine.unload({ base: tuned }).catch(() => {})
    return comparison
  }

  /**
   * Comparisons in progress: callers share one per model. They run one at a time, as each may load full weights,
   * accounts in turn.
   */
  const running = new Map<string, Promise<Comparison | undefined>>()
  const inTurn = createFairQueue()
  return (tuned, origin, account_id) => {
    const existing = running.get(tuned.id)
    if (existing !== undefined) return existing
    const started = inTurn(account_id, () => compareModel(tuned, origin)).finally(() => running.delete(tuned.id))
    running.set(tuned.id, started)
    return started
  }
}
