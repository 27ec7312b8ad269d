// The slots of an account: requests and jobs that it may have at once.
import { setTimeout as sleep } from 'node:timers/promises'
import type { FutureHandle } from './futures.ts'

const wait_ms = 300

/** Takes a slot once there is one, and returns what gives it back. Rejects when the request is given up. */
export async function waitForSlot(
  acquireSlot: (account_id: string) => Promise<(() => void) | undefined>,
  account_id: string,
  { signal, waits }: Pick<FutureHandle, 'signal' | 'waits'>,
): Promise<() => void> {
  for (;;) {
    const release = await acquireSlot(account_id)
    if (release) return release
    waits({ state: 'paused_rate_limit', reason: 'the account has as many requests and jobs as it may' })
    await sleep(wait_ms, undefined, { signal })
  }
}
