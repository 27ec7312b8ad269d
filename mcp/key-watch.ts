// Ends the sessions of a key soon after the key: a client that only listens asks the service nothing.
import { setTimeout as sleep } from 'node:timers/promises'
import { isTuneryError, type Tunery } from '../sdk/index.ts'

/** Two requests a minute of a key, whatever the service answers: they count towards the account's limits. */
const wait_seconds = 30

export interface KeyWatch {
  /** Asks the service as long as the key has sessions. `hash` in hex. */
  watch(hash: string, tunery: Tunery): void
  close(): void
}

interface Options {
  hasSessions(hash: string): boolean
  /** Closes the sessions of a key. */
  end(hash: string): void
}

export function createKeyWatch({ hasSessions, end }: Options): KeyWatch {
  const watched = new Set<string>()
  const closing = new AbortController()
  const { signal } = closing

  async function follow(hash: string, tunery: Tunery): Promise<void> {
    while (!signal.aborted && hasSessions(hash)) {
      try {
        await tunery.user.presence({ wait_seconds }, { maxRetries: 0, signal })
      } catch (error) {
        if (isTuneryError(error, 'invalid_api_key') || isTuneryError(error, 'account_suspended')) end(hash)
        else await sleep(1000 * wait_seconds, undefined, { signal }).catch(() => {})
      }
    }
    // Before anything else runs: a session that begins now is watched anew.
    watched.delete(hash)
  }

  return {
    watch(hash, tunery) {
      if (watched.has(hash)) return
      watched.add(hash)
      void follow(hash, tunery)
    },
    close: () => closing.abort(),
  }
}
