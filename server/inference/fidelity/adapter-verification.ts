// Asks the engine for what compare.ts compares, one model at a time.
import { ApiError } from '../../../contract/errors.ts'
import type { Comparison } from '../../../contract/models.ts'
import { createMutex } from '../../../lib/mutex.ts'
import type { Origin, ServableModel, TunedModels } from '../../fine-tuning/models/registry.ts'
import { type EngineClient, engineError } from '../engine/client.ts'
import { readAll } from '../replicas/http-client/client.ts'
import type { Target } from '../replicas/replica.ts'
import { compare, type Probe, parseScores, readProbe, type Scores } from './compare.ts'

const scoreTimeout_ms = 300_000

/** The rows of a probe as the engine is asked for them. */
export const scoredRows = (probe: Probe) =>
  probe.rows.map(({ prompt, tokens, targets }) => ({ prompt, tokens, targets }))

/**
 * How likely this machine's engine finds the rows. `at_once`: tokens that it computes in one go, by default as many as
 * it likes.
 */
export type Scoring = (
  target: Target,
  rows: ReturnType<typeof scoredRows>,
  options?: { at_once?: number; signal?: AbortSignal },
) => Promise<Scores>

export function createScoring(engine: EngineClient): Scoring {
  // Each has a context of its own in the engine.
  const inTurn = createMutex()
  return (target, rows, { at_once, signal } = {}) =>
    inTurn(async () => {
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

/**
 * Lets models be compared with what was trained, by this machine's engine, which all weights that were trained here can
 * be loaded into.
 */
export function compareModels(models: TunedModels, engine: EngineClient, scores: Scoring): void {
  async function comparison(tuned: ServableModel, origin: Origin): Promise<Comparison | undefined> {
    const probe = await readProbe(tuned.probe)
    if (probe.rows.length === 0) return undefined
    const rows = scoredRows(probe)
    const weights = { id: tuned.id, gguf: tuned.gguf }
    const target = tuned.kind === 'model' ? { base: weights } : { base: origin.base, adapter: weights }
    const found = compare(probe, await scores(target, rows), await scores(origin, rows))
    // An adapter may stay for its first request; whole weights are too large to hold for a model that may never be
    // asked.
    if (tuned.kind === 'model') await engine.unload({ base: tuned }).catch(() => {})
    return found
  }

  /** One comparison of a model at a time, and one of all: each may hold whole weights. */
  const underWay = new Map<string, Promise<Comparison | undefined>>()
  const inTurn = createMutex()
  models.compareWith((tuned, origin) => {
    const same = underWay.get(tuned.id)
    if (same) return same
    const mine = inTurn(() => comparison(tuned, origin)).finally(() => underWay.delete(tuned.id))
    underWay.set(tuned.id, mine)
    return mine
  })
}
