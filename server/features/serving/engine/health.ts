// Health check of the running engine, and a watchdog that kills a hung one.
import type { Logger } from 'pino'
import { runPeriodically } from '../../../../lib/periodic.ts'
import { readAll, send } from '../http-client/client.ts'
import { type EngineClient, engineError } from './client.ts'
import type { EngineInstance, EngineProcess } from './process.ts'

interface EngineHealth {
  /** Why the engine makes no progress; undefined if it does or none runs. Takes up to `answer_ms`. */
  problem(): Promise<string | undefined>
  /**
   * Starts the watchdog: kills an engine that has requests and has not answered for a minute, so that it is restarted.
   * Returns a function that stops it.
   */
  watch(): () => void
}

interface HealthTimes {
  /** Timeout of a probe. Longer than a decode step, during which the engine's thread cannot answer. */
  answer_ms: number
  watch_ms: number
  /** Consecutive missed probes before the kill: more than one, as a suspended machine misses one. */
  misses_max: number
}

export function createEngineHealth(
  engine: Pick<EngineProcess, 'current'>,
  client: Pick<EngineClient, 'isBusy'>,
  log: Logger,
  { answer_ms, watch_ms, misses_max }: HealthTimes = { answer_ms: 5_000, watch_ms: 10_000, misses_max: 6 },
): EngineHealth {
  /** The problem that the engine reports, undefined if it reports none; null if it does not answer. */
  async function probe(instance: EngineInstance): Promise<string | null | undefined> {
    try {
      const response = await send(
        instance.pool,
        { method: 'GET', path: '/health/ready' },
        AbortSignal.any([instance.ended, AbortSignal.timeout(answer_ms)]),
      )
      const text = (await readAll(response)).toString('utf8')
      return response.status === 200 ? undefined : engineError(response.status, text).message
    } catch {
      // An engine that exited is restarted anyway.
      return instance.ended.aborted ? undefined : null
    }
  }

  let probing: Promise<string | undefined> | undefined
  return {
    problem() {
      const instance = engine.current()
      if (!instance) return Promise.resolve(undefined)
      // The health route needs no key, so concurrent callers share one probe.
      probing ??= probe(instance)
        .then((problem) => (problem === null ? `the engine has not answered within ${answer_ms / 1000} s` : problem))
        .finally(() => {
          probing = undefined
        })
      return probing
    },

    watch() {
      let missed = 0
      let watched: EngineInstance | undefined
      const check = async () => {
        const instance = engine.current()
        if (instance !== watched || !instance || !client.isBusy()) missed = 0
        watched = instance
        if (!instance || !client.isBusy()) return
        missed = (await probe(instance)) === null ? missed + 1 : 0
        if (missed < misses_max || instance.ended.aborted) return
        log.error({ pid: instance.pid }, 'the engine has requests but does not answer: it is killed and restarted')
        process.kill(instance.pid, 'SIGKILL')
      }
      const task = runPeriodically(watch_ms, check)
      // Not awaited: the engine may hang.
      return () => void task.close()
    },
  }
}
