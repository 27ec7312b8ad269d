// Whether a key is one of the service, before anything is made for it. The service counts wrong keys by the address
// that they come from, which is this server's for all its clients: so they are counted here first, by client.
import { networkOf } from '../lib/connections.ts'
import { isWellFormed } from '../lib/key-format.ts'
import { isTuneryError, type Tunery, TuneryConnectionError } from '../sdk/index.ts'
import { Refusal, unauthorized } from './refusal.ts'

export interface KeyChecks {
  /** The account of a right key, or something that stands for it. Throws Refusal. `hash` in hex. */
  accountOf(key: string, hash: string, address: string, tunery: Tunery): Promise<string>
}

/** Wrong keys of a client's address at once; then one each `interval_ms`. */
const addressBurst = 5
/**
 * Wrong keys of all addresses together: at most 24 in a minute, below the service's own limit of 30 for this server's
 * address.
 */
const allBurst = 12
const interval_ms = 5000
/** How many intervals a key that was not seen before waits for its turn. */
const waits = 2
const wrongFor_ms = 60_000
const entriesMax = 10_000

export function createKeyChecks(wrongKey_ms = interval_ms): KeyChecks {
  const byAddress = createRate(addressBurst, wrongKey_ms)
  const ofAll = createRate(allBurst, wrongKey_ms)
  const underway = new Map<string, Promise<string>>()
  /** Keys that were wrong, and until when nobody is asked again. */
  const wrong = new Map<string, number>()
  /** Keys that were right: guesses of others must not keep them out. */
  const right = new Set<string>()

  async function look(key: string, hash: string, address: string, tunery: Tunery): Promise<string> {
    const network = networkOf(address)
    const isNew = !right.has(hash)
    if (isNew) {
      await byAddress.take(network)
      await ofAll.take('')
    }
    let isWrong = false
    try {
      return await askService(hash, tunery)
    } catch (error) {
      isWrong = isTuneryError(error, 'invalid_api_key')
      throw isWrong ? unknownKey() : refusalOf(error, key)
    } finally {
      if (isWrong) {
        right.delete(hash)
        if (wrong.size >= entriesMax) wrong.clear()
        wrong.set(hash, Date.now() + wrongFor_ms)
      } else if (isNew) {
        byAddress.giveBack(network)
        ofAll.giveBack('')
      }
    }
  }

  async function askService(hash: string, tunery: Tunery): Promise<string> {
    // A key without the scope to see its account stands for itself.
    const account = await tunery.user.profile({ maxRetries: 0 }).then(
      (profile) => profile.account.id,
      (error) => {
        if (isTuneryError(error, 'insufficient_permissions')) return hash
        throw error
      },
    )
    if (right.size >= entriesMax) right.clear()
    right.add(hash)
    return account
  }

  return {
    async accountOf(key, hash, address, tunery) {
      if (!isWellFormed(key) || (wrong.get(hash) ?? 0) > Date.now()) throw unknownKey()
      const asked = underway.get(hash)
      if (asked !== undefined) return asked
      const asking = look(key, hash, address, tunery).finally(() => underway.delete(hash))
      underway.set(hash, asking)
      return asking
    },
  }
}

const unknownKey = () => unauthorized('The key is not one of the service.', true)

function refusalOf(error: unknown, key: string): unknown {
  if (error instanceof TuneryConnectionError) return new Refusal(502, 'The service cannot be reached.')
  if (isTuneryError(error)) return new Refusal(error.status, error.message.replaceAll(key, 'tny_…'))
  return error
}

/** Lets `burst` through at once, then one each `interval_ms`. `take` waits for its turn, or throws 429. */
function createRate(burst: number, interval_ms: number) {
  /** When all that was taken so far has been earned. */
  const earned = new Map<string, number>()
  return {
    async take(name: string): Promise<void> {
      const now = performance.now()
      const at = Math.max(earned.get(name) ?? 0, now)
      const wait = at - (burst - 1) * interval_ms - now
      const late = wait - waits * interval_ms
      if (late > 0) throw new Refusal(429, 'Too many wrong keys.', { 'retry-after': String(Math.ceil(late / 1000)) })
      if (earned.size >= entriesMax) for (const [digest, time] of earned) if (time <= now) earned.delete(digest)
      earned.set(name, at + interval_ms)
      if (wait > 0) await new Promise((resolve) => setTimeout(resolve, wait))
    },
    giveBack(name: string): void {
      earned.set(name, (earned.get(name) ?? 0) - interval_ms)
    },
  }
}
