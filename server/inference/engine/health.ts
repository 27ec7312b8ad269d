// Whether the running engine moves on, and the end of one that does not answer any more.
import type { Logger } from 'pino'
import { readAll, send } from '../replicas/http-client/client.ts'
import { type EngineClient, engineError } from './client.ts'
import type { EngineLife, EngineProcess } from './process.ts'

export interface EngineHealth {
  /** Why the engine makes no headway, or undefined where it does or there is none. Takes `answer_ms` at most. */
  problem(): Promise<string | undefined>
  /**
   * Kills, from now on, an engine that has requests and has not answered for a minute: another is started in its place.
   * Returns the way to stop that.
   */
  watch(): () => void
}

interface Times {
  /** How long the engine may take to tell of its health. Its thread is at a step meanwhile, which is shorter. */
  answer_ms: number
  watch_ms: number
  /** It is killed at this many times without an answer, one after the other: a machine that slept lets one pass. */
  unanswered: number
}

export function createEngineHealth(
  engine: Pick<EngineProcess, 'current'>,
  { isBusy }: Pick<EngineClient, 'isBusy'>,
  log: Logger,
  { answer_ms, watch_ms, unanswered }: Times = { answer_ms: 5_000, watch_ms: 10_000, unanswered: 6 },
): EngineHealth {
  /** What the engine says is wrong; null where it does not answer. */
  async function ask(life: EngineLife): Promise<string | null | undefined> {
    try {
      const response = await send(
        life.connections,
        { method: 'GET', path: '/health/ready' },
        AbortSignal.any([life.ended, AbortSignal.timeout(answer_ms)]),
      )
      const text = (await readAll(response)).toString('utf8')
      return response.status === 200 ? undefined : engineError(response.status, text).message
    } catch {
      // One that has ended is followed by another.
      return life.ended.aborted ? undefined : null
    }
  }

  let asking: Promise<string | undefined> | undefined
  return {
    problem() {
      const life = engine.current()
      if (!life) return Promise.resolve(undefined)
      // The question is open to everyone, and asked once for all who wait.
      asking ??= ask(life)
        .then((said) => (said === null ? `the engine has not answered within ${answer_ms / 1000} s` : said))
        .finally(() => {
          asking = undefined
        })
      return asking
    },

    watch() {
      let missed = 0
      let watched: EngineLife | undefined
      let isAsking = false
      const timer = setInterval(async () => {
        const life = engine.current()
        if (life !== watched || !life || !isBusy()) missed = 0
        watched = life
        if (!life || !isBusy() || isAsking) return
        isAsking = true
        missed = (await ask(life)) === null ? missed + 1 : 0
        isAsking = false
        if (missed < unanswered || life.ended.aborted) return
        log.error(
          { pid: life.pid },
          'the engine has requests and does not answer any more: it is killed, and another is started',
        )
        process.kill(life.pid, 'SIGKILL')
      }, watch_ms)
      timer.unref()
      return () => clearInterval(timer)
    },
  }
}
